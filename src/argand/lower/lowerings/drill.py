"""`aten._foobar`: an op without a meaning, for trying out what happens when a lowering fails (docs/minifier.md)."""

from __future__ import annotations

from typing import Any

import torch

from argand.errors import LoweringError
from argand.lower.context import Context
from argand.lower.registry import lowers


@lowers(torch.ops.aten._foobar.default)
def foobar(ctx: Context, *args: Any, **kwargs: Any) -> Any:
    """Fails, always."""
    raise LoweringError(
        "aten._foobar cannot be lowered: it exists to try out how a failure looks",
        remedy='compile with backend="aot_eager", which runs the op as it is',
    )
