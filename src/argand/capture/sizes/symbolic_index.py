"""Indexing with symbolic sizes: which side of each bound the program is on is guarded.

Torch clamps the bounds of slices, silently: `x[:100]` has min(100, n) elements. So what a slice gives at the probes
says nothing about sizes on the other side of the bound, and the comparisons that decide it become guards.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import Dynamics, GraphBuilder
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicInt, SymbolicNumber
from argand.capture.sizes.symbolic_tensors import PROBED, dim_number
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.relations import Relation


def guard_index(builder: GraphBuilder, tensor: Any, index: object) -> None:
    """Guard what `tensor[index]` depends on.

    Raises:
        Restart: the probes are on another side of a bound.
    """
    info = builder.tensors.get(id(tensor))
    if info is None or builder.dynamics is None:
        return
    items = list(tuple.__iter__(index)) if isinstance(index, tuple) else [index]
    rank = tensor.dim()
    taken = sum(_dims_of(item) for item in items)
    dim = 0
    for item in items:
        if item is Ellipsis:
            dim += rank - taken
        elif type(item) is slice:
            if dim < rank:
                _guard_slice(builder.dynamics, item, dim_number(builder, info, dim))
            dim += 1
        elif type(item) is int or type(item) in SYMBOLIC:
            if dim < rank:
                size = dim_number(builder, info, dim)
                if type(size) in SYMBOLIC or type(item) in SYMBOLIC:
                    _ = -size <= item, item < size
                    _guard_sign(builder.dynamics, item)
            dim += 1
        else:
            dim += _dims_of(item)


def _guard_sign(dynamics: Dynamics, item: Any) -> None:
    """It says from which end an index counts. Of numbers from data the graph itself asks."""
    if type(item) in SYMBOLIC and not _is_on_data(dynamics, item):
        _ = item < 0


def guard_part(builder: GraphBuilder, name: str, args: Args, kwargs: Kwargs) -> None:
    """Guard that `select`, `narrow` and `unfold` stay within the tensor: of a view nobody checks that again.

    Raises:
        Restart: the probes do not.
    """
    if name in ("arange", "range"):
        _guard_range(builder, name, args, kwargs)
    names = _PARTS.get(name)
    info = builder.tensors.get(id(args[0])) if args else None
    if names is None or info is None or builder.dynamics is None:
        return
    given = {**dict(zip(names, args[1:])), **kwargs}
    dim = given.get("dim", given.get("dimension"))
    rank = info.tensor.dim()
    if type(dim) is not int or not -rank <= dim < rank:
        return
    size = dim_number(builder, info, dim % rank)
    first, count = given.get("start", given.get("index", 0)), given.get("length", given.get("size", 1))
    step = given.get("step", 1)
    if not all(type(part) is int or type(part) in SYMBOLIC for part in (first, count, step)):
        return
    if any(type(part) in SYMBOLIC for part in (size, first, count, step)):
        begin = first + size if first < 0 else first
        if begin >= 0 and begin + count <= size and name == "unfold" and step > 0:
            _guard_count(builder.dynamics, count, size + 1, step)


def _guard_range(builder: GraphBuilder, name: str, args: Args, kwargs: Kwargs) -> None:
    """Guard how many whole numbers `arange` gives, or `range`, to which the end belongs."""
    names = ("end",) if len(args) == 1 else ("start", "end", "step")
    given = {"start": 0, "step": 1, **dict(zip(names, args)), **kwargs}
    dynamics = builder.dynamics
    if dynamics is None or "end" not in given:
        return
    low, high, step = parts = [given[part] for part in ("start", "end", "step")]
    if not all(type(part) is int or type(part) is SymbolicInt for part in parts):
        return
    if any(type(part) is SymbolicInt and _is_on_data(dynamics, part) for part in parts) or step == 0:
        return
    if low <= high if step > 0 else low >= high:
        last = 0 if name == "arange" else 1 if step > 0 else -1
        _guard_count(dynamics, low, high + last, step)


_PARTS = {"select": ("dim", "index"), "narrow": ("dim", "start", "length"), "unfold": ("dimension", "size", "step")}


def _dims_of(item: Any) -> int:
    """How many dims an item of an index consumes."""
    if item is None or item is Ellipsis or item is True or item is False:
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return int(item.dim())
    return 1


def _guard_slice(dynamics: Dynamics, item: slice, size: Any) -> None:
    start, stop, step = item.start, item.stop, item.step
    if type(step) in SYMBOLIC and (_is_on_data(dynamics, step) or not step > 0):
        step = step.number()
    if not any(type(part) in SYMBOLIC for part in (start, stop, step, size)):
        return
    low = 0 if start is None else _clamped(start, size)
    high = size if stop is None else _clamped(stop, size)
    if low <= high:
        _guard_count(dynamics, low, high, 1 if step is None else step)


def _guard_count(dynamics: Dynamics, low: int, high: int, step: int) -> None:
    """Guard that so many steps are as many as probes say, where that is another formula (one size at all of them)."""
    count: object = (high - low + step - 1) // step if step > 0 else (low - high - step - 1) // -step
    if type(count) is SymbolicInt and isinstance(count.expr, Expr) and not _is_on_data(dynamics, count):
        at = (0, *PROBED)
        fitted = dynamics.table.fit([dynamics.table.vector(count.expr)[place] for place in at], at=at)
        if fitted is not None and fitted != count.expr:
            dynamics.require(Relation("eq", count.expr, fitted))


def _is_on_data(dynamics: Dynamics, number: SymbolicNumber) -> bool:
    return dynamics.unbacked is not None and bool(dynamics.unbacked.among(number.expr))


def _clamped(bound: Any, size: Any) -> Any:
    """The bound as slicing uses it; each comparison leaves a guard."""
    if not isinstance(bound, int):
        return 0
    if bound < 0:
        bound = bound + size
        if bound < 0:
            return 0
    return size if bound > size else bound


def guard_chunk(builder: GraphBuilder, input: Any = None, chunks: object = None, dim: object = 0) -> object:
    """`chunk` gives fewer parts of small sizes: guard that the size is past that. Returns NotImplemented."""
    info = builder.tensors.get(id(input))
    if info is not None and info.dynamic is not None and type(chunks) is int and type(dim) is int and input.dim():
        size = dim_number(builder, info, dim % input.dim())
        if type(size) in SYMBOLIC and not size > (chunks - 1) ** 2:
            size.number()
    return NotImplemented
