"""List of instructions -> code object: indices, jump widths, tables and stack size are worked out afresh."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from types import CodeType
from typing import Any

from argand.bytecode.decode import localsplus_names
from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import (
    BINARY_OPS,
    CACHES,
    CMP_OPS,
    COMPARE_BOOL_BIT,
    COMPARE_MASKS,
    COMPARE_SHIFT,
    EXTENDED_ARG,
    INTRINSIC_1,
    INTRINSIC_2,
    KIND_OF,
    NAME_FLAG_BITS,
    OPMAP,
    PY312,
    PY313,
    VERSION,
    Kind,
)
from argand.bytecode.stack import max_stack_depth
from argand.bytecode.tables import TableEntry, build_exception_table, build_line_table
from argand.errors import InternalError
from argand.quick_dataclasses import dataclass

# A code object of 3.13 always has room for one value; 3.11 and 3.12 allow none.
_MIN_STACK = 1 if PY313 else 0

_ATOMS = frozenset([type(None), bool, int, str, bytes, type(Ellipsis)])


def const_key(value: Any) -> Hashable:
    """Key under which two constants may share a slot of co_consts.

    Equal keys mean values that no program can tell apart but by identity: types count (0, 0.0 and False differ), so do
    signs of zeros, also within tuples and frozensets. Other objects are keyed by identity, and NaNs are, of which dicts
    keep each apart.
    """
    kind = type(value)
    if (kind is float or kind is complex) and value != value:
        return "id", id(value)
    if kind in _ATOMS:
        return kind, value
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(const_key(item) for item in value)
    if kind is frozenset:
        return kind, frozenset(const_key(item) for item in value)
    return "id", id(value)


def encode(instructions: Sequence[Instruction], template: CodeType, **attributes: int) -> CodeType:
    """Make a code object.

    Arguments:
        instructions: the whole code, prologue included (see flow.prologue, resume.transformed_code). Indices come from
            `argval`; jump opcodes are corrected for their direction, a conditional jump backward (3.12+) becomes
            two instructions, COPY_FREE_VARS counts the free variables. The list and its instructions stay unchanged.
        template: what is not overridden is taken from it; its constants and names keep their indices and new ones are
            appended, new locals too.
        attributes: those of the new code that differ from the template's, named without their `co_`.

    Raises InternalError for a variable that is no cell or free variable but used as one, a jump that cannot be
    expressed, an inconsistent stack depth, or code that runs off its end.
    """
    overrides = {f"co_{name}": value for name, value in attributes.items()}
    return encode_with_offsets(instructions, template, Pools.make(template), overrides)[0]


def encode_with_offsets(
    instructions: Sequence[Instruction], template: CodeType, pools: Pools, overrides: dict[str, Any]
) -> tuple[CodeType, dict[Instruction, int]]:
    """Like `encode`, and tells the byte offset that each instruction got (that of the opcode, after EXTENDED_ARG).

    Arguments:
        pools: constants and names; extended in place.
        overrides: `CodeType.replace` arguments.
    """
    lines = _lower(instructions, pools)
    _resolve_arguments(lines, pools)
    ends = _lay_out(lines)
    code = template.replace(
        **overrides,
        co_code=_emit(lines),
        co_consts=tuple(pools.consts),
        co_names=tuple(pools.names),
        co_varnames=tuple(pools.varnames),
        co_cellvars=pools.cellvars,
        co_freevars=pools.freevars,
        co_nlocals=len(pools.varnames),
        co_stacksize=max(_MIN_STACK, max_stack_depth(instructions)),
        co_linetable=build_line_table(
            ((line.inst.positions, line.size) for line in lines),
            overrides.get("co_firstlineno", template.co_firstlineno),
        ),
        co_exceptiontable=_exception_table(lines, ends),
    )
    offsets: dict[Instruction, int] = {}
    for line, end in zip(lines, ends):
        offsets.setdefault(line.inst, 2 * (end - 1 - CACHES[line.op]))
    return code, offsets


@dataclass(slots=True)
class Pools:
    """What instructions refer to by index, extended on demand."""

    consts: list[Any]
    names: list[str]
    varnames: list[str]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    const_index: dict[Hashable, int] = field(default_factory=dict)  # filled when first needed
    name_index: dict[str, int] = field(default_factory=dict)
    local_slot: dict[str, int] = field(default_factory=dict)  # name -> slot for opcodes on locals
    deref_slot: dict[str, int] = field(default_factory=dict)  # name -> slot for opcodes on cells
    free_slot: dict[str, int] = field(default_factory=dict)  # free variable -> slot
    template_slots: tuple[str, ...] = ()  # names of the template's slots,
    template_free: int = 0  # of which these are the first that belong to free variables

    @classmethod
    def make(
        cls,
        template: CodeType,
        varnames: Iterable[str] | None = None,
        cellvars: Iterable[str] | None = None,
        freevars: Iterable[str] | None = None,
    ) -> Pools:
        """Pools that start with the template's constants and names."""
        pools = cls(
            list(template.co_consts),
            list(template.co_names),
            list(template.co_varnames if varnames is None else varnames),
            template.co_cellvars if cellvars is None else tuple(cellvars),
            template.co_freevars if freevars is None else tuple(freevars),
        )
        pools.name_index = {name: i for i, name in enumerate(pools.names)}
        pools.template_slots = localsplus_names(template)
        pools.template_free = len(pools.template_slots) - len(template.co_freevars)
        return pools

    def const(self, value: Any, hint: int | None) -> int:
        """Index of a constant; `hint` is where it was in the template, if it was there."""
        if hint is not None and hint < len(self.consts) and self.consts[hint] is value:
            return hint
        if not self.const_index:
            for i, known in enumerate(self.consts):
                self.const_index.setdefault(const_key(known), i)
        key = const_key(value)
        index = self.const_index.get(key)
        if index is None:
            index = self.const_index[key] = len(self.consts)
            self.consts.append(value)
        return index

    def name(self, name: str) -> int:
        """Index of a name in co_names."""
        index = self.name_index.get(name)
        if index is None:
            index = self.name_index[name] = len(self.names)
            self.names.append(name)
        return index

    def add_locals(self, used: Iterable[str]) -> None:
        """Give each used local a slot, then number all slots."""
        known = {*self.varnames, *self.cellvars, *self.freevars}
        for name in used:
            if name not in known:
                known.add(name)
                self.varnames.append(name)
        slots = {name: i for i, name in enumerate(self.varnames)}
        self.deref_slot, self.free_slot = {}, {}
        count = len(self.varnames)
        for name in self.cellvars:  # an argument that is a cell shares the argument's slot
            if name not in slots:
                slots[name] = count
                count += 1
            self.deref_slot[name] = slots[name]
        for name in self.freevars:
            slots.setdefault(name, count)
            self.deref_slot.setdefault(name, count)
            self.free_slot[name] = count
            count += 1
        self.local_slot = slots

    def slot(self, table: dict[str, int], name: str, hint: int | None) -> int | None:
        """Slot of a variable; `hint` is its slot in the template, which tells two variables of one name apart."""
        free = self.free_slot.get(name)
        if free is not None and free != self.local_slot[name] and hint is not None:
            if hint < len(self.template_slots) and self.template_slots[hint] == name:
                return free if hint >= self.template_free else self.local_slot[name]
        return table.get(name)


