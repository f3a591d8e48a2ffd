"""Generators from outside that have not begun (`model.parameters()`, handed over): their bodies are interpreted where
captured code iterates over them, and where the graph ends they are over, as in eager."""

from __future__ import annotations

from types import CodeType, FunctionType, GeneratorType
from typing import TypeAlias

from argand.bytecode.opcodes import CO_VARARGS, CO_VARKEYWORDS
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.sources import CallSource, SequenceItemSource
from argand.capture.objects import generators
from argand.errors import graph_break

Generator: TypeAlias = "GeneratorType[object, object, object]"


def code_to_begin(generator: Generator) -> CodeType | None:
    """The code of a generator that has not begun, where its arguments say all (a step of a source)."""
    if generator.gi_suspended or generator.gi_running or generator.gi_frame is None:
        return None
    code = generator.gi_code
    plain = not (code.co_freevars or code.co_kwonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS))
    return code if plain else None


def arguments(generator: Generator) -> tuple[object, ...]:
    """What a generator that has not begun was called with (a step of a source)."""
    code, frame = generator.gi_code, generator.gi_frame
    return () if frame is None else tuple([frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]])


def begun(interp: Interpreter, generator: Generator) -> generators.TracedGenerator | None:
    """What stands for a generator from outside; None where that is not known."""
    state = interp.state
    known = state.begun.get(id(generator))
    if known is not None:
        assert isinstance(known[1], generators.TracedGenerator)
        return known[1]
    source, code = state.source_of(generator), code_to_begin(generator)
    frame = generator.gi_frame
    if source is None or code is None or frame is None or state.graph.scopes:
        return None
    state.guards.add(CallSource(source, code_to_begin), "id", code, shown=False)
    base = CallSource(source, arguments)
    values = arguments(generator)
    given = [state.load_source(SequenceItemSource(base, place), value) for place, value in enumerate(values)]
    function = FunctionType(code, frame.f_globals, generator.__name__)
    function.__qualname__ = generator.__qualname__
    interp.note_local_function(function)
    traced: generators.TracedGenerator = interp.call(function, given)
    state.begun[id(generator)] = generator, traced, interp.number
    return traced


def check_end(state: CaptureState) -> None:
    """Where the graph ends.

    Raises:
        GraphBreak: one goes on, which has to begin for real: the graph ends before.
    """
    for generator, traced, sequence in state.begun.values():
        assert isinstance(traced, generators.TracedGenerator)
        if generators.is_suspended(traced):
            why = "A generator that existed before the compiled function goes on behind the graph."
            stop = graph_break(kind="iterator from outside", context="generator", explanation=why)
            stop.sequence = sequence
            raise stop
        if traced._finished:
            state.extra_effects.append((GeneratorType.close, [generator], {}))
