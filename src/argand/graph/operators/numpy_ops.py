"""`argand::numpy_call`: a call of numpy's that no torch function computes alike, made by numpy when the graph runs.

It is written as an expression over the arrays that share the tensors' memory, `numpy.interp(a[0], a[1], a[2])`, and
says what it gives: dtype, sizes and strides (in items) of each result, which are memory of their own.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph.operators.registration import Operators

Described = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


@functools.cache
def numpy_ops() -> Operators:
    """Defines the op, once per process."""
    schema = "numpy_call(Tensor[] arrays, str call, str results) -> Tensor[]"
    return Operators({schema: {"CPU": call_numpy, "Meta": _sizes}})


def described(results: Sequence[Any]) -> str:
    """What arrays look like, as a text."""
    parts = []
    for array in results:
        strides = [step // array.itemsize for step in array.strides]
        parts.append(f"{array.dtype.name}{list(array.shape)}{strides}")
    return "; ".join(parts)


@functools.cache
def _described(results: str) -> list[Described]:
    parts = []
    for text in results.split("; "):
        name, shape, strides = text.replace("]", "").split("[")
        sizes, steps = (tuple([int(item) for item in each.split(",") if item]) for each in (shape, strides))
        parts.append((getattr(torch, name), sizes, steps))
    return parts


def changed(fn: Callable[..., object], array: Any, *args: object, **kwargs: object) -> object:
    """What a function that writes to its first argument makes of it."""
    copy = array.copy(order="K")
    copy.flags.writeable = array.flags.writeable
    fn(copy, *args, **kwargs)
    return copy


@functools.cache
def _function(call: str) -> Callable[[list[Any]], Any]:
    import numpy

    names: dict[str, Any] = {"numpy": numpy, "changed": changed, "nan": float("nan"), "inf": float("inf")}
    if "scipy.special." in call:
        importlib.import_module("scipy.special")
        names["scipy"] = importlib.import_module("scipy")
    function: Callable[[list[Any]], Any] = eval(f"lambda a: {call}", names)
    return function


def results_of(values: Any) -> list[Any]:
    """The arrays that a call gave, from the first to the last."""
    return list(values) if isinstance(values, tuple | list) else [values]


@functools.cache
def _caller(call: str, results: str) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    import numpy

    function, expected = _function(call), _described(results)

    def run(arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = [tensor.numpy() for tensor in arrays]
        tensors = []
        for value, (dtype, sizes, strides) in zip(results_of(function(given)), expected, strict=True):
            array = numpy.asarray(value)
            flags = array.flags
            shared = not flags.owndata and any(numpy.may_share_memory(array, each) for each in given)
            if shared or not flags.writeable:
                array = array.copy(order="K")
            tensor = torch.from_numpy(array)
            if tensor.dtype is not dtype or tensor.shape != sizes:
                raise RuntimeError(f"{call} gave {array.dtype}{list(array.shape)}, not {results} as for other values")
            tensors.append(tensor if tensor.stride() == strides else _restrided(tensor, sizes, strides))
        return tensors

    return run


def _restrided(tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    if any(size > 1 and step != want for size, step, want in zip(sizes, tensor.stride(), strides)):
        tensor = torch.empty_strided(sizes, strides, dtype=tensor.dtype).copy_(tensor)
    return tensor.as_strided(sizes, strides)


def call_numpy(arrays: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    """The operator on a CPU. Host modules call it past torch's dispatcher, which takes as long as small arrays do."""
    return _caller(call, results)(arrays)


def _sizes(arrays: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    return [arrays[0].new_empty_strided(sizes, strides, dtype=dtype) for dtype, sizes, strides in _described(results)]
