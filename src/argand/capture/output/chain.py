"""Bytecode that calls resume functions: directly, or handed on to the frame that runs a chain of them (resumes.py)."""

from __future__ import annotations

from types import CodeType

from torch import fx

from argand._core import _C
from argand.bytecode.assemble import Label
from argand.bytecode.instruction import Instruction
from argand.bytecode.liveness import live_locals
from argand.capture.facts.frames import Frame, LazyLocal
from argand.capture.facts.sources import LocalSource, Source
from argand.capture.output import tracebacks
from argand.capture.output.continuation import Continuation, leave_out_caller
from argand.capture.output.emit import Emitter
from argand.capture.output.resumes import Resume


def _load(emitter: Emitter, resume: Resume) -> None:
    if resume.body.freevars:
        emitter.asm.make_function(resume.body.code, resume.body.freevars)
    else:
        emitter.asm.load_global(resume.name)


def hand_on(emitter: Emitter, resume: Resume, arguments: list[str]) -> None:
    """Return a Continuation to the frame that runs the chain."""
    asm = emitter.asm
    asm.load_const_callable(Continuation)
    _load(emitter, resume)
    _give_away(emitter, arguments)
    asm.build_tuple(2)
    asm.call(1)
    asm.return_value()


def call_resume(emitter: Emitter, resume: Resume, arguments: list[str]) -> None:
    """Call the resume function and, where a loop lies ahead, whatever it hands back to be called."""
    asm = emitter.asm
    catch = Label()
    with asm.covered_by(catch, 0):
        asm.load_const_callable(_C.call_in_place)
        _load(emitter, resume)
        _give_away(emitter, arguments)
        asm.call(2)
        if resume.loops:
            _run_chain(emitter)
        asm.return_value()
    asm.bind(catch)
    exc = emitter.store_temp("x")
    asm.load_const_callable(leave_out_caller)
    asm.load_fast(exc)
    asm.call(1)
    asm.pop_top()
    asm.load_fast(exc)
    asm.delete_fast(exc)
    asm.emit("RERAISE", 0, 0)


def _give_away(emitter: Emitter, names: list[str]) -> None:
    """-> list of the values of locals, which this frame lets go of: they die when the rest of the program lets
    them."""
    asm = emitter.asm
    for name in names:
        asm.load_fast(name, check=True)
    asm.build_list(len(names))
    for name in dict.fromkeys(names):
        asm.delete_fast(name)
    for name in emitter.temps:
        if name not in names and name not in emitter.cleared:
            asm.load_const(None)
            asm.store_fast(name)


def _run_chain(emitter: Emitter) -> None:
    """result -> result; while it is a Continuation, call it."""
    asm = emitter.asm
    result = emitter.new_temp("r")
    again, done = Label(), Label()
    asm.bind(again)
    asm.store_fast(result)
    asm.load_const_callable(type)
    asm.load_fast(result)
    asm.call(1)
    asm.load_const(Continuation)
    asm.is_op()
    asm.jump_if_false(done, is_bool=True)
    asm.load_const_callable(_C.call_in_place)
    for part in (0, 1):
        asm.load_fast(result)
        asm.load_const(part)
        asm.binary_subscr()
    asm.delete_fast(result)
    asm.call(2)
    asm.jump(again)
    asm.bind(done)
    asm.load_fast(result)


def overwritten(frame: Frame, live: dict[str, object]) -> list[str]:
    """Arguments (not cells) that the program has deleted or set to something that nobody reads."""
    code = frame.code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    given = {*code.co_varnames[:count]} - {*code.co_cellvars} - live.keys()
    slots = zip(frame.program.names, frame.fast)
    return [name for name, value in slots if name in given and type(value) is not LazyLocal]


def call_graph(
    emitter: Emitter, name: str, graph: fx.Graph, inputs: list[Source], collected: bool, gives_away: bool
) -> Instruction | None:
    """-> results of the graph function. Returns the last instruction that reads its inputs, where the call lets go of
    them: those that the guards have collected, and the arguments of a resume function."""
    asm = emitter.asm
    tracebacks.keep_lines(asm, graph)
    if collected:
        asm.load_const_callable(_C.call_with_inputs)
        last = asm.load_global(name)
        asm.call(1)
        return last
    for source in inputs:  # loads that need calls come first: they use the stack below the arguments
        if emitter.uses[source] > 1:
            emitter.load_source(source)
            asm.pop_top()
    if gives_away:
        asm.load_const_callable(_C.call_with_list)
        asm.load_global(name)
    else:
        asm.load_global_callable(name)
    for source in inputs:
        emitter.load_source(source)
    if not gives_away:
        asm.call(len(inputs))
        return None
    last = asm.build_list(len(inputs))
    asm.call(2)
    return last


def let_go(body: list[Instruction], at: Instruction, inputs: list[Source], code: CodeType) -> None:
    """A resume function is given its arguments for good: those that only the graph needs die when it lets them."""
    kept = {*live_locals(body)(at), *code.co_cellvars, *code.co_freevars}
    names = dict.fromkeys(s.key for s in inputs if isinstance(s, LocalSource) and s.key not in kept)
    place = body.index(at) + 1
    body[place:place] = [Instruction("DELETE_FAST", argval=name, positions=at.positions) for name in names]
