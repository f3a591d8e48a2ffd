"""The buckets in which DistributedDataParallel reduces gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from argand.config import config

_FIRST_BUCKET = 1 << 20  # bytes; torch's own, where a version does not tell


def active_ddp() -> Any:
    """The DistributedDataParallel whose forward this process is in; None outside."""
    return torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()


def ddp_to_cut() -> Any:
    """The DistributedDataParallel whose forward this process is in, where its graphs are cut; else None."""
    return active_ddp() if config.optimize_ddp in (True, "ddp_optimizer") else None


def bucket_limits(ddp: Any) -> Iterator[int]:
    """Bytes of gradients that fill each bucket of a module under DDP, in the order in which gradients arrive; the last
    goes on for ever."""
    *first, usual = _bucket_sizes(ddp)
    yield from first
    while True:
        yield usual


def buckets_text(ddp: Any) -> str:
    """What graphs under DDP are cut by, told apart from that of others."""
    return f"buckets of {', '.join(map(str, _bucket_sizes(ddp)))}"


def _bucket_sizes(ddp: Any) -> tuple[int, ...]:
    buckets = getattr(ddp, "_bucket_config", None)
    usual = int(ddp.bucket_bytes_cap)
    each = tuple(map(int, getattr(buckets, "per_bucket_bytes_caps", ())))
    if each:
        return each
    default = getattr(ddp, "bucket_bytes_cap_default", False)
    first = getattr(buckets, "first_bucket_bytes_cap", _FIRST_BUCKET if default else usual)
    return int(first), usual
