"""Operations of ATen by name, for tables of many."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

import torch


def of_aten(names: str) -> list[Any]:
    """Overloads, several to a text: "sum.dim_IntList", and "relu" for `relu.default`."""
    parts = (name.partition(".") for name in names.split())
    return [getattr(getattr(torch.ops.aten, name), overload or "default") for name, _, overload in parts]


def operator_path(op: torch._ops.OpOverload) -> str:
    """An expression for an overload, whose name may be a word of Python: `random.from`."""
    packet, _, overload = str(op).rpartition(".")
    return f"getattr(torch.ops.{packet}, {overload!r})" if iskeyword(overload) else f"torch.ops.{op}"


def operator_name(func: Any) -> str:
    """The name that an operator has in ATen; of a function, its own."""
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.name.removeprefix("aten::")
    return str(getattr(func, "__name__", ""))
