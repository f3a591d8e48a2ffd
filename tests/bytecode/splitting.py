"""Breaks a function at an instruction: a new code that runs up to it, then calls the resume function with the rest.

The tests' stand-in for the capture stage. Nothing is interpreted: the original bytecode runs up to the break, values
are copied from the stack into temporaries, and what is left on the stack dies with the frame.
"""

from __future__ import annotations

from types import CellType, CodeType

from argand.bytecode.assemble import Assembler, Label
from argand.bytecode.cells import CellSlots, cell_names, cell_slots
from argand.bytecode.decode import decode
from argand.bytecode.flow import clone_instructions, prologue_length
from argand.bytecode.instruction import Instruction
from argand.bytecode.liveness import accesses, live_locals
from argand.bytecode.opcodes import PY313
from argand.bytecode.resume import StackSlot, build_resume_code, frame_arg_names, resume_name, transformed_code
from argand.bytecode.stack import stack_depths, stack_effect

VALUE, NULL, UNKNOWN = "v", "n", "?"
POPS = ("POP_TOP", "POP_JUMP", "POP_EXCEPT", "STORE_", "DELETE_", "LIST_", "SET_ADD", "SET_UPDATE", "MAP_ADD", "DICT_")


class State:
    """What is known before an instruction: kinds of all stack slots, locals certainly and possibly bound."""

    def __init__(self, stack: str, must: frozenset[str], may: frozenset[str]) -> None:
        self.stack, self.must, self.may = stack, must, may

    def merged(self, other: State) -> State:
        stack = "".join(a if a == b else UNKNOWN for a, b in zip(self.stack, other.stack, strict=True))
        return State(stack, self.must & other.must, self.may | other.may)

    def key(self) -> tuple[str, frozenset[str], frozenset[str]]:
        return self.stack, self.must, self.may


def states(code: CodeType, instructions: list[Instruction]) -> dict[Instruction, State]:
    """The state before each reachable instruction."""
    arguments = frozenset(frame_arg_names(code)) | cell_names(code)
    found: dict[Instruction, State] = {}
    index = {inst: i for i, inst in enumerate(instructions)}
    todo = [(instructions[0], State("", arguments, arguments))]
    while todo:
        inst, state = todo.pop()
        old = found.get(inst)
        if old is not None:
            state = old.merged(state)
            if state.key() == old.key():
                continue
        found[inst] = state
        after = bindings_after(inst, state)
        if inst.handler is not None:
            handler = inst.handler
            stack = state.stack[: handler.depth] + VALUE * (1 + handler.lasti)
            for must, may in (after, (state.must, state.may)):
                todo.append((handler.target, State(stack, must, may)))
        if inst.target is not None:
            todo.append((inst.target, State(stack_after(inst, state, True, code), *after)))
        if not inst.is_terminator:
            todo.append((instructions[index[inst] + 1], State(stack_after(inst, state, False, code), *after)))
    return found


def bindings_after(inst: Instruction, state: State) -> tuple[frozenset[str], frozenset[str]]:
    must, may = set(state.must), set(state.may)
    _, writes = accesses(inst)
    if inst.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        must, may = must - set(writes), may - set(writes)
    elif inst.opname == "MAKE_CELL":
        must, may = must | set(writes), may | set(writes)
    elif inst.opname.startswith("STORE_FAST"):
        # What a comprehension restores may be NULL: then the store leaves the local unbound.
        for name, kind in zip(writes, reversed(state.stack)):
            must.discard(name)
            may.discard(name)
            if kind == VALUE:
                must.add(name)
            if kind != NULL:
                may.add(name)
    return frozenset(must), frozenset(may)


def stack_after(inst: Instruction, state: State, jump: bool, code: CodeType) -> str:
    stack = state.stack
    effect = stack_effect(inst, jump)
    if inst.opname == "PUSH_NULL":
        return stack + NULL
    if inst.opname == "LOAD_GLOBAL" and inst.push_null:
        return stack + (VALUE + NULL if PY313 else NULL + VALUE)
    if inst.is_method:
        return stack[: len(stack) + effect - 2] + (VALUE + UNKNOWN if PY313 else UNKNOWN + VALUE)
    if inst.opname == "COPY":
        return stack + stack[-inst.arg]
    if inst.opname == "SWAP":
        out = list(stack)
        out[-1], out[-inst.arg] = out[-inst.arg], out[-1]
        return "".join(out)
    if inst.opname == "LOAD_FAST_AND_CLEAR":
        if inst.argval in state.must:
            return stack + VALUE
        return stack + (NULL if inst.argval not in state.may else UNKNOWN)
    if inst.opname == "STORE_FAST_LOAD_FAST":
        return stack[:-1] + VALUE
    if effect > 0:
        return stack + VALUE * effect
    stack = stack[: len(stack) + effect]
    pure = inst.opname.startswith(POPS) or inst.opname in (
        "END_FOR",
        "PRECALL",
        "NOP",
        "RESUME",
        "KW_NAMES",
        "MAKE_CELL",
    )
    return stack if pure or inst.is_jump or not stack else stack[:-1] + VALUE


