"""The table of decompositions and what its rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.errors import InternalError
from argand.graph.metadata.builder import Builder

aten = torch.ops.aten

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}


def decomposes(*ops: Any) -> Callable[[Rule], Rule]:
    """Register the decorated function for ATen overloads; registering one twice raises."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES:
                raise InternalError(f"{op} has two decompositions")
            RULES[op] = rule
        return rule

    return register


def val(node: Any) -> torch.Tensor:
    """The meta tensor of a node."""
    return node.meta["val"]


def device(node: fx.Node) -> torch.device:
    """The logical device of a node."""
    return node.meta["device"]


def widen(b: Builder, node: fx.Node) -> fx.Node:
    """bfloat16 and float16 as float32, in which eager's kernels compute."""
    if val(node).dtype in (torch.bfloat16, torch.float16):
        return b(aten._to_copy.default, node, dtype=torch.float32)
    return node


def cast(b: Builder, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """`node` as `dtype`."""
    if val(node).dtype is dtype:
        return node
    return b(aten._to_copy.default, node, dtype=dtype)


def is_float(node: fx.Node) -> bool:
    """A real floating point tensor."""
    return val(node).dtype.is_floating_point


def full(b: Builder, size: list[int], value: Any, like: fx.Node, dtype: torch.dtype | None = None) -> fx.Node:
    """A tensor of one value on the device of `like`, in its dtype unless another is given."""
    options = {"dtype": dtype or val(like).dtype, "device": device(like)}
    return b(aten.full.default, size, value, **options)
