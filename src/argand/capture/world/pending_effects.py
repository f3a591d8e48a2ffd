"""What a capture holds back, and replays where the graph ends."""

from __future__ import annotations

import contextlib
import gc
import itertools
import types
import weakref
from collections.abc import Collection, Iterator
from dataclasses import field
from typing import Any

import torch

from argand import errors
from argand.bytecode.opcodes import OPMAP
from argand.bytecode.resume import STACK_PREFIX
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import answers_itself, is_a, module_of, namespace
from argand.capture.facts.overlays import Overlay, Shadow
from argand.capture.facts.sources import Source
from argand.capture.world import shadows
from argand.quick_dataclasses import dataclass


def changed_shadows(state: CaptureState) -> list[Shadow]:
    """Shadows whose contents differ from what they held when made."""
    return [entry for entry in state.effect_order if isinstance(entry, Shadow) and not is_as_made(state, entry)]


def is_as_made(state: CaptureState, entry: Shadow) -> bool:
    """Whether a shadow holds what it held when made."""
    same = shadows.same_contents(state, entry.snapshot, shadows.contents(entry.shadow))
    return same and not shadows.reinserted(entry)


def pending(state: CaptureState) -> list[Shadow | Overlay]:
    """Everything to replay, in order."""
    changed = {id(entry) for entry in changed_shadows(state)}
    entries: list[Shadow | Overlay] = []
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            if id(entry) in changed:
                entries.append(entry)
        elif entry.values:
            entries.append(entry)
    return entries


def changed_objects(state: CaptureState) -> set[int]:
    """Ids of the objects from before the frame of which something is held back."""
    entries = pending(state)
    changed = {id(entry.original if isinstance(entry, Shadow) else entry.obj) for entry in entries}
    namespaces = {id(entry.shadow) for entry in entries if isinstance(entry, Shadow)}
    changed.update(owner for owner, shadow in state.dict_shadows.items() if id(shadow) in namespaces)
    return changed


def effects(state: CaptureState) -> object:
    """What is held back at this moment, for `same_effects`."""
    shown: dict[int, object] = {}
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            shown[id(entry)] = shadows.contents(entry.shadow)
        else:
            shown[id(entry)] = dict(entry.values)
    shown[_VARIABLES] = _values_held(state)
    return shown, (len(state.extra_effects), len(state.said))


def same_effects(state: CaptureState, before: Any) -> bool:
    """Whether nothing else is held back than at an earlier moment."""
    shown, counts = before
    values = _values_held(state)
    if (len(state.extra_effects), len(state.said)) != counts or [*map(id, values)] != [*map(id, shown[_VARIABLES])]:
        return False
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            old = shown.get(id(entry), entry.snapshot)
            if not shadows.same_contents(state, old, shadows.contents(entry.shadow)):
                return False
        else:
            old = shown.get(id(entry), {})
            if list(old) != list(entry.values) or any(old[name] is not entry.values[name] for name in old):
                return False
    return True


def _values_held(state: CaptureState) -> list[object]:
    """What variables of contexts hold, and states of generators of random numbers."""
    return [*(variable.value for variable in state.variables.values()), *state.generators.values()]


_VARIABLES = 0
"""The key, which is no id, of what `_values_held` says."""


class _Asked(dict[int, Any]):
    """A table by id that notes for which objects it was asked."""

    def __init__(self, table: dict[int, Any]) -> None:
        super().__init__(table)
        self.ids: set[int] = set()

    def get(self, key: int, default: Any = None) -> Any:
        self.ids.add(key)
        return super().get(key, default)

    def __getitem__(self, key: int) -> Any:
        self.ids.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.ids.add(key)  # type: ignore[arg-type]
        return super().__contains__(key)


