"""Functions that captured code calls more often than eager does: they must leave nothing behind."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence

from argand import errors
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import namespace
from argand.capture.world import pending_effects

_CONTAINERS = (list, tuple, dict, set, frozenset)


@contextlib.contextmanager
def calling(state: CaptureState, what: str, *roots: object) -> Iterator[None]:
    """While this is open, a function is called that will be called again.

    Arguments:
        roots: the function, and what it is given.

    Raises:
        GraphBreak: it changed an object, or drew random numbers.
    """
    before, drawn = pending_effects.effects(state), len(state.graph.effectful)
    contents = [(obj, _contents(obj)) for obj in _made_here(state, roots)]
    yield
    same = all(alike(_contents(obj), held) for obj, held in contents)
    if same and len(state.graph.effectful) == drawn and pending_effects.same_effects(state, before):
        return
    raise errors.graph_break(
        kind="side effect in a subgraph",
        context=what,
        explanation=f"The function given to {what} changes an object outside of it, or draws random numbers.",
    )


def _made_here(state: CaptureState, roots: tuple[object, ...]) -> list[object]:
    """Objects that captured code has made and that some objects lead to."""
    seen: dict[int, object] = {}
    pending = list(roots)
    while pending:
        obj = pending.pop()
        if id(obj) not in seen and not state.is_outer(obj):
            seen[id(obj)] = obj
            pending += _contents(obj)
    return list(seen.values())


def _contents(obj: object) -> list[object]:
    """What an object holds that code could change."""
    if type(obj) is types.FunctionType:
        return [*(obj.__closure__ or ()), *(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values()]
    if type(obj) is types.MethodType:
        return [obj.__self__, obj.__func__]
    if type(obj) is functools.partial:
        return [obj.func, *obj.args, *obj.keywords.values()]
    if type(obj) is types.CellType:
        try:
            return [obj.cell_contents]
        except ValueError:
            return []
    items: list[object] = []
    if isinstance(obj, _CONTAINERS):
        items += obj
        items += obj.values() if isinstance(obj, dict) else ()
    if not isinstance(obj, type | types.ModuleType):
        items += (namespace(obj) or {}).values()
    return items


def alike(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two sequences have the same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))
