"""Tensors that hold a size: `torch.tensor(x.shape[0])`, and sums, differences and products of such, as numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.array_value import Traced
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tensor_info import Cost
from argand.capture.record import constants, numpy_calls
from argand.capture.sizes import unbacked_index
from argand.graph.python_operators import ARITHMETIC, NEGATIVE

_ARITHMETIC: dict[object, Any] = {
    spelling: op.native
    for op in (*map(ARITHMETIC.__getitem__, ("add", "sub", "mul", "floordiv")), NEGATIVE)
    for spelling in (op.native, getattr(torch, op.name, op.native), op.name)
}
_DIVISIONS = (torch.div, torch.divide, torch.Tensor.div, torch.Tensor.divide, "div", "divide")
_FACTORIES = tuple(
    getattr(torch, name) for name in words("zeros ones empty full rand randn randint randperm arange linspace eye")
)
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_DEEPEST = 16


def number(builder: GraphBuilder, tensor: torch.Tensor, most: Cost = Cost.NOTHING) -> object:
    """The value of a tensor as a plain or symbolic integer; None where it is not known, or is none."""
    constant = constants.value_of(builder, tensor, most)
    if constant is not None:
        with torch._C.DisableTorchFunction():
            fraction = constant.is_floating_point() or constant.is_complex()
            return None if fraction or constant.numel() != 1 else constant.__index__()
    info = builder.tensors.get(id(tensor))
    if info is None or info.source is not None or builder.dynamics is None:
        return None
    with torch._C.DisableTorchFunction():
        if tensor.dim() or tensor.dtype is not torch.int64:
            return None
    written = {written.node for written in builder.mutated.values()}
    return _of_node(builder, info.node, written, _DEEPEST)


def _of_node(builder: GraphBuilder, node: object, written: set[fx.Node], depth: int) -> object:
    if type(node) is int:
        return node
    if not isinstance(node, fx.Node) or node in written or depth == 0:
        return None
    assert builder.dynamics is not None
    if "expr" in node.meta:
        value = builder.dynamics.wrap(node.meta["expr"], node.meta["example_value"])
        return value if type(value) is int or type(value) in SYMBOLIC else None
    held = node.meta.get("example_value")
    if not isinstance(held, torch.Tensor) or held.dtype is not torch.int64 or held.dim():
        return None
    if node.target is torch.tensor and not set(node.kwargs) - {"dtype", "device"}:
        return _of_node(builder, node.args[0], written, depth - 1)
    parts = [_of_node(builder, arg, written, depth - 1) for arg in node.args]
    if node.target in _DIVISIONS and set(node.kwargs) == {"rounding_mode"} and len(parts) == 2:
        return _divided(parts[0], parts[1], node.kwargs["rounding_mode"])
    compute = _ARITHMETIC.get(node.target)
    return None if compute is None or node.kwargs or any(part is None for part in parts) else compute(*parts)


def _divided(over: Any, under: Any, rounding: object) -> object:
    """The quotient where rounding down and rounding to zero are the same; None elsewhere."""
    if over is None or under is None or rounding not in ("floor", "trunc") or not (over >= 0 and under > 0):
        return None
    return over // under


def numbers(
    builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """The arguments with tensors as numbers and lists, where these are known or can be symbols, and torch takes such a
    tensor for them; None if none is."""
    known: dict[int, torch.Tensor] = {}
    symbols: list[object] = []
    read: list[torch.Tensor] = []

    def as_number(value: Any) -> object:
        if type(value) in (list, tuple):
            return type(value)([as_number(item) for item in value])
        if not is_a(value, torch.Tensor) or value.dim() > 1:
            symbols.extend([value] if type(value) in SYMBOLIC else [])
            return value
        with torch._C.DisableTorchFunction():
            if func in _INDEXING and not unbacked_index.is_position(value):
                return value
            most = Cost.NOTHING if builder.state.data_numbers else Cost.ARGUMENT
            constant = constants.value_of(builder, value, most)
            if constant is not None:
                known[id(value)] = constant
                return constant.tolist()
            plain = number(builder, value)
            integer = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
            if plain is None and value.dim() == 0 and integer:
                plain = builder.item(value)
        if plain is None or plain is NotImplemented:
            return value
        symbols.append(plain)
        read.append(value)
        return plain

    kept = 0 if any(func is each for each in _FACTORIES) else 1  # else the first is the tensor that is asked
    arguments = (
        (*args[:kept], *(as_number(arg) for arg in args[kept:])),
        {key: as_number(value) for key, value in kwargs.items()},
    )
    if read or (known and (symbols or not kept or _takes(func, args, kwargs, known))):
        return arguments
    return None


def _takes(func: Function, args: Args, kwargs: Kwargs, known: dict[int, torch.Tensor]) -> bool:
    """Whether a function takes tensors where numbers or lists could stand: it raises for some, and not for what they
    hold (`scatter` takes a number for its source)."""

    def real(value: object) -> object:
        if type(value) is list:
            return [real(item) for item in value]
        if type(value) is tuple:
            return tuple([real(item) for item in value])
        return known.get(id(value), value.detach().clone()) if is_a(value, torch.Tensor) else value

    with torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=()), torch.no_grad():
        try:
            func(*map(real, args), **{key: real(value) for key, value in kwargs.items()})
        except Exception:
            return False
    return True


def as_index(builder: GraphBuilder, index: object) -> object:
    """The index, with positions and slice bounds that are tensors of known value as numbers, and arrays as tensors; the
    same object if there are none."""
    if type(index) is Traced:
        return _of_array(builder, index)
    if isinstance(index, tuple):
        items = tuple(item if isinstance(item, tuple) else as_index(builder, item) for item in index)
        return index if all(a is b for a, b in zip(items, index)) else items
    if unbacked_index.is_position(index):
        plain = number(builder, index)
        return index if plain is None else plain
    if not isinstance(index, slice):
        return index
    parts = [index.start, index.stop, index.step]
    for i, part in enumerate(parts):
        known = number(builder, part, Cost.ARGUMENT) if isinstance(part, torch.Tensor) else None
        if known is not None:
            parts[i] = known
    if all(a is b for a, b in zip(parts, (index.start, index.stop, index.step))):
        return index
    return slice(*parts)


def _of_array(builder: GraphBuilder, array: Traced) -> object:
    """The tensor that torch makes of an array that says positions: a copy, of int64 or bool."""
    kind = array.dtype.kind
    if kind not in "bi" or not array.ndim:
        return array
    tensor = numpy_calls.to_tensor(builder.state, array, "tensor")
    return tensor if kind == "b" else builder.call(torch.Tensor.to, (tensor, torch.int64), {})
