"""Numbers in CPU memory beside tensors on a GPU: one copy for all of them, so that kernels may fuse what uses them.

Eager takes a 0-d CPU tensor as a number, with the launch of the one operation that has it as an operand. A compiled
optimizer's step has hundreds of them: corrections by its count of steps, which is on the CPU. Here they are put into
one vector, which is copied to the GPU, whose elements take their place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.meta import is_impure
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.device_ops import device_ops
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten

MIN_USES = 4  # fewer are left to eager's kernels: a copy takes as long as one of them
_MAX_ELEMENTS = 1 << 12  # of a vector that is copied for its elements
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(slots=True)
class _Use:
    """A CPU number as an operand of an operation on a GPU.

    Arguments:
        node, place: the operation, and which of its arguments.
        scalar: the 0-d tensor.
    """

    node: fx.Node
    place: int
    scalar: fx.Node


_Elements = dict[tuple[fx.Node, bool], fx.Node]  # a number, and whether its reciprocal is meant -> its place on the GPU


def move_scalars(program: AtenProgram) -> int:
    """Copy CPU numbers that operations on GPUs use to there; returns how many operands changed."""
    devices = {node.meta["device"] for node in program.graph.nodes if "device" in node.meta}
    changes = 0
    for device in devices if len(devices) > 1 else ():
        if device.type != "cpu":
            changes += _move(program, device)
    return changes


def _move(program: AtenProgram, device: torch.device) -> int:
    uses = _uses(program.graph, device)
    if len(uses) < MIN_USES:
        return 0
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="move_scalars")
    _compute_before(uses)
    with builder.at(uses[0].node):
        elements = _copy(builder, uses, device)
    for use in uses:
        _replace(builder, use, elements)
    return len(uses)


def _compute_before(uses: list[_Use]) -> None:
    """Move what makes the numbers before the first operation that uses one: it waits for nothing on the GPU."""
    first = uses[0].node
    place = {node: number for number, node in enumerate(first.graph.nodes)}
    needed: set[fx.Node] = set()
    waiting = [use.scalar for use in uses]
    while waiting:
        node = waiting.pop()
        if node not in needed and place[node] > place[first]:
            needed.add(node)
            waiting += node.all_input_nodes
    for node in sorted(needed, key=place.__getitem__):
        first.prepend(node)


def _uses(graph: fx.Graph, device: torch.device) -> list[_Use]:
    uses = []
    computed_here = _on_cpu_alone(graph)
    for node in graph.nodes:
        if node.target not in _ARITHMETIC or node.meta["device"] != device or not _is_float(node):
            continue
        for place, arg in enumerate(node.args[:2]):
            if not isinstance(arg, fx.Node) or arg not in computed_here or _is_literal(arg):
                continue
            if arg.meta["val"].dim() == 0 and _is_float(arg):
                uses.append(_Use(node, place, arg))
    return uses


def _is_literal(node: fx.Node) -> bool:
    """Whether a scalar is a number that the graph says: kernels compute it where they use it, on any device."""
    while node.target is aten._to_copy.default and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.target is aten.full.default


def _is_float(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


def _on_cpu_alone(graph: fx.Graph) -> set[fx.Node]:
    """Tensors whose values do not wait for another device."""
    on_cpu: set[fx.Node] = set()
    for node in graph.nodes:
        here = isinstance(node.meta.get("val"), torch.Tensor) and node.meta["device"].type == "cpu"
        pure = node.op != "call_function" or not is_impure(node)
        if here and pure and all(each in on_cpu for each in node.all_input_nodes):
            on_cpu.add(node)
    return on_cpu


def _divides(use: _Use) -> bool:
    """Whether the number divides: eager's kernel multiplies by its reciprocal, which it rounds first."""
    return use.node.target is aten.div.Tensor and use.place == 1 and _is_float(use.node.args[0])


def _copy(b: Builder, uses: list[_Use], device: torch.device) -> _Elements:
    """Give every number its place on the GPU."""
    elements: _Elements = {}
    singles: dict[torch.dtype, dict[tuple[fx.Node, bool], fx.Node]] = {}
    vectors: dict[fx.Node, fx.Node] = {}
    for use in uses:
        key = (use.scalar, _divides(use))
        if key in elements:
            continue
        vector = None if key[1] else _vector_of(use.scalar)
        if vector is not None:
            moved = vectors.get(vector)
            if moved is None:
                moved = vectors[vector] = b(device_ops().to_device, vector, device=device)
            elements[key] = b(aten.select.int, moved, *use.scalar.args[1:])
            continue
        number = _reciprocal(b, use) if key[1] else use.scalar
        singles.setdefault(number.meta["val"].dtype, {}).setdefault(key, number)
    for group in singles.values():
        for key, element in zip(group, _elements(b, group.values(), device)):
            elements[key] = element
    return elements


def _vector_of(scalar: fx.Node) -> fx.Node | None:
    """The vector that a number is an element of."""
    if scalar.target is not aten.select.int or not isinstance(scalar.args[0], fx.Node):
        return None
    val = scalar.args[0].meta["val"]
    return scalar.args[0] if val.dim() == 1 and val.numel() <= _MAX_ELEMENTS and val.is_contiguous() else None


def _reciprocal(b: Builder, use: _Use) -> fx.Node:
    dtype = use.node.meta["val"].dtype
    dtype = _WIDE.get(dtype, dtype)
    number = use.scalar
    if number.meta["val"].dtype is not dtype:
        number = b(aten._to_copy.default, number, dtype=dtype)
    reciprocal: fx.Node = b(aten.reciprocal.default, number)
    return reciprocal


def _elements(b: Builder, numbers: Iterable[fx.Node], device: torch.device) -> list[fx.Node]:
    vector = b(aten.cat.default, [b(aten.view.default, number, [1]) for number in numbers])
    moved = b(device_ops().to_device, vector, device=device)
    return [b(aten.select.int, moved, 0, place) for place in range(moved.meta["val"].numel())]


def _replace(b: Builder, use: _Use, elements: _Elements) -> None:
    """The operation with the element in place of the CPU number, where that has the same result."""
    divides = _divides(use)
    args: list[Any] = list(use.node.args)
    args[use.place] = elements[use.scalar, divides]
    target = aten.mul.Tensor if divides else use.node.target
    with b.at(use.node):
        replacement = b(target, *args, **use.node.kwargs)
    one, two = replacement.meta["val"], use.node.meta["val"]
    if one.dtype is not two.dtype or one.shape != two.shape or one.stride() != two.stride():
        b.graph.erase_node(replacement)  # eager's kernel computes it
        return
    use.node.replace_all_uses_with(replacement)
    b.graph.erase_node(use.node)
