"""The interpreter: frames, dispatch loop, unwinding, and the root run that the capture driver restarts at breaks.

Values on the stack are real Python objects. What makes this an interpreter for capture rather than a plain one is that
everything that reads or changes an object which existed before (an outer object) goes through the capture state, and
that native code is called only when it is known to be harmless.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType

from argand._core import _C
from argand.bytecode.instruction import Instruction
from argand.bytecode.per_code import PerCode
from argand.capture.facts.code import skip
from argand.capture.facts.code.stack_text import line_of_frame
from argand.capture.facts.exceptions import (
    CAPTURED_TRACEBACK,
    ExcState,
    InternalFailure,
    ObservedException,
    chain_context,
    raise_native,
)
from argand.capture.facts.frames import NULL, RETURN, Frame, LazyLocal, Program
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import BOUND_METHODS
from argand.capture.interp.access import Access
from argand.capture.interp.opcodes import OPCODES, ROOT_OPCODES
from argand.capture.interp.state import CaptureState
from argand.capture.objects import attribute_writes, attributes, generators, operators, stand_ins
from argand.capture.objects.call_protocol import calls
from argand.capture.sizes import symbolic_ops
from argand.capture.world import narration, native_reads, native_watch, set_order
from argand.errors import BreakReason, GraphBreak, UserLine, graph_break
from argand.graph.python_operators import COMPARE
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass

_NEVER_ALONE = ("PUSH_EXC_INFO", "POP_EXCEPT", "KW_NAMES", "PRECALL")
"""Instructions of which the next needs more than a stack, and which do nothing that a graph could end for."""
_JUMPS_ON_TRUTH = ("POP_JUMP", "JUMP_IF")


def may_break(instruction: Instruction, offset: int | None) -> bool:
    """Whether a graph can end at an instruction, where one is to end at `offset` (None: wherever it is)."""
    return offset in (None, instruction.offset) and instruction.opname not in _NEVER_ALONE


class Session:
    """What outlives one capture: decoded programs and facts about types. Owned by the compile region."""

    def __init__(self) -> None:
        self.programs: PerCode[Program] = PerCode()
        self.root_programs: PerCode[Program] = PerCode()
        self.original_offsets: PerCode[Mapping[int, int]] = PerCode()
        self.tedious: PerCode[bool] = PerCode()
        """Code that was interpreted for too long to no avail when it was inlined (effort_limits.py)."""

    def program(self, code: CodeType) -> Program:
        program = self.programs.get(code)
        return self.programs.set(code, Program(code, OPCODES)) if program is None else program

    def root_program(self, code: CodeType) -> Program:
        program = self.root_programs.get(code)
        if program is None:
            offsets = self.original_offsets.get(code)
            program = self.root_programs.set(code, Program(code, ROOT_OPCODES, offsets))
        return program


@dataclass(slots=True)
class RootExit:
    """How the run of the root frame ended.

    Arguments:
        kind: "return" (value), "raise" (exc), "break" or "branch" (instruction: the one not executed).
        frame: the root frame: stack, fast locals.
        instruction: for breaks, the instruction at which the root frame stands.
        sequence: how many root instructions were executed before it.
        reason: why, for breaks (None when the driver asked for it and knows).
    """

    kind: str
    frame: Frame
    sequence: int
    value: object = None
    exc: BaseException | None = None
    instruction: Instruction | None = None
    reason: BreakReason | None = None


class Trampoline:
    """A Python function as native code sees it: calling it re-enters the interpreter."""

    __slots__ = ("__name__", "__weakref__", "fn", "interp")

    def __init__(self, interp: Interpreter, fn: Function) -> None:
        self.interp = interp
        self.fn = fn
        self.__name__ = fn.__name__ if is_a(fn, FunctionType | BuiltinFunctionType) else type(fn).__name__

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.interp.enter(self.fn, args, kwargs)


class Interpreter(Access):
    """Runs code objects on real values.

    Arguments:
        state: the capture state (guards, sources, overlays, torch calls).
        session: caches that several captures share.
    """

    def __init__(self, state: CaptureState, session: Session | None = None) -> None:
        super().__init__(state)
        state.interpreter = self
        self.session = session or Session()
        self.programs = self.session.programs
        self.policies: dict[int, tuple[Function, CodeType]] = {}
        self.trampoline_type = Trampoline
        self.generators: weakref.WeakSet[object] = weakref.WeakSet()
        self.base_exc = ExcState()
        self.propagating: BaseException | None = None
        self.closing: BaseException | None = None
        """The GeneratorExit of a generator that is being closed: nobody sees it afterwards."""
        self.inline_limit: int = getattr(state.config, "inline_limit", 600)
        self.pending: BaseException | None = None
        self.root: Frame | None = None
        self.over = False
        self.first_number: dict[int, int] = {}
        """Index of each root instruction that was executed -> when it first was."""

    # ---- running frames --------------------------------------------------------------------------------------------

    def run(self, frame: Frame, thrown: BaseException | None = None) -> object:
        """Run a frame until it returns (RETURN), yields (YIELD) or makes its generator (GENERATOR); see frame.result.

        Arguments:
            thrown: an exception to raise at the point where the frame stands, instead of going on there.

        Raises ObservedException when an exception leaves the frame, GraphBreak when the graph must end.
        """
        frames = self.frames
        if len(frames) > self.inline_limit:
            raise self.annotate(too_deep())
        ops = narration.table(frame)
        frames.append(frame)
        try:
            if thrown is not None and not self.unwind(frame, thrown):
                raise ObservedException(thrown)
            while True:
                try:
                    while True:
                        pc = frame.pc
                        frame.pc = pc + 1
                        handler, arg = ops[pc]
                        signal = handler(self, frame, arg)
                        if signal is not None:
                            return signal
                except ObservedException as observed:
                    exc = observed.value
                except GraphBreak as ending:
                    raise self.annotate(ending)  # noqa: B904
                except RecursionError:
                    raise self.annotate(too_deep()) from None
                # Outside of the except block: interpreted code must not see argand's own handled exceptions.
                if not self.unwind(frame, exc):
                    if exc is not self.closing and generators.abandoned_by_exception(frame.fast):
                        raise self.annotate(held_by_traceback())
                    raise ObservedException(exc)
        finally:
            frames.pop()

    def count_round(self) -> None:
        """A loop begins its body again, or a function is called."""
        patience = self.patience
        patience.left -= 1
        if not patience.left:
            patience.check(self.number, self.frames, len(self.state.tensors), self.session.tedious)

    def unwind(self, frame: Frame, exc: BaseException) -> bool:
        """Go to the handler that covers the current instruction; False if there is none."""
        program = frame.program
        handler = program.instructions[frame.pc - 1].handler
        if handler is None:
            return False
        del frame.stack[handler.depth :]
        if handler.lasti:
            frame.stack.append(frame.pc - 1)
        frame.stack.append(exc)
        frame.pc = program.index[handler.target]
        return True

    def annotate(self, ending: GraphBreak) -> GraphBreak:
        """Note where the user's program stands, once, at the innermost frame."""
        if not ending.reason.where:
            ending.reason.where = self.user_stack()
            ending.within = tuple((frame.code, frame.instruction) for frame in self.frames[1:])
        return ending

    def user_stack(self) -> tuple[UserLine, ...]:
        """Where the interpreted program stands, outermost first; argand's helper frames left out, and so are torch's at
        the end, as long as a line of somebody else's remains."""
        frames = [frame for frame in self.frames if not frame.quiet]
        last = len(frames)
        while last and skip.is_torch(frames[last - 1].code.co_filename):
            last -= 1
        return tuple(line_of_frame(frame) for frame in frames[: last or None])

    # ---- the root frame --------------------------------------------------------------------------------------------

    def root_frame(self) -> Frame:
        """The frame of the function to capture, its arguments not read yet."""
        state = self.state
        program = self.session.root_program(state.code)
        fast: list[object] = [NULL] * program.nslots
        for i, value in enumerate(state.args):
            fast[i] = value if value is NULL else LazyLocal(program.names[i], i, value)
        frame = Frame(program, fast, state.globals, state.builtins, self.base_exc)
        frame.closure = tuple(state.closure or ())
        return frame

    def run_root(self, break_at: Mapping[int, int | None] = MappingProxyType({})) -> RootExit:
        """Interpret the state's root frame from its beginning.

        Arguments:
            break_at: numbers of executed root instructions at which to stop instead of executing them; with the offset
                of the instruction where the number is of an earlier capture, which may have gone another way.

        A GraphBreak that is raised on the way carries the number of the root instruction and the instruction.
        """
        frame = self.root = self.root_frame()
        program = frame.program
        ops = narration.table(frame)
        first = self.first_number
        self.frames.append(frame)
        number = -1
        try:
            while True:
                try:
                    while True:
                        number += 1
                        self.number = number
                        if number in break_at and may_break(program.instructions[frame.pc], break_at[number]):
                            if self.tainted:
                                self.refuse_tainted((frame.stack, frame.fast))
                            frame.pc += 1
                            return self.root_break(frame, number)
                        pc = frame.pc
                        frame.pc = pc + 1
                        first.setdefault(pc, number)
                        handler, arg = ops[pc]
                        signal = handler(self, frame, arg)
                        if self.pending is not None:
                            raise self.pending
                        if signal is not None:
                            return self.root_end(frame, number, signal)
                except ObservedException as observed:
                    exc = observed.value
                except GraphBreak as ending:
                    ending.met_at(number, frame.instruction)
                    raise self.annotate(ending)  # noqa: B904
                except RecursionError:
                    deep = too_deep()
                    deep.met_at(number, frame.instruction)
                    raise self.annotate(deep) from None
                self.born.setdefault(id(exc), (exc, number))
                if not self.unwind(frame, exc):
                    return RootExit("raise", frame, number, exc=exc, instruction=frame.instruction)
        finally:
            self.over = True
            self.frames.pop()

    def offset_at(self, number: int) -> int | None:
        """Offset of the root instruction that was executed under a number, where it was the first time."""
        assert self.root is not None
        instructions = self.root.program.instructions
        return next((instructions[pc].offset for pc, first in self.first_number.items() if first == number), None)

    def root_break(self, frame: Frame, number: int) -> RootExit:
        inst = frame.instruction
        kind = (
            "branch" if any(part in inst.opname for part in _JUMPS_ON_TRUTH) and "NONE" not in inst.opname else "break"
        )
        return RootExit(kind, frame, number, instruction=inst)

    def root_end(self, frame: Frame, number: int, signal: object) -> RootExit:
        if signal is RETURN:
            if self.tainted:
                self.refuse_tainted((frame.result,))
            for i, value in enumerate(frame.fast if self.generators else ()):  # locals go: generators are closed
                if not is_a(value, CellType):
                    frame.fast[i] = NULL
            if self.pending is not None:
                raise self.pending
            return RootExit("return", frame, number, value=frame.result, instruction=frame.instruction)
        raise graph_break(kind="generator as root", skip_frame=True)

    # ---- what user-visible operations go through -------------------------------------------------------------------

    def observe(self, exc: BaseException) -> ObservedException:
        """Wrap an exception that native code raised, with the context that the interpreted program implies."""
        if is_a(exc, RecursionError):
            raise too_deep()
        let_pass(exc)
        if self.dynamic:
            symbolic_ops.not_the_programs(self, exc)
        if exc is self.propagating:
            self.propagating = None
        elif is_a(exc, MemoryError):
            raise exc  # there may be enough the next time
        else:
            stand_ins.refuse_named(exc)
            chain_context(exc, self.handled())
        if not self.is_outer(exc):
            exc.__traceback__ = CAPTURED_TRACEBACK
        return ObservedException(exc)

    def handled(self) -> BaseException | None:
        """What `sys.exception()` is for the interpreted program."""
        return self.frames[-1].exc.topmost() if self.frames else None

    def native(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call native code on behalf of the program: its exceptions are the program's.

        Raises:
            GraphBreak: an argument existed before, and no guard knows what the code may read of it (native_reads.py).
        """
        if self.outer:
            native_reads.check(self, fn, args)
            if kwargs:
                native_reads.check(self, fn, kwargs.values())
        self.state.stopped = None
        try:
            return self.untouched(fn, args, kwargs)
        except Exception as e:
            error: BaseException = e
        except (GeneratorExit, SystemExit) as e:
            if type(e) is SystemExit and self._is_from_outside(e, fn, args):
                raise
            error = e
        raise self._raised_natively(error)

    def unread(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """As `native`, for code that stores, moves, counts or hands on its arguments and does not look into them."""
        self.state.stopped = None
        try:
            return self.untouched(fn, args, kwargs)
        except Exception as e:
            error: BaseException = e
        except (GeneratorExit, SystemExit) as e:
            if self._is_from_outside(e, fn, args):
                raise
            error = e
        raise self._raised_natively(error)

    def _raised_natively(self, error: BaseException) -> ObservedException:
        """What native code raised, if that is not what it made of a graph break (`islice` says ValueError whatever
        `__index__` raises)."""
        reason = self.state.stopped
        if reason is not None:
            raise GraphBreak(reason) from None
        return self.observe(error)

    def _is_from_outside(self, error: BaseException, fn: object, args: tuple[object, ...]) -> bool:
        """Whether an exception comes of no call of the program's, but of a signal handler or another thread."""
        return (
            error is not self.propagating
            and fn is not sys.exit
            and not any(a is error or a is type(error) for a in args)
        )

    def untouched(self, fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """`fn(*args, **kwargs)` in which no code of the program runs: where it would, the graph breaks before it."""
        settled = self.settled
        if not self.state.guards.of_process and set_order.may_tell(fn, args, kwargs):
            self.state.guards.of_process = "the order of a set"
        if type(fn) is FunctionType:
            return fn(*args, **kwargs)
        if type(fn) not in BOUND_METHODS or type(fn.__self__) in settled:  # type: ignore[attr-defined]
            for arg in (*args, *kwargs.values()):
                if type(arg) not in settled:
                    break
            else:
                return fn(*args, **kwargs)
        return _C.call_watched(native_watch.judge, fn, *args, **kwargs)

    def throw(self, exc: BaseException) -> ObservedException:
        """An exception that an operation of the program raises: `raise interp.throw(TypeError(...))`."""
        if self.dynamic and type(exc) in _WITH_TYPE_NAMES:
            symbolic_ops.not_the_programs(self, exc)
        stand_ins.refuse_named(exc)
        chain_context(exc, self.handled())
        exc.__traceback__ = CAPTURED_TRACEBACK
        return ObservedException(exc)

    def enter(self, fn: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Called from native code: interpret a call; user exceptions go into the native code as they are."""
        try:
            return self.call(fn, args, kwargs)
        except ObservedException as observed:
            exc = observed.value
        except RecursionError:
            raise too_deep() from None
        except Exception as bug:
            raise InternalFailure(bug) from bug
        self.propagating = exc
        try:
            raise_native(exc)
        finally:
            del exc  # its traceback refers to this frame

    def trampoline(self, fn: Function) -> object:
        """A native callable that interprets `fn`; what is not callable stays as it is."""
        return Trampoline(self, fn) if type(fn) is not Trampoline and self.is_callable(fn) else fn

    def is_callable(self, obj: object) -> bool:
        """`callable(obj)`, which is a fact about its class: that it has `__call__` or not is guarded."""
        cls = type(obj)
        self.note_class(cls)
        return self.types.lookup(cls, "__call__") is not NULL

    # ---- Python's protocols, as the program would use them ---------------------------------------------------------

    call = calls.call
    getattr = attributes.load_attr
    try_attr = attributes.try_attr
    setattr = attribute_writes.store_attr
    truth = operators.truth
    getitem = operators.getitem

    def equal(self, a: object, b: object) -> bool:
        """`bool(a == b)`."""
        return operators.truth(self, operators.compare(self, COMPARE["=="], a, b))

    def polyfill(self, fn: object, *args: object) -> object:
        """Interpret a helper function of argand's on the program's behalf."""
        return self.call(fn, args)


_WITH_TYPE_NAMES = frozenset((TypeError, AttributeError))
"""Whose messages say what type a value has: not that of what stands for it."""


def held_by_traceback() -> GraphBreak:
    """The break for suspended generators in a frame that an exception leaves."""
    return graph_break(kind="generator held by a traceback")


def too_deep() -> GraphBreak:
    """The break for calls nested too deeply."""
    return graph_break(kind="inlining too deep")
