"""`Assembler`: builds instruction lists that are right on every supported version of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

from argand.bytecode.instruction import ExceptionHandler, Instruction, Positions
from argand.bytecode.opcodes import PY312, PY313
from argand.errors import InternalError


class Label:
    """A place to jump to: the instruction emitted next after `Assembler.bind`."""

    __slots__ = ("instruction",)

    def __init__(self) -> None:
        self.instruction: Instruction | None = None


def _plain(opname: str) -> Callable[[Assembler], Instruction]:
    return lambda self: self.emit(opname)


def _naming(opname: str, arg: int | None = None) -> Callable[[Assembler, Any], Instruction]:
    return lambda self, name: self.emit(opname, name, arg)


def _counting(opname: str) -> Callable[[Assembler, int], Instruction]:
    return lambda self, count: self.emit(opname, count, count)


class Assembler:
    """Appends instructions; `finish` returns the list, ready for `encode`.

    Calls follow one order on every version: prepare the callable, push the arguments, `call(n)`. The callable is
    prepared by one of

        asm.load_global_callable("f")                         a global
        asm.push_null_before(); <push it>; asm.push_null_after()   any expression; emits PUSH_NULL where it belongs
        asm.callable_on_top()                                 the value that is already on top of the stack
        asm.load_method("name")                               a method of the value on top of the stack

    Stack pictures, in docstrings and comments, read from the bottom to the top.
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

    @contextmanager
    def at_line(self, line: int | None) -> Iterator[None]:
        """Instructions emitted within stand at a line, unless that is None."""
        before = self._positions
        if line is not None:
            self.set_line(line)
        yield
        self._positions = before

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

    load_const = _naming("LOAD_CONST")  # -> value. Any object; equal immutable constants share a slot

    def load_fast(self, name: str, check: bool = False) -> Instruction:
        """-> value. `check`: the variable may be unbound; raise UnboundLocalError then (3.11 always checks)."""
        return self.emit("LOAD_FAST_CHECK" if check and PY312 else "LOAD_FAST", name)

    store_fast = _naming("STORE_FAST")  # value -> .
    delete_fast = _naming("DELETE_FAST")  # unbind a local that is bound
    load_global = _naming("LOAD_GLOBAL", 0)  # -> value
    load_global_callable = _naming("LOAD_GLOBAL", 1)  # -> a global, with the NULL that `call` expects
    store_global = _naming("STORE_GLOBAL")  # value -> .
    delete_global = _naming("DELETE_GLOBAL")  # unbind a global
    load_deref = _naming("LOAD_DEREF")  # -> contents of a cell or free variable
    store_deref = _naming("STORE_DEREF")  # value -> ; into a cell or free variable
    load_closure = _naming("LOAD_CLOSURE")  # -> the cell itself

    # -- attributes, items, operators ---------------------------------------------------------------------------------

    load_attr = _naming("LOAD_ATTR", 0)  # object -> attribute
    store_attr = _naming("STORE_ATTR")  # value, object -> .
    delete_attr = _naming("DELETE_ATTR")  # object -> .
    binary_subscr = _plain("BINARY_SUBSCR")  # container, key -> item
    store_subscr = _plain("STORE_SUBSCR")  # value, container, key -> .
    delete_subscr = _plain("DELETE_SUBSCR")  # container, key -> .

    def is_op(self) -> Instruction:
        """left, right -> bool: left is right."""
        return self.emit("IS_OP", "is")

    # -- containers ---------------------------------------------------------------------------------------------------

    def _counted(self, opname: str, count: int) -> Instruction:
        return self.emit(opname, count, count)

    build_tuple = _counting("BUILD_TUPLE")  # item * count -> tuple
    build_list = _counting("BUILD_LIST")  # item * count -> list
    build_set = _counting("BUILD_SET")  # item * count -> set
    build_map = _counting("BUILD_MAP")  # (key, value) * count -> dict
    build_string = _counting("BUILD_STRING")  # str * count -> str
    build_slice = _counting("BUILD_SLICE")  # start, stop[, step] -> slice; count is 2 or 3

    unpack_sequence = _counting("UNPACK_SEQUENCE")  # sequence -> item * count, the first on top

    # -- stack --------------------------------------------------------------------------------------------------------

    pop_top = _plain("POP_TOP")  # value -> .
    copy = _counting("COPY")  # push again the value at `depth` (1: the top)

    def dup(self) -> Instruction:
        """value -> value, value."""
        return self.copy(1)

    swap = _counting("SWAP")  # exchange the top with the value at `depth` (2: the next)
    push_null = _plain("PUSH_NULL")  # -> NULL (not a value: only calls and exits of handlers know what to do with it)

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
        """prepared callable, args tuple[, kwargs dict] -> result."""
        return self._counted("CALL_FUNCTION_EX", int(has_kwargs))

    def make_function(
        self, code: CodeType, closure: Sequence[str] = (), *, closure_on_stack: bool = False
    ) -> Instruction:
        """[closure tuple] -> function with the current globals.

        Arguments:
            code: code object of the function.
            closure: names of this code's cells or free variables, in the order of `code.co_freevars`.
            closure_on_stack: a tuple of cells is on top of the stack and is consumed; not together with `closure`.
        """
        if closure and closure_on_stack:
            raise InternalError("make_function takes names of a closure or a tuple, not both")
        for name in closure:
            self.load_closure(name)
        if closure:
            self.build_tuple(len(closure))
        flags = 8 if closure or closure_on_stack else 0
        self.load_const(code)
        if not PY313:
            return self._counted("MAKE_FUNCTION", flags)
        inst = self.emit("MAKE_FUNCTION")
        return self._counted("SET_FUNCTION_ATTRIBUTE", flags) if flags else inst

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

    return_value = _plain("RETURN_VALUE")  # value -> ; leave the function


_NOWHERE = Instruction("NOP")
