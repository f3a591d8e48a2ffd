"""Tensor metadata of a graph: interned, with cached inference of what each op makes of it; and stride arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import torch

from argand.graph import compat
from argand.graph.metadata.strides import elements_spanned
from argand.graph.nodes.program import TensorSpec

_CPU: Final = torch.device("cpu")
_MOST: Final = 1 << 13
"""Operations, or Specs, that are kept for later programs."""


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
    """The Specs of one program, and what ops were found to make of them (`results`, filled by `metadata.metas`).

    Arguments:
        common: whose Specs and results are also this one's. What torch's own ops make of Specs is what they make in
            every program: capture asks the tracer, the graph is traced, passes rewrite, and each op is inferred once.
    """

    def __init__(self, common: SpecTable | None = None) -> None:
        self._specs: dict[tuple[Any, ...], Spec] = {} if common is None else common._specs
        self._lasting: dict[tuple[Any, ...], Any] = {} if common is None else common._lasting
        self._passing: dict[tuple[Any, ...], Any] = {}

    def results(self, func: Any, kwargs: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
        """Where results of an op are kept: for later programs, too, where nothing but Specs and `settings` decides."""
        device = kwargs.get("device", _CPU) or _CPU
        sure = isinstance(device, torch.device) and (device.type == "cpu" or device.index is not None)
        return self._lasting if sure and _is_torchs(func) and not torch._C._is_any_autocast_enabled() else self._passing

    @property
    def full(self) -> bool:
        """Whether as much is kept as may be."""
        return max(len(self._lasting), len(self._specs)) > _MOST

    def of_meta(self, meta: torch.Tensor, device: torch.device) -> Spec:
        """The Spec of a meta tensor with a logical device."""
        size, stride, offset = tuple(meta.shape), meta.stride(), meta.storage_offset()
        key = (size, stride, offset, meta.dtype, device, meta.is_conj(), meta.is_neg())
        spec = self._specs.get(key)
        return spec or self._specs.setdefault(key, Spec(_fresh(meta, offset), device, size, stride, offset))

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
            meta = strided_meta(size, stride, offset, dtype)
            spec = self._specs.setdefault(key, Spec(meta, device, size, stride, offset))  # one, whichever thread's
        return spec


def table_for_program(now: tuple[object, ...]) -> SpecTable:
    """A table that knows what capture and earlier programs inferred under the same `settings`."""
    common = _table_of(now)
    if common.full:
        _table_of.cache_clear()
        common = _table_of(now)
    return SpecTable(common)


@functools.lru_cache(maxsize=4)
def _table_of(_: object) -> SpecTable:
    return SpecTable()


def settings() -> tuple[object, ...]:
    """What of torch's settings may decide what ops make, but for grad mode and autocast."""
    flags = [read() for read, _ in compat.FLAGS]
    plain = [tuple(flag) if isinstance(flag, list) else flag for flag in flags]
    kernels = torch._C._get_mkldnn_enabled(), torch.is_inference_mode_enabled()
    return torch.get_default_dtype(), *kernels, *plain


@functools.cache
def _is_torchs(func: Any) -> bool:
    return getattr(func, "namespace", None) in ("aten", "prims")


def strided_meta(size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor with this metadata, in a storage of its own that is large enough."""
    if not offset:
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")
    memory = torch.empty(offset + elements_spanned(size, stride), dtype=dtype, device="meta")
    return memory.as_strided(size, stride, offset)


def _fresh(meta: torch.Tensor, offset: int) -> torch.Tensor:
    if meta.is_conj() or meta.is_neg() or meta.requires_grad:
        return meta.detach()
    # A storage of its own: a Spec is shared, so it must not alias a tensor that somebody resizes.
    return strided_meta(tuple(meta.shape), meta.stride(), offset, meta.dtype)
