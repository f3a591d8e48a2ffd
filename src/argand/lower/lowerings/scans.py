"""Cumulative sums, products and sums of exponentials: on a CPU one by one, on a GPU where a program holds a row."""

from __future__ import annotations

import torch

from argand.graph.sizes.expr import as_int
from argand.ir.target import ANY_LENGTH
from argand.lower.context import REDUCED_FLOATS, Context, math_dtype
from argand.lower.lowerings.pointwise import refuse
from argand.lower.lowerings.views import wrap
from argand.lower.registry import Rule, lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten
# 16-bit floats are added up in float32, where eager rounds after every step; bools have sums only in int64.
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_DTYPES = (torch.float32, torch.float64, *REDUCED_FLOATS, *_INTEGERS)


def _scan(kind: str) -> Rule:
    def rule(ctx: Context, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        target = ctx.targets(ctx.device)
        refuse(target is None or not target.scan_length, "no lowering")
        assert target is not None  # checked above
        refuse(not x.size or x.size[wrap(dim, len(x.size))] == 1, "a scan of single elements")
        wide = ctx.val.dtype
        refuse(wide not in _DTYPES, f"a scan of {wide}")
        if target.scan_length == ANY_LENGTH:
            return ctx.scan(
                x, wrap(dim, len(x.size)), kind, torch.float64 if wide is torch.float32 else math_dtype(wide)
            )
        refuse(kind == "logaddexp", "no lowering")
        length = as_int(x.size[wrap(dim, len(x.size))])
        refuse(length is None or length > target.scan_length, "rows that are too long, or of any length")
        return ctx.scan(x, wrap(dim, len(x.size)), kind, math_dtype(wide))

    return rule


lowers(aten.cumsum.default)(_scan("sum"))
lowers(aten.cumprod.default)(_scan("prod"))
lowers(aten.logcumsumexp.default)(_scan("logaddexp"))
