"""Redundant nodes and simple algebra: rules keyed by op, each returns what its node is equal to, or None."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.graph import compat
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.meta import is_view
from argand.graph.nodes.program import AtenProgram
from argand.passes.cse import returned_storages
from argand.passes.layout import same_memory

aten = torch.ops.aten

Rule = Callable[[Builder, fx.Node], fx.Node | None]

RULES: dict[Any, list[Rule]] = {}


def simplifies(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule for ops."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(rule)
        return rule

    return register


def simplify(program: AtenProgram) -> int:
    """Apply the rules once to every node, in order, so that a rule sees simplified arguments.

    A node that the program returns, or whose memory a returned view shows, is left alone: it must not become an input
    or share memory with another result.
    """
    graph = program.graph
    builder = Builder(graph, program.specs or SpecTable(), made_by="simplify")
    builder.orders = program.orders
    kept, whole = returned_storages(graph), program.kind == "inference"
    changes = 0
    for node in list(graph.nodes):
        rules = RULES.get(node.target) if node.op == "call_function" else None
        if not rules or node in kept or _memory_is_read(node) or (whole and _is_apart(node)):
            continue
        for rule in rules:
            with builder.at(node):
                new = rule(builder, node)
            if new is not None:
                node.replace_all_uses_with(new)
                graph.erase_node(node)
                changes += 1
                break
    return changes


def _memory_is_read(node: fx.Node) -> bool:
    """as_strided addresses the memory behind its argument: a copy before it is there to give that a known layout."""
    return any(user.target in _ADDRESSING for user in node.users)


_ADDRESSING = (aten.as_strided.default, aten.as_strided_scatter.default)


def _is_apart(node: fx.Node) -> bool:
    """A view in a backward of a view that the forward makes, while both are one graph: it sees the data that an input
    had, as a formula that read the input itself would not (`parameter.data = ...` in between). So does a view of an
    input that the backward reads. Or a copy that a backward reads, and not what was copied."""
    if "copied" in node.meta:
        return True
    source = node.args[0] if node.args else None
    if not is_view(node) or not isinstance(source, fx.Node):
        return False
    if "backward" in node.meta:
        return is_view(source) and "backward" not in source.meta
    return source.op == "placeholder" and any("backward" in user.meta for user in node.users)


def _val(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _source(node: fx.Node) -> Any:
    return node.args[0]


def _same(node: fx.Node, other: Any) -> bool:
    """Equal dtype, shape and memory layout: one may stand for the other."""
    if not isinstance(other, fx.Node):
        return False
    a, b = _val(node), other.meta["val"]
    return isinstance(b, torch.Tensor) and a.dtype is b.dtype and same_memory(a, b) and a.is_conj() == b.is_conj()


# ---------------------------------------------------------------------- views


@simplifies(
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
)
def _view_of_everything(b: Builder, node: fx.Node) -> fx.Node | None:
    """view(x, x.shape) = x"""
    source = _source(node)
    return source if _same(node, source) and node.meta["device"] == source.meta["device"] else None


@simplifies(aten.permute.default)
def _permute(b: Builder, node: fx.Node) -> fx.Node | None:
    """permute(x, identity) = x;  permute(permute(x, p), q) = permute(x, p∘q)"""
    source, dims = node.args[0], [d % _val(node).dim() for d in node.args[1]]
    if dims == list(range(len(dims))):
        return source
    if isinstance(source, fx.Node) and source.target is aten.permute.default:
        first = [d % len(dims) for d in source.args[1]]
        both = [first[d] for d in dims]
        if both == list(range(len(dims))):
            return source.args[0]
        return b(aten.permute.default, source.args[0], both)
    return None


@simplifies(aten.view.default)
def _view_of_view(b: Builder, node: fx.Node) -> fx.Node | None:
    """view(view(x, a), b) = view(x, b)"""
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target is not aten.view.default:
        return None
    origin: Any = source.args[0]
    if _same(node, origin):
        return origin
    try:
        view: fx.Node = b(aten.view.default, origin, node.args[1])
    except RuntimeError:  # not a view of the first tensor's strides
        return None
    return view


@simplifies(aten.expand.default)
def _expand_of_expand(b: Builder, node: fx.Node) -> fx.Node | None:
    """expand(expand(x, a), b) = expand(x, b)"""
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target is not aten.expand.default:
        return None
    return b(aten.expand.default, source.args[0], list(_val(node).shape))


@simplifies(aten.slice.Tensor)
def _slice_of_scatter(b: Builder, node: fx.Node) -> fx.Node | None:
    """slice(slice_scatter(x, v, there), where) = slice of v within there, of x apart from it; when the layouts agree"""
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target is not aten.slice_scatter.default:
        return None
    base, new, where, written = source.args[0], source.args[1], _bounds(node, 1), _bounds(source, 2)
    if where == written:
        same = _val(new).shape == _val(node).shape and _val(new).dtype is _val(node).dtype
        return new if same and _loose(node) else None
    if where[0] != written[0] or not all(type(at) is int for at in (*where, *written)) or where[3] + written[3] != 2:
        return None
    dim, (low, high), (start, end) = where[0], where[1:3], written[1:3]
    if start <= low and high <= end:
        whole = [*_val(base).shape[:dim], end - start, *_val(base).shape[dim + 1 :]]
        if list(_val(new).shape) != whole or _val(new).dtype is not _val(node).dtype:
            return None
        base, orders = new, [(start, low), (high, end)]
        low, high = low - start, high - start
    elif high <= start or end <= low:
        orders = [(high, start) if high <= start else (end, low)]
    else:
        return None
    part: fx.Node = b(aten.slice.Tensor, base, dim, low, high)
    if not (_same(node, part) or _loose(node)):
        return None
    b.orders += orders
    return part


@simplifies(aten.select.int)
def _select_of_scatter(b: Builder, node: fx.Node) -> fx.Node | None:
    """select(select_scatter(x, v, dim, i), dim, i) = v, when the layouts agree"""
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.target is not aten.select_scatter.default:
        return None
    if tuple(node.args[1:]) != tuple(source.args[2:]):
        return None
    new: Any = source.args[1]
    return new if _val(new).dtype is _val(node).dtype and _loose(node) else None


def _bounds(node: fx.Node, start: int) -> tuple[Any, ...]:
    extent = _val(node.args[0]).shape
    given = (*node.args[start:], *([None] * 4))[:4]
    dim = (given[0] or 0) % len(extent)
    low, high, step = given[1] or 0, given[2], given[3] or 1
    size = extent[dim]
    low = max(low + size, 0) if low < 0 else min(low, size)
    high = size if high is None else max(high + size, 0) if high < 0 else min(high, size)
    return dim, low, high, step


def _loose(node: fx.Node) -> bool:
    """No reader depends on the node's strides: all of them compute elementwise, or copy it to a layout of its own."""
    return all(
        (user.target is aten.clone.default and user.kwargs.get("memory_format") is torch.contiguous_format)
        or (
            compat.has_tag(user.target, "pointwise")
            and any(isinstance(a, fx.Node) and a is not node and same_memory(_val(a), _val(user)) for a in user.args)
        )
        for user in node.users
    )