@dataclass(slots=True)
class Watched:
    """What ran in `watching` looked at.

    Arguments:
        ids: of objects that existed before, whether anything of them is held back or not.
        changed: whether something of one of them is.
        loads: what was loaded from outside, and from where.
    """

    ids: set[int] = field(default_factory=set)
    changed: bool = True
    loads: list[tuple[Source, object]] = field(default_factory=list)


@contextlib.contextmanager
def watching(state: CaptureState) -> Iterator[Watched]:
    """While this is open, looks at objects from before the frame are noted."""
    answer = Watched()
    changed = changed_objects(state)
    tables: tuple[dict[int, Any], ...] = state.shadows, state.overlay, state.dict_shadows, state.additions
    watched = tuple(map(_Asked, tables))
    state.shadows, state.overlay, state.dict_shadows, state.additions = watched
    before, state.loads = state.loads, answer.loads
    try:
        yield answer
    finally:
        state.loads = before
        if before is not None:
            before += answer.loads
        for table, asked in zip(tables, watched):
            table.clear()  # what was added to a container is its shadow's, once there is one
            dict.update(table, asked)
        state.shadows, state.overlay, state.dict_shadows, state.additions = tables
    answer.ids = set().union(*(asked.ids for asked in watched)) & state.outer.keys()
    answer.changed = any(changed & asked.ids for asked in watched)


def whole_globals(skip_frame: bool = False) -> errors.GraphBreak:
    """The graph break for the dict of globals that is written to, or read after names were: the two do not know of
    each other's pending writes."""
    return errors.graph_break(kind="globals written as a dict", skip_frame=skip_frame)


def taken_away(entry: Shadow | Overlay) -> Iterator[object]:
    """What captured code took away from where it was."""
    if isinstance(entry, Shadow):
        kept = {id(item) for item in _held(shadows.contents(entry.shadow)[0])}
        yield from (item for item in _held(entry.snapshot[0]) if id(item) not in kept)
        return
    if entry.kind in ("end", "elements"):
        return
    if entry.kind == "places":
        yield from (old for i, old in enumerate(entry.obj) if entry.values.get(i, old) is not old)
        return
    if entry.kind == "cell":
        before = {"cell_contents": entry.obj.cell_contents} if entry.obj != types.CellType() else {}
    else:
        before = entry.obj if entry.kind in ("global", "items") else namespace(entry.obj)
    for name, value in entry.values.items():
        old = before.get(name) if is_a(before, dict) else None
        if old is not value:
            yield old


def _held(contents: Any) -> Iterator[object]:
    for item in contents:
        if type(item) is tuple:
            yield from item
        else:
            yield item


def may_hold(obj: object) -> bool:
    """Whether the end of an object can be the end of others."""
    if module_of(type(obj)).startswith("argand."):
        return False  # a number that varies
    return obj is not None and not is_a(obj, torch.Tensor | int | float | complex | str | bytes | type | weakref.ref)


def ends_visibly(obj: Any) -> bool:
    """Whether code of the program may run when nothing refers to this object any more."""
    cls = type(obj)
    if cls is types.GeneratorType:
        return bool(obj.gi_suspended) and _HANDLES in obj.gi_code.co_code[::2]
    if answers_itself(cls):
        return True  # to look closer would run code of the program
    if any(type(base.__dict__.get("__del__")) is types.FunctionType for base in cls.__mro__):
        return True
    return cls.__weakrefoffset__ != 0 and any(map(_calls_the_program, weakref.getweakrefs(obj)))


def _calls_the_program(reference: weakref.ref[object]) -> bool:
    """Whether the end of what a weak reference is of runs code of the program, also by `weakref.finalize`."""
    if not issubclass(type(reference), weakref.ref):
        return True  # a proxy: what it calls cannot be read
    back = reference.__callback__
    if type(back) is weakref.finalize:
        return True
    if type(back) is not types.FunctionType or back.__module__ in (None, weakref.__name__, "_weakrefset"):
        return False
    return not str(back.__module__).startswith(("argand.", "torch."))