@dataclass(slots=True)
class _Line:
    """An instruction on its way to bytes."""

    op: int
    arg: int
    inst: Instruction
    opname: str
    kind: int
    argval: Any
    target: int = -1  # index of the line that a jump goes to
    size: int = 1  # code units, EXTENDED_ARG and caches included


_PAIR_PARTS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


def _lower(instructions: Sequence[Instruction], pools: Pools) -> list[_Line]:
    """One line per real instruction: fixes jump directions, splits what does not fit."""
    order = {inst: i for i, inst in enumerate(instructions)}
    if len(order) != len(instructions):
        raise InternalError("an instruction is twice in the list: clone it")
    pools.add_locals(_used_locals(instructions))
    lines: list[_Line] = []
    first_line: list[int] = []  # instruction index -> index of its first line
    jumps: list[tuple[_Line, int]] = []
    for i, inst in enumerate(instructions):
        first_line.append(len(lines))
        opname = inst.opname
        kind = KIND_OF.get(opname, -1)
        if kind < 0:
            raise InternalError(f"Python {VERSION[0]}.{VERSION[1]} has no opcode {opname}")
        if kind == Kind.JUMP:
            goal = order.get(inst.target, -1) if inst.target is not None else -1
            if goal < 0:
                raise InternalError(f"{inst} jumps to an instruction that is not in the list")
            opname, skip = _jump_opname(inst, backward=goal <= i)
            if opname == "FOR_ITER":
                _check_loop_end(instructions[goal : goal + 2])
            if skip:
                lines.append(_line(inst, skip))
                jumps.append((lines[-1], i + 1))
            lines.append(_line(inst, opname))
            jumps.append((lines[-1], goal))
        elif kind == Kind.PAIR and not all(pools.local_slot[name] < 16 for name in inst.argval):
            for part, name in zip(_PAIR_PARTS[opname], inst.argval):
                lines.append(_line(inst, part, name))
        else:
            lines.append(_line(inst, opname, inst.argval))
    first_line.append(len(lines))
    for line, goal in jumps:
        line.target = first_line[goal]
        if line.target == len(lines):
            raise InternalError(f"execution runs off the end of the code after {line.inst}")
    return lines


