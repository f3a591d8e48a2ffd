"""Code object -> list of instructions, from `co_code` (which CPython un-specialises), tables and positions included."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any, TypeAlias

from argand.bytecode.instruction import ExceptionHandler, Instruction, Positions
from argand.bytecode.opcodes import (
    BACKWARD_JUMPS,
    BINARY_OPS,
    CACHES,
    CMP_OPS,
    COMPARE_SHIFT,
    EXTENDED_ARG,
    INTRINSIC_1,
    INTRINSIC_2,
    KINDS,
    NAME_SHIFTS,
    OPNAME,
    PY313,
    Kind,
)
from argand.bytecode.tables import parse_exception_table
from argand.errors import InternalError

DecodeCache: TypeAlias = "dict[int, tuple[CodeType, list[Instruction]]]"
"""Decoded lists by `id(code)`; holds the code too, so that an id is never reused. The caller owns it."""

_NO_POSITIONS: Positions = (None, None, None, None)


def localsplus_names(code: CodeType) -> tuple[str, ...]:
    """Names of the slots that local, cell and free variable opcodes index: locals, other cells, free variables."""
    names = code.co_varnames
    if code.co_cellvars:
        local = set(names)
        names += tuple(name for name in code.co_cellvars if name not in local)
    return names + code.co_freevars


def ambiguous_names(code: CodeType) -> frozenset[str]:
    """Names that are a cell of the code and a free variable of it at once, so that a name does not tell the variable.

    Happens in class bodies with their own `__class__`, and from 3.12 on in a function with a comprehension whose
    variable is captured by a closure and also names a free variable of the function. `encode` keeps such variables
    apart by `arg`; whoever works with names alone must refuse the code (resume.build_resume_code does).
    """
    return frozenset(code.co_cellvars).intersection(code.co_freevars)


def decode(
    code: CodeType,
    cache: DecodeCache | None = None,
    original_offsets: Mapping[int, int] | None = None,
) -> list[Instruction]:
    """Decode a code object.

    Arguments:
        code: any code object of the running Python.
        cache: when given, decodes each code object once and returns the same list again: treat it as read-only.
        original_offsets: offset in `code` -> offset in the user's function, from `ResumeCode.original_offsets`;
            `Instruction.offset` then shows the latter (None for instructions that the user's function lacks).

    Returns the instructions in order; jumps and handlers point to instructions of the same list.
    Raises InternalError for malformed code.
    """
    if cache is not None:
        hit = cache.get(id(code))
        if hit is not None:
            return hit[1]
    instructions, at_unit, starts = _decode_units(code)
    _link_jumps(instructions, at_unit, code)
    if code.co_exceptiontable:
        _link_handlers(instructions, at_unit, starts, code)
    if PY313 and (code.co_cellvars or code.co_freevars):
        _name_closure_loads(instructions, code)
    if original_offsets is not None:
        for inst in instructions:
            inst.offset = original_offsets.get(inst.offset) if inst.offset is not None else None
    if cache is not None:
        cache[id(code)] = (code, instructions)
    return instructions


def _decode_units(code: CodeType) -> tuple[list[Instruction], dict[int, Instruction], list[int]]:
    """The instructions, the same by code unit (that of a leading EXTENDED_ARG counts), and the units they start at.

    A jump's `target` is not yet known: `argval` holds its code unit for `_link_jumps`.
    """
    raw = code.co_code
    positions = list(code.co_positions())
    consts, names = code.co_consts, code.co_names
    slots = localsplus_names(code)
    instructions: list[Instruction] = []
    at_unit: dict[int, Instruction] = {}
    starts: list[int] = []
    start = unit = high = 0
    total = len(raw) // 2
    while unit < total:
        op = raw[2 * unit]
        arg = raw[2 * unit + 1] | high
        if op == EXTENDED_ARG:
            high = arg << 8
            unit += 1
            continue
        opname = OPNAME[op]
        after = unit + 1 + CACHES[op]
        kind = KINDS[op]
        argval: Any
        if kind == Kind.NONE:
            argval = None
        elif kind == Kind.LOCAL:
            argval = slots[arg]
        elif kind == Kind.CONST:
            argval = consts[arg]
        elif kind == Kind.NAME:
            argval = names[arg >> NAME_SHIFTS[op]]
        elif kind == Kind.DEREF:
            argval = slots[arg]
        elif kind == Kind.JUMP:
            argval = after - arg if opname in BACKWARD_JUMPS else after + arg
        elif kind == Kind.RAW:
            argval = arg
        else:
            argval = _operator(kind, arg, slots)
        where = positions[unit]
        inst = Instruction(
            opname,
            None if kind == Kind.NONE else arg,
            argval,
            2 * unit,
            None if where == _NO_POSITIONS else where,
        )
        instructions.append(inst)
        at_unit[unit] = at_unit[start] = inst
        starts.append(start)
        start = unit = after
        high = 0
    return instructions, at_unit, starts


def _operator(kind: int, arg: int, slots: tuple[str, ...]) -> Any:
    if kind == Kind.BINARY:
        return BINARY_OPS[arg]
    if kind == Kind.COMPARE:
        return CMP_OPS[arg >> COMPARE_SHIFT]
    if kind == Kind.PAIR:
        return slots[arg >> 4], slots[arg & 15]
    if kind == Kind.IS:
        return "is not" if arg else "is"
    if kind == Kind.CONTAINS:
        return "not in" if arg else "in"
    return (INTRINSIC_1 if kind == Kind.INTRINSIC1 else INTRINSIC_2)[arg]


def _link_jumps(instructions: list[Instruction], at_unit: dict[int, Instruction], code: CodeType) -> None:
    for inst in instructions:
        if inst.is_jump:
            target = at_unit.get(inst.argval)
            if target is None:
                raise InternalError(f"{code.co_qualname}: the jump at offset {inst.offset} goes nowhere")
            inst.target = target
            inst.argval = None


def _name_closure_loads(instructions: list[Instruction], code: CodeType) -> None:
    """3.13: tell loads of a cell, which LOAD_FAST does there, from loads of a value.

    A slot of a cell holds a plain value only within an inlined comprehension over the same name, which starts by
    clearing the slot. For names that are never cleared every load is one of the cell. For others, a load of the cell
    is one that builds a closure, as the compiler has no other use for it.
    """
    cells = frozenset(code.co_cellvars)
    first_free = len(code.co_varnames)
    cleared = {inst.argval for inst in instructions if inst.opname == "LOAD_FAST_AND_CLEAR"}
    for i, inst in enumerate(instructions):
        if inst.opname == "LOAD_FAST" and (inst.argval in cells or (inst.arg or 0) >= first_free):
            if inst.argval not in cleared or _builds_closure(instructions, i):
                inst.opname = "LOAD_CLOSURE"


def _builds_closure(instructions: list[Instruction], i: int) -> bool:
    """Whether the load at `i` is one of those before BUILD_TUPLE, LOAD_CONST code, MAKE_FUNCTION, "set closure"."""
    end = i
    while end < len(instructions) and instructions[end].opname == "LOAD_FAST":
        end += 1
    tail = instructions[end : end + 4]
    if [inst.opname for inst in tail] != ["BUILD_TUPLE", "LOAD_CONST", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"]:
        return False
    tuple_, const, _, attribute = tail
    wanted = const.argval.co_freevars if isinstance(const.argval, CodeType) else ()
    return attribute.arg == 8 and tuple_.arg == len(wanted) and end - i <= len(wanted)


def _link_handlers(
    instructions: list[Instruction], at_unit: dict[int, Instruction], starts: list[int], code: CodeType
) -> None:
    index = 0
    count = len(instructions)
    for entry in parse_exception_table(code.co_exceptiontable):
        target = at_unit.get(entry.target)
        if target is None:
            raise InternalError(f"{code.co_qualname}: the exception table names unit {entry.target}, no instruction")
        handler = ExceptionHandler(target, entry.depth, entry.lasti)
        while index < count and starts[index] < entry.start:
            index += 1
        while index < count and starts[index] < entry.end:
            instructions[index].handler = handler
            index += 1
