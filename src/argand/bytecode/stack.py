"""How instructions change the depth of the value stack."""

from __future__ import annotations

from collections.abc import Sequence
from opcode import stack_effect as _opcode_stack_effect

from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import KINDS, OPMAP, OPNAME, PY313, Kind
from argand.errors import InternalError

_HAS_ARG = [kind != Kind.NONE for kind in KINDS]
_JUMP_MATTERS = frozenset(op for op in range(256) if OPNAME[op] in ("FOR_ITER", "SEND")) | frozenset(
    op for op in range(256) if OPNAME[op].endswith("_OR_POP")
)

# Instructions that look at more of the stack than they pop: so many slots, and one for each of `arg`.
_FIXED_SLOTS = {"FOR_ITER": 1, "WITH_EXCEPT_START": 4}
_SLOTS_BESIDE_ARG = {"CALL": 2, "CALL_KW": 3}
if PY313:
    _SLOTS_BESIDE_ARG["DICT_MERGE"] = 4  # the error it raises names the callable, which is below a NULL


def operand_slots(inst: Instruction) -> int | None:
    """How many slots from the top of the stack the instruction looks at; None where it is content with those above the
    topmost NULL."""
    arg = inst.arg or 0
    if inst.opname == "CALL_FUNCTION_EX":
        return 3 + (arg & 1)
    beside = _SLOTS_BESIDE_ARG.get(inst.opname)
    return _FIXED_SLOTS.get(inst.opname) if beside is None else beside + arg


def stack_effect(inst: Instruction, jump: bool = False) -> int:
    """Change of the stack depth: depth after minus depth before.

    Arguments:
        inst: the instruction; flag bits in `arg` count (LOAD_GLOBAL's NULL, a method load's second slot).
        jump: whether its jump is taken (matters for FOR_ITER, SEND, JUMP_IF_*_OR_POP).

    NULLs count as slots. FOR_ITER that ends: 3.11 -1; from 3.12 on +1, as its target END_FOR pops what an ended
    generator would have left. Between PRECALL and CALL (3.11) the arguments are still on the stack.
    """
    opname = inst.opname
    # Where the compiler's own table describes a pair of instructions as a whole, we want the state in between.
    if opname == "PRECALL":
        return 0
    if opname == "CALL":
        return -(inst.arg or 0) - 1
    if opname == "RETURN_GENERATOR":
        return 1  # the value sent to the started generator
    op = OPMAP[opname]
    arg = (inst.arg or 0) if _HAS_ARG[op] else None
    return _opcode_stack_effect(op, arg, jump=jump and op in _JUMP_MATTERS)


def stack_depths(instructions: Sequence[Instruction]) -> dict[Instruction, int]:
    """Depth of the stack before each reachable instruction, exception handlers included.

    Raises InternalError when two ways to an instruction disagree, or the stack would underflow.
    """
    return _depths(instructions)[0]


def max_stack_depth(instructions: Sequence[Instruction]) -> int:
    """Largest depth that reachable code can have: `co_stacksize`."""
    return _depths(instructions)[1]


def _depths(instructions: Sequence[Instruction]) -> tuple[dict[Instruction, int], int]:
    if not instructions:
        return {}, 0
    index = {inst: i for i, inst in enumerate(instructions)}
    depths: dict[Instruction, int] = {}
    deepest = 0
    todo = [(instructions[0], 0)]
    handler = None
    count = len(instructions)
    while todo:
        inst, depth = todo.pop()
        i = index.get(inst, -1)
        if i < 0:
            raise InternalError(f"{inst} is the target of a jump or handler but is not in the list")
        while True:
            known = depths.get(inst)
            if known is not None:
                if known != depth:
                    raise InternalError(f"stack depth at {inst} is {known} one way and {depth} another")
                break
            depths[inst] = depth
            if inst.handler is not None and inst.handler is not handler:
                handler = inst.handler
                deepest = max(deepest, handler.entry_depth)
                todo.append((handler.target, handler.entry_depth))
            if inst.target is not None:
                at_target = depth + stack_effect(inst, jump=True)
                deepest = max(deepest, at_target)
                todo.append((inst.target, at_target))
            if inst.is_terminator:
                break
            depth += stack_effect(inst)
            if depth < 0:
                raise InternalError(f"the stack underflows at {inst}")
            deepest = max(deepest, depth)
            i += 1
            if i == count:
                raise InternalError(f"execution runs off the end of the code after {inst}")
            inst = instructions[i]
    return depths, deepest
