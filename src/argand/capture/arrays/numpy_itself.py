"""Functions that no function of torch's computes alike: one operation of the graph, which calls numpy itself.

Their results' sizes and dtypes follow from sizes and dtypes: numpy gives them on made-up values. Only arguments that
the tables say are data may be arrays that the graph computes, never an axis or a count.
"""

from __future__ import annotations

import sys

import torch

from argand.capture.arrays import array_tables as tables
from argand.capture.arrays.array_arguments import Array, plain, refusal, traced_in
from argand.capture.facts import numpy_settings
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.values.array_value import Traced
from argand.graph.operators.numpy_ops import changed, described, numpy_ops, results_of
from argand.graph.trees import mapped


def text_of(fn: Function) -> tuple[str, str] | None:
    """How a function of numpy's is written, and which of its positional arguments are data; None for one that does
    not call for this."""
    name = getattr(fn, "__name__", "")
    bound = getattr(fn, "__self__", None)
    if isinstance(bound, numpy.ufunc):
        positions = tables.UFUNC_METHODS.get(name)
        return (f"numpy.{bound.__name__}.{name}", positions) if positions else None
    if isinstance(fn, numpy.ufunc):
        for path in ("numpy", "scipy.special"):
            if getattr(sys.modules.get(path), name, None) is fn:
                return f"{path}.{name}", "0123"
        return None
    for path, module in (("numpy", numpy), ("numpy.linalg", numpy.linalg), ("numpy.fft", numpy.fft)):
        if getattr(module, name, None) is fn:
            positions = tables.ITSELF.get(f"{path}.{name}".removeprefix("numpy."))
            known = {"numpy": tables.FUNCTIONS, "numpy.fft": tables.FFT}.get(path, ())
            if positions is None and name in known and name not in tables.UNDEFINED:
                positions = "0"
            return (f"{path}.{name}", positions) if positions else None
    return None


def call(state: CaptureState, text: str, positions: str, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The call as an operation.

    Arguments:
        text: how the function is written; `.name` for a method of the first argument.
        positions: which arguments may be arrays that the graph computes.

    Raises:
        GraphBreak: another one is, or numpy raises, or gives a view of an argument.
    """
    name = text.rpartition(".")[2]
    writes = positions.startswith("w")
    decisive = [arg for at, arg in enumerate(args) if str(at) not in positions]
    decisive += [value for key, value in kwargs.items() if key not in tables.DATA_KEYWORDS]
    if writes and type(args[0]) is Traced and args[0]._a_flips:
        raise refusal(name, "it writes to an array that runs backwards through its memory")
    if traced_in(decisive):
        raise refusal(name, "an argument that decides about sizes is an array that the graph computes")
    expected = _expected(state, name, fn, args, kwargs, writes)
    if args and type(args[0]) is Traced and expected is args[0]._a_dummy:
        return args[0]
    inputs: list[torch.Tensor] = []
    written = [_text(state, name, arg, inputs) for arg in args]
    written += [f"{key}={_text(state, name, value, inputs)}" for key, value in kwargs.items()]
    function = f"numpy.ndarray{text}" if text.startswith(".") else text
    whole = f"changed({function}, {', '.join(written)})" if writes else f"{function}({', '.join(written)})"
    parts = results_of(expected)
    spec = described([numpy.asarray(part) for part in parts])
    with torch._C.DisableTorchFunction():
        results = state.graph.call(numpy_ops().numpy_call, (inputs, whole, spec), {})
    traced = [Traced(state.arrays, part, tensor) for part, tensor in zip(parts, results)]
    if writes:
        args[0]._a_tensor.data.copy_(traced[0]._a_tensor)
        return None
    if not isinstance(expected, tuple | list):
        return traced[0]
    return type(expected)(*traced) if hasattr(expected, "_fields") else type(expected)(traced)


def _expected(state: CaptureState, name: str, fn: Function, args: Args, kwargs: Kwargs, writes: bool) -> Array:
    """What numpy gives for made-up values."""
    numpy_settings.rely(state, name)
    inputs = [array._a_dummy for array in traced_in((args, kwargs))]
    given, named = plain(args), plain(kwargs)

    def outcome(args: Args) -> Array:
        return changed(fn, *args, **named) if writes else fn(*args, **named)

    try:
        with numpy_settings.quiet():
            try:
                expected = outcome(given)
            except numpy.linalg.LinAlgError:
                expected = outcome(mapped(given, _regular))
    except Exception as e:  # numpy's error: the program gets it where the call really runs
        raise refusal(name, f"numpy says {type(e).__name__}: {e}") from e
    parts = [] if any(expected is each for each in inputs) else results_of(expected)
    for at, part in enumerate(parts):
        if not isinstance(part, numpy.ndarray | numpy.generic) or part.dtype.name not in tables.DTYPES:
            raise refusal(name, "its result is none that a tensor could hold")
        array = numpy.asarray(part)
        if any(step < 0 for step in array.strides) or array.nbytes > tables.LARGEST_BYTES:
            raise refusal(name, "its result is none that a tensor could hold")
        if any(numpy.may_share_memory(array, each) for each in [*inputs, *parts[:at]]):
            raise refusal(name, "numpy gives a view of its argument")
    return expected


def _regular(value: object) -> object:
    """An array whose matrices can be inverted."""
    if not isinstance(value, numpy.ndarray) or value.ndim < 2:
        return value
    return (numpy.zeros_like(value) + numpy.eye(*value.shape[-2:])).astype(value.dtype)


def _text(state: CaptureState, name: str, value: Array, inputs: list[torch.Tensor]) -> str:
    """An argument as it is written; arrays come to `inputs`."""
    if type(value) is Traced or isinstance(value, numpy.ndarray):
        if type(value) is Traced:
            inputs.append(value._a_tensor)
        elif value.dtype.name in tables.DTYPES and type(value) is numpy.ndarray:
            with torch._C.DisableTorchFunction():
                inputs.append(state.graph.constant(torch.from_numpy(numpy.array(value))))
        else:
            raise refusal(name, f"torch has no dtype {value.dtype}")
        scalar = "[()]" if value.__class__ is not numpy.ndarray else ""
        return f"a[{len(inputs) - 1}]{scalar}"
    if type(value) in (tuple, list):
        items = [_text(state, name, item, inputs) for item in value]
        return f"[{', '.join(items)}]" if type(value) is list else f"({', '.join(items)}{',' * (len(items) == 1)})"
    if type(value) in (bool, int, float, complex, str, type(None), slice, type(...)):
        return repr(value)
    if isinstance(value, numpy.generic) and value.dtype.name in tables.DTYPES:
        return f"numpy.{type(value).__name__}({value.item()!r})"
    if isinstance(value, numpy.dtype) and value.name in tables.DTYPES:
        return f"numpy.dtype({value.str!r})"
    if isinstance(value, type) and issubclass(value, numpy.generic):
        return f"numpy.{value.__name__}"
    if value in (bool, int, float, complex):
        return str(value.__name__)
    raise refusal(name, f"it gets a {type(value).__name__}")
