"""A break before anything was recorded: the program's own instructions run up to it, and nothing has to be rebuilt.

The frame's new code: instructions up to the one that breaks the graph, that one, then the call of the resume function
with the stack and the locals as they really are.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import CodeType, MethodDescriptorType
from typing import TypeAlias

from argand.bytecode.flow import clone_instructions, reachable
from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import PY312, PY313
from argand.bytecode.stack import stack_effect
from argand.capture.facts import frames
from argand.capture.output.emit import Emitter
from argand.capture.output.resumes import Handled

Slot: TypeAlias = "str | tuple[Instruction, int]"
"""A slot of the value stack: VALUE, NULL, UNSURE, HANDLED (what PUSH_EXC_INFO saved), or (the instruction that loaded a
method, first or second of its two slots), where it depends on the object whether there is a NULL."""

VALUE = "value"
NULL = "null"
UNSURE = "?"
HANDLED = "handled"
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")

Exit: TypeAlias = "tuple[Instruction, Instruction, tuple[Slot, ...]]"
"""(instruction that leaves, where it goes, the stack there)."""


def slots(instructions: Sequence[Instruction]) -> dict[Instruction, tuple[Slot, ...]]:
    """What the slots of the stack hold before each reachable instruction."""
    stacks: dict[Instruction, tuple[Slot, ...]] = {}
    index = {inst: i for i, inst in enumerate(instructions)}
    todo: list[tuple[Instruction, tuple[Slot, ...]]] = [(instructions[0], ())]
    while todo:
        inst, stack = todo.pop()
        known = stacks.get(inst)
        if known is not None:
            merged = tuple(a if a == b else UNSURE for a, b in zip(known, stack))
            if merged == known:
                continue
            stack = merged
        stacks[inst] = stack
        handler = inst.handler
        if handler is not None:
            todo.append((handler.target, stack[: handler.depth] + (VALUE,) * (1 + handler.lasti)))
        if inst.target is not None:
            todo.append((inst.target, after(inst, stack, True)))
        if not inst.is_terminator:
            todo.append((instructions[index[inst] + 1], after(inst, stack, False)))
    return stacks


def after(inst: Instruction, before: tuple[Slot, ...], jump: bool = False) -> tuple[Slot, ...]:
    """The stack behind an instruction."""
    stack = list(before)
    opname = inst.opname
    if opname == "PUSH_NULL":
        stack.append(NULL)
    elif inst.is_method:
        del stack[len(stack) - (stack_effect(inst) * -1 + 2) :]
        stack += [(inst, 0), (inst, 1)]
    elif inst.push_null:
        stack += [VALUE, NULL] if PY313 else [NULL, VALUE]
    elif opname == "LOAD_FAST_AND_CLEAR":
        stack.append(UNSURE)
    elif opname == "SWAP":
        depth = inst.arg or 0
        stack[-1], stack[-depth] = stack[-depth], stack[-1]
    elif opname == "COPY":
        stack.append(stack[-(inst.arg or 1)])
    elif opname == "PUSH_EXC_INFO":
        stack.insert(len(stack) - 1, HANDLED)
    else:
        effect = stack_effect(inst, jump)
        del stack[len(stack) + min(effect, 0) :]
        stack.extend([VALUE] * effect)
        if opname in _CALLS:
            stack[-1] = VALUE
    return tuple(stack)


def exits_of(instructions: Sequence[Instruction], inst: Instruction) -> list[Exit] | None:
    """Where an instruction goes, with the stack there; None if that cannot be told."""
    stacks = slots(instructions)
    if inst not in stacks:
        return None
    index = {other: i for i, other in enumerate(instructions)}
    stack = stacks[inst]
    following = instructions[index[inst] + 1] if not inst.is_terminator else None
    if inst.opname == "TO_BOOL" and following is not None and following.opname.startswith("POP_JUMP_IF"):
        inst, stack = following, after(inst, stack)
        following = instructions[index[inst] + 1]
    exits: list[Exit] = []
    if following is not None:
        exits.append((inst, following, after(inst, stack, False)))
    if inst.opname == "FOR_ITER" and PY312 and inst.target is not None:  # its target, END_FOR, must stay there
        last = index[inst.target] + (1 if PY313 else 0)
        exits.append((instructions[last], instructions[last + 1], stack[:-1]))
    elif inst.target is not None:
        exits.append((inst, inst.target, after(inst, stack, True)))
    return None if any(UNSURE in stack_there for _, _, stack_there in exits) else exits


def _bound_method(copy: Instruction) -> list[Instruction]:
    """A method load as the load of a bound method and a NULL: the same for every object."""
    opname, arg = ("LOAD_ATTR", 0) if copy.opname == "LOAD_METHOD" else (copy.opname, (copy.arg or 0) & ~1)
    copy.opname, copy.arg = opname, arg
    instructions = [copy, Instruction("PUSH_NULL", None, None, None, copy.positions, None, copy.handler)]
    if not PY313:
        instructions.append(Instruction("SWAP", 2, 2, None, copy.positions, None, copy.handler))
    return instructions


def binding_shows(stack: Sequence[object]) -> bool:
    """Whether an inherited method of C waits on the stack for its arguments: `_bound_method` would show in errors.

    They name the class that has an unbound method, and the object's own class for a bound one.
    """
    return any(
        type(method) is MethodDescriptorType and owner is not frames.NULL and type(owner) is not method.__objclass__
        for method, owner in itertools.pairwise(stack)
    )


def is_null(slot: Slot) -> bool:
    """Whether a slot holds a NULL, method loads being those of `_bound_method`."""
    if isinstance(slot, tuple):
        return slot[1] == (1 if PY313 else 0)
    return slot == NULL


def body(
    instructions: Sequence[Instruction],
    exits: list[Exit],
    emitter: Emitter,
    resume: Callable[[Instruction, list[str | None], Instruction], None],
) -> list[Instruction]:
    """The instructions of the frame's new code.

    Arguments:
        exits: what `exits_of` said.
        emitter: the emitter that `resume` uses.
        resume: emits the call of the resume function at an instruction, with temporaries for the stack's values, and
            the return.
    """
    wanted = reachable(instructions)
    originals = [inst for inst in instructions if inst in wanted]
    copies_in_order, copies = clone_instructions(originals)
    pending = {slot[0] for _, _, exit_stack in exits for slot in exit_stack if isinstance(slot, tuple)}
    falls: dict[Instruction, list[Instruction]] = {}
    tail: list[Instruction] = []
    for inst, goal, stack in exits:
        block = _leave(inst, goal, stack, emitter, resume)
        if goal is inst.target and (inst.is_unconditional_jump or inst in falls or len(exits) == 1):
            copies[inst].target = block[0]
            tail += block
        else:
            falls[inst] = block
    out: list[Instruction] = []
    for original, copy in zip(originals, copies_in_order):
        out += _bound_method(copy) if original in pending else [copy]
        out += falls.get(original, ())
    return [*out, *tail]


def _leave(
    inst: Instruction,
    goal: Instruction,
    stack: tuple[Slot, ...],
    emitter: Emitter,
    resume: Callable[[Instruction, list[str | None], Instruction], None],
) -> list[Instruction]:
    """Store the stack into temporaries and call the resume function."""
    asm = emitter.asm
    start = len(asm._out)
    asm.set_line(inst.positions)
    held: list[str | None] = []
    for slot in reversed(stack):
        name = emitter.store_temp("n")  # a NULL leaves the temporary unbound
        held.append(None if is_null(slot) else name)
    held.reverse()
    _no_longer_handled(held, [i for i, slot in enumerate(stack) if slot == HANDLED], emitter)
    resume(goal, held, inst)
    return asm._out[start:]


def _no_longer_handled(held: list[str | None], saved: list[int], emitter: Emitter) -> None:
    """Leave the handlers that the frame is in: the resume function enters them again with the same exceptions.

    Arguments:
        held: temporaries of the stack's slots; those that hold what was handled before, `saved`, come to hold what has
            been handled since.
    """
    if not saved:
        return
    asm = emitter.asm
    asm.load_const_callable(sys.exception)
    asm.call(0)
    since: str | None = emitter.store_temp("x")
    for i in reversed(saved):
        before = held[i]
        held[i] = Handled(since)
        since = before
    if since is not None:
        asm.load_fast(since)
        asm.emit("POP_EXCEPT")


def stored_from(instructions: Sequence[Instruction], start: Instruction) -> set[str]:
    """Locals that are assigned or deleted from an instruction on."""
    names: set[str] = set()
    for inst in reachable(instructions, start):
        if inst.opname.startswith("STORE_FAST") or inst.opname == "DELETE_FAST":
            names.update((inst.argval,) if isinstance(inst.argval, str) else inst.argval)
    return names


_FRAME_ATTRIBUTES = frozenset({
    "_getframe", "currentframe", "tb_frame", "f_back", "f_locals", "f_lineno", "tb_next", "setrecursionlimit",
    "walk_stack", "extract_stack", "format_stack", "print_stack",
})  # fmt: skip
_FRAME_BUILTINS = frozenset({"locals", "eval", "exec"})


def looks_at_frames(instructions: Sequence[Instruction]) -> bool:
    """Whether code asks for frames or for all of its locals: it may not be split into several functions."""
    for inst in instructions:
        if inst.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if inst.argval in _FRAME_ATTRIBUTES:
                return True
        elif inst.opname == "LOAD_CONST" and isinstance(inst.argval, CodeType):
            if "setrecursionlimit" in inst.argval.co_names:  # meant for as many frames as the program has
                return True
        elif inst.opname == "LOAD_GLOBAL" and (inst.argval in _FRAME_BUILTINS or inst.argval in _FRAME_ATTRIBUTES):
            return True
    return False
