"""Loops of installed packages in which a graph breaks: they run as they are written, and what they call is captured.

Going on in the loop costs a version of the rest of the function for each way through it and each kind of value that
comes round, and a library's function has many callers. The program's own loops, and torch's containers, are compiled
round by round: their bodies are the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType

from argand.bytecode.decode import decode
from argand.bytecode.instruction import Instruction, Positions
from argand.capture.facts.code.skip import library_of


def left_alone(code: CodeType, at: object, original_offsets: Mapping[int, int] | None) -> bool:
    """Whether an instruction is in a loop of its function, and the function is an installed package's.

    Arguments:
        original_offsets: of the code of a resume function, whose instructions have the offsets of the user's.
    """
    if not isinstance(at, Instruction) or at.offset is None or library_of(code.co_filename) in ("", "torch"):
        return False
    instructions = decode(code, None, original_offsets)
    place = {id(inst): number for number, inst in enumerate(instructions)}
    here = next((inst for inst in instructions if inst.offset == at.offset), None)
    if here is None:
        return False
    jumps = [(place[id(inst.target)], number) for number, inst in enumerate(instructions) if inst.target is not None]
    # The test of `while` stands before the loop and once more at its end, with the same place in the source.
    copies = [i for i, inst in enumerate(instructions) if inst is here or _written_at(inst, here.positions)]
    return any(start <= copy <= end for start, end in jumps for copy in copies)


def _written_at(inst: Instruction, where: Positions | None) -> bool:
    """Whether an instruction stands for the same characters of the source; `FOR_ITER` has those of what it walks."""
    return where is not None and inst.positions == where and inst.opname != "FOR_ITER"
