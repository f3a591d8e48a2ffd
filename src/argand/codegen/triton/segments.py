"""How a program of a kernel with segments finds its own: the first lines of the kernel.

Each segment has as many programs as its points need, one segment's behind the other's. A program compares its number
with where the segments begin, and picks the pointers and the sizes of its own, one after the other. That takes as long
as several blocks of points, so that a program computes more than one where there are enough for all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from argand.codegen.triton.axes import KernelAxes, blocks_of
from argand.codegen.triton.indices import index_text
from argand.errors import InternalError
from argand.ir.kernel import KernelPlan

MAX_BLOCKS = 8  # of a program
_PROGRAMS = 8  # of a multiprocessor, at least, where a program has several blocks


class Segments:
    """The choice of a segment.

    Arguments:
        plan: a kernel with segments.
        axes: its layout.
        processors: of the GPU.
        arguments: the kernel's argument for each buffer of all segments.

    Attributes:
        programs: of all segments together.
        block: the variable of a block's number within its segment.
        pointers: the pointer that stands for each buffer that the stages name.
    """

    block = "block"

    def __init__(self, plan: KernelPlan, axes: KernelAxes, processors: int, arguments: Mapping[str, str]) -> None:
        if len(axes.grid) != 1:
            raise InternalError(f"{plan.name}: segments of a grid with {len(axes.grid)} axes")
        self._axis = axes.grid[0]
        blocks = blocks_of(plan, self._axis)
        self._blocks = max(min(MAX_BLOCKS, sum(blocks) // (_PROGRAMS * processors)), 1)
        counts = [-(-count // self._blocks) for count in blocks]
        self._begins = [0, *accumulate(counts)]
        self.programs = self._begins.pop()
        self.pointers: dict[str, str] = {}
        self._choices: dict[str, Sequence[object]] = {}
        for number, name in enumerate(plan.segments[0].buffers):
            choices = [arguments[segment.buffers[name]] for segment in plan.segments]
            same = len(set(choices)) == 1
            self.pointers[name] = choices[0] if same else f"ptr{number}"
            if not same:
                self._choices[f"ptr{number}"] = choices
        for name in plan.segments[0].numbers:
            self._choices[name] = [segment.numbers[name] for segment in plan.segments]

    def lines(self) -> list[str]:
        """The first lines of the kernel."""
        head = ["# the segment of this program: where it begins, its pointers and sizes", "begin = 0"]
        lines = [f"{name} = {values[0]}" for name, values in self._choices.items()]
        for number, begin in enumerate(self._begins[1:], 1):
            lines += [f"later = tl.program_id(0) >= {begin}", f"begin = tl.where(later, {begin}, begin)"]
            for name, values in self._choices.items():
                if values[number] != values[number - 1]:
                    lines.append(f"{name} = tl.where(later, {values[number]}, {name})")
        return [*head, *lines]

    def in_blocks(self, lines: Sequence[str]) -> list[str]:
        """The lines of one block, for all blocks of a program."""
        if self._blocks == 1:
            return [f"{self.block} = tl.program_id(0) - begin", *lines]
        end = f"({index_text(self._axis.extent)} + {self._axis.block - 1}) // {self._axis.block}"
        first = [f"first = (tl.program_id(0) - begin) * {self._blocks}"]
        head = f"for {self.block} in range(first, tl.minimum(first + {self._blocks}, {end})):"
        return [*first, head, *("    " + line for line in lines)]
