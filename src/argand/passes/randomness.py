"""Random ops as pure functions of a seed that the graph draws, so that kernels make the numbers where they are used.

The numbers differ from eager's for the same `torch.manual_seed`; `config.fallback_random` keeps eager's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.config import config
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import contiguous_strides
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.random_ops import random_ops
from argand.passes.decompose import decompose

aten = torch.ops.aten

Draw = Callable[[Builder, Any, torch.dtype, torch.device], fx.Node]
Rule = Callable[..., Any]


def functional_random(program: AtenProgram) -> int:
    """Replace random ops; returns how many nodes changed. Does nothing under `config.fallback_random`."""
    eager = config.fallback_random or config.check_numerics  # (the checker needs eager's numbers to compare with)
    if eager or not any(node.target in RULES for node in program.graph.nodes):
        return 0
    return decompose(program, RULES)


def _uniform(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """Numbers from 0 up to, not including, 1."""
    ops = random_ops()
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    drawn: fx.Node = b(ops.uniform, b(ops.seed, device=device), list(size), dtype=wide)
    return drawn


def _plain(x: fx.Node) -> bool:
    val: torch.Tensor = x.meta["val"]
    return val.dtype in (torch.float32, torch.float64) and val.numel() > 0


def _in_layout_of(x: fx.Node) -> bool:
    """Results are laid out row by row; a draw for another layout is left to eager's kernel."""
    val: torch.Tensor = x.meta["val"]
    return val.stride() == contiguous_strides(val.shape)


_NO_PROBABILITY = (
    "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  "
    "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
)


def _bernoulli_p(b: Builder, x: fx.Node, p: float = 0.5, *, generator: Any = None) -> Any:
    val: torch.Tensor = x.meta["val"]
    if generator is not None or val.numel() == 0 or val.dtype.is_complex:
        return NotImplemented
    drawn = b(aten.lt.Scalar, _drawn_like(b, x, _uniform), float(p))
    return b(aten._to_copy.default, drawn, dtype=val.dtype)


def _bernoulli(b: Builder, x: fx.Node, *, generator: Any = None) -> Any:
    if generator is not None or not _plain(x):
        return NotImplemented
    val: torch.Tensor = x.meta["val"]
    inside = b(aten.all.default, b(aten.logical_and.default, b(aten.ge.Scalar, x, 0.0), b(aten.le.Scalar, x, 1.0)))
    b.effect(aten._assert_async.msg, inside, _NO_PROBABILITY)
    drawn = b(aten.lt.Tensor, _drawn_like(b, x, _uniform), x)
    return b(aten._to_copy.default, drawn, dtype=val.dtype)


def _native_dropout(b: Builder, x: fx.Node, p: float, train: bool | None) -> Any:
    val: torch.Tensor = x.meta["val"]
    if train is False or not 0 < p < 1 or val.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return NotImplemented
    mask = b(aten.lt.Scalar, _drawn_like(b, x, _uniform), 1.0 - p)
    kept = b(aten.mul.Tensor, x, b(aten._to_copy.default, mask, dtype=val.dtype))
    return b(aten.mul.Tensor, kept, 1.0 / (1.0 - p)), mask


def _normal(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates" (1958)."""
    first, second = _uniform(b, size, dtype, device), _uniform(b, size, dtype, device)
    away = b(aten.add.Tensor, b(aten.neg.default, first), 1.0)  # never 0
    radius = b(aten.sqrt.default, b(aten.mul.Tensor, b(aten.log.default, away), -2.0))
    drawn: fx.Node = b(aten.mul.Tensor, radius, b(aten.cos.default, b(aten.mul.Tensor, second, 2 * math.pi)))
    return drawn


def _drawn_like(b: Builder, x: fx.Node, draw: Draw) -> fx.Node:
    val: torch.Tensor = x.meta["val"]
    return draw(b, val.shape, val.dtype, x.meta["device"])


def _factory(draw: Draw) -> Rule:
    """The rule of `rand` or `randn`, which differ in the distribution."""

    def rule(b: Builder, size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **rest: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        if dtype not in (torch.float32, torch.float64) or layout not in (None, torch.strided) or 0 in size:
            return NotImplemented
        if rest.get("generator") is not None:
            return NotImplemented
        return draw(b, size, dtype, device or torch.device("cpu"))

    return rule


def _like(draw: Draw) -> Rule:
    """The rule of `rand_like` or `randn_like`."""

    def rule(b: Builder, x: fx.Node, **options: Any) -> Any:
        changed = {key for key, value in options.items() if value not in (None, False, torch.preserve_format)}
        if changed - {"dtype"} or not _plain(x) or options.get("dtype") not in (None, x.meta["val"].dtype):
            return NotImplemented
        return _drawn_like(b, x, draw) if _in_layout_of(x) else NotImplemented

    return rule


def _uniform_range(b: Builder, x: fx.Node, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not _plain(x) or not _in_layout_of(x):
        return NotImplemented
    drawn = _drawn_like(b, x, _uniform)
    if low == 0 and high == 1:
        return drawn
    return b(aten.add.Tensor, b(aten.mul.Tensor, drawn, float(high - low)), float(low))


RULES: dict[Any, Any] = {
    aten.bernoulli.p: _bernoulli_p,
    aten.bernoulli.default: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    **dict.fromkeys((aten.rand.default, aten.rand.generator), _factory(_uniform)),
    aten.rand_like.default: _like(_uniform),
    **dict.fromkeys((aten.randn.default, aten.randn.generator), _factory(_normal)),
    aten.randn_like.default: _like(_normal),
    aten.uniform.default: _uniform_range,
}