def split_points(code: CodeType, instructions: list[Instruction] | None = None) -> list[int]:
    """Indices of instructions at which a break can be tested: the kinds of all stack slots and locals are known."""
    instructions = decode(code) if instructions is None else instructions
    known = states(code, instructions)
    live = live_locals(instructions, code)
    slots = cell_slots(code, instructions)
    points = []
    for i, inst in enumerate(instructions):
        if i < prologue_length(instructions) or inst not in known or UNKNOWN in known[inst].stack:
            continue
        plain = plain_names(code, slots, inst)
        if (live(inst) & plain & known[inst].may) - known[inst].must:
            continue  # bound or not: only a real interpreter knows
        if _within_call(instructions, i) or "END_FOR" in (inst.opname, instructions[i - 1].opname):
            continue
        points.append(i)
    return points


def plain_names(code: CodeType, slots: dict[Instruction, CellSlots], inst: Instruction) -> set[str]:
    """Locals that hold plain values before an instruction."""
    borrowed = slots[inst].plain if slots else frozenset()
    return (set(code.co_varnames) - set(code.co_cellvars)) | borrowed


def _within_call(instructions: list[Instruction], i: int) -> bool:
    """The call's keyword names live in the interpreter's own variable between KW_NAMES and CALL (3.11, 3.12)."""
    while instructions[i].opname in ("PRECALL", "CALL"):
        i -= 1
    return instructions[i].opname == "KW_NAMES"


def split(
    code: CodeType,
    point: int,
    count: int = 1,
    instructions: list[Instruction] | None = None,
    again: int | None = None,
) -> tuple[CodeType, list[str]]:
    """Transformed code that breaks at instruction number `point`; and the names of the resume functions made.

    `again`: break the resume function in its turn, at its split point with this number (modulo how many it has).
    """
    instructions = decode(code) if instructions is None else instructions
    target = instructions[point]
    state = states(code, instructions)[target]
    kinds = state.stack
    assert len(kinds) == stack_depths(instructions)[target]
    slots = cell_slots(code, instructions)
    plain = plain_names(code, slots, target)
    live = sorted(live_locals(instructions, code)(target) & plain & state.must)
    name = resume_name(target, count)
    layout = [StackSlot.NULL if kind == NULL else StackSlot.VALUE for kind in kinds]
    resume = build_resume_code(code, instructions, target, layout, live, name)
    made, names = resume.code, [name]
    if again is not None:
        rest = decode(resume.code, original_offsets=resume.original_offsets)
        points = split_points(resume.code, rest)
        if points:
            made, more = split(resume.code, points[again % len(points)], count + 1, rest)
            names += more

    body, copies = clone_instructions(instructions)
    asm = Assembler(target.positions)
    entry = Label()
    asm.extend(body[:point])
    asm.bind(entry)
    temporaries = []
    for position, kind in enumerate(kinds):
        if kind == VALUE:
            temporaries.append(f"__temp{position}")
            asm.copy(len(kinds) - position)
            asm.store_fast(temporaries[-1])
    if resume.freevars:
        for cell in resume.freevars:
            if slots and cell in slots[target].plain:
                asm.load_const(CellType("never seen"))
            else:
                asm.load_closure(cell)
        asm.build_tuple(len(resume.freevars))
    asm.make_function(made, closure_on_stack=bool(resume.freevars))
    asm.callable_on_top()
    assert resume.arg_names[resume.stack_args :] == tuple(live)
    for local in (*temporaries, *live):
        asm.load_fast(local)
    asm.call(len(resume.arg_names))
    asm.return_value()
    asm.extend(body[point:])
    for inst in body:
        if inst.target is copies[target]:
            inst.target = entry.instruction
        if inst.handler is not None and inst.handler.target is copies[target]:
            inst.handler.target = entry.instruction
    return transformed_code(code, asm.finish()), names
