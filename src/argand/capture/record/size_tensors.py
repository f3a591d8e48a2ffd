"""Tensors that hold a size: `torch.tensor(x.shape[0])`, and sums, differences and products of such, as numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from argand.capture.facts.symbolic import SYMBOLIC
from argand.capture.record import constants

if TYPE_CHECKING:
    from argand.capture.record.tensors import GraphBuilder

_ARITHMETIC: dict[Any, Any] = {
    operator.add: operator.add, torch.add: operator.add, "add": operator.add,
    operator.sub: operator.sub, torch.sub: operator.sub, "sub": operator.sub,
    operator.mul: operator.mul, torch.mul: operator.mul, "mul": operator.mul,
    operator.floordiv: operator.floordiv, operator.neg: operator.neg, torch.neg: operator.neg, "neg": operator.neg,
}  # fmt: skip
_DEEPEST = 16


def number(builder: GraphBuilder, tensor: Any) -> Any:
    """The value of a tensor as a plain or symbolic number; None where it is not known."""
    known = constants.value_of(builder, tensor)
    if known is not None:
        with torch._C.DisableTorchFunction():
            return known.__index__()
    info = builder.tensors.get(id(tensor))
    if info is None or info.source is not None or builder.dynamics is None:
        return None
    with torch._C.DisableTorchFunction():
        if tensor.dim() or tensor.dtype is not torch.int64:
            return None
    written = {written.node for written in builder.mutated.values()}
    return _of_node(builder, info.node, written, _DEEPEST)


def _of_node(builder: GraphBuilder, node: Any, written: set[fx.Node], depth: int) -> Any:
    if type(node) is int:
        return node
    if not isinstance(node, fx.Node) or node in written or depth == 0:
        return None
    assert builder.dynamics is not None
    if "expr" in node.meta:
        found = builder.dynamics.wrap(node.meta["expr"], node.meta["example_value"])
        return found if type(found) is int or type(found) in SYMBOLIC else None
    held = node.meta.get("example_value")
    if not isinstance(held, torch.Tensor) or held.dtype is not torch.int64 or held.dim():
        return None
    if node.target is torch.tensor and not set(node.kwargs) - {"dtype", "device"}:
        return _of_node(builder, node.args[0], written, depth - 1)
    compute = _ARITHMETIC.get(node.target)
    parts = [_of_node(builder, arg, written, depth - 1) for arg in node.args]
    return None if compute is None or node.kwargs or any(part is None for part in parts) else compute(*parts)
