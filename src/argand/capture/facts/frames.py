"""`Program`: a code object prepared for the interpreter. `Frame`: one activation of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, Protocol

from argand.bytecode.decode import decode, localsplus_names
from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import KIND_OF, Kind
from argand.bytecode.per_code import PerCode
from argand.capture.facts.exceptions import ExcState

Handler = Callable[[Any, "Frame", Any], object]
"""One opcode, of (interpreter, frame, argument): changes the frame. None goes on with the next instruction, anything
else ends the run (a signal)."""
Prepare = Callable[[Instruction, dict[Instruction, int]], Any]
"""Computes, once per code object, the argument that the handler gets."""


class _Null:
    """CPython's NULL on the value stack, and the content of a local variable without a value."""

    def __repr__(self) -> str:
        return "NULL"


class _Signal:
    """Why a frame stopped running."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _Stop:
    """The end of an iterator, and what a table of values answers for a key that it lacks."""

    def __repr__(self) -> str:
        return "STOP"


NULL: Final = _Null()
STOP: Final = _Stop()
RETURN: Final = _Signal("RETURN")
YIELD: Final = _Signal("YIELD")
GENERATOR: Final = _Signal("GENERATOR")


class Previous:
    """On the value stack where PUSH_EXC_INFO saves the exception that was being handled before (or None)."""

    __slots__ = ("value",)

    def __init__(self, value: BaseException | None) -> None:
        self.value = value


class LazyLocal:
    """An argument of the root frame that was not read yet: guards are made when it is."""

    __slots__ = ("index", "name", "value")

    def __init__(self, name: str, index: int, value: object) -> None:
        self.name = name
        self.index = index
        self.value = value


class Program:
    """A decoded code object with its handlers bound.

    It does not keep the code alive: it is found by it (per_code.py). Frames do.

    Fields:
        instructions: what `bytecode.decode` made of it.
        ops: (handler, argument) for each instruction.
        names: name of each slot of `Frame.fast`.
        argcount, kwonly, flags: of the code, kept here because they are read at each call.
    """

    __slots__ = ("_code", "argcount", "flags", "index", "instructions", "kwonly", "names", "nslots", "ops")

    def __init__(
        self,
        code: CodeType,
        table: dict[str, tuple[Handler, Prepare | None]],
        original_offsets: Mapping[int, int] | None = None,
    ) -> None:
        self._code = weakref.ref(code)
        self.instructions = decode(code, None, original_offsets)
        self.index = {inst: i for i, inst in enumerate(self.instructions)}
        self.names = localsplus_names(code)
        self.nslots = len(self.names)
        self.argcount = code.co_argcount
        self.kwonly = code.co_kwonlyargcount
        self.flags = code.co_flags
        self.ops = [self._op(inst, table) for inst in self.instructions]

    @property
    def code(self) -> CodeType:
        """The code object, which somebody must hold."""
        code = self._code()
        assert code is not None
        return code

    def _op(self, inst: Instruction, table: dict[str, tuple[Handler, Prepare | None]]) -> tuple[Handler, object]:
        handler, prepare = table[inst.opname]
        if prepare is not None:
            return handler, prepare(inst, self.index)
        kind = KIND_OF.get(inst.opname, Kind.RAW)
        if kind == Kind.JUMP:
            assert_target = inst.target
            return handler, self.index[assert_target] if assert_target is not None else None
        if kind in (Kind.LOCAL, Kind.DEREF):
            return handler, inst.arg
        if kind == Kind.PAIR:
            arg = inst.arg or 0
            return handler, (arg >> 4, arg & 15)
        return handler, inst.argval


class Frame:
    """One activation of a code object.

    Fields:
        pc: index of the next instruction.
        stack: the value stack (`NULL` where CPython has a null pointer).
        fast: locals, cells and free variables by slot; `NULL` where unset.
        locals: the namespace of a class body or of executed code; None in functions.
        func: the function object that runs, for its closure; None for class bodies' and executed code.
        exc: the exc_info item in force.
        kw_names: names set by KW_NAMES for the next CALL.
        result: what RETURN or YIELD leaves.
        quiet: a frame of argand's own helper code, hidden from user stacks.
        shown: a `pc`, and how user stacks show the frame that stands there (`stack_text.stack_trace`).
    """

    __slots__ = (
        "builtins", "closure", "code", "exc", "fast", "func", "globals", "kw_names", "locals", "pc",
        "program", "quiet", "result", "shown", "stack",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        fast: list[Any],
        globals_: dict[str, Any],
        builtins: dict[str, object],
        exc: ExcState,
        func: FunctionType | None = None,
    ) -> None:
        self.program = program
        self.code = program.code
        self.pc = 0
        self.stack: list[Any] = []
        self.fast = fast
        self.globals = globals_
        self.builtins = builtins
        self.locals: object = None
        self.func = func
        self.closure: tuple[object, ...] = ()
        self.exc = exc
        self.kw_names: tuple[str, ...] = ()
        self.result: object = None
        self.quiet = False
        self.shown: tuple[int, str, str] = (-1, "", "")

    @property
    def instruction(self) -> Instruction:
        """The instruction being executed (`pc` already points behind it)."""
        return self.program.instructions[max(self.pc - 1, 0)]

    @property
    def lineno(self) -> int:
        return self.instruction.lineno or self.code.co_firstlineno

    def locals_by_name(self) -> dict[str, object]:
        """Set locals, cells and free variables by name: cells as cell objects, unread arguments as `LazyLocal`."""
        return {name: value for name, value in zip(self.program.names, self.fast) if value is not NULL}


class CodePlace(NamedTuple):
    """A line at which a frame stands."""

    code: CodeType
    line: int
    globals: dict[str, object]


class Session(Protocol):
    """What outlives one capture."""

    tedious: PerCode[bool]

    def program(self, code: CodeType) -> Program:
        """A code object, decoded."""
