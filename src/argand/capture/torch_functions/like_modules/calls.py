"""Which calls of modules are repeated, which are noted to be repeated, and which are interpreted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Final

import torch

from argand import events
from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import Source
from argand.capture.objects.call_protocol.lru_caches import Results
from argand.capture.record.journal import Journal, kept
from argand.capture.torch_functions import modes
from argand.capture.torch_functions.like_modules import repeating
from argand.capture.torch_functions.like_modules.arguments import Key, Unlike
from argand.capture.torch_functions.like_modules.template import Maker, Seen, Template
from argand.capture.world import pending_effects
from argand.quick_dataclasses import dataclass

_TEMPLATES: Final = 4
"""Of one kind of call."""
_FAILURES: Final = 4
"""Calls of one kind that were noted in vain, or like none of the templates."""
_MADE_BY_REPEATING: Final = frozenset((
    # of the interpreter: what it remembers of what was loaded, and of objects that are gone when the call is over
    "attr_values", "class_values", "module_values", "global_values", "builtin_names", "outer_cells", "cell_values",
    "_noted_classes", "inlined", "policies", "local_functions", "local_cells", "local_classes", "born", "generators",
    # of the state: what loading notes, and shadows, which nobody has changed
    "_loaded", "_object_at", "_outer_objects", "value_sources", "inputs_by_real", "outer", "_keep", "local_objects",
    "namespaces", "shadows", "shadow_origin", "elements", "effect_order", "tensors", "journal", "loads",
    # of the graph: what recording notes
    "inputs", "input_names", "calls", "arguments", "answered", "observed", "known", "kept", "effectful", "outside",
    "unsure", "several", "maybe_same", "flags_seen", "writing", "mutated", "written",
    # of the guards
    "_guards", "runs",
))  # fmt: skip


@dataclass(slots=True)
class Kind:
    """Calls that capture cannot tell apart by their arguments.

    Arguments:
        seen: the last that was interpreted, if it may be repeated.
        failures: how many could not be, or were like none before.
    """

    templates: list[Template] = field(default_factory=list)
    seen: Seen | None = None
    failures: int = 0

    def templates_now(self, state: CaptureState) -> list[Template]:
        """Those of all calls so far."""
        if self.seen is not None:
            try:
                self.templates.append(Maker(state, self.seen).make())
            except Unlike:
                self.failures += 1
            self.seen = None
        return self.templates


@dataclass(slots=True)
class Known:
    """The calls of one capture."""

    kinds: dict[Hashable, Kind] = field(default_factory=dict)
    classes: dict[int, type] = field(default_factory=dict)


def call(state: CaptureState, module: torch.nn.Module, args: Args, kwargs: Kwargs, run: Callable[[], object]) -> object:
    """What `run()`, which interprets the call, gives.

    Arguments:
        run: NotImplemented where the module has hooks.
    """
    source = state.source_of(module) if module.__dict__.get("_modules") else None
    if source is None or not _may_be_repeated(state):
        return run()  # a module without others in it is interpreted as fast as it is looked at
    try:
        key = Key(state, args, kwargs)
    except Unlike:
        return run()
    known = state.like_modules
    if not isinstance(known, Known):
        known = state.like_modules = Known()
    cls = type(module)
    known.classes[id(cls)] = cls
    described = (id(cls), key.described)
    kind = known.kinds.get(described)
    if kind is None:  # most modules are called once, and noting what they do has its price
        known.kinds[described] = Kind()
        return run()
    if templates := kind.templates_now(state):
        now = modes.snapshot()
        for template in templates:
            sources = repeating.sources_of(template, source)
            objects = repeating.values(state, template, module, sources) if template.state == now else None
            if objects is not None:
                _ask_again(state, template)
                return repeating.repeat(state, template, key.tensors, sources, objects)
        kind.failures += 1
    if kind.failures >= _FAILURES or len(kind.templates) >= _TEMPLATES:
        return run()
    return _noted(state, kind, module, source, key.tensors, run)


def _may_be_repeated(state: CaptureState) -> bool:
    interp, graph = state.interpreter, state.graph
    return not (
        interp.tainted
        or interp.types.overlay
        or state.variables
        or state.arrays is not None
        or graph.entered
        or graph.dressed
        or graph.undressing
        or graph.sharded
        or graph.scopes
        or graph.graph is not graph.root
        or (graph.dynamics is not None and graph.dynamics.unbacked is not None)
        or torch._C._len_torch_function_stack() != 1
        or interp.handled() is not None
        or interp.pending is not None
        or (state.journal is not None and state.journal.busy)
        or any(name in events.bus.named for name in ("trace_bytecode", "trace_source"))
    )


def _ask_again(state: CaptureState, template: Template) -> None:
    """Whoever notes what is looked at learns of what the call that is repeated looked at."""
    if state.journal is not None or state.loads is not None:
        for key in template.asked:
            state.overlay.get(key)


def _extent(state: CaptureState) -> dict[str, object]:
    """What is known, as far as repeating a call does not make it so."""
    extent: dict[str, object] = {"what is written": [*map(id, pending_effects.pending(state))]}
    for held in (state.interpreter, state, state.graph, state.guards):
        for name, value in vars(held).items():
            if name not in _MADE_BY_REPEATING:
                plain = type(value) in (int, bool, str, type(None))
                extent[name] = value if plain else (id(value), len(value) if type(value) in (dict, list, set) else 0)
    made_here = state.interpreter.local_functions
    for results in state.interpreter.lru_caches.values():
        if isinstance(results, Results):
            here = id(results.fn.__wrapped__) in made_here
            extent[f"results {id(results)}"] = results.info() if here else len(results.held)
    return extent


def _noted(
    state: CaptureState,
    kind: Kind,
    module: torch.nn.Module,
    source: Source,
    tensors: list[torch.Tensor],
    run: Callable[[], object],
) -> object:
    """Interpret a call, and keep what there is to know of it."""
    interp, graph = state.interpreter, state.graph
    outermost = state.journal is None
    if outermost:
        state.journal = Journal(state)
    journal = state.journal
    assert isinstance(journal, Journal)
    torch_state, known = modes.snapshot(), _is_known(state, module)
    guards, nodes, begin, before = len(state.guards), len(graph.graph.nodes), len(journal.entries), _extent(state)
    writes = len(graph.writing)
    try:
        with pending_effects.watching(state) as watched:
            result = run()
    finally:
        if outermost:
            state.journal = None
    steady = not watched.changed and _extent(state) == before and modes.snapshot() == torch_state
    if result is NotImplemented or not steady or not _may_be_repeated(state):
        kind.failures += 1
    else:
        kind.seen = Seen(
            module, source, tensors, journal.entries[begin:], (guards, len(state.guards)),
            len(graph.graph.nodes) - nodes, len(graph.writing), len(graph.writing) > writes,
            len(interp.frames), watched.ids, known, torch_state, kept(result),
        )  # fmt: skip
    return result


def _is_known(state: CaptureState, module: torch.nn.Module) -> bool:
    """Whether something of a module was loaded."""
    return bool(state.interpreter.attr_values.get(id(module))) or id(module.__dict__) in state.outer
