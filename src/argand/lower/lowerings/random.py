"""Random numbers in loops: every element from the seed and its own position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.graph.operators.random_ops import bits, random_ops
from argand.graph.sizes.expr import sum_of
from argand.ir.loops import Value
from argand.lower.context import Context
from argand.lower.recorder import Recorder
from argand.lower.registry import REGISTRY, ExternKernel, NoLowering, lowers
from argand.lower.tensor import Index, Tensor

COST = 12

for _name in ("seed", "set_seed", "rng_state", "set_rng_state", "seeded_state", "generator_draw", "part_draw"):
    REGISTRY.add_kernel(getattr(random_ops(), _name), ExternKernel())


class _LoopIntegers:
    """`Integers` on the statements of a loop body."""

    def __init__(self, ops: Recorder) -> None:
        self.ops = ops
        self.add, self.mul, self.xor = ops.add, ops.mul, ops.bitwise_xor

    def constant(self, value: int) -> Value:
        return self.ops.constant(value, torch.int64)

    def shift(self, a: Value, count: int) -> Value:
        return self.ops.bitwise_and(self.ops.rshift(a, self.constant(count)), self.constant((1 << (64 - count)) - 1))


@lowers(random_ops().uniform)
def uniform(ctx: Context, seed: Tensor, size: Sequence[Any], *, dtype: torch.dtype) -> Tensor:
    if dtype not in (torch.float32, torch.float64):
        raise NoLowering(f"random numbers of {dtype}")
    extents = [ctx.expr(extent) for extent in size]
    steps = [ctx.expr(1)] * len(extents)
    for at in range(len(extents) - 2, -1, -1):
        steps[at] = steps[at + 1] * extents[at + 1]

    def load(ops: Recorder, index: Index) -> Value:
        position = sum_of([i * step for i, step in zip(index, steps)]) if index else ctx.expr(0)
        drawn = bits(_LoopIntegers(ops), seed.load(ops, ()), ops.index_expr(position, torch.int64))
        if dtype is torch.float32:
            top = ops.rshift(drawn, ops.constant(29, torch.int64))
            return ops.mul(ops.to_dtype(top, torch.float32), ops.constant(2.0**-24, torch.float32))
        return ops.mul(ops.to_dtype(drawn, torch.float64), ops.constant(2.0**-53, torch.float64))

    return ctx.lazy(load, [seed], cost=COST, count=16)
