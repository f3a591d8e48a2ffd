"""Tensors that numbers alone make: windows of signals, numbers evenly spaced in their logarithm."""

from __future__ import annotations

import math
from typing import Any

import torch

from argand.graph.metadata.builder import Builder
from argand.passes.decompositions.rules import aten, decomposes


def _window(*weights: float) -> Any:
    """The rule of w0 + w1 cos t + w2 cos 2t + ..., whose t goes once around; a call may bring weights of its own."""

    def rule(b: Builder, length: Any, periodic: bool = True, *given: float, **options: Any) -> Any:
        first, *others = weights if not given else (given[0], -given[1] if len(given) > 1 else weights[1])
        dtype = options.get("dtype") or torch.get_default_dtype()
        if (
            length < 2
            or dtype not in (torch.float32, torch.float64)
            or options.get("layout") not in (None, torch.strided)
        ):
            return NotImplemented
        numbers = b(aten.arange.start_step, 0, length, 1, dtype=dtype, device=options.get("device"))
        total: Any = first
        for turns, weight in enumerate(others, 1):
            turned = b(aten.div.Tensor, b(aten.mul.Tensor, numbers, 2 * math.pi * turns), length - (not periodic))
            total = b(aten.add.Tensor, b(aten.mul.Tensor, b(aten.cos.default, turned), weight), total)
        return total

    return rule


for _name, _weights in (("hann", (0.5, -0.5)), ("hamming", (0.54, -0.46)), ("blackman", (0.42, -0.5, 0.08))):
    _packet = getattr(aten, f"{_name}_window")
    decomposes(*[getattr(_packet, overload) for overload in _packet.overloads() if "out" not in overload])(
        _window(*_weights)
    )


@decomposes(aten.logspace.default)
def _logspace(b: Builder, start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> Any:
    """base to the power of numbers that are evenly spaced"""
    if (options.get("dtype") or torch.get_default_dtype()) not in (torch.float32, torch.float64):
        return NotImplemented
    return b(aten.pow.Scalar, base, b(aten.linspace.default, start, end, steps, **options))
