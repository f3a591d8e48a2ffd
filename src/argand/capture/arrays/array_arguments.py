"""Arguments of numpy's functions and the memory of arrays, in terms of both libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from argand import errors
from argand.capture.arrays import array_tables as tables
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.values.array_value import Traced
from argand.graph.metadata.strides import elements_spanned
from argand.graph.trees import mapped

REFUSED = "call of numpy"


Array = Any
"""An array or scalar of numpy's, which may not be installed."""


def refusal(name: str, why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind=REFUSED, context=f"numpy {name}", explanation=f"numpy's {name} is not captured here: {why}."
    )


def supported(value: Array) -> bool:
    step = value.dtype.itemsize
    return (
        value.dtype.name in tables.DTYPES
        and value.dtype.isnative
        and value.flags.writeable
        and value.nbytes <= tables.LARGEST_BYTES
        and all(s >= 0 and s % step == 0 for s in value.strides)
    )


def dummy(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Array) -> object:
    """An array of made-up values: small ones, such that integers can be indices."""
    if 0 in shape:
        return numpy.lib.stride_tricks.as_strided(numpy.zeros(1, dtype), shape, strides)
    count = 1 + (elements_spanned(shape, strides) - 1) // dtype.itemsize
    if count * dtype.itemsize > tables.LARGEST_BYTES:
        raise refusal("array", "it is very large")
    cycle = numpy.arange(count) % (5 if dtype.kind in "fc" else 2)
    base = (cycle + (1 if dtype.kind in "fc" else 0)).astype(dtype)
    return numpy.lib.stride_tricks.as_strided(base, shape, strides)


def leaves(value: Any) -> Iterator[object]:
    """What containers of arguments hold, at any depth."""
    if type(value) in (tuple, list):
        for item in value:
            yield from leaves(item)
    elif type(value) is dict:
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def traced_in(value: object) -> list[Traced]:
    """The traced arrays among arguments."""
    return [leaf for leaf in leaves(value) if type(leaf) is Traced]


def plain(value: object) -> Any:
    """Arguments with arrays of made-up values for those that are traced."""
    return mapped(value, lambda leaf: leaf._a_dummy if type(leaf) is Traced else leaf)


def has_mask(key: object) -> bool:
    """Whether an index selects by truth values."""
    return any(array._a_dummy.dtype.kind == "b" for array in traced_in(key))


def tensor_in(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value
    tensor = getattr(value, "tensor", None)
    return tensor if isinstance(tensor, torch.Tensor) else None


def operand(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(operand(item) for item in value)
    return type(value) in (Traced, bool, int, float, complex) or isinstance(value, numpy.ndarray | numpy.generic)


def check_power(base: Array, exponent: Array) -> None:
    """The operator `**` is another function than the ufunc for some exponents (-1, 0, 0.5, 1, 2).

    Raises:
        GraphBreak: its result is of another type then, or it raises, or it is not known to be the same.
    """
    if type(exponent) is Traced and not exponent.ndim:
        raise refusal("power", "what it computes depends on the exponent")
    plain = [value._a_dummy if type(value) is Traced else value for value in (base, exponent)]
    try:
        with numpy.errstate(all="ignore"):
            same = numpy.asarray(plain[0] ** plain[1]).dtype == numpy.power(*plain).dtype
    except (TypeError, ValueError):
        same = False
    if not same:
        raise refusal("power", "the operator is not the function for this exponent")


def is_scalar(value: object) -> bool:
    return isinstance(value._a_dummy if type(value) is Traced else value, numpy.generic)


def dtype_of(value: object) -> Array:
    return value._a_dummy.dtype if type(value) is Traced else numpy.asarray(value).dtype


# ---------------------------------------------------------------------- memory


def tensor_of(array: object) -> torch.Tensor:
    """The tensor that shares the memory of an array (called by transformed code)."""
    return torch.from_numpy(array)


def no_overlap(count: int, *values: object) -> bool:
    """Whether none of the first `count` values, arrays, shares memory with another value (arrays and tensors)."""
    spans = [_span(value) for value in values]
    return not any(
        i != j and spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]
        for i in range(count)
        for j in range(len(spans))
    )


def _span(value: Array) -> tuple[int, int]:
    """First byte, and the first one behind."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            start = value.data_ptr()
            if not start:
                return 0, 0
            return start, start + elements_spanned(value.shape, value.stride()) * value.element_size()
    start = int(value.__array_interface__["data"][0])
    return start, start + elements_spanned(value.shape, value.strides) - 1 + value.itemsize if value.size else start


def layout_of(array: Array) -> tuple[object, ...]:
    """What a graph relies on of an array that it gets."""
    return array.dtype.str, array.shape, array.strides, array.flags.writeable


def steps(array: Array) -> list[int]:
    return [step for size, step in zip(array.shape, array.strides) if size > 1]


def flips_of(array: Array) -> tuple[int, ...]:
    """The dimensions in which an array runs backwards through its memory."""
    return tuple([dim for dim, (size, step) in enumerate(zip(array.shape, array.strides)) if size > 1 and step < 0])


def running_forwards(array: Array) -> Array:
    """The view of the same memory that runs forwards; the array itself, or scalar, where it does."""
    flips = flips_of(array)
    return numpy.flip(array, flips) if flips else array


def forwards(key: object, sizes: tuple[int, ...]) -> object:
    """An index of slices that takes the same items in the order of memory."""
    parts = key if type(key) is tuple else (key,)
    if any(type(part) not in (slice, type(None), type(...), int) for part in parts):
        return key
    given = sum(type(part) in (slice, int) for part in parts)
    axis, turned = 0, []
    for part in parts:
        if type(part) is slice and type(part.step) is int and part.step < 0 and axis < len(sizes):
            places = range(*part.indices(sizes[axis]))[::-1]
            part = slice(places.start, places.stop, places.step)
        turned.append(part)
        axis += len(sizes) - given if part is ... else part is not None
    return tuple(turned)


def start_of(array: Array) -> int:
    """The address of the first byte of an array that runs forwards."""
    return int(array.__array_interface__["data"][0])


def laid_out(name: str, tensor: torch.Tensor, expected: Array) -> torch.Tensor:
    """A new array in memory as numpy lays it out, where torch lays it out otherwise."""

    def matches() -> bool:
        with torch._C.DisableTorchFunction():
            ours = [step * expected.itemsize for size, step in zip(tensor.shape, tensor.stride()) if size > 1]
        return ours == steps(expected)

    if matches():
        return tensor
    order = sorted(range(expected.ndim), key=lambda dim: -expected.strides[dim])
    tensor = torch.Tensor.permute(tensor, order)
    tensor = torch.Tensor.permute(torch.Tensor.contiguous(tensor), [order.index(dim) for dim in range(len(order))])
    if not matches():
        raise refusal(name, "its torch equivalent lays the array out in another way")
    return tensor
