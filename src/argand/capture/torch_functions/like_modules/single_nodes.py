"""Calls of torch that did nothing but put one node into the graph: done again, the node and a stand-in are made anew.

What the call was asked and what it refused is known: arguments of the same metadata, in the same state of torch, give
a result of the same metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from argand.capture.facts import compat
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.values.tensor_info import Dynamic
from argand.capture.metadata import metadata, trial_runs
from argand.capture.metadata.meta_tensors import new
from argand.capture.metadata.rules import RULES
from argand.capture.record.journal import Call
from argand.capture.sizes.symbolic_tensors import at
from argand.capture.torch_functions.like_modules.fills import CONSTANTS, Fill, constant, named, sequence
from argand.graph.compat import saved_tensor_hooks_active, storage_address
from argand.quick_dataclasses import dataclass

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]
"""Size, strides, dtype and whether it requires grad, as `new` takes them."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The node and the result of a call.

    Arguments:
        args, kwargs: of the node, of the tensors in the slots of a template.
        layout: of a result that shares memory with no other tensor; None: the function makes a view, of its arguments.
        device: where the result is.
        varying: sizes of the result that vary; None where none do.
        siblings: layouts of the result at the probes, where it is no view.
    """

    op: str
    target: object
    args: Fill
    kwargs: Fill
    layout: Layout | None
    device: torch.device
    varying: Dynamic | None
    siblings: tuple[Layout, ...]


def alone_of(builder: GraphBuilder, entry: Call, slots: Mapping[int, int]) -> Alone | None:
    """What recording a call does that put one node into the graph; None where that is not known.

    Arguments:
        slots: the slots of tensors, by their ids.
    """
    info = entry.alone
    assert info is not None
    if info.dynamic is not entry.varying:
        return None  # somebody wrote to it since
    node = info.node
    numbers = [arg for arg in node.all_input_nodes if "expr" in arg.meta]
    operands = [arg for arg in node.all_input_nodes if "expr" not in arg.meta]
    with torch._C.DisableTorchFunction():
        given = [arg.meta["example_value"] for arg in operands]
        if not given or any(id(tensor) not in slots for tensor in given):
            return None
        infos = [builder.tensors[id(tensor)] for tensor in given]
        if all(operand.constant is not None for operand in infos):
            return None  # then what the result holds is known too
        layout: Layout | None = None
        siblings: tuple[Layout, ...] = ()
        if storage_address(info.tensor) in map(storage_address, given):
            varies = bool(numbers) or any(operand.dynamic is not None for operand in infos)
            if info.tensor.__dict__ or not _views(entry.func) or (varies and info.dynamic is None):
                return None
        else:
            layout = _layout(info.tensor)
            others = [_layout(tensor) for tensor in info.dynamic.siblings] if info.dynamic is not None else []
            siblings = tuple([other for other in others if other is not None])
            if layout is None or len(siblings) != len(others):
                return None
    nodes: dict[fx.Node, Fill] = {number: constant(number) for number in numbers}
    nodes |= {arg: _node(builder, slots[id(tensor)]) for arg, tensor in zip(operands, given)}
    args, kwargs = _fill(node.args, nodes), _fill(node.kwargs, nodes)
    if args is None or kwargs is None:
        return None
    return Alone(node.op, node.target, args, kwargs, layout, info.device, info.dynamic, siblings)


def _views(func: Function) -> bool:
    """Whether capture has torch run the function on stand-ins, as it is."""
    return trial_runs.is_view(func) and func not in RULES and not saved_tensor_hooks_active()


def _layout(tensor: torch.Tensor) -> Layout | None:
    """The layout of a stand-in which is as `new` makes them; None of any other."""
    plain = not (tensor._is_view() or tensor.is_conj() or tensor.is_neg() or tensor.is_inference() or tensor.__dict__)
    if not plain or tensor.layout is not torch.strided or tensor.storage_offset() or metadata.version(tensor):
        return None
    if tensor.requires_grad == tensor.is_leaf:
        return None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad


def _node(builder: GraphBuilder, slot: int) -> Fill:
    known = builder.tensors
    return lambda slots: known[id(slots[slot])].node


def _fill(value: object, nodes: Mapping[fx.Node, Fill]) -> Fill | None:
    """What makes arguments of a node like these."""
    if isinstance(value, fx.Node):
        return nodes[value]
    if type(value) in CONSTANTS:
        return constant(value)
    if isinstance(value, tuple | list):
        parts = [_fill(item, nodes) for item in value]
        cls = list if isinstance(value, list) else tuple
        return None if None in parts else sequence(cls, [part for part in parts if part is not None])
    if isinstance(value, dict):
        items = {key: _fill(item, nodes) for key, item in value.items()}
        return None if None in items.values() else named({key: item for key, item in items.items() if item is not None})
    return None


def record(
    builder: GraphBuilder, func: Function, alone: Alone, tensors: list[object], args: Fill, kwargs: Fill
) -> object:
    """Record the call for other tensors.

    Arguments:
        tensors: in the slots of the template.
        args, kwargs: of the call.
    """
    node = compat.new_node(builder.graph, alone.op, alone.target, alone.args(tensors), alone.kwargs(tensors))
    builder.annotate(node)
    builder.calls += 1
    varying = alone.varying
    siblings: list[torch.Tensor] = []
    if alone.layout is not None:
        result = new(*alone.layout)
        siblings += [new(*layout) for layout in alone.siblings]
    elif varying is None:
        result = func(*args(tensors), **kwargs(tensors))
    else:
        given = args(tensors), kwargs(tensors)
        result = _at(builder, func, *given, 0)
        with torch.no_grad():
            siblings += [_at(builder, func, *given, index) for index in range(1, len(varying.siblings) + 1)]
    builder.register(result, node, alone.device)
    info = builder.tensors[id(result)]
    if varying is None:
        info.dynamic = None
    else:
        info.dynamic = Dynamic(tuple(siblings), varying.sizes, varying.strides)
        node.meta["sizes"] = tuple(varying.sizes)
    return result


def _at(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, index: int) -> torch.Tensor:
    """The result at the sizes of the call (0), or at those of a probe."""
    result: torch.Tensor = func(*at(builder, args, index), **at(builder, kwargs, index))
    return result