@simplifies(aten.diagonal.default)
def _diagonal_of_product(b: Builder, node: fx.Node) -> fx.Node | None:
    """diagonal(x @ y) = sum(x * y.T, -1), of the rows and columns that meet on it"""
    product = node.args[0]
    if not isinstance(product, fx.Node) or product.target not in (aten.mm.default, aten.bmm.default):
        return None
    given: list[Any] = [*node.args[1:], *(0, 0, 1)[len(node.args) - 1 :]]
    last = _val(product).dim() - 1
    crossed = {dim % (last + 1) for dim in given[1:]} == {last - 1, last}
    if given[0] != 0 or node.kwargs or len(product.users) > 1 or not crossed:
        return None
    if _val(node).dtype not in (torch.float32, torch.float64) or not all(map(_reads_values, node.users)):
        return None
    x, y = (b(aten.slice.Tensor, side, dim, 0, _val(node).shape[-1]) for side, dim in zip(product.args, (-2, -1)))
    turned = b(aten.permute.default, y, [*range(last - 1), last, last - 1])
    diagonal: fx.Node = b(aten.sum.dim_IntList, b(aten.mul.Tensor, x, turned), [-1])
    return diagonal


def _reads_values(user: fx.Node) -> bool:
    """A reader that does not depend on the strides of what has one order of dimensions."""
    return compat.has_tag(user.target, "pointwise") or user.target in (aten.sum.dim_IntList, aten.sum.default)


# ---------------------------------------------------------------------- copies and casts


@simplifies(aten.clone.default)
def _clone(b: Builder, node: fx.Node) -> fx.Node | None:
    """clone(x) = x where the layout stays: in a functional graph nobody can tell them apart"""
    source = _source(node)
    return source if _same(node, source) else None


@simplifies(aten._to_copy.default)
def _cast(b: Builder, node: fx.Node) -> fx.Node | None:
    """cast(x, x.dtype) = x;  cast(cast(x, wider), x.dtype) = x"""
    source = _source(node)
    if _same(node, source) and node.meta["device"] == source.meta["device"]:
        return source
    if not isinstance(source, fx.Node) or source.target is not aten._to_copy.default:
        return None
    origin: Any = source.args[0]
    if source.meta["device"] != origin.meta["device"] or not _holds(_val(source).dtype, _val(origin).dtype):
        return None
    if _same(node, origin) and node.meta["device"] == origin.meta["device"]:
        return origin
    return None


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Every value of `narrow` is exact in `wide`."""
    if narrow in (torch.bfloat16, torch.float16):
        return wide in (torch.float32, torch.float64)
    return narrow is torch.float32 and wide is torch.float64


# ---------------------------------------------------------------------- algebra


@simplifies(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
def _times_one(b: Builder, node: fx.Node) -> fx.Node | None:
    """x * 1 = x;  x / 1 = x"""
    if len(node.args) != 2 or node.kwargs:
        return None
    return _source(node) if _is_number(node.args[1], 1) and _same(node, node.args[0]) else None


@simplifies(aten.add.Tensor, aten.sub.Tensor)
def _plus_zero(b: Builder, node: fx.Node) -> fx.Node | None:
    """x + 0 = x for integers;  x - 0 = x (for floats -0.0 + 0 is 0.0, and so is -0.0 - -0.0)"""
    if len(node.args) != 2 or not _is_number(node.args[1], 0) or not _same(node, node.args[0]):
        return None
    whole = not _val(node).dtype.is_floating_point and not _val(node).dtype.is_complex
    exact = node.target is aten.sub.Tensor and not _val(node).dtype.is_complex and not _is_negative(node.args[1])
    return _source(node) if whole or exact else None


@simplifies(aten.pow.Tensor_Scalar)
def _power(b: Builder, node: fx.Node) -> fx.Node | None:
    """x ** 1 = x;  x ** 2 = x * x"""
    source, exponent = node.args[0], node.args[1]
    if _is_number(exponent, 1) and _same(node, source):
        return source
    if _is_number(exponent, 2) and _val(node).dtype is _val(source).dtype and _val(node).dtype is not torch.bool:
        return b(aten.mul.Tensor, source, source)
    return None


def _is_negative(value: Any) -> bool:
    return math.copysign(1.0, value) < 0


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number
