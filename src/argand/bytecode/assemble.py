"""`Assembler`: builds instruction lists that are right on every supported version of Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

from argand.bytecode.instruction import ExceptionHandler, Instruction, Positions
from argand.bytecode.opcodes import PY312, PY313
from argand.errors import InternalError


class Label:
    """A place to jump to: the instruction emitted next after `Assembler.bind`, or a given one."""

    __slots__ = ("instruction",)

    def __init__(self, instruction: Instruction | None = None) -> None:
        self.instruction = instruction


class Assembler:
    """Appends instructions; `finish` returns the list, ready for `encode`.

    Calls follow one order on every version: prepare the callable, push the arguments, `call(n)`. The callable is
    prepared by one of

        asm.load_global_callable("f")                         a global
        asm.push_null_before(); <push it>; asm.push_null_after()   any expression; emits PUSH_NULL where it belongs
        asm.callable_on_top()                                 the value that is already on top of the stack
        asm.load_method("name")                               a method of the value on top of the stack

    Stack pictures in the docstrings read from the bottom to the top.
    """

    def __init__(self, positions: Positions | None = None) -> None:
        self._out: list[Instruction] = []
        self._pending: list[Label] = []
        self._jumps: list[tuple[Instruction, Label]] = []
        self._handlers: list[tuple[ExceptionHandler, Label]] = []
        self._handler: ExceptionHandler | None = None
        self._positions = positions

    # -- structure ----------------------------------------------------------------------------------------------------

    def emit(self, opname: str, argval: Any = None, arg: int | None = None) -> Instruction:
        """Append one instruction by name; for opcodes without a method here. See instruction.py for argval and arg."""
        return self.append(Instruction(opname, arg, argval, None, self._positions, None, self._handler))

    def append(self, inst: Instruction) -> Instruction:
        """Append an instruction as it is (its own positions and handler)."""
        for label in self._pending:
            label.instruction = inst
        self._pending.clear()
        self._out.append(inst)
        return inst

    def extend(self, instructions: Iterable[Instruction]) -> None:
        """Append instructions as they are, for example clones of decoded ones."""
        for inst in instructions:
            self.append(inst)

    def set_line(self, positions: Positions | int | None) -> None:
        """Source position of the instructions emitted from now on: a tuple, a line number, or None."""
        self._positions = (positions, positions, None, None) if isinstance(positions, int) else positions

    def bind(self, label: Label) -> None:
        """Let a label stand for the next instruction appended."""
        if label.instruction is not None or label in self._pending:
            raise InternalError("a label was bound twice")
        self._pending.append(label)

    @contextmanager
    def covered_by(self, target: Label | Instruction, depth: int, lasti: bool = False) -> Iterator[None]:
        """Instructions emitted within are covered by an exception handler that starts at `target`.

        Arguments:
            depth: stack depth that the handler keeps; it then finds [offset if lasti,] exception on top.
        """
        outer = self._handler
        handler = ExceptionHandler(_NOWHERE, depth, lasti)
        if isinstance(target, Label):
            self._handlers.append((handler, target))
        else:
            handler.target = target
        self._handler = handler
        try:
            yield
        finally:
            self._handler = outer

    def finish(self) -> list[Instruction]:
        """Resolve labels and return the instructions. Raises InternalError for a label that was never bound."""
        if self._pending:
            self.emit("NOP")
        for inst, label in self._jumps:
            inst.target = self._bound(label)
        for handler, label in self._handlers:
            handler.target = self._bound(label)
        return self._out

    def _bound(self, label: Label) -> Instruction:
        if label.instruction is None:
            raise InternalError("a label was used but never bound")
        return label.instruction

    def _jump(self, opname: str, target: Label | Instruction) -> Instruction:
        inst = self.emit(opname)
        if isinstance(target, Label):
            self._jumps.append((inst, target))
        else:
            inst.target = target
        return inst

    # -- variables and constants --------------------------------------------------------------------------------------

    def load_const(self, value: Any) -> Instruction:
        """-> value. Any object; equal immutable constants share a slot."""
        return self.emit("LOAD_CONST", value)

    def load_fast(self, name: str, check: bool = False) -> Instruction:
        """-> value. `check`: the variable may be unbound; raise UnboundLocalError then (3.11 always checks)."""
        return self.emit("LOAD_FAST_CHECK" if check and PY312 else "LOAD_FAST", name)

    def store_fast(self, name: str) -> Instruction:
        """value -> ."""
        return self.emit("STORE_FAST", name)

    def delete_fast(self, name: str) -> Instruction:
        """Unbind a local that is bound."""
        return self.emit("DELETE_FAST", name)

    def load_global(self, name: str) -> Instruction:
        """-> value."""
        return self.emit("LOAD_GLOBAL", name, 0)

    def load_global_callable(self, name: str) -> Instruction:
        """Load a global in order to call it (with the NULL that `call` expects)."""
        return self.emit("LOAD_GLOBAL", name, 1)

    def store_global(self, name: str) -> Instruction:
        """value -> ."""
        return self.emit("STORE_GLOBAL", name)

    def delete_global(self, name: str) -> Instruction:
        """Delete a global."""
        return self.emit("DELETE_GLOBAL", name)

    def load_deref(self, name: str) -> Instruction:
        """-> contents of a cell or free variable."""
        return self.emit("LOAD_DEREF", name)

    def store_deref(self, name: str) -> Instruction:
        """value -> ; into a cell or free variable."""
        return self.emit("STORE_DEREF", name)

    def load_closure(self, name: str) -> Instruction:
        """-> the cell itself."""
        return self.emit("LOAD_CLOSURE", name)

    # -- attributes, items, operators ---------------------------------------------------------------------------------

    def load_attr(self, name: str) -> Instruction:
        """object -> attribute."""
        return self.emit("LOAD_ATTR", name, 0)

    def store_attr(self, name: str) -> Instruction:
        """value, object -> ."""
        return self.emit("STORE_ATTR", name)

    def delete_attr(self, name: str) -> Instruction:
        """object -> ."""
        return self.emit("DELETE_ATTR", name)

    def binary_subscr(self) -> Instruction:
        """container, key -> item."""
        return self.emit("BINARY_SUBSCR")

    def store_subscr(self) -> Instruction:
        """value, container, key -> ."""
        return self.emit("STORE_SUBSCR")

    def delete_subscr(self) -> Instruction:
        """container, key -> ."""
        return self.emit("DELETE_SUBSCR")

    def binary_op(self, symbol: str) -> Instruction:
        """left, right -> result; symbol as in the source: "+", "@", "+=", ..."""
        return self.emit("BINARY_OP", symbol)

    def unary_op(self, symbol: str) -> None:
        """value -> result; "-", "~", "not" or "+"."""
        if symbol == "+":
            if PY312:
                self.emit("CALL_INTRINSIC_1", "INTRINSIC_UNARY_POSITIVE")
            else:
                self.emit("UNARY_POSITIVE")
        elif symbol == "not":
            if PY313:
                self.emit("TO_BOOL")
            self.emit("UNARY_NOT")
        else:
            self.emit({"-": "UNARY_NEGATIVE", "~": "UNARY_INVERT"}[symbol])

    def is_op(self, invert: bool = False) -> Instruction:
        """left, right -> bool: left is right (invert: is not)."""
        return self.emit("IS_OP", "is not" if invert else "is")

    def get_iter(self) -> Instruction:
        """iterable -> iterator."""
        return self.emit("GET_ITER")

    # -- containers ---------------------------------------------------------------------------------------------------

    def _counted(self, opname: str, count: int) -> Instruction:
        return self.emit(opname, count, count)

    def build_tuple(self, count: int) -> Instruction:
        """item * count -> tuple."""
        return self._counted("BUILD_TUPLE", count)

    def build_list(self, count: int) -> Instruction:
        """item * count -> list."""
        return self._counted("BUILD_LIST", count)

    def build_set(self, count: int) -> Instruction:
        """item * count -> set."""
        return self._counted("BUILD_SET", count)

    def build_map(self, count: int) -> Instruction:
        """(key, value) * count -> dict."""
        return self._counted("BUILD_MAP", count)

    def build_string(self, count: int) -> Instruction:
        """str * count -> str."""
        return self._counted("BUILD_STRING", count)

    def build_slice(self, count: int) -> Instruction:
        """start, stop[, step] -> slice; count is 2 or 3."""
        return self._counted("BUILD_SLICE", count)

    def dict_update(self, depth: int = 1) -> Instruction:
        """dict, ..., mapping -> dict, ..."""
        return self._counted("DICT_UPDATE", depth)

    def unpack_sequence(self, count: int) -> Instruction:
        """sequence -> item * count, the first on top."""
        return self._counted("UNPACK_SEQUENCE", count)

    # -- stack --------------------------------------------------------------------------------------------------------

    def pop_top(self) -> Instruction:
        """value -> ."""
        return self.emit("POP_TOP")

    def copy(self, depth: int) -> Instruction:
        """Push again the value at `depth` (1: the top)."""
        return self._counted("COPY", depth)

    def dup(self) -> Instruction:
        """value -> value, value."""
        return self.copy(1)

    def swap(self, depth: int) -> Instruction:
        """Exchange the top with the value at `depth` (2: the next)."""
        return self._counted("SWAP", depth)

    def push_null(self) -> Instruction:
        """-> NULL (not a value: only calls and exits of handlers know what to do with it)."""
        return self.emit("PUSH_NULL")

    # -- calls --------------------------------------------------------------------------------------------------------

    def push_null_before(self) -> None:
        """Before pushing a callable; pair with `push_null_after`."""
        if not PY313:
            self.push_null()

    def push_null_after(self) -> None:
        """After pushing a callable; pair with `push_null_before`."""
        if PY313:
            self.push_null()

    def callable_on_top(self) -> None:
        """Make the value on top of the stack ready to be called."""
        self.push_null()
        if not PY313:
            self.swap(2)

    def load_const_callable(self, value: Any) -> None:
        """Load a constant in order to call it."""
        self.push_null_before()
        self.load_const(value)
        self.push_null_after()

    def load_method(self, name: str) -> Instruction:
        """object -> what `call` needs to call its method."""
        return self.emit("LOAD_ATTR", name, 1) if PY312 else self.emit("LOAD_METHOD", name)

    def call(self, nargs: int, kwnames: Sequence[str] = ()) -> Instruction:
        """prepared callable, argument * nargs -> result.

        Arguments:
            nargs: all arguments, those by keyword included.
            kwnames: names of the last arguments, which are passed by keyword.
        """
        if PY313:
            if kwnames:
                self.load_const(tuple(kwnames))
                return self._counted("CALL_KW", nargs)
            return self._counted("CALL", nargs)
        if kwnames:
            self.emit("KW_NAMES", tuple(kwnames))
        if not PY312:
            self._counted("PRECALL", nargs)
        return self._counted("CALL", nargs)

    def call_function_ex(self, has_kwargs: bool) -> Instruction:
        """prepared callable (not `load_method`), args tuple[, kwargs dict] -> result."""
        return self._counted("CALL_FUNCTION_EX", int(has_kwargs))

    def make_function(
        self,
        code: CodeType,
        closure: Sequence[str] = (),
        defaults: tuple[Any, ...] | None = None,
        kwdefaults: bool = False,
        closure_on_stack: bool = False,
    ) -> Instruction:
        """[kwdefaults dict,] [closure tuple] -> function with the current globals.

        Arguments:
            code: code object of the function.
            closure: names of this code's cells or free variables, in the order of `code.co_freevars`.
            defaults: values of `__defaults__`, as constants; not together with the two below.
            kwdefaults: a dict for `__kwdefaults__` is on the stack and is consumed.
            closure_on_stack: a tuple of cells is on top of the stack and is consumed; not together with `closure`.
        """
        if defaults is not None and (kwdefaults or closure_on_stack):
            raise InternalError("make_function takes defaults, or something from the stack, not both")
        if closure and closure_on_stack:
            raise InternalError("make_function takes names of a closure or a tuple, not both")
        flags = 0
        if defaults is not None:
            self.load_const(tuple(defaults))
            flags |= 1
        if kwdefaults:
            flags |= 2
        if closure or closure_on_stack:
            for name in closure:
                self.load_closure(name)
            if closure:
                self.build_tuple(len(closure))
            flags |= 8
        self.load_const(code)
        if not PY313:
            return self._counted("MAKE_FUNCTION", flags)
        inst = self.emit("MAKE_FUNCTION")
        for flag in (8, 2, 1):  # what was pushed last is set first
            if flags & flag:
                inst = self._counted("SET_FUNCTION_ATTRIBUTE", flag)
        return inst

    # -- jumps and exits ----------------------------------------------------------------------------------------------

    def jump(self, target: Label | Instruction) -> Instruction:
        """Go to `target`, forward or backward."""
        return self._jump("JUMP_FORWARD", target)

    def _jump_if(self, condition: str, target: Label | Instruction) -> Instruction:
        return self._jump(f"POP_JUMP_{'' if PY312 else 'FORWARD_'}IF_{condition}", target)

    def jump_if_true(self, target: Label | Instruction, is_bool: bool = False) -> Instruction:
        """value -> ; go to `target` if it is true. `is_bool`: the value is certainly True or False."""
        if PY313 and not is_bool:
            self.emit("TO_BOOL")
        return self._jump_if("TRUE", target)

    def jump_if_false(self, target: Label | Instruction, is_bool: bool = False) -> Instruction:
        """value -> ; go to `target` if it is false. `is_bool`: the value is certainly True or False."""
        if PY313 and not is_bool:
            self.emit("TO_BOOL")
        return self._jump_if("FALSE", target)

    def jump_if_none(self, target: Label | Instruction) -> Instruction:
        """value -> ; go to `target` if it is None."""
        return self._jump_if("NONE", target)

    def for_iter(self, end: Label | Instruction) -> Instruction:
        """iterator -> iterator, item; at the end go to `end`, which must be bound right before `end_for`."""
        return self._jump("FOR_ITER", end)

    def end_for(self) -> None:
        """Where a loop ends (bind the label given to `for_iter` just before): the iterator is gone after it."""
        if PY312:
            self.emit("END_FOR")
            if PY313:
                self.pop_top()
        else:
            self.emit("NOP")

    def return_value(self) -> Instruction:
        """value -> ; leave the function."""
        return self.emit("RETURN_VALUE")


_NOWHERE = Instruction("NOP")
