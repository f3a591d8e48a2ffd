"""Code objects that capture makes from a user's: continuation functions of graph breaks, transformed frame code."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import CodeType
from typing import Any

from argand.bytecode.cells import SAVED_CELL_MARK, CellSlots, cell_slots
from argand.bytecode.decode import ambiguous_names, decode
from argand.bytecode.encode import Pools, encode, encode_with_offsets
from argand.bytecode.flow import (
    clone_instructions,
    prologue,
    prologue_length,
    reachable,
    zero_argument_super_calls,
)
from argand.bytecode.instruction import Instruction, Positions
from argand.bytecode.liveness import live_locals, local_names
from argand.bytecode.opcodes import CO_ANY_GENERATOR, CO_VARARGS, CO_VARKEYWORDS, PY312
from argand.bytecode.stack import stack_depths
from argand.bytecode.unbound_locals import unbound_cell_blocks
from argand.errors import InternalError
from argand.quick_dataclasses import dataclass

STACK_PREFIX = "___stack"  # of the parameters of resume functions that carry values of the stack


class StackSlot(Enum):
    """What a slot of the value stack holds at a graph break."""

    VALUE = "value"  # becomes a parameter of the resume function
    NULL = "null"  # pushed by the resume function itself
    HANDLED = "handled"  # where PUSH_EXC_INFO saved what was handled before; the parameter is what has been since


@dataclass(frozen=True, slots=True)
class ResumeCode:
    """A continuation function's code and how to call it.

    Fields:
        code: the code object; its parameters carry `arg_names`, all plain positional.
        arg_names: what to pass: stack values from the bottom to the top (by made-up names), then live locals.
        stack_args: how many of `arg_names` are stack values.
        freevars: names of the cells that the function's closure needs, in this order: the free variables of the code
            that was broken, then its cells. The cells themselves are passed, so closures made before and after the
            break share them.
        original_offsets: offset in `code` -> offset in the user's own function, for every instruction that comes from
            it. Pass it to `decode` when `code` is captured in its turn; it cannot be kept in the code object.
    """

    code: CodeType
    arg_names: tuple[str, ...]
    stack_args: int
    freevars: tuple[str, ...]
    original_offsets: Mapping[int, int]


def resume_name(target: Instruction, count: int) -> str:
    """`__resume_at_<offset>_<n>` for the instruction to go on at; the offset is the one in the user's function."""
    return f"__resume_at_{target.offset if target.offset is not None else 0}_{count}"


def under_users_name(resume: ResumeCode, code: CodeType) -> ResumeCode:
    """The same code under the name of the user's function, as tracebacks and messages should show it.

    Its own name (`resume_label`) stays in it as the last constant, which also keeps codes of different resume
    functions unequal.

    Arguments:
        code: the code object that was broken (the user's, or itself named after the user's).
    """
    name = resume.code.co_name
    named = resume.code.replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_consts=(*resume.code.co_consts, name)
    )
    return replace(resume, code=named)


def resume_label(code: CodeType) -> str | None:
    """`__resume_at_<offset>_<n>` of a resume function, or of what was made from one; None for other code."""
    for const in reversed(code.co_consts):
        if isinstance(const, str) and const.startswith("__resume_at_"):
            return const
    return None


