"""Tensors larger than the memory of their device: eager cannot make them, and a fused loop must not try.

A graph may never make a tensor that the program names: its elements are computed where they are used. The sum of 2**45
zeros then takes hours where eager raises at once. So the graph ends before an operation whose result the device's whole
memory does not hold, and eager's own kernel says what happens. Where sizes vary, that they stay below is guarded.
"""

from __future__ import annotations

import math
import os
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch

from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.errors import GraphBreak, graph_break
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.relations import Relation

_FEW: Final = 1 << 24
"""Elements that need no second look."""
_GROWTH: Final = 64
"""A result of at most so many times the bytes of an input, which does exist, is left to luck: the loop over it ends."""


def refuse_huge(func: Function, result: object, device: torch.device) -> None:
    """End the graph before an operation whose result cannot be.

    Arguments:
        func: the operation.
        result: stand-ins.
        device: where the results are to be.

    Raises:
        GraphBreak: a result is larger than the device's memory.
    """
    if isinstance(result, torch.Tensor):
        if result.numel() > _FEW:
            _refuse(func, result, device)
    elif isinstance(result, tuple | list):
        for part in result:
            refuse_huge(func, part, device)


def _refuse(func: Function, result: torch.Tensor, device: torch.device) -> None:
    nbytes, limit = _spanned(result) * result.itemsize, _memory_of(device)
    if limit is not None and nbytes > limit:
        raise _huge(getattr(func, "__name__", str(func)), nbytes, limit)


def _spanned(tensor: torch.Tensor) -> int:
    """Elements that are not the same as another: of an expanded tensor fewer than it shows."""
    return math.prod(size for size, step in zip(tensor.shape, tensor.stride()) if step)


def _memory_of(device: torch.device) -> int | None:
    """Bytes that all tensors on a device can have together; None where they take none."""
    if device.type == "meta":
        return None
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    if properties is not None:
        return int(properties(device).total_memory)
    return min((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()))


def _limits() -> Iterator[int]:
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            yield soft


def guard_size(builder: GraphBuilder, info: TensorInfo) -> None:
    """Guard that a result whose size varies stays below what its device holds, where no input vouches for it."""
    dynamics = builder.dynamics
    wanted = _bytes(info)
    if dynamics is None or not isinstance(wanted, Expr) or (wanted, info.device) in dynamics.bounded:
        return
    if dynamics.unbacked is not None and dynamics.unbacked.among(wanted):
        return
    dynamics.bounded.add((wanted, info.device))
    limit = _memory_of(info.device)
    if limit is not None and not any(_is_at_most(wanted, _bytes(given) * _GROWTH) for given in builder.inputs):
        dynamics.require(Relation("le", wanted, limit), formulas=False)


def _bytes(info: TensorInfo) -> Any:
    """Bytes of a tensor's elements, those that are the same counted once; none of a number."""
    if not isinstance(info.tensor, torch.Tensor):
        return 0
    sizes = info.tensor.shape if info.dynamic is None else info.dynamic.sizes
    if any(size is None for size in sizes):
        return 0
    total: object = info.tensor.itemsize
    for size, step in zip(sizes, info.tensor.stride()):
        total = total * size if step else total
    return total


def _is_at_most(wanted: Expr, bound: object) -> bool:
    """Whether that is plain to see: the bound is one product, which each term of the other is a part of."""
    if not isinstance(bound, Expr) or len(bound.poly) != 1:
        return False
    (whole, most), *_ = bound.poly
    if any(not isinstance(atom, Sym) or not atom.minimum or atom.minimum < 1 for atom in whole):
        return False
    parts = Counter(whole)
    fits = all(Counter(term) <= parts for term, factor in wanted.poly if factor > 0)
    return fits and sum(factor for _, factor in wanted.poly if factor > 0) <= most


def _huge(name: str, nbytes: int, limit: int) -> GraphBreak:
    return graph_break(
        kind="tensor larger than memory",
        context=f"{name}: {nbytes:,} bytes of {limit:,}",
        explanation=f"The result of {name} has {nbytes:,} bytes, more than the device's whole memory.",
    )
