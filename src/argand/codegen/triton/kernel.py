"""From `KernelPlan`s to one Python module of Triton functions.

In: kernels that `ir.target.gpu` allows, the GPU's number of multiprocessors. Out: `TritonSource`. A kernel's
arguments are its inputs, its outputs, row buffers that need memory, its size symbols, then block sizes as constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from argand.codegen.triton import types
from argand.codegen.triton.axes import Axis, KernelAxes, StageAxes, lay_out
from argand.codegen.triton.functions import helpers_of
from argand.codegen.triton.indices import index_text
from argand.codegen.triton.products import ProductPrinter
from argand.codegen.triton.segments import Segments
from argand.codegen.triton.spec import KernelSpec, TritonSource
from argand.codegen.triton.statements import Memory, StagePrinter
from argand.codegen.triton.types import pointer_type
from argand.graph import time_limit
from argand.graph.sizes.expr import Const
from argand.ir.kernel import KernelPlan

_HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


def generate(kernels: Sequence[KernelPlan], processors: int) -> TritonSource:
    """The Triton functions of a graph.

    Arguments:
        kernels: in any order; names are distinct.
        processors: multiprocessors of the GPU.

    Raises:
        LoweringError: a kernel uses a dtype that Triton does not know.
        InternalError: a kernel uses an op, or is of a shape, that the code generator does not know.
    """
    texts, specs = [], {}
    for plan in kernels:
        time_limit.check()
        printer: KernelPrinter | ProductPrinter
        if plan.product is not None:
            printer = ProductPrinter(plan)
        else:
            printer = KernelPrinter(plan, lay_out(plan, processors), processors)
        texts.append(printer.text())
        specs[plan.name] = printer.spec()
    body = "\n\n".join(texts)
    return TritonSource("\n".join((_HEAD, helpers_of(body), body)), specs)


class KernelPrinter:
    """Prints one kernel.

    Arguments:
        plan: the kernel.
        axes: how its loops are laid out.
        processors: multiprocessors of the GPU.
    """

    def __init__(self, plan: KernelPlan, axes: KernelAxes, processors: int) -> None:
        self.plan, self.axes = plan, axes
        self.pointers: dict[str, str] = {}
        for letter, names in (("in", plan.inputs), ("out", plan.outputs)):
            self.pointers.update({name: f"{letter}_ptr{number}" for number, name in enumerate(names)})
        self.segments = Segments(plan, axes, processors, self.pointers) if plan.segments else None
        reach = axes.reach
        self.position = types.VARIES if reach.varies else types.WIDE if reach.wide else types.NARROW
        self.rows: list[str] = []
        self.checks = False
        self.constants: dict[str, int] = {}

    def text(self) -> str:
        """The function."""
        _, memory = self._stages()  # tells which row buffers are read from memory
        self.rows = [name for name in self.plan.scratch if name in memory.wanted]
        self.pointers.update({name: f"row_ptr{number}" for number, name in enumerate(self.rows)})
        printers, memory = self._stages()
        lines = []
        if self.axes.reach.varies:
            self.constants[types.WIDE_FLAG] = 1
            lines.append(types.POSITION_LINE)
        body = self._grid()
        for printer in printers:
            body += self._stage(printer, memory)
            self.checks = self.checks or printer.checks
        if self.segments is not None:
            body = [*self.segments.lines(), *self.segments.in_blocks(body)]
        lines += body
        arguments = [*self.pointers.values(), *self.plan.symbols, *(f"{name}: tl.constexpr" for name in self.constants)]
        head = f"@triton.jit\ndef {self.plan.name}({', '.join(arguments)}):"
        return "\n".join((head, *("    " + line for line in lines)))

    def spec(self) -> KernelSpec:
        """How the function that `text` printed is compiled and launched."""
        kinds = [pointer_type(self.plan.buffers[name].dtype) for name in self.pointers]
        grid = self.axes.grid
        return KernelSpec(
            self.plan.name,
            (*kinds, *("i64" for _ in self.plan.symbols)),
            tuple(self.constants.items()),
            self.axes.num_warps,
            _stages_of(self.axes),
            tuple(axis.extent for axis in grid) if self.segments is None else (Const(self.segments.programs),),
            tuple(axis.block for axis in grid) if self.segments is None else (1,),
            tuple((pointer_type(self.plan.buffers[name].dtype), self.plan.buffers[name].size[0]) for name in self.rows),
            self.checks,
            self._sizes(),
            self.axes.reach.terms if self.axes.reach.varies else (),
        )

    def _sizes(self) -> tuple[tuple[int, str], ...]:
        """The arguments that are sizes, of kernels that have variants."""
        reach = self.axes.reach
        first = len(self.pointers)
        arguments = [(first + at, name) for at, name in enumerate(self.plan.symbols) if name in reach.sizes]
        return tuple(arguments) if reach.varies else ()

    def _stages(self) -> tuple[list[StagePrinter], Memory]:
        memory = Memory(dict(self.pointers if self.segments is None else self.segments.pointers))
        printers = []
        for number, stage in enumerate(self.axes.stages):
            printer = StagePrinter(self.plan, number, stage, memory, self._dims(number, stage), self.position)
            printer.run()
            printers.append(printer)
        return printers, memory

    def _dims(self, number: int, stage: StageAxes) -> dict[str, str]:
        """Names of the block's extents, outermost axis first."""
        blocks = [axis for axis in reversed(self.axes.grid) if axis.name != "p"]
        names = {axis.name: f"{axis.name.upper()}BLOCK" for axis in blocks}
        for axis in blocks:
            self.constants[names[axis.name]] = axis.block
        row = stage.row
        if row is not None:
            names["r"] = f"RBLOCK{number}"
            self.constants[names["r"]] = row.block
        elif any(other.row is not None for other in self.axes.stages):
            names["r"] = "1"
        return names

    # --- the function's lines

    def _grid(self) -> list[str]:
        """The positions of the program along the grid's axes."""
        lines = []
        deep = any(stage.row is not None for stage in self.axes.stages)
        for number, axis in enumerate(self.axes.grid):
            name, block = axis.name, f"{axis.name.upper()}BLOCK"
            first = f"tl.program_id({number})" if self.segments is None else self.segments.block
            first += self.position.cast()
            if name == "p":
                lines.append(f"{name} = {first}")
                continue
            if deep:
                side = "[:, None]"
            else:
                side = "" if len(self.axes.grid) == 1 else ("[:, None]" if axis.name == "y" else "[None, :]")
            lines.append(f"{name} = ({first} * {block} + tl.arange(0, {block})){side}")
            if not axis.exact:
                lines.append(f"{name}mask = {name} < {index_text(axis.extent)}")
        return lines

    def _stage(self, printer: StagePrinter, memory: Memory) -> list[str]:
        """The lines of one stage."""
        lines = []
        if printer.number in memory.waits:
            lines.append("tl.debug_barrier()")  # what other threads of the program stored is read
        row = printer.row
        if row is None:
            return [*lines, *printer.before]
        number, block = printer.number, f"RBLOCK{printer.number}"
        if not row.looped:
            return [*lines, *self._positions(row, number, ""), *printer.before, *printer.inside, *printer.after]
        head = f"for offset{number} in range(0, {index_text(row.extent)}, {block}):"
        inside = [*self._positions(row, number, f"offset{number} + "), *printer.inside]
        return [*lines, *printer.before, head, *("    " + line for line in inside), *printer.after]

    def _positions(self, row: Axis, number: int, offset: str) -> list[str]:
        """The positions of a block along a stage's row, and which of them exist."""
        kind = self.position.cast()
        lines = [f"r{number} = {offset}tl.arange(0, RBLOCK{number})[None, :]{kind}"]
        if not row.exact:
            lines.append(f"rmask{number} = r{number} < {index_text(row.extent)}")
        return lines


def _stages_of(axes: KernelAxes) -> int:
    """Rounds of a loop whose loads are in flight."""
    return 2 if any(stage.row is not None and stage.row.looped for stage in axes.stages) else 1
