"""Does for a module what was done for one like it: first everything is looked at, then everything is done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from argand.capture.facts.interfaces import CaptureState, GraphBuilder, GuardSet
from argand.capture.facts.overlays import Shadow
from argand.capture.facts.sources import Source
from argand.capture.torch_functions.like_modules import single_nodes
from argand.capture.torch_functions.like_modules.template import Calling, Guarding, Loading, Other, Template
from argand.capture.world import pending_effects
from argand.errors import GraphBreak
from argand.graph import time_limit

Objects = tuple[object, ...]
"""What there is at each place of a template."""


def values(state: CaptureState, template: Template, module: torch.nn.Module, sources: list[Source]) -> Objects | None:
    """What there is at the template's places; None where the module is not like the one that it was made of."""
    template.collected.clear()
    with torch._C.DisableTorchFunction():
        if not template.tree.matches((module,)):
            return None
    objects = template.collected.pop()
    seen: set[int] = set()
    for load in template.loads:
        value = objects[load.place]
        if not load.own or (load.bottom and value is load.value):
            continue
        if id(value) in seen or not _is_own(state, value, sources[load.place]):
            return None
        seen.add(id(value))
    if not _settled(state, template, sources, objects):
        return None
    if any(info.constant is not held for info, held in template.others):
        return None
    if not all(_is_guarded(state, guarding, sources, objects) for guarding in template.before):
        return None
    return objects if _untouched(state, template.asked.union(map(id, objects))) else None


def _is_own(state: CaptureState, value: object, source: Source) -> bool:
    """Whether a value was not met yet, or at this source."""
    stand_in = state.inputs_by_real.get(id(value))
    if stand_in is not None:
        return state.graph.tensors[id(stand_in)].source == source
    known = state.outer.get(id(value))
    return known is None or known == source


def _is_guarded(state: CaptureState, guarding: Guarding, sources: list[Source], objects: Objects) -> bool:
    """Whether there is a guard already."""
    if guarding.guard.kind == "tensor":
        return id(objects[guarding.place]) in state.inputs_by_real
    like = state.guards.has_like(guarding.guard, sources[guarding.place], guarding.identity)
    return like and guarding.places is None


def _settled(state: CaptureState, template: Template, sources: list[Source], objects: Objects) -> bool:
    """Whether no value is to be a symbol."""
    policy = state.policy
    return policy is None or all(policy.is_settled(sources[load.place], objects[load.place]) for load in template.loads)


def _untouched(state: CaptureState, ids: frozenset[int]) -> bool:
    """Whether captured code has changed nothing of some objects."""
    for entry in state.effect_order:
        if isinstance(entry, Shadow):
            if id(entry.original) in ids and not pending_effects.is_as_made(state, entry):
                return False
        elif entry.values and (entry.kind != "attr" or id(entry.obj) in ids):
            return False
    return True


def sources_of(template: Template, source: Source) -> list[Source]:
    """The source of each place, for a module at `source`."""
    sources = [source]
    for parent, cls, key in template.steps:
        sources.append(cls(sources[parent], key))
    return sources


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """As in a handler of the mode that records: it is not active."""
    mode = torch._C._pop_torch_function_stack()
    try:
        yield
    finally:
        torch._C._push_on_torch_function_stack(mode)


def repeat(
    state: CaptureState,
    template: Template,
    tensors: list[torch.Tensor],
    sources: list[Source],
    objects: Objects,
) -> object:
    """Do what the template says; gives what the call gives."""
    frames = state.interpreter.frames
    depth = len(frames)
    try:
        with _unobserved():
            begin = len(state.guards)
            result = _events(state, template, tensors, sources, objects)
            state.guards.note_run(template, begin, sources)
            return result
    except GraphBreak as ending:
        raise state.interpreter.annotate(ending)  # noqa: B904
    finally:
        del frames[depth:]


def _events(
    state: CaptureState,
    template: Template,
    tensors: list[torch.Tensor],
    sources: list[Source],
    objects: Objects,
) -> object:
    frames, builder, guards = state.interpreter.frames, state.graph, state.guards
    depth = len(frames)
    slots: list[object] = [*tensors, *[None] * (template.slots - len(tensors))]
    standing: object = None
    for event in template.events:
        if isinstance(event, Guarding):
            _guard(guards, event, sources)
        elif isinstance(event, Loading) and event.guards is not None:
            for guarding in event.guards:
                _guard(guards, guarding, sources)
            state.note_loaded(sources[event.place], objects[event.place], event.own)
        elif isinstance(event, Other):
            slots[event.slot] = event.tensor
        else:
            if standing is not event.frames:
                standing = event.frames
                frames[depth:] = event.frames
            if isinstance(event, Loading):
                result = state.load_source(sources[event.place], objects[event.place])
                if event.slot >= 0:
                    slots[event.slot] = result
            else:
                _record(builder, event, slots)
    return template.result(slots)


def _record(builder: GraphBuilder, event: Calling, slots: list[object]) -> None:
    builder.observed += 1
    if event.alone is not None:
        time_limit.check()
        slots[event.slots[0][0]] = single_nodes.record(
            builder, event.func, event.alone, slots, event.args, event.kwargs
        )
        return
    record = builder.call if event.whole else builder.record
    result = record(event.func, event.args(slots), event.kwargs(slots))
    for slot, path in event.slots:
        part = result
        for number in path:
            part = part[number]
        slots[slot] = part


def _guard(guards: GuardSet, guarding: Guarding, sources: list[Source]) -> None:
    places = guarding.places
    if places is None:
        guards.add_like(guarding.guard, sources[guarding.place], guarding.identity)
        return
    guard = guarding.guard
    args = [arg if at < 0 else sources[at] for arg, at in zip(guard.args, places)]
    guards.add(
        sources[guarding.place], guard.kind, *args, position=guard.position, label=guard.label, shown=guard.visible
    )