def build_resume_code(
    code: CodeType,
    instructions: Sequence[Instruction],
    target: Instruction,
    stack_layout: Sequence[StackSlot],
    live_names: Sequence[str],
    name: str,
) -> ResumeCode:
    """Make the function that goes on at `target` with a given stack and given locals.

    Arguments:
        code: the code object that was broken (possibly itself resume code).
        instructions: its decoded instructions; unchanged. Decode resume code with its `original_offsets`.
        target: where to go on, one of `instructions`. Any depth of loops, `with` and `try` is fine: the exception
            table comes along, and its depths fit because the whole stack is restored.
        stack_layout: all slots of the stack at `target`, bottom to top.
        live_names: bound locals to pass; those that are cells or free variables are skipped, as their cells come
            with the closure. A local that is not passed starts unbound. Passing too few live locals is an error that
            shows at run time, on 3.12 and later as a crash: take those of `liveness.live_locals` that are bound.
            Within a comprehension (3.12+) whose variable borrows the slot of a cell, that name counts as a plain
            local (see cells.py): it is passed as a value, and its place in the closure may hold any cell.
        name: name of the function, see `resume_name`.

    What cannot be reached from `target` is left out. A zero-argument `super()` is given its two arguments, as the
    first parameter is no longer `self` (a program's own global `super` would see the difference).

    Raises InternalError for a generator or coroutine, a code with `ambiguous_names`, a stack layout of the wrong
    depth, a target between KW_NAMES and its CALL, or a name that is no local.
    """
    _check(code, instructions, target, stack_layout)
    slots = cell_slots(code, instructions).get(target, CellSlots(frozenset(), (None,) * len(stack_layout)))
    freevars = tuple(dict.fromkeys((*code.co_freevars, *code.co_cellvars)))
    # A variable of an inlined comprehension may be a plain local although the function also has it as a free variable.
    plain = frozenset(code.co_varnames) - set(code.co_cellvars)
    live = [local for local in dict.fromkeys(live_names) if local in plain or local in slots.plain]
    for local in live_names:
        if local not in plain and local not in freevars:
            raise InternalError(f"{local} is to be passed to {name} but is no local variable of {code.co_qualname}")
    _check_slots(code, instructions, target, stack_layout, slots)
    stack_names = _stack_names(stack_layout, slots, code)
    borrowed = {local: f"{local}.plain" if local in live else "" for local in sorted(slots.plain)}

    wanted = reachable(instructions, target)
    body, copies = clone_instructions(inst for inst in instructions if inst in wanted)
    body += unbound_cell_blocks(copies, instructions, frozenset(code.co_cellvars))
    moved = _explicit_super(body, copies, instructions, code)
    goal = moved.get(copies[target], copies[target])
    entry = _entry(stack_layout, stack_names, freevars, borrowed, target, _producers(instructions, target))
    if body[0] is not goal:
        entry.append(Instruction("JUMP_FORWARD", positions=target.positions, target=goal))

    parameters = (*stack_names, *(borrowed.get(local, local) for local in live))
    used = {name for inst in body for name in local_names(inst)} & plain
    more = [local for local in code.co_varnames if local in used and local not in parameters]
    pools = Pools.make(code, (*parameters, *more), (), freevars)
    new_code, offsets = encode_with_offsets([*entry, *body], code, pools, _signature(code, name, len(parameters)))
    original = {offsets[copy]: inst.offset for inst, copy in copies.items() if inst.offset is not None}
    return ResumeCode(new_code, (*stack_names, *live), len(stack_names), freevars, original)


def _signature(code: CodeType, name: str, argcount: int) -> dict[str, Any]:
    """Attributes of a function that takes plain positional arguments only."""
    return {
        "co_name": name,
        "co_qualname": name,
        "co_argcount": argcount,
        "co_posonlyargcount": 0,
        "co_kwonlyargcount": 0,
        "co_flags": code.co_flags & ~(CO_VARARGS | CO_VARKEYWORDS),
    }


def _check(
    code: CodeType, instructions: Sequence[Instruction], target: Instruction, stack_layout: Sequence[StackSlot]
) -> None:
    if code.co_flags & CO_ANY_GENERATOR:
        raise InternalError(f"{code.co_qualname} is a generator or coroutine: it cannot be resumed as a function")
    doubled = ambiguous_names(code)
    if doubled:
        raise InternalError(f"{code.co_qualname}: {', '.join(sorted(doubled))} names two variables at once")
    depth = stack_depths(instructions).get(target)
    if depth is None:
        raise InternalError(f"{target} is not reachable in {code.co_qualname}")
    if depth != len(stack_layout):
        raise InternalError(f"{code.co_qualname}: the stack at {target} has {depth} slots, not {len(stack_layout)}")
    i = next(i for i, inst in enumerate(instructions) if inst is target)
    before = [inst.opname for inst in instructions[max(i - 2, 0) : i]]
    if target.opname == "CALL" and before[-1:] == ["PRECALL"]:
        before.pop()
    if target.opname in ("PRECALL", "CALL") and before[-1:] == ["KW_NAMES"]:
        raise InternalError(f"{code.co_qualname}: keyword names of the call at {target} would be lost")


