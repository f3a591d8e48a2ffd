"""Which slots of cells hold no cell: inlined comprehensions (3.12+) use the slot of a cell for a plain local of theirs.

A comprehension over a name that the function also has as a cell saves the slot's contents on the stack, uses the slot,
and puts the contents back. Within, the slot holds a new cell if a closure captures the comprehension's variable, and
otherwise a plain value, or nothing before the first item. Breaking a graph there needs to know which.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import KIND_OF, Kind
from argand.bytecode.stack import stack_effect
from argand.quick_dataclasses import dataclass

SAVED_CELL_MARK = ".cell."
"""Within the name of a resume function's parameter: it carries the saved cell of the variable named after the mark."""


_UNSURE = "?"
_NEVER_RAISES = (
    "LOAD_FAST_AND_CLEAR",
    "STORE_FAST",
    "MAKE_CELL",
    "SWAP",
    "COPY",
    "POP_TOP",
    "POP_ITER",
    "END_FOR",
    "NOP",
)
"""What stands around a comprehension, where it has a slot and the handler of a `try` around it would not know."""


@dataclass(frozen=True, slots=True)
class CellSlots:
    """State of cells' slots before an instruction.

    Fields:
        plain: names of cells whose slot holds a value or nothing, not the cell.
        stack: for each stack slot the name of the cell that is saved in it, or None ("?": depends on the way here).
        unsure: those of `plain` that may hold the cell after all, depending on the way here. Happens where handlers
            clean up after nested comprehensions, which then only overwrite the slot.
    """

    plain: frozenset[str]
    stack: tuple[str | None, ...]
    unsure: frozenset[str] = frozenset()

    def merged(self, other: CellSlots) -> CellSlots:
        """What holds whichever of two ways was taken."""
        if self == other:
            return self
        return CellSlots(
            self.plain | other.plain,
            tuple(a if a == b else _UNSURE for a, b in zip(self.stack, other.stack)),
            self.unsure | other.unsure | (self.plain ^ other.plain),
        )


def cell_names(code: CodeType) -> frozenset[str]:
    """Names whose slot is that of a cell: cells, and free variables that no local of the same name hides."""
    return frozenset(code.co_cellvars) | (frozenset(code.co_freevars) - set(code.co_varnames))


def cell_slots(code: CodeType, instructions: Sequence[Instruction]) -> dict[Instruction, CellSlots]:
    """State of cells' slots before each reachable instruction; empty if no comprehension borrows the slot of a cell.

    Arguments:
        code: the code object, which tells what a cell is.
        instructions: its instructions.
    """
    cells = cell_names(code)
    borrowed = {inst.argval for inst in instructions if inst.opname == "LOAD_FAST_AND_CLEAR"} & cells
    borrowed |= {inst.argval for inst in instructions if inst.opname == "STORE_FAST"} & cells
    if not borrowed:
        return {}
    slots: dict[Instruction, CellSlots] = {}
    index = {inst: i for i, inst in enumerate(instructions)}
    todo = [(instructions[0], CellSlots(frozenset(), ()))]
    while todo:
        inst, state = todo.pop()
        if inst in slots:
            state = slots[inst].merged(state)
            if state == slots[inst]:
                continue
        slots[inst] = state
        if inst.handler is not None and not inst.opname.startswith(_NEVER_RAISES):
            unwound = state.stack[: inst.handler.depth] + (None,) * (1 + inst.handler.lasti)
            todo.append((inst.handler.target, CellSlots(state.plain, unwound, state.unsure)))
        if inst.target is not None:
            todo.append((inst.target, _after(inst, state, True, cells)))
        if not inst.is_terminator:
            todo.append((instructions[index[inst] + 1], _after(inst, state, False, cells)))
    return slots


def _after(inst: Instruction, state: CellSlots, jump: bool, cells: frozenset[str]) -> CellSlots:
    plain, stack, unsure = set(state.plain), list(state.stack), set(state.unsure)
    opname = inst.opname
    if opname == "LOAD_FAST_AND_CLEAR":
        name = inst.argval
        if name in cells:
            # A comprehension within another over the same name saves a plain value.
            stack.append(_UNSURE if name in unsure else None if name in plain else name)
            plain.add(name)
            unsure.discard(name)
        else:
            mark = name.partition(SAVED_CELL_MARK)[2]
            stack.append(mark if mark in cells else None)
    elif opname == "MAKE_CELL":
        plain.discard(inst.argval)
        unsure.discard(inst.argval)
    elif opname.startswith("STORE_FAST"):
        names = inst.argval if KIND_OF[opname] == Kind.PAIR else (inst.argval,)
        for name in names[:1] if opname == "STORE_FAST_LOAD_FAST" else names:
            saved = stack.pop()
            if name in cells:
                (plain.discard if saved == name else plain.add)(name)
                (unsure.add if saved == _UNSURE else unsure.discard)(name)
        if opname == "STORE_FAST_LOAD_FAST":
            stack.append(None)
    elif opname == "SWAP":
        depth = inst.arg or 0
        stack[-1], stack[-depth] = stack[-depth], stack[-1]
    else:
        effect = stack_effect(inst, jump)
        del stack[len(stack) + min(effect, 0) :]
        stack.extend([None] * effect)
    return CellSlots(frozenset(plain), tuple(stack), frozenset(unsure))
