"""Buckets of DistributedDataParallel as nodes of a recorded graph: when each is complete, and what is sent of it.

What is computed is what the reducer computes, operation by operation, so that the bits are the same: the accumulated
gradient times one over the number of ranks, in the parameter's layout, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from argand.engine.reducers import Reduction

aten = torch.ops.aten


class Pending:
    """Which buckets of one reduction have been sent.

    Fields:
        values: per parameter, the gradient that has come to it.
    """

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.values: dict[int, Any] = {}
        self._numbers = {at: number for number, at in enumerate(reduction.leaves) if at is not None}
        self._missing = [
            {number for number in one.parameters if reduction.leaves[number] is not None} for one in reduction.buckets
        ]
        self._next = 0

    def complete(self, at: int, value: Any) -> Iterator[int]:
        """A gradient has come to a leaf: the buckets that are sent then, in order.

        Arguments:
            value: None for no gradient.
        """
        number = self._numbers.get(at)
        if number is None:
            return
        self.values[number] = value
        for missing in self._missing:
            missing.discard(number)
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._next += 1
            yield self._next - 1

    def is_complete(self) -> bool:
        """Whether all buckets have been sent."""
        return self._next == len(self._missing)


def sent_bucket(graph: fx.Graph, reduction: Reduction, parts: Sequence[tuple[int, Sequence[fx.Node]]]) -> fx.Node:
    """The node that begins to reduce a bucket.

    Arguments:
        parts: per parameter of the bucket, its number and the gradients that add up to its own.
    """
    ddp = reduction.reducer.ddp()
    parameters = reduction.reducer.parameters()
    group = ddp.process_group
    call = graph.call_function
    flat = []
    for number, terms in parts:
        parameter = parameters[number]
        if not terms:
            part = call(
                aten.zeros.default, ([parameter.numel()],), {"dtype": parameter.dtype, "device": parameter.device}
            )
            flat.append(part)
            continue
        total = terms[0] if len(terms) == 1 else call(aten.add.Tensor, (terms[0], terms[1]))
        scaled = call(aten.mul.Tensor, (total, 1.0 / group.size()))
        order = _in_memory(parameter)
        if order != list(range(parameter.dim())):
            scaled = call(aten.permute.default, (scaled, order))
        flat.append(call(aten.reshape.default, (scaled, [-1])))
    joined = flat[0] if len(flat) == 1 else call(aten.cat.default, (flat,))
    return call(torch.ops._c10d_functional.all_reduce.default, (joined, "sum", group.group_name))


def received(graph: fx.Graph, sent: fx.Node) -> fx.Node:
    """The node that waits for what was sent."""
    return graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (sent,))


def _in_memory(parameter: torch.Tensor) -> list[int]:
    """The order of a parameter's dimensions in its bucket: as they lie in memory, where they fill it."""
    dims = list(range(parameter.dim()))
    ordered = sorted(dims, key=lambda dim: (-parameter.stride(dim), parameter.size(dim) == 1))
    dense = parameter.permute(ordered).is_contiguous()
    return ordered if dense else dims
