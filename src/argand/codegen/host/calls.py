"""How a host module calls ATen: the Python name of each operator."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from argand.lower.ir import ExternNode

# `torch.ops` calls go through a dispatcher of Python objects (3 us); these bindings take the same arguments in 1 us.
_FAST = {
    "aten.mm.default": "torch.mm",
    "aten.bmm.default": "torch.bmm",
    "aten.addmm.default": "torch.addmm",
    "aten.baddbmm.default": "torch.baddbmm",
    "aten.convolution.default": "torch.convolution",
    "aten.embedding.default": "torch.embedding",
}


@dataclass(frozen=True, slots=True)
class ExternFunction:
    """A module-level name for an operator.

    Arguments:
        name: the name.
        expression: what it is bound to.
        returns_tuple: the operator returns several values.
    """

    name: str
    expression: str
    returns_tuple: bool


def extern_function(node: ExternNode) -> ExternFunction:
    """The name by which a host module calls `node`'s kernel."""
    target = node.target
    schema = getattr(target, "_schema", None)
    several = schema is not None and len(schema.returns) != 1
    text = str(target)
    if node.out_variant is not None:
        return ExternFunction(node.out_variant.replace(".", "_") + "_out", node.out_variant, several)
    if text in _FAST:
        return ExternFunction(_FAST[text].replace(".", "_"), _FAST[text], several)
    if isinstance(target, torch._ops.OpOverload):
        return ExternFunction(text.replace(".", "_"), f"torch.ops.{text}", several)
    name = f"{target.__module__}.{target.__qualname__}"
    return ExternFunction(name.replace(".", "_"), name, several)
