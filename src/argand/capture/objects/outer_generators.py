"""Generators from outside that have not begun (`model.parameters()`, handed over), or were made anew where the graph
broke (`bytecode/generators_at_yields.py`): captured code goes on with their bodies, and where it ends they are over."""

from __future__ import annotations

from collections.abc import Iterable
from types import CellType, CodeType, FunctionType, GeneratorType
from typing import TypeAlias, cast

from argand.bytecode import generators_at_yields
from argand.bytecode.opcodes import CO_VARARGS, CO_VARKEYWORDS
from argand.capture.facts.frames import NULL, Frame
from argand.capture.facts.handlers import Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource, SequenceItemSource, Source
from argand.capture.objects import generators
from argand.errors import graph_break

Generator: TypeAlias = "GeneratorType[object, object, object]"


def code_to_begin(generator: Generator) -> CodeType | None:
    """The code of a generator of which all is known: by its arguments, where it has not begun (a step of a source)."""
    if generators_at_yields.origin(generator) is not None:
        return generator.gi_code
    if generator.gi_suspended or generator.gi_running or generator.gi_frame is None:
        return None
    code = generator.gi_code
    plain = not (code.co_freevars or code.co_kwonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS))
    return code if plain else None


def arguments(generator: Generator) -> tuple[object, ...]:
    """What a generator that has not begun was called with; what one that was made anew holds (a step of a source)."""
    if generators_at_yields.origin(generator) is not None:
        return generators_at_yields.held(generator)
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
    origin = generators_at_yields.origin(generator)
    if origin is None:
        traced: generators.TracedGenerator = interp.call(_function(interp, generator, code), given)
    else:
        traced = _made_anew(interp, generator, origin, base, given)
    state.begun[id(generator)] = generator, traced, interp.number
    return traced


def _function(interp: Interpreter, like: Generator, code: CodeType, cells: Iterable[object] = ()) -> FunctionType:
    frame = like.gi_frame
    assert frame is not None
    closure = cast("tuple[CellType, ...]", tuple(cells))
    function = FunctionType(code, frame.f_globals, like.__name__, None, closure)
    function.__qualname__ = like.__qualname__
    interp.note_local_function(function)
    return function


def _made_anew(
    interp: Interpreter, generator: Generator, origin: generators_at_yields.Suspended, base: Source, given: list[object]
) -> generators.TracedGenerator:
    """One that stands where another one stood when the graph broke."""
    rest = len(given) - len(origin.cells)
    cells = dict(zip(origin.cells, given[rest:]))
    for place, cell in enumerate(given[rest:], rest):
        interp.outer_cells.setdefault(id(cell), (cell, SequenceItemSource(base, place)))
    held = {**dict(zip(origin.names, given[origin.stack : rest])), **cells}
    code, outside = origin.code(), generator.gi_frame
    assert code is not None and outside is not None  # else it would not be known
    program = interp.session.program(code)
    function = _function(interp, generator, code, [cells[name] for name in code.co_freevars])
    fast = [held.get(name, NULL) for name in program.names]
    frame = Frame(program, fast, outside.f_globals, outside.f_builtins, interp.base_exc, function)
    frame.pc, frame.stack = origin.at, given[: origin.stack]
    traced = generators.make(interp, frame)
    traced._started = True
    return traced


def call_method(
    interp: Interpreter, cls: type, name: str, generator: object, args: list[object], kwargs: Kwargs
) -> object:
    """`generator.send(...)`, `throw(...)`, `close()`."""
    traced = begun(interp, generator) if is_a(generator, GeneratorType) and not kwargs else None
    if traced is None:
        return interp.native(getattr(cls, name), generator, *args, **kwargs)
    if name == "throw" and args:
        return generators.result(interp, *generators.throw(traced, *args))
    if name == "send" and len(args) == 1:
        return generators.result(interp, *generators.resume(traced, args[0]))
    if name == "close" and not args:
        return generators.close_in(traced)
    return interp.unread(getattr(generators.TracedGenerator, name), traced, *args)


def check_end(state: CaptureState) -> None:
    """Where the graph ends.

    Raises:
        GraphBreak: one goes on, which has to begin for real: the graph ends before.
    """
    for generator, traced, sequence in state.begun.values():
        assert isinstance(traced, generators.TracedGenerator) and isinstance(generator, GeneratorType)
        if generators.is_suspended(traced):
            why = "A generator that existed before the compiled function goes on behind the graph."
            stop = graph_break(kind="iterator from outside", context="generator", explanation=why)
            stop.sequence = sequence
            raise stop
        if traced._finished:
            end = GeneratorType.close if generators_at_yields.origin(generator) is None else generators_at_yields.finish
            state.extra_effects.append((end, [generator], {}))