def _check_slots(
    code: CodeType,
    instructions: Sequence[Instruction],
    target: Instruction,
    stack_layout: Sequence[StackSlot],
    slots: CellSlots,
) -> None:
    if slots.unsure and slots.unsure & live_locals(instructions, code)(target):
        raise InternalError(f"{code.co_qualname}: whether {sorted(slots.unsure)} are cells at {target} is not known")
    if any(slot is StackSlot.NULL and cell for slot, cell in zip(stack_layout, slots.stack)):
        raise InternalError(f"{code.co_qualname}: the stack at {target} holds a cell where a NULL is announced")


def _stack_names(stack_layout: Sequence[StackSlot], slots: CellSlots, code: CodeType) -> list[str]:
    """Names for the parameters that carry stack values: none that the code uses, and saved cells marked as such."""
    taken = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    prefix = STACK_PREFIX
    while any(name.startswith(prefix) for name in taken):
        prefix = "_" + prefix
    saved = [cell for slot, cell in zip(stack_layout, slots.stack) if slot is not StackSlot.NULL]
    return [f"{prefix}{i}" + (f"{SAVED_CELL_MARK}{cell}" if cell else "") for i, cell in enumerate(saved)]


def _entry(
    stack_layout: Sequence[StackSlot],
    stack_names: Iterable[str],
    freevars: Sequence[str],
    borrowed: Mapping[str, str],
    target: Instruction,
    producers: Sequence[Instruction | None],
) -> list[Instruction]:
    """Prologue of a resume function: closure, borrowed slots of cells, then the stack. Parameters are unbound again
    at once, so that values die when the user's function would let them die, and `locals()` does not show them.

    A stack value is loaded with the columns of the expression that made it (`stack_expressions` reads them).
    """
    line = target.lineno
    where = None if line is None else (line, line, None, None)
    entry: list[Instruction] = []
    if freevars:
        entry.append(Instruction("COPY_FREE_VARS", len(freevars), len(freevars)))
    entry.append(Instruction("RESUME", 0, 0, positions=where))
    for cell, parameter in borrowed.items():
        entry.append(Instruction("LOAD_FAST_AND_CLEAR", None, parameter or cell, positions=where))
        if parameter:
            entry.append(Instruction("STORE_FAST", None, cell, positions=where))
        else:
            entry.append(Instruction("POP_TOP", positions=where))
    names = iter(stack_names)
    for slot, producer in zip(stack_layout, producers):
        at_place = where if producer is None or where is None else _on_line(producer.positions, where)
        if slot is StackSlot.NULL:
            entry.append(Instruction("PUSH_NULL", positions=where))
        elif PY312:
            entry.append(Instruction("LOAD_FAST_AND_CLEAR", None, next(names), positions=at_place))
        else:
            name = next(names)
            entry.append(Instruction("LOAD_FAST", None, name, positions=at_place))
            entry.append(Instruction("DELETE_FAST", None, name, positions=where))
        if slot is StackSlot.HANDLED:
            entry.append(Instruction("PUSH_EXC_INFO", positions=where))
            entry.append(Instruction("POP_TOP", positions=where))
    return entry


def _on_line(positions: Positions | None, where: Positions) -> Positions:
    """The columns of an expression, if it is on one line, which is that of `where`: lines are what tracers see."""
    if positions is not None and positions[0] == positions[1] == where[0] and positions[2] is not None:
        return (where[0], where[0], positions[2], positions[3])
    return where


def _producers(instructions: Sequence[Instruction], target: Instruction) -> list[Instruction | None]:
    """For each slot of the stack at `target`, the last instruction of the expression that left it there."""
    depths = stack_depths(instructions)
    at = next(i for i, inst in enumerate(instructions) if inst is target)
    producers: list[Instruction | None] = [None] * depths[target]
    open_slots, last = len(producers), None
    for inst in reversed(instructions[:at]):
        if last is None and inst.positions is not None and inst.positions[2] is not None:
            last = inst
        depth = depths.get(inst)
        while depth is not None and open_slots > depth:
            open_slots -= 1
            producers[open_slots] = last
            last = None
        if not open_slots:
            break
    return producers


