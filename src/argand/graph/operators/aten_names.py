"""Operations of ATen by name, for tables of many."""

from __future__ import annotations

from typing import Any

import torch


def of_aten(names: str) -> list[Any]:
    """Overloads, several to a text: "sum.dim_IntList", and "relu" for `relu.default`."""
    parts = (name.partition(".") for name in names.split())
    return [getattr(getattr(torch.ops.aten, name), overload or "default") for name, _, overload in parts]
