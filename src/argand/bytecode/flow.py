"""Control flow over instruction lists: successors, reachability, cloning, and the prologue of a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType

from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.opcodes import CO_ANY_GENERATOR
from argand.errors import InternalError

# `super` and what follows it in a call without arguments, per version.
_SUPER_CALLS = (("LOAD_GLOBAL", "PRECALL", "CALL"), ("LOAD_GLOBAL", "CALL"))
_PROLOGUE_OPS = frozenset(["COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR"])


def reachable(instructions: Sequence[Instruction], start: Instruction | None = None) -> set[Instruction]:
    """Instructions that may execute once `start` (default: the first) does, exception handlers included.

    Raises InternalError when execution can run off the end of the list or to an instruction that is not in it.
    """
    if not instructions:
        return set()
    index = {inst: i for i, inst in enumerate(instructions)}
    seen: set[Instruction] = set()
    todo = [start if start is not None else instructions[0]]
    while todo:
        inst = todo.pop()
        i = index.get(inst)
        if i is None:
            raise InternalError(f"{inst} is the target of a jump or handler but is not in the list")
        while inst not in seen:
            seen.add(inst)
            if inst.handler is not None and inst.handler.target not in seen:
                todo.append(inst.handler.target)
            if inst.target is not None and inst.target not in seen:
                todo.append(inst.target)
            if inst.is_terminator:
                break
            i += 1
            if i == len(instructions):
                raise InternalError(f"execution runs off the end of the code after {inst}")
            inst = instructions[i]
    return seen


def clone_instructions(
    instructions: Iterable[Instruction],
) -> tuple[list[Instruction], dict[Instruction, Instruction]]:
    """Copy instructions so that the copies can be changed freely.

    Jumps and handlers within the given ones point to copies; those to instructions outside stay as they are.
    Returns (copies in order, original -> copy).
    """
    originals = list(instructions)
    copies = {inst: inst.copy() for inst in originals}
    handlers: dict[ExceptionHandler, ExceptionHandler] = {}
    for copy in copies.values():
        if copy.target is not None:
            copy.target = copies.get(copy.target, copy.target)
        old = copy.handler
        if old is not None:
            if old not in handlers:
                handlers[old] = ExceptionHandler(copies.get(old.target, old.target), old.depth, old.lasti)
            copy.handler = handlers[old]
    return [copies[inst] for inst in originals], copies


def zero_argument_super_calls(instructions: Sequence[Instruction], code: CodeType) -> dict[Instruction, Instruction]:
    """PRECALL and CALL instructions of `super()` without arguments -> the first instruction after the load of `super`.

    Such a call reads `__class__` and the first argument of its function, which no instruction names. (LOAD_SUPER_ATTR
    names both.) Empty for a function in which it cannot work.
    """
    calls: dict[Instruction, Instruction] = {}
    if "__class__" not in code.co_freevars or not code.co_argcount:
        return calls
    for i, inst in enumerate(instructions):
        if inst.opname == "LOAD_GLOBAL" and inst.argval == "super" and inst.push_null:
            for pattern in _SUPER_CALLS:
                call = instructions[i + 1 : i + len(pattern)]
                if tuple(part.opname for part in call) == pattern[1:] and call[-1].arg == 0:
                    calls.update(dict.fromkeys(call, call[0]))
    return calls


def prologue_length(instructions: Sequence[Instruction]) -> int:
    """Number of instructions at the beginning that set the frame up, up to and including RESUME.

    COPY_FREE_VARS, MAKE_CELL, RETURN_GENERATOR with its POP_TOP, RESUME; 0 if the list starts with something else.
    """
    length = 0
    after_generator = False
    for inst in instructions:
        if inst.opname == "RESUME":
            return length + 1
        if inst.opname not in _PROLOGUE_OPS and not (after_generator and inst.opname == "POP_TOP"):
            return length
        after_generator = inst.opname == "RETURN_GENERATOR"
        length += 1
    return length


def prologue(code: CodeType) -> list[Instruction]:
    """A new prologue (COPY_FREE_VARS, MAKE_CELL, RESUME) for a body with the cells and free variables of `code`."""
    line = code.co_firstlineno
    out: list[Instruction] = []
    if code.co_freevars:
        count = len(code.co_freevars)
        out.append(Instruction("COPY_FREE_VARS", count, count))
    out.extend(Instruction("MAKE_CELL", None, name) for name in code.co_cellvars)
    if code.co_flags & CO_ANY_GENERATOR:
        out.append(Instruction("RETURN_GENERATOR", positions=(line, line, None, None)))
        out.append(Instruction("POP_TOP", positions=(line, line, None, None)))
    out.append(Instruction("RESUME", 0, 0, positions=(line, line, 0, 0)))
    return out
