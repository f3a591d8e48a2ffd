"""The decomposition pass: large ATen ops become small ones, by the rules in `passes.decompositions`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from argand import events
from argand.config import config
from argand.errors import InternalError
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.printing import describe
from argand.graph.nodes.program import AtenProgram
from argand.interruptions import let_pass
from argand.passes.decompositions import RULES
from argand.passes.layout import exact_strides, same_memory, with_strides


def decompose(program: AtenProgram, rules: Mapping[Any, Any] = RULES) -> int:
    """Apply a rule to every node that has one, and to what it makes; a rule may decline by returning NotImplemented."""
    graph = program.graph
    builder = Builder(graph, program.specs or SpecTable(), made_by="decompose")
    changes = 0
    node = next(iter(graph.nodes))
    while node.op != "root":
        rule = rules.get(node.target) if node.op == "call_function" else None
        if rule is None or not node.users:
            node = node.next
            continue
        before = node.prev
        with builder.at(node):
            parts = apply(rule, builder, node)
            if parts is NotImplemented:
                node = node.next
                continue
            replace(builder, node, parts)
        changes += 1
        after = before.next  # what the rule made may have rules too
        node = after
    return changes


def apply(rule: Any, builder: Builder, node: fx.Node) -> Any:
    """What the rule makes of `node`; an op that its rule fails on stays whole, with an event."""
    try:
        return rule(builder, *node.args, **node.kwargs)
    except Exception as error:
        let_pass(error)
        if config.verify_ir:
            raise
        reason = f"the decomposition of {node.target} raised {type(error).__name__}: {error}"
        events.emit("fallback", "passes", reason, reason=reason, scope="op", op=str(node.target))
        return NotImplemented


def replace(builder: Builder, node: fx.Node, parts: Any) -> None:
    """Put `parts` (a node, or one per result) in the place of `node`, in its layout, and erase `node`."""
    if not isinstance(parts, tuple):
        node.replace_all_uses_with(conform(builder, parts, node))
        builder.graph.erase_node(node)
        return
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise InternalError(f"{node.name} has several results and is used as one by {user.name}")
        new = parts[int(user.args[1])]
        user.replace_all_uses_with(conform(builder, new, user))
        builder.graph.erase_node(user)
    builder.graph.erase_node(node)


def conform(builder: Builder, new: fx.Node, old: fx.Node) -> fx.Node:
    """`new` with the dtype and layout that `old` has; its shape must be right already."""
    want: torch.Tensor = old.meta["val"]
    have: torch.Tensor = new.meta["val"]
    if have.shape != want.shape:
        raise InternalError(f"{old.format_node()} became {new.format_node()}: {describe(have)} is not {describe(want)}")
    if have.dtype is not want.dtype:
        new = builder(torch.ops.aten._to_copy.default, new, dtype=want.dtype)
        have = new.meta["val"]
    returned = any(user.op == "output" for user in old.users)
    if not same_memory(have, want):
        new = with_strides(builder, new, tuple(want.stride()))
    if returned:
        new = exact_strides(builder, new, want)
    return new
