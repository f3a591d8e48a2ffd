"""Tensor metadata of a graph: interned, with cached inference of what each op makes of it; and stride arithmetic."""

from __future__ import annotations

from typing import Any

import torch

from argand.graph.nodes.program import TensorSpec


class Spec:
    """Interned tensor metadata: two values of equal metadata share one Spec, so that identity is equality."""

    __slots__ = ("conj", "device", "dtype", "meta", "neg", "offset", "size", "stride")

    def __init__(
        self, meta: torch.Tensor, device: torch.device, size: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> None:
        self.meta = meta
        self.device = device
        self.size = size
        self.stride = stride
        self.offset = offset
        self.dtype = meta.dtype
        self.conj = meta.is_conj()
        self.neg = meta.is_neg()

    def __repr__(self) -> str:
        return f"Spec({list(self.size)}, stride={list(self.stride)}, {self.dtype}, {self.device})"

    @property
    def plain(self) -> TensorSpec:
        return TensorSpec(self.size, self.stride, self.offset, self.dtype, self.device)


class SpecTable:
    """The Specs of one program, and what ops were found to make of them (`results`, filled by `metadata.metas`)."""

    def __init__(self) -> None:
        self._specs: dict[tuple[Any, ...], Spec] = {}
        self.results: dict[tuple[Any, ...], Any] = {}

    def of_meta(self, meta: torch.Tensor, device: torch.device) -> Spec:
        """The Spec of a meta tensor with a logical device."""
        size, stride, offset = tuple(meta.shape), meta.stride(), meta.storage_offset()
        key = (size, stride, offset, meta.dtype, device, meta.is_conj(), meta.is_neg())
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = Spec(_fresh(meta, offset), device, size, stride, offset)
        return spec

    def make(
        self,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Spec:
        """The Spec with this metadata."""
        key = (size, stride, offset, dtype, device, False, False)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = Spec(strided_meta(size, stride, offset, dtype), device, size, stride, offset)
        return spec


def strided_meta(size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor with this metadata, in a storage of its own that is large enough."""
    if not offset:
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if 0 not in size else 0
    return torch.empty(offset + extent, dtype=dtype, device="meta").as_strided(size, stride, offset)


def _fresh(meta: torch.Tensor, offset: int) -> torch.Tensor:
    if meta.is_conj() or meta.is_neg() or meta.requires_grad:
        return meta.detach()
    # A storage of its own: a Spec is shared, so it must not alias a tensor that somebody resizes.
    return strided_meta(tuple(meta.shape), meta.stride(), offset, meta.dtype)
