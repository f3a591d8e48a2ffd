"""`Instruction`: one decoded instruction whose argument is already resolved.

What `argval` holds, the same on every version, and what `arg` adds to it:

    LOAD_CONST, RETURN_CONST, KW_NAMES     the constant object
    *_NAME, *_ATTR, *_GLOBAL, LOAD_METHOD  the name; LOAD_GLOBAL: bit 0 of arg is `push_null`;
                                           LOAD_ATTR (3.12+): bit 0 is `is_method`
    LOAD_SUPER_ATTR                        the attribute's name; bit 0 `is_method`, bit 1 `is_two_arg_super`
    LOAD_FAST, STORE_FAST, ...             the local's name
    LOAD_FAST_LOAD_FAST, STORE_FAST_...    (first name, second name), in order of execution
    LOAD_DEREF, LOAD_CLOSURE, MAKE_CELL    the variable's name
    COMPARE_OP                             "<", "<=", "==", "!=", ">", ">="; 3.13: bit 4 of arg is `to_bool`
    BINARY_OP                              "+", "+=", "@", ...
    IS_OP, CONTAINS_OP                     "is", "is not"; "in", "not in"
    CALL_INTRINSIC_1, CALL_INTRINSIC_2     "INTRINSIC_LIST_TO_TUPLE", ...
    jumps                                  None; see `target`
    other opcodes with an argument         the same number as `arg`
    opcodes without argument               None (and `arg` is None)

On 3.13, where LOAD_CLOSURE no longer exists, a LOAD_FAST of a cell's or free variable's slot is shown as LOAD_CLOSURE.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from argand.bytecode.opcodes import (
    COMPARE_BOOL_BIT,
    JUMP_OPS,
    OPMAP,
    PY312,
    TERMINATORS,
    UNCONDITIONAL_JUMPS,
)
from argand.quick_dataclasses import dataclass

Positions: TypeAlias = "tuple[int | None, int | None, int | None, int | None]"
"""(line, end line, column, end column), as `code.co_positions` yields them; columns count UTF-8 bytes."""


@dataclass(slots=True, eq=False)
class ExceptionHandler:
    """An entry of the exception table; instructions of one entry share one object.

    When an instruction that it covers raises, the stack is cut to `depth`, the instruction's offset is pushed if
    `lasti`, the exception is pushed, and execution goes on at `target`.
    """

    target: Instruction
    depth: int
    lasti: bool = False

    @property
    def entry_depth(self) -> int:
        """Stack depth at entry of `target`."""
        return self.depth + 1 + self.lasti


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction; compared by identity. EXTENDED_ARG, CACHE and specialised opcodes never appear.

    Fields:
        opname: name of the opcode, valid on the running Python.
        arg: raw argument as decoded; where `argval` says more, only its flag bits count (see the module's table).
        argval: resolved argument.
        offset: byte offset of the opcode in the code it was decoded from; None for a new instruction. Resume code
            that was decoded with `original_offsets` shows the offset in the user's function.
        positions: (line, end line, column, end column) or None.
        target: where a jump goes.
        handler: innermost entry of the exception table that covers the instruction, or None.
    """

    opname: str
    arg: int | None = None
    argval: Any = None
    offset: int | None = None
    positions: Positions | None = None
    target: Instruction | None = None
    handler: ExceptionHandler | None = None

    @property
    def opcode(self) -> int:
        """Number of the opcode on the running Python."""
        return OPMAP[self.opname]

    @property
    def lineno(self) -> int | None:
        """First source line, or None for code without a line."""
        return self.positions[0] if self.positions is not None else None

    @property
    def is_jump(self) -> bool:
        """Has a `target` (FOR_ITER and SEND too)."""
        return self.opname in JUMP_OPS

    @property
    def is_unconditional_jump(self) -> bool:
        """Always goes to `target`."""
        return self.opname in UNCONDITIONAL_JUMPS

    @property
    def is_terminator(self) -> bool:
        """Never falls through to the next instruction: jumps away, returns or raises."""
        return self.opname in TERMINATORS

    @property
    def push_null(self) -> bool:
        """LOAD_GLOBAL only: also pushes a NULL (3.11, 3.12: below the value; 3.13: above it)."""
        return self.opname == "LOAD_GLOBAL" and bool((self.arg or 0) & 1)

    @property
    def is_method(self) -> bool:
        """Loads a method for a call: pushes (function, self) if it is one, else (NULL, value) (3.13: (value, NULL))."""
        if self.opname == "LOAD_METHOD":
            return True
        return PY312 and self.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool((self.arg or 0) & 1)

    @property
    def is_two_arg_super(self) -> bool:
        """LOAD_SUPER_ATTR only: the source spelled `super(cls, self)`."""
        return self.opname == "LOAD_SUPER_ATTR" and bool((self.arg or 0) & 2)

    @property
    def to_bool(self) -> bool:
        """COMPARE_OP on 3.13 only: the result of the comparison is converted to bool."""
        return self.opname == "COMPARE_OP" and bool((self.arg or 0) & COMPARE_BOOL_BIT)

    def copy(self) -> Instruction:
        """A new instruction with equal fields, `target` and `handler` the old ones: see flow.clone_instructions."""
        return Instruction(self.opname, self.arg, self.argval, self.offset, self.positions, self.target, self.handler)

    def __repr__(self) -> str:
        at = "" if self.offset is None else f"{self.offset} "
        arg = "" if self.arg is None and self.argval is None else f" {self.argval!r}"
        to = ""
        if self.target is not None:
            arg, to = "", f" -> {self.target.offset} {self.target.opname}"
        return f"<{at}{self.opname}{arg}{to}>"
