"""Functions that make tensors from data: capture of `torch.tensor` and its like."""

from __future__ import annotations

import itertools
import sys
import warnings
from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_numpy_array
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.array_value import Traced
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicSize
from argand.capture.metadata import metadata, numpy_scalars
from argand.capture.metadata.special_calls import named, special
from argand.capture.record import constants, numpy_calls
from argand.graph.trees import leaves, mapped, tensors_of

_T = torch.Tensor


def _holds_tensor(data: object) -> bool:
    return not isinstance(data, dict) and bool(tensors_of(data))


def _is_array(data: object) -> bool:
    return type(data) is Traced or is_numpy_array(type(data))


@special(*named(torch, "tensor", "as_tensor", "asarray", "scalar_tensor"))
def _from_data(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if isinstance(data, _T):
        return _copy_of_tensor(builder, func, data, kwargs)
    if _is_array(data):
        tensor = numpy_calls.to_tensor(builder.state, data, func.__name__)
        target = {key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None}
        return builder.call(_T.to, (tensor,), target) if target else tensor
    if any(type(leaf) is Traced for leaf in leaves(data)):
        return _of_arrays(builder, func, data, kwargs)
    tensor = _of_numbers(builder, func, data, args, kwargs)
    if tensor is not None:
        return tensor
    if _holds_tensor(data):
        tensor = _joined(builder, data, kwargs)
        if tensor is not NotImplemented:
            return tensor
        raise errors.graph_break(
            kind="data-dependent value",
            context=func.__name__,
            explanation=f"torch.{func.__name__} of a list of tensors reads their values.",
            hints=("use torch.stack",),
        )
    if numpy_scalars.held_in(data):
        return numpy_scalars.constructed(builder, func, args, kwargs)
    arrays = builder.state.arrays
    if arrays is not None and arrays.recording and "dtype" not in kwargs:
        with torch._C.DisableTorchFunction():
            return builder.record(func, args, {**kwargs, "dtype": func(*args, **kwargs).dtype})
    return NotImplemented


def _of_arrays(builder: GraphBuilder, func: Function, data: object, kwargs: Kwargs) -> object:
    """`torch.tensor([array[0], array[1]])`: what numpy makes of the list, as torch's dtype."""
    with torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        like = func(mapped(data, lambda leaf: leaf._a_dummy if type(leaf) is Traced else leaf), **kwargs)
    array = builder.state.call_numpy(sys.modules["numpy"].array, (data,), {})
    tensor: Any = numpy_calls.to_tensor(builder.state, array, "as_tensor")
    if tuple(tensor.shape) != tuple(like.shape):
        raise errors.graph_break(
            kind="tensor constructor", context=func.__name__, explanation="torch reads the list otherwise than numpy."
        )
    return builder.call(_T.to, (tensor,), {"dtype": like.dtype, "device": kwargs.get("device") or "cpu"})


def _of_numbers(builder: GraphBuilder, func: Function, data: object, args: Args, kwargs: Kwargs) -> object:
    """For a nested list of so many numbers that a graph of them would be slow: a copy of a tensor that the graph holds.
    None for fewer, and for other things.

    Raises:
        GraphBreak: eager raises: on the meta device torch looks at no row but the first.
    """
    count = _count_of_numbers(data)
    if count is None or len(args) > 1 or set(kwargs) - {"data", "obj", "dtype", "device"}:
        return None
    with torch._C.DisableTorchFunction():
        try:
            held = torch.tensor(data, dtype=kwargs.get("dtype"), device="cpu")
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise metadata.call_raises(func.__name__, error) from None
    if count < _MANY:
        return None
    tensor = constants.copied(builder, held)
    device = kwargs.get("device")
    return tensor if device is None else builder.call(_T.to, (tensor, device), {})


_MANY = 1000
_DEEPEST = 64  # no tensor has more dims
_NUMBERS = frozenset((bool, int, float, complex))
_NESTED = frozenset((list, tuple))


def _count_of_numbers(data: Any) -> int | None:
    """How many plain numbers a nested list holds; None for what is not only that. At the speed of C."""
    depth, first = 0, data
    while type(first) in _NESTED and first and depth <= _DEEPEST:
        depth, first = depth + 1, first[0]
    if not 0 < depth <= _DEEPEST:  # a list that holds itself has no end, and each level of it more items
        return None
    level: list[Any] = [data]
    for _ in range(depth + 1):
        kinds = set(map(type, level))
        if not kinds <= _NESTED:
            return len(level) if kinds <= _NUMBERS else None
        level = list(itertools.chain.from_iterable(level))
        if not level:
            return 0
    return None


def _joined(builder: GraphBuilder, data: object, kwargs: Kwargs) -> object:
    """`torch.tensor([a, [b, 2.0]])`: what torch reads as numbers is copied tensor by tensor."""
    parts = list(leaves(data))
    infos = [builder.tensors.get(id(part)) for part in parts if isinstance(part, _T)]
    if set(kwargs) - {"dtype", "device"} or any(info is None or info.dynamic is not None for info in infos):
        return NotImplemented
    if any(type(part) not in (bool, int, float, complex) for part in parts if not isinstance(part, _T)):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        try:
            like = torch.tensor(_zeros(data), dtype=kwargs.get("dtype"))
        except (TypeError, ValueError, RuntimeError):
            return NotImplemented
        items = []
        for part in parts:
            if isinstance(part, _T):
                item = builder.call(_T.reshape, (builder.call(_T.detach, (part,), {}), (-1,)), {})
                items.append(builder.call(_T.to, (item,), {"dtype": like.dtype, "device": "cpu"}))
            else:
                items.append(builder.call(torch.full, ((1,), part), {"dtype": like.dtype}))
        tensor = builder.call(_T.reshape, (builder.call(torch.cat, (items,), {}), tuple(like.shape)), {})
        target = {"device": kwargs["device"]} if kwargs.get("device") is not None else {}
        return builder.call(_T.to, (tensor,), target) if target else tensor


def _zeros(data: object) -> object:
    """The same nesting with tensors of zeros."""
    if isinstance(data, _T):
        return torch.zeros(data.shape, dtype=data.dtype)
    return [_zeros(item) for item in data] if isinstance(data, list | tuple) else data


def _copy_of_tensor(builder: GraphBuilder, func: Function, data: object, kwargs: Kwargs) -> object:
    target = {key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None}
    if func is torch.as_tensor:
        return builder.call(_T.to, (data,), target) if target else data
    if func is not torch.tensor or kwargs.get("requires_grad"):
        raise errors.graph_break(
            kind="tensor constructor",
            context=func.__name__,
            explanation=f"torch.{func.__name__} copies the values of a tensor.",
        )
    tensor = builder.call(_T.clone, (builder.call(_T.detach, (data,), {}),), {})
    return builder.call(_T.to, (tensor,), target) if target else tensor


@special(*named(torch, *words("add sub subtract mul multiply div divide true_divide floor_divide")))
def _of_two_numbers(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`torch.div(n, 2)`: torch takes both numbers for tensors on the CPU, whatever the default device is."""
    if len(args) != 2 or not all(type(arg) in _NUMBERS or type(arg) in SYMBOLIC for arg in args) or "out" in kwargs:
        return NotImplemented
    first = builder.call(torch.tensor, args[:1], {"device": "cpu"})
    return builder.call(func, (first, args[1]), kwargs)


@special(*named(_T, "new_tensor"))
def _new_tensor(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2 and _is_array(args[1]) and not kwargs:
        target = {"dtype": args[0].dtype, "device": builder.tensors[id(args[0])].device}
        return builder.call(_T.to, (numpy_calls.to_tensor(builder.state, args[1], "tensor"),), target)
    if len(args) == 2 and not kwargs and numpy_scalars.held_in(args[1]):
        tensor = numpy_scalars.constructed(builder, torch.tensor, args[1:], {"dtype": args[0].dtype})
        return builder.call(_T.to, (tensor, builder.tensors[id(args[0])].device), {})
    if len(args) < 2 or isinstance(args[1], _T) or _holds_tensor(args[1]) or numpy_scalars.held_in(args[1]):
        raise errors.graph_break(
            kind="tensor constructor",
            context="new_tensor",
            explanation="Tensor.new_tensor copies the values of a tensor.",
        )
    return NotImplemented


@special(*named(_T, "new"))
def _new(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """A `torch.Size` is a size, any other sequence is data; a graph's arguments do not tell them apart."""
    sizes = args[1] if len(args) == 2 and type(args[1]) in (torch.Size, SymbolicSize) else None
    return NotImplemented if sizes is None else builder.call(_T.new_empty, (args[0], tuple(sizes)), kwargs)


@special(*named(torch, "from_numpy", "frombuffer", "from_file", "from_dlpack", "set_printoptions", "load"))
def _foreign_memory(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    if func is torch.from_numpy:
        return numpy_calls.to_tensor(builder.state, args[0], "from_numpy")
    raise errors.graph_break(kind="tensor from foreign memory", context=func.__name__)
