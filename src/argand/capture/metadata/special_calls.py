"""Torch functions that are not simply recorded: what the stand-in answers itself, and handlers by function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from argand.capture.facts.handlers import ABSENT, Args, Function, Kwargs, enter, names_here
from argand.capture.facts.interfaces import GraphBuilder

_T = torch.Tensor

Special: TypeAlias = "Callable[[GraphBuilder, Function, Args, Kwargs], Any]"


def getter(name: str) -> object:
    return getattr(_T, name).__get__


def named(owner: type, *names: str) -> tuple[Function, ...]:
    """What an owner has under names; those of other versions of torch are marked as `names_here` says."""
    listed = [name for text in names for name in names_here(text)]
    ABSENT.extend(f"{owner.__name__}.{name}" for name in listed if not hasattr(owner, name))
    return tuple(getattr(owner, name) for name in listed if hasattr(owner, name))


CONSTANTS: frozenset[object] = frozenset((
    *(each.__get__ for each in named(
        _T,
        "shape ndim dtype layout requires_grad is_sparse is_sparse_csr is_quantized is_mkldnn is_nested",
        "itemsize nbytes names[torch<2.13]",
    )),
    *named(
        _T,
        "size dim ndimension numel nelement stride is_contiguous is_floating_point is_complex is_signed element_size",
        "is_same_size __len__ has_names[torch<2.13] dim_order __hash__ is_distributed __dir__ _nnz _is_zerotensor",
    ),
    *named(torch, "is_floating_point is_complex is_signed numel is_same_size is_distributed result_type can_cast",
           "promote_types"),
))  # fmt: skip
"""Answered by the stand-in itself, no node: sizes, types and flags."""

SPECIAL: dict[object, Special] = {}


def special(*functions: object) -> Callable[[Special], Special]:
    """Register a handler; it may return NotImplemented to leave the call to the general case."""

    def register(fn: Special) -> Special:
        for function in functions:
            enter(SPECIAL, function, fn)
        return fn

    return register