def stack_expressions(code: CodeType) -> dict[str, tuple[int, int, int]]:
    """Where (line, first and last column) the expressions are whose values a resume function gets, by parameter."""
    places = {}
    for inst in dis.get_instructions(code):
        position = inst.positions
        if inst.opname not in ("LOAD_FAST", "LOAD_FAST_AND_CLEAR") or STACK_PREFIX not in str(inst.argval):
            continue
        if position is not None and position.lineno and position.col_offset is not None and position.end_col_offset:
            places[str(inst.argval)] = (position.lineno, position.col_offset, position.end_col_offset)
    return places


def _explicit_super(
    body: list[Instruction], copies: dict[Instruction, Instruction], instructions: Sequence[Instruction], code: CodeType
) -> dict[Instruction, Instruction]:
    """Rewrite `super()` as `super(__class__, self)`: the builtin looks for the first parameter of its caller.

    LOAD_SUPER_ATTR has both on the stack already, but calls the builtin without them until it is specialised.
    Changes `body`; returns the copies of calls -> the instruction that now comes first where the call was.
    """
    for inst in body:
        if inst.opname == "LOAD_SUPER_ATTR":
            inst.arg = (inst.arg or 0) | 2
    moved: dict[Instruction, Instruction] = {}
    for call, first in zero_argument_super_calls(instructions, code).items():
        copy = copies.get(call)
        if copy is None:
            continue
        copy.arg = copy.argval = 2
        if call is first or copies.get(first) is None:
            at = body.index(copy)
            body[at:at] = loads = [
                Instruction(opname, None, name, None, copy.positions, None, copy.handler)
                for opname, name in (("LOAD_DEREF", "__class__"), (_load_first(code), code.co_varnames[0]))
            ]
            moved[copy] = loads[0]
    return moved


def _load_first(code: CodeType) -> str:
    if code.co_varnames[0] in code.co_cellvars:
        return "LOAD_DEREF"
    return "LOAD_FAST_CHECK" if PY312 else "LOAD_FAST"


def frame_arg_names(code: CodeType) -> tuple[str, ...]:
    """Names of all arguments of a frame in slot order: positional, keyword-only, then *args and **kwargs if any."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[:count]


def transformed_code(code: CodeType, instructions: Sequence[Instruction]) -> CodeType:
    """Make the code object that the frame hook calls in place of `code`.

    The hook passes every argument of the frame, in slot order, as a plain positional argument: the tuple of *args and
    the dict of **kwargs are arguments like others.

    Arguments:
        code: the code object of the frame.
        instructions: the new body. It may use every local, cell and free variable of `code` by name, and new locals.
            COPY_FREE_VARS, MAKE_CELL and RESUME are put before it if it has no RESUME yet.

    Returns a code object with the same first locals, the same cells and the same free variables in the same order (a
    function for it takes the original's closure), `co_argcount` counting all arguments, and no flags for *args and
    **kwargs.
    """
    body = list(instructions)
    if prologue_length(body) == 0:
        body = [*prologue(code), *body]
    return encode(
        body,
        code,
        argcount=len(frame_arg_names(code)),
        posonlyargcount=0,
        kwonlyargcount=0,
        flags=code.co_flags & ~(CO_VARARGS | CO_VARKEYWORDS),
    )


def raising_code(resume: ResumeCode, error: BaseException) -> CodeType | None:
    """A resume function's code that raises an error where it would go on; None where nothing there would notice.

    Returns:
        Code for the same frame, as `transformed_code` makes it.
    """
    instructions = decode(resume.code, original_offsets=resume.original_offsets)
    first = next(i for i, inst in enumerate(instructions) if inst.offset is not None)
    entry, body = instructions[:first], instructions[first:]
    target = (entry.pop().target if entry[-1].target is not None else None) or body[0]
    handler, positions = target.handler, target.positions
    if handler is None:
        return None
    # An iterator lets go of its list at its end: the error, whose traceback holds this code's frame, is not held by it.
    raised = [
        Instruction("LOAD_CONST", None, iter([error]), positions=positions, handler=handler),
        Instruction("UNPACK_SEQUENCE", 1, 1, positions=positions, handler=handler),
        Instruction("RAISE_VARARGS", 1, 1, positions=positions, handler=handler),
    ]
    whole = [*entry, *raised, *body]
    used = reachable(whole)
    return transformed_code(resume.code, [inst for inst in whole if inst in used])
