"""Tensors that numpy is given: `numpy.log(tensor)`, `numpy.asarray(tensor)`.

numpy makes an array of a tensor, or asks the tensor's own method of its function's name, and makes a tensor of the
result or does not. Which of these, numpy itself says, on tensors of made-up values; the values come from the same call
of arrays that share the tensors' memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from argand.capture.arrays import array_tables as tables
from argand.capture.arrays import numpy_itself
from argand.capture.arrays.array_arguments import Array, dummy, leaves, refusal, steps
from argand.capture.arrays.traced_arrays import of
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.values.array_value import Traced, needs_values
from argand.capture.metadata.special_calls import special
from argand.graph.python_operators import ARITHMETIC
from argand.graph.trees import mapped


def array_of(builder: GraphBuilder, tensor: torch.Tensor) -> Traced:
    """The array that shares a tensor's memory.

    Raises:
        GraphBreak: eager makes none of such a tensor, or one that torch cannot follow.
    """
    info = builder.tensors.get(id(tensor))
    if (
        info is None
        or info.device.type != "cpu"
        or tensor.requires_grad
        or builder.scopes
        or tensor.is_complex()
        or id(tensor) in builder.unsure
        or info.dynamic is not None
    ):
        raise needs_values("Tensor.numpy() of such a tensor")
    name = next((key for key, dtype in tables.DTYPES.items() if dtype is tensor.dtype), None)
    if name is None:
        raise needs_values(f"Tensor.numpy() of {tensor.dtype}")
    kind = numpy.dtype(name)
    with torch._C.DisableTorchFunction():
        strides = tuple(step * kind.itemsize for step in tensor.stride())
        like = dummy(tuple(tensor.shape), strides, kind)
    return Traced(of(builder.state), like, tensor)


@special(torch.Tensor.numpy)
def _numpy(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`tensor.numpy()`."""
    if len(args) > 1 or kwargs:
        raise needs_values("Tensor.numpy() with arguments")
    return array_of(builder, args[0])


@special(torch.Tensor.__array__)
def _array(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`tensor.__array__()`."""
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    array = array_of(builder, args[0])
    return array if dtype is None else array.astype(dtype, copy=False)


def given(args: object) -> list[torch.Tensor]:
    """The tensors among arguments."""
    return [leaf for leaf in leaves(args) if type(leaf) in (torch.Tensor, torch.nn.Parameter)]


def call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A function of numpy's on arrays that the graph computes, or on tensors; NotImplemented where there are none.

    Raises:
        GraphBreak: no function of torch's gives what numpy gives.
    """
    if args and isinstance(args[0], numpy.ufunc):  # an unbound method of these
        fn, args = getattr(args[0], getattr(fn, "__name__", "?")), args[1:]
    if not given((args, kwargs)):
        return NotImplemented if state.arrays is None else state.arrays.call(fn, args, kwargs)
    ufunc = getattr(numpy, _UFUNCS[fn]) if fn in _UFUNCS else fn
    name = getattr(ufunc, "__name__", "?")
    if "out" in kwargs:
        raise refusal(name, "it writes to an array, and gets a tensor")
    arrays = of(state)
    scalars = isinstance(fn, type) and issubclass(fn, numpy.generic)
    if numpy_itself.text_of(ufunc) is None and not scalars:
        arrays.equivalent(ufunc, name)
    traced = {id(tensor): array_of(state.graph, tensor) for tensor in given((args, kwargs))}
    with torch._C.DisableTorchFunction():
        like = {key: torch.from_numpy(array._a_dummy) for key, array in traced.items()}
        expected = arrays.expect(name, fn, _with(args, like), _with(kwargs, like))
    if ufunc is not fn:
        args = tuple([_as_number(expected, arg) for arg in args])
    result = arrays.call(ufunc, _with(args, traced), _with(kwargs, traced))
    return _as_numpy_gives(name, expected, result, list(traced.values()))


def _with(given: Array, values: Mapping[int, object]) -> Array:
    """Arguments with other values for the tensors among them, by id."""
    return mapped(given, lambda leaf: values.get(id(leaf), leaf))


def _as_number(expected: object, operand: Array) -> object:
    """A scalar beside a tensor as torch takes it, which is as a number."""
    if type(operand) is not Traced or operand.__class__ is numpy.ndarray or not isinstance(expected, torch.Tensor):
        return operand
    if expected.dtype not in (torch.float32, torch.float64):
        return operand
    return operand.astype(numpy.dtype(str(expected.dtype).removeprefix("torch.")))


_UFUNCS = {op.native: op.ufunc for op in ARITHMETIC.values()}


def _as_numpy_gives(name: str, expected: Array, result: Array, inputs: list[Traced]) -> object:
    """The result of the call of arrays as numpy gives it for tensors: an array or a tensor."""
    if type(expected) in (tuple, list):
        if type(result) is not type(expected) or len(result) != len(expected):
            raise refusal(name, "its result is another for tensors")
        return type(expected)([_as_numpy_gives(name, *pair, inputs) for pair in zip(expected, result)])
    if type(result) is not Traced:
        raise refusal(name, "its result is another for tensors")
    if not isinstance(expected, torch.Tensor):
        if type(expected) is not result.__class__:
            raise refusal(name, "its result is another for tensors")
        _same(name, numpy.asarray(expected), numpy.asarray(result._a_dummy), inputs)
        return result
    with torch._C.DisableTorchFunction():
        array = expected.numpy()
    ours = numpy.asarray(result._a_dummy)
    if ours.dtype.kind == "b" and array.dtype == numpy.uint8:  # as Tensor.__array_wrap__ does
        _same(name, array, ours.astype(numpy.uint8), inputs)
        return torch.Tensor.to(result._a_tensor, torch.uint8)
    _same(name, array, ours, inputs)
    return torch.Tensor.detach(result._a_tensor)  # another object than an argument


def _same(name: str, expected: Array, ours: Array, inputs: list[Traced]) -> None:
    same = expected.dtype == ours.dtype and expected.shape == ours.shape and steps(expected) == steps(ours)
    same = same and numpy.allclose(expected, ours, rtol=1e-2, atol=1e-2, equal_nan=ours.dtype.kind in "fc")
    for array in inputs:
        shares = [numpy.may_share_memory(one, array._a_dummy) for one in (expected, ours)]
        same = same and shares[0] == shares[1]
    if not same:
        raise refusal(name, "its result is another for tensors")
