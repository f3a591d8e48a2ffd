"""Torch functions that are not simply recorded: what the stand-in answers itself, and handlers by function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs, enter
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.words import words

_T = torch.Tensor

Special: TypeAlias = "Callable[[GraphBuilder, Function, Args, Kwargs], Any]"


def getter(name: str) -> object:
    return getattr(_T, name).__get__


# Answered by the stand-in itself, no node: sizes, types and flags.
CONSTANTS: frozenset[object] = frozenset(
    [
        getter(name)
        for name in words(
            """
    shape ndim dtype layout requires_grad is_sparse is_sparse_csr is_quantized is_mkldnn is_nested
    itemsize nbytes names
    """
        )
        if hasattr(_T, name)
    ]
    + [
        getattr(_T, name)
        for name in words(
            """
    size dim ndimension numel nelement stride is_contiguous is_floating_point is_complex is_signed
    element_size is_same_size __len__ has_names dim_order __hash__
    is_distributed __dir__ _nnz _is_zerotensor
    """
        )
        if hasattr(_T, name)
    ]
    + [
        getattr(torch, name)
        for name in words(
            """
    is_floating_point is_complex is_signed numel is_same_size is_distributed
    result_type can_cast promote_types
    """
        )
        if hasattr(torch, name)
    ]
)

SPECIAL: dict[object, Special] = {}


def special(*functions: object) -> Callable[[Special], Special]:
    """Register a handler; it may return NotImplemented to leave the call to the general case."""

    def register(fn: Special) -> Special:
        for function in functions:
            if function is not None:
                enter(SPECIAL, function, fn)
        return fn

    return register


def named(owner: object, *names: str) -> tuple[object, ...]:
    return tuple(getattr(owner, name) for name in names if hasattr(owner, name))
