"""Every function of numpy's that capture knows, on tensors and arrays of many dtypes and layouts, against numpy.

    python -m tests.capture.arrays.numpy_calls_of_tensors

Prints the calls whose outcome differs (type, dtype, sizes, strides, values, what shares memory, errors), and how many
were one graph.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import argand
from argand.capture.arrays import array_tables as tables
from argand.capture.driver.explain import Findings

DTYPES = (torch.float32, torch.int64, torch.float64, torch.bool, torch.uint8, torch.float16)
LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t,
    lambda t: t.mT,
    lambda t: t[0, 0],
    lambda t: t[:, 1:],
)
MORE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "reshape": (-1,), "moveaxis": (0, -1), "rollaxis": (0,), "swapaxes": (0, -1), "expand_dims": (0,), "split": (1,),
    "array_split": (2,), "broadcast_to": ((3, 3, 3),), "roll": (1,), "tile": (2,), "repeat": (2,), "take": ([0],),
    "pad": (1, "edge"), "resize": ((2, 2),), "clip": (1, 2), "full_like": (3,), "quantile": (0.5,), "put": ([0], [1]),
    "percentile": (50,), "interp": ([0, 1, 2], [1, 3, 5]), "digitize": ([1, 2],), "isin": ([1, 2],), "delete": (0,),
    "insert": (0, 1), "linspace": (9, 3), "partition": (0,), "argpartition": (0,), "nanquantile": (0.5,),
    "nanpercentile": (50,), "linalg.matrix_power": (2,), "fill_diagonal": (7,), "append": (1,), "place": ([1], [2]),
    "linalg.norm": (), "histogram": (3,), "logspace": (1, 3), "copyto": (4,),
}  # fmt: skip
TWICE = frozenset(
    "convolve correlate outer inner dot vdot kron cross isclose searchsorted polyval linalg.solve tensordot where "
    "concatenate stack vstack hstack dstack column_stack append meshgrid broadcast_arrays array_equal lexsort".split()
)
IN_LIST = frozenset("concatenate stack vstack hstack dstack column_stack lexsort".split())


def functions() -> dict[str, Callable[..., Any]]:
    """Each function by its name, as one of a tensor or array."""
    listed: dict[str, Callable[..., Any]] = {}
    for name in sorted({*tables.UFUNCS, *tables.FUNCTIONS, *tables.ITSELF, *[f"fft.{name}" for name in tables.FFT]}):
        module, _, last = name.rpartition(".")
        fn = getattr(getattr(np, module) if module else np, last, None)
        if fn is None or name in tables.UNDEFINED:
            continue
        more = MORE_ARGUMENTS.get(name, ())
        if name in IN_LIST:
            listed[name] = lambda x, fn=fn: fn([x, x])
        elif name in TWICE or (isinstance(fn, np.ufunc) and fn.nin == 2):
            listed[name] = lambda x, fn=fn: fn(x, x)
        elif tables.ITSELF.get(name, "").startswith("w"):
            listed[name] = lambda x, fn=fn, more=more: (fn(x, *more), x)
        else:
            listed[name] = lambda x, fn=fn, more=more: fn(x, *more)
    for name in ("sort", "argsort", "cumsum", "view", "copy", "mean"):
        listed[f"method {name}"] = lambda x, name=name: (getattr(x, name)(), x)
    for name in ("reduce", "accumulate", "outer"):
        listed[f"add.{name}"] = lambda x, name=name: getattr(np.add, name)(*([x, x] if name == "outer" else [x]))
    listed["array of items"] = lambda x: np.array([x[0], x[1]])
    listed["tensor of items"] = lambda x: torch.tensor([x[0], x[1]])
    for symbol, op in (("*", lambda a, b: a * b), ("+", lambda a, b: a + b), ("/", lambda a, b: a / b)):
        listed[f"tensor {symbol} array"] = lambda x, op=op: op(torch.ones(3, dtype=torch.float32), x)
        listed[f"tensor {symbol} scalar"] = lambda x, op=op: op(torch.ones(3), np.sum(x))
    return listed


def outcome(fn: Callable[..., Any], given: Any) -> Any:
    """What a call gives, with what tells of memory; the class of what it raises."""
    given = copy.deepcopy(given)
    try:
        return fn(given), given
    except Exception as error:
        return type(error)


def difference(want: Any, got: Any) -> str:
    """How two outcomes differ, "" where they do not."""
    if isinstance(want, type) or isinstance(got, type):
        return "" if want is got else f"{got} for {want}"
    return _differs(want[0], got[0], want[1], got[1])


def _differs(want: Any, got: Any, theirs: Any, ours: Any) -> str:
    if type(want) is not type(got):
        return f"{type(got).__name__} for {type(want).__name__}"
    if isinstance(want, list | tuple):
        if len(want) != len(got):
            return "another number of results"
        return next(filter(None, [_differs(a, b, theirs, ours) for a, b in zip(want, got)]), "")
    if not isinstance(want, torch.Tensor | np.ndarray | np.generic):
        return "" if want == got else f"{got} for {want}"
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    a, b, held_a, held_b = (np.asarray(each) for each in (want, got, theirs, ours))
    if a.size > 1 and a.strides != b.strides:
        return f"strides {b.strides} for {a.strides}"
    if np.may_share_memory(a, held_a) != np.may_share_memory(b, held_b) and not isinstance(want, np.generic):
        return "memory is shared, or is not"
    tolerance = 1e-2 if a.dtype.itemsize == 2 else 1e-5
    near = np.allclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=a.dtype.kind in "fc")
    return "" if near else f"values {b} for {a}"


def argument(dtype: torch.dtype, layout: int, as_array: bool) -> Any:
    """A tensor, or the array that shares its memory."""
    tensor = LAYOUTS[layout](torch.tensor([[3, 1, 2], [1, 4, 0], [2, 0, 5]]).to(dtype))
    return tensor.numpy() if as_array else tensor


def compared(name: str, dtype: torch.dtype, layout: int, as_array: bool, backend: str = "eager") -> tuple[str, bool]:
    """(how one call differs from numpy's, whether it was one graph)."""
    fn = functions()[name]
    given = argument(dtype, layout, as_array)
    findings = Findings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(fn, given)
        compiled = argand.compile(fn, backend=backend)
        with findings.listening():
            differs = next(filter(None, [difference(want, outcome(compiled, given)) for _ in range(2)]), "")
    argand.reset()
    return differs, not findings.breaks and not isinstance(want, type)


def cases() -> Iterator[tuple[str, torch.dtype, int, bool]]:
    """Every function with every dtype, layout and kind of argument."""
    for name in functions():
        for dtype in DTYPES:
            for layout in range(len(LAYOUTS)):
                for as_array in (False, True):
                    yield name, dtype, layout, as_array


if __name__ == "__main__":
    share, count, whole = int(sys.argv[1]) if len(sys.argv) > 1 else 1, 0, 0
    for number, case in enumerate(cases()):
        if number % share:
            continue
        text, one = compared(*case)
        count, whole = count + 1, whole + one
        if text:
            print(*case, text, flush=True)
    print(f"{count} calls, {whole} in one graph")