_HANDLES = OPMAP["PUSH_EXC_INFO"]
_LOOKED_AT = 32  # objects
_KINDS: tuple[type, ...] = (
    zip, map, filter, enumerate, reversed, types.GeneratorType,
    *(cls for cls in vars(itertools).values() if type(cls) is type),
    *map(type, (iter([]), iter(()), iter({}), iter({}.values()), iter({}.items()), iter(set()))),
    *map(type, (reversed([]), reversed({}), reversed({}.values()), reversed({}.items()))),
)  # fmt: skip
ITERATORS = frozenset(map(id, _KINDS))
"""Kinds that hold what they iterate over, by id: a class of the program's may say itself what its hash is."""
HOLDERS = ITERATORS | {*map(id, (list, tuple, dict, set, frozenset))}
"""Kinds that may be the last that holds an object, by id."""


def may_end_visibly(obj: object) -> bool:
    """`ends_visibly`, of an object or of what may end with it: items, what an iterator goes over."""
    todo = [obj]
    for _ in range(_LOOKED_AT):
        if not todo:
            break
        value = todo.pop()
        if is_a(value, type):
            continue  # lives in a circle, whatever lets go of it
        if ends_visibly(value):
            return True
        if id(type(value)) in HOLDERS:
            todo += itertools.islice(gc.get_referents(value), _LOOKED_AT)
    return False


def refuse_drop(obj: object) -> None:
    """End the graph where a variable or the stack lets go of an object from before the frame whose end may be seen.

    Raises:
        GraphBreak: the instruction, which runs for real, may run code of the program.
    """
    if may_end_visibly(obj):
        raise errors.graph_break(
            kind="generator dropped" if id(type(obj)) in ITERATORS else "object dropped",
            context=type(obj).__qualname__,
            explanation=f"A {type(obj).__name__} is dropped, whose end runs code: a `finally`, __del__, or a callback.",
        )


def may_have_ended(state: CaptureState, *names: object) -> bool:
    """Whether an object from before the frame, known as any of these, may be gone by now in eager."""
    root = state.interpreter.root
    instructions = root.program.instructions if root is not None else ()
    stored = {inst.argval for inst in instructions if inst.opname.startswith(("STORE_", "DELETE_"))}
    local = zip(root.program.names, state.args) if root is not None else ()
    gone = [value for entry in pending(state) for value in taken_away(entry)]
    kept: list[object] = []
    for name, value in local:
        (gone if name in stored or name.startswith(STACK_PREFIX) else kept).append(value)
    wanted = tuple(obj for obj in names if obj is not None)
    if not any(_leads_to(state, value, wanted) is not False for value in gone):
        return False
    changed = changed_objects(state)
    return not any(_leads_to(state, value, wanted, changed) for value in kept)


def may_be_gone(referent: object) -> errors.GraphBreak:
    """The graph break where a weak reference is asked for what may have ended."""
    return errors.graph_break(
        kind="object dropped",
        context=type(referent).__qualname__,
        explanation=f"A weak reference is asked for a {type(referent).__name__} that may be gone by now.",
        skip_frame=True,
    )


_FAR = 2000  # objects


def _leads_to(
    state: CaptureState, start: object, wanted: tuple[object, ...], passed_by: Collection[int] = ()
) -> bool | None:
    """Whether an object is, or may hold, one of these; None where it holds very much.

    Arguments:
        passed_by: ids of objects that are not looked into.
    """
    todo, seen = [start], set[int]()
    while todo:
        value = todo.pop()
        info = state.tensors.get(id(value))
        if any(value is obj or (info is not None and info.real is obj) for obj in wanted):
            return True
        if id(value) in seen or id(value) in passed_by or is_a(value, type | types.ModuleType | types.CodeType):
            continue
        if len(seen) > _FAR:
            return None
        seen.add(id(value))
        if is_a(value, types.FunctionType):
            todo += (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
        elif may_hold(value):
            todo += gc.get_referents(value)
    return False
