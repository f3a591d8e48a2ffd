"""`Tensor`: what a lowered ATen value is: a lazy expression over an index, or a strided view of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr
from argand.ir.loops import Origin, TensorRef, Value
from argand.lower.recorder import Recorder

Index = tuple[Expr, ...]
Loader = Callable[[Recorder, Index], Value]
ToRef = Callable[[TensorRef], "TensorRef | None"]


class Tensor:
    """A lowered tensor: lazy until `ref` is set.

    Attributes:
        size, dtype, device: as eager's.
        stride: eager's strides; the layout it is given when it is realised.
        ref: the buffer view that holds it, once realised.
        loader: records the element at a logical index.
        origin: the ATen node that made it.
        cost: what computing one element costs, roughly in additions.
        count: how many statements one element takes.
        reads: buffers that the loader reads.
        base, to_ref: for a view of another Tensor: that tensor, and the view as a function on buffer views (None
            when it cannot be expressed by strides).
        split: (dim, positions): what it is made of changes at these positions along `dim` (the parts of a cat); it is
            stored by one loop nest per part, so that no loop has to test where it is. Positions are None where the
            elements at even and odd places of `dim` are made in two ways: then one loop nest has a store for each.
        realiser: realises it in a special way (cat: one store per input); called with the context.
        repeated: a tensor that this one repeats along dimensions that have size 1 there, or that it lacks.
    """

    __slots__ = (
        "base", "cost", "count", "device", "dtype", "loader", "origin", "reads", "realiser", "ref", "repeated", "size",
        "split", "stride", "to_ref",
    )  # fmt: skip

    def __init__(
        self,
        size: Index,
        stride: Index,
        dtype: torch.dtype,
        device: torch.device,
        *,
        loader: Loader | None = None,
        ref: TensorRef | None = None,
        origin: Origin | None = None,
        cost: int = 0,
        count: int = 0,
        reads: frozenset[str] = frozenset(),
        base: Tensor | None = None,
        to_ref: ToRef | None = None,
    ) -> None:
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.loader = loader
        self.ref = ref
        self.origin = origin
        self.cost = cost
        self.count = count
        self.reads = reads
        self.base = base
        self.to_ref = to_ref
        self.realiser: Callable[[Any, Tensor], TensorRef] | None = None
        self.split: tuple[int, Index | None] | None = None
        self.repeated: Tensor | None = None

    def load(self, ops: Recorder, index: Index) -> Value:
        """Record the element at `index` (one expression per dimension)."""
        if self.ref is not None:
            return ops.load_ref(self.ref, index, self.dtype)
        key = (id(self), index)
        element = ops.recall(key)
        if element is None:
            before, ops.origin = ops.origin, self.origin or ops.origin
            if self.loader is None:
                raise InternalError("a tensor with neither a buffer nor a loader")
            element = self.loader(ops, index)
            ops.origin = before
            ops.remember(key, element)
        return element

    def hold(self, ref: TensorRef) -> None:
        """It is realised now: from here on it is read from `ref`."""
        self.ref = ref
        self.loader = self.base = self.to_ref = self.realiser = self.split = None
        self.cost = self.count = 0
        self.reads = frozenset((ref.buffer,))

    @property
    def ndim(self) -> int:
        return len(self.size)
