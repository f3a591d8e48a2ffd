"""What reading an unbound variable of the function's own raises where the variable's cell came with a closure.

CPython tells an UnboundLocalError from a NameError by whose cell it is; a resume function has none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.opcodes import PY312, PY313
from argand.bytecode.stack import stack_depths

_READS = ("LOAD_DEREF", "DELETE_DEREF")


def unbound_cell_blocks(
    copies: Mapping[Instruction, Instruction], instructions: Sequence[Instruction], own: frozenset[str]
) -> list[Instruction]:
    """Make reads of the variables `own` raise what they did when the cells were the function's own.

    Arguments:
        copies: the function's instructions -> those of the resume function, whose handlers are changed.
        instructions: the function's instructions.

    Returns the blocks that handle what the reads raise, to be put at the end of the resume function.
    """
    reads = [inst for inst in copies if inst.opname in _READS and inst.argval in own]
    if not reads:
        return []
    depths = stack_depths(instructions)
    handlers: dict[tuple[ExceptionHandler | None, int], ExceptionHandler] = {}
    blocks: list[Instruction] = []
    for inst in reads:
        copy = copies[inst]
        key = copy.handler, depths[inst]
        if key not in handlers:
            block = _block(copy)
            handlers[key] = ExceptionHandler(block[0], depths[inst])
            blocks += block
        copy.handler = handlers[key]
    return blocks


def _block(read: Instruction) -> list[Instruction]:
    """exception -> ; raises what `as_local` makes of it to where the exception would have gone."""
    helper = ("LOAD_CONST", None, as_local)
    null = ("PUSH_NULL", None, None)
    swap = ("SWAP", 2, 2)
    steps = [helper, swap, null, swap] if PY313 else [null, swap, helper, swap]
    steps += [] if PY312 else [("PRECALL", 1, 1)]
    steps += [("CALL", 1, 1), ("RERAISE", 0, 0)]
    return [Instruction(opname, arg, value, None, read.positions, None, read.handler) for opname, arg, value in steps]


def as_local(exc: BaseException) -> BaseException:
    """The exception for a local variable in place of that for a free one, raised at the same place."""
    if type(exc) is not NameError:
        return exc
    text = f"cannot access local variable {exc.name!r} where it is not associated with a value"
    local_error = UnboundLocalError(text)
    local_error.__context__ = exc.__context__
    return local_error.with_traceback(exc.__traceback__)