def _line(inst: Instruction, opname: str, argval: Any = None) -> _Line:
    return _Line(OPMAP[opname], inst.arg or 0, inst, opname, KIND_OF[opname], argval)


def _used_locals(instructions: Sequence[Instruction]) -> list[str]:
    used: list[str] = []
    for inst in instructions:
        kind = KIND_OF.get(inst.opname)
        if kind == Kind.LOCAL:
            used.append(inst.argval)
        elif kind == Kind.PAIR:
            used.extend(inst.argval)
    return used


def _check_loop_end(end: Sequence[Instruction]) -> None:
    """At the end of a loop the interpreter jumps over what it takes for END_FOR (3.13: and POP_TOP), unseen."""
    wanted = ["END_FOR", "POP_TOP"] if PY313 else ["END_FOR"] if PY312 else []
    if [inst.opname for inst in end][: len(wanted)] != wanted:
        raise InternalError(f"FOR_ITER must go to {' and '.join(wanted)}, not to {end[0]}")


_OPPOSITE = {"TRUE": "FALSE", "FALSE": "TRUE", "NONE": "NOT_NONE", "NOT_NONE": "NONE"}


def _jump_opname(inst: Instruction, backward: bool) -> tuple[str, str]:
    """(opcode for the direction, opcode of a jump over it or "")."""
    opname = inst.opname
    if opname in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
        if not backward:
            return "JUMP_FORWARD", ""
        return ("JUMP_BACKWARD" if opname == "JUMP_FORWARD" else opname), ""
    if opname.startswith("POP_JUMP_"):
        condition = opname.partition("IF_")[2]
        if not PY312:
            return f"POP_JUMP_{'BACKWARD' if backward else 'FORWARD'}_IF_{condition}", ""
        if backward:
            return "JUMP_BACKWARD", f"POP_JUMP_IF_{_OPPOSITE[condition]}"
        return opname, ""
    if backward:
        raise InternalError(f"{opname} cannot jump backward")
    return opname, ""


def _resolve_arguments(lines: list[_Line], pools: Pools) -> None:
    """Fill in `arg` of everything but jumps."""
    for line in lines:
        kind = line.kind
        if kind in (Kind.RAW, Kind.JUMP):
            if line.opname == "COPY_FREE_VARS":
                line.arg = len(pools.freevars)
        elif kind == Kind.NONE:
            line.arg = 0
        elif kind == Kind.LOCAL:
            line.arg = pools.slot(pools.local_slot, line.argval, line.inst.arg) or 0
        elif kind == Kind.CONST:
            line.arg = pools.const(line.argval, line.inst.arg)
        elif kind == Kind.NAME:
            bits = NAME_FLAG_BITS.get(line.opname, 0)
            line.arg = (pools.name(line.argval) << bits) | (line.arg & ((1 << bits) - 1))
        elif kind == Kind.DEREF:
            slot = pools.slot(pools.deref_slot, line.argval, line.inst.arg)
            if slot is None:
                raise InternalError(f"{line.opname} {line.argval}: neither a cell nor a free variable of the new code")
            line.arg = slot
        elif kind == Kind.PAIR:
            first, second = line.argval
            line.arg = pools.local_slot[first] << 4 | pools.local_slot[second]
        else:
            line.arg = _operator_argument(line)


