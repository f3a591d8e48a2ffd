"""Guards for aliases that a later call might have and this one has not.

What was traced as two objects may be one in another call. That matters where one of them is written to: containers
and instances with pending writes, tensors changed in place.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable

import torch

from argand.capture.facts import classify
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import (
    CellContentsSource,
    ConstSource,
    InstanceDictSource,
    Source,
    is_module_table,
)
from argand.capture.world import identity
from argand.capture.world.pending_effects import pending as held_back
from argand.capture.world.pending_effects import whole_globals
from argand.graph.compat import storage_address


def guard(state: CaptureState) -> None:
    """Add what must stay distinct; called once, when the interpretation is over."""
    identity.guard(state)
    if state.tensors:  # whose operators and methods are asked past the interpreter
        state.interpreter.types.rely_on(torch.Tensor)
    state.interpreter.guard_classes()
    state.interpreter.guard_functions()
    _objects(state)
    _tensors(state)
    if state.arrays is not None:
        state.arrays.guard_aliases()


def _movable(source: Source) -> bool:
    """Whether another call may find another object there: not constants, not the internals of an object."""
    if isinstance(source.root, ConstSource) or isinstance(source, InstanceDictSource | CellContentsSource):
        return False
    return not is_module_table(source)


def _objects(state: CaptureState) -> None:
    pending = held_back(state)
    if not pending:
        return
    if any(hasattr(entry, "original") and _is_namespace(state, entry.original) for entry in pending):
        raise whole_globals(skip_frame=True)
    written = [entry.original if hasattr(entry, "original") else entry.obj for entry in pending]
    groups: dict[type, list[Source]] = defaultdict(list)
    wanted = {type(obj) for obj in written if not classify.is_cell(obj)}
    for obj_id, source in state.outer.items():
        obj = state.object_by_id(obj_id)
        if type(obj) in wanted and _movable(source):
            groups[type(obj)].append(source)
    for sources in groups.values():
        if len(sources) > 1:
            state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)


def _is_namespace(state: CaptureState, obj: object) -> bool:
    """Whether a dict holds the globals of code, or the names of a module: captured code reads those by name, too."""
    return obj is state.globals or (type(obj) is dict and ("__builtins__" in obj or "__spec__" in obj))


def _tensors(state: CaptureState) -> None:
    """A tensor argument that is changed in place, also through a view, shares memory with the same others."""
    if not state.graph.mutated:
        return
    with torch._C.DisableTorchFunction():
        memory = {storage_address(info.tensor) for info in state.graph.mutated.values()}
        mutated = [
            info
            for info in state.graph.inputs
            if isinstance(info.tensor, torch.Tensor)  # not a number that varies
            and (storage_address(info.tensor) in memory or id(info.tensor) in state.graph.mutated)
            and info.source is not None
            and _argument(info.source)
        ]
    if not mutated:
        return
    ids = {id(info) for info in mutated}
    others = [
        i
        for i in state.graph.inputs
        if i.source is not None and id(i) not in ids and isinstance(i.real, torch.Tensor) and _argument(i.source)
    ]
    sources: list[object] = [info.source for info in (*mutated, *others)]
    if len(sources) < 2:
        return
    reals = [info.real for info in (*mutated, *others) if info.real is not None]
    check = functools.partial(same_sharing, len(mutated), sharing(len(mutated), reals))
    state.guards.add(None, "python", check, sources, label="NO_ALIASING", shown=False)


def _argument(source: Source) -> bool:
    """Found in the arguments or variables of the program rather than in a module."""
    return not any(map(is_module_table, source.steps())) and not isinstance(source.root, ConstSource)


def sharing(mutated: int, tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Pairs (mutated tensor, other tensor) that share a storage."""
    with torch._C.DisableTorchFunction():
        storages = [storage_address(t) for t in tensors]
    if len(set(storages)) == len(storages):  # an optimizer's step has a thousand
        return ()
    places: dict[int, list[int]] = {}
    for place, storage in enumerate(storages):
        places.setdefault(storage, []).append(place)
    return tuple((i, j) for i in range(mutated) for j in places[storages[i]] if i != j)


def same_sharing(mutated: int, expected: tuple[tuple[int, int], ...], *tensors: torch.Tensor) -> bool:
    """The guard: the same pairs share memory as while capturing."""
    return sharing(mutated, tensors) == expected