def _operator_argument(line: _Line) -> int:
    kind, value = line.kind, line.argval
    if kind == Kind.BINARY:
        return BINARY_OPS.index(value)
    if kind == Kind.COMPARE:
        return (CMP_OPS.index(value) << COMPARE_SHIFT) | COMPARE_MASKS[value] | (line.arg & COMPARE_BOOL_BIT)
    if kind in (Kind.IS, Kind.CONTAINS):
        return int(value in ("is not", "not in"))
    return (INTRINSIC_1 if kind == Kind.INTRINSIC1 else INTRINSIC_2).index(value)


def _extended(arg: int) -> int:
    """Number of EXTENDED_ARG that an argument needs."""
    return (arg > 0xFF) + (arg > 0xFFFF) + (arg > 0xFFFFFF)


def _lay_out(lines: list[_Line]) -> list[int]:
    """Settle sizes and jump arguments; returns the code unit after each line (where its jumps count from).

    A jump across a distance near 255 can be consistent both with and without EXTENDED_ARG: the size that a decoded
    jump had is tried first, so that unchanged code stays unchanged.
    """
    jumps = [line for line in lines if line.target >= 0]
    ends = _grow(lines, jumps, [line.inst.arg or 0 for line in jumps])
    if any(line.size > 1 + CACHES[line.op] + _extended(line.arg) for line in jumps):
        ends = _grow(lines, jumps, [0] * len(jumps))
    return ends


def _grow(lines: list[_Line], jumps: list[_Line], guesses: list[int]) -> list[int]:
    """Start with the sizes that jump arguments of `guesses` need; grow until all fit (so the rounds end)."""
    for line in lines:
        line.size = 1 + CACHES[line.op] + (_extended(line.arg) if line.target < 0 else 0)
    for line, guess in zip(jumps, guesses):
        line.size += _extended(guess)
    where = {id(line): i for i, line in enumerate(lines)}
    while True:
        ends: list[int] = []
        end = 0
        for line in lines:
            end += line.size
            ends.append(end)
        grown = False
        for line in jumps:
            start = ends[line.target] - lines[line.target].size
            line.arg = abs(start - ends[where[id(line)]])
            need = 1 + CACHES[line.op] + _extended(line.arg)
            if need > line.size:
                line.size = need
                grown = True
        if not grown:
            return ends


def _emit(lines: list[_Line]) -> bytes:
    out = bytearray()
    for line in lines:
        caches = CACHES[line.op]
        for shift in range(8 * (line.size - 1 - caches), 0, -8):
            out.append(EXTENDED_ARG)
            out.append((line.arg >> shift) & 0xFF)
        out.append(line.op)
        out.append(line.arg & 0xFF)
        out += bytes(2 * caches)
    return bytes(out)


def _exception_table(lines: list[_Line], ends: list[int]) -> bytes:
    starts: dict[Instruction, int] = {}
    for line, end in zip(lines, ends):
        starts.setdefault(line.inst, end - line.size)
    entries: list[TableEntry] = []
    current = None
    for line, end in zip(lines, ends):
        handler = line.inst.handler
        if handler is not None:
            if handler is current and entries:
                entries[-1] = entries[-1]._replace(end=end)
            else:
                target = starts.get(handler.target)
                if target is None:
                    raise InternalError(f"the handler of {line.inst} is not in the list")
                entries.append(TableEntry(end - line.size, end, target, handler.depth, handler.lasti))
        current = handler
    return build_exception_table(entries)
