"""What scheduling makes and code generation prints: fused kernels in execution order.

The meaning of a `KernelPlan` (the reference executor in `schedule.reference` does exactly this):

    for every point of plan.outer:            # independent of each other: run them in any order, in parallel
        for stage in plan.stages:             # in order
            for every point of stage.body.vars[len(plan.outer):]:     # the stage's own loops, independent too
                reductions start at their identity
                for every point of stage.body.reduction_vars:
                    statements that depend on reduction_vars, stores included
                statements that depend on vars and on reduction results only

Rules that code generation may rely on:

* A statement is "inside" the reduction loops when it depends, through args, index expressions, `indirect` values or
  masks, on a reduction variable, directly or not; a `reduction` is itself outside, its argument inside. A `store` may
  be inside (a producer fused into the reduction's loop: `t = a + b; store t; sum t`).
  A `scan` is inside; its result at a point combines its argument at that point and at those before it, row-major in
  `reduction_vars`.
  `statements` comes in this order: what depends on neither (constants, loads at the point), inside, reductions, after.
* A kernel of one stage has `outer == ()`: all its loops are the stage's own, and code generation parallelises over them
  (or over the reduction itself when there are no `vars`). A kernel of several stages has the loops that they share in
  `outer`; when `outer` is empty there too, the kernel runs its stages one after the other (parallelism inside a stage
  is allowed, with a barrier between stages).
* A stage that loads what an earlier stage of the same kernel stored does so only within the same outer point.
* Within one stage no element is loaded after it was stored, except in an in-place buffer: it is in `outputs` only, the
  stage that stores it may load it at the same index (load first, then store), and so may earlier stages within the
  same outer point.
* `registers`: one scalar per outer point; loads and stores use index `Const(0)`.
* `scratch`: small row buffers, one per thread, contents undefined at the start of each outer point; indexed by the
  stage's own variables only.
* All buffers of a kernel are on one device, and the device's `ir.target.Target` can run the kernel: without its
  `barriers`, several stages have shared loops; without its `nested_reductions`, each of several stages has either own
  loops or reduction loops beside the shared ones.
* Stores with a mode may hit one element from several points: they need atomics (or no parallelism).
* A kernel with `segments` does all of the above once for each of them, in any order or in parallel: no segment touches
  elements that another writes. Its stages name the first segment's buffers; symbols that differ are in each segment's
  `numbers`.
* A kernel with a `product` computes that first, for all points of its last stage, whose loops are batch (where there is
  one), row and column; the stage finds it in the register `product.result`, at the place that the value would have in
  memory. A stage before the last one computes an operand of the product, and stores it in a register in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr, Var, as_int
from argand.ir.loops import Buffer, ExternNode, LoopBody, Origin, TensorRef
from argand.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from argand.ir.target import Target

CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class Stage:
    """One loop nest inside a kernel's outer loops.

    Arguments:
        body: rewritten to kernel variables; `body.vars` = the kernel's outer variables, then the stage's own.
        inner: how many trailing `body.vars` are the stage's own.
        node: name(s) of the loop nodes it came from, for comments.
    """

    body: LoopBody
    inner: int
    node: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One of the sets of buffers that a kernel works on.

    Arguments:
        buffers: for each buffer that the kernel's stages name, this segment's.
        numbers: values of the symbols that differ from segment to segment.
    """

    buffers: Mapping[str, str]
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: a program computes `rows` x `columns` of the result, `inner` terms of the sums at a time.

    Arguments:
        warps, stages: of a program; rounds whose loads are in flight.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.inner}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices (rows, inner) and (inner, columns), or of as many as there are in a batch.

    Sums are float32 numbers; the bias is added to them before they are rounded to the dtype of the result. Sizes are
    numbers.

    Arguments:
        left, right: operands; of a register, where a stage of the kernel makes it.
        bias: a row to be added.
        result: the register of the value.
        precision: of products of float32 numbers: "ieee", or "tf32" where the program allows that.
        tile: None until it is chosen.
    """

    left: TensorRef
    right: TensorRef
    bias: TensorRef | None
    result: str
    precision: str = "ieee"
    tile: Tile | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns, inner."""
        *batch, rows, inner = map(_number, self.left.size)
        return (batch[0] if batch else 1), rows, _number(self.right.size[-1]), inner


def _number(size: Expr) -> int:
    number = as_int(size)
    if number is None:
        raise InternalError(f"a size of a product varies: {size}")
    return number


@dataclass(slots=True, eq=False)
class KernelPlan:
    """One fused kernel.

    Arguments:
        name: "cpp_fused_add_gelu_0".
        outer: shared loops (variable, size), outermost first; may be empty.
        stages: run in order inside the outer loops.
        scratch: thread-local row buffers, by name; size and stride without the outer part.
        registers: names of buffers that are one scalar per outer point; their dtype is in `buffers`.
        inputs: global buffers that are only read, in argument order.
        outputs: global buffers that are written (an in-place one appears only here): arguments after the inputs.
        symbols: int64 arguments: size symbols, in argument order.
        buffers: every buffer named above, scratch and registers included.
        origins: FX nodes that the kernel computes.
        device: of every buffer.
        segments: what the stages are done for, the first as they are written; empty: once, for the buffers named.
        product: computed before the last stage.
    """

    name: str
    outer: tuple[tuple[Var, Expr], ...]
    stages: tuple[Stage, ...]
    scratch: dict[str, Buffer]
    registers: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[str, ...]
    buffers: dict[str, Buffer]
    origins: tuple[Origin, ...] = ()
    device: torch.device = CPU
    segments: tuple[Segment, ...] = ()
    product: Product | None = None

    def of_segment(self, segment: Segment) -> KernelPlan:
        """What is done for one segment, under the names of the first one's buffers."""
        named = segment.buffers
        buffers = {name: buffer for name, buffer in self.buffers.items() if name in self.registers}
        buffers.update({name: self.buffers[other] for name, other in named.items()})
        inputs, outputs = (tuple(n for n in group if n in named) for group in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs, buffers=buffers, segments=())


Step = KernelPlan | ExternNode


def memory_of(taken: Mapping[str, str], name: str) -> str:
    """The buffer whose memory `name` has in the end; `taken`: buffer -> the one whose memory it takes."""
    while name in taken:
        name = taken[name]
    return name


@dataclass(slots=True, eq=False)
class Schedule:
    """An ordered program of kernels and extern calls.

    Arguments:
        steps: in execution order.
        inputs, input_symbols, constants, outputs, mutations, hints, floats, arrivals: as in `ir.loops.Program`.
        buffers: buffers that exist at run time (fused-away ones are gone).
        kept: buffers that leave the program, but that nobody sees besides its backward.
        seen: inputs that others have, and may write to while some outputs have left and others have not.
        graph, values: as in `ir.loops.Program`.
        aliases: in-place reuse decided by scheduling: {new buffer: dying buffer whose memory it takes}.
        targets: of the devices of its buffers that code is generated for.
    """

    steps: list[Step]
    inputs: list[str]
    input_symbols: list[tuple[str, str, int]]
    buffers: dict[str, Buffer]
    constants: dict[str, torch.Tensor]
    outputs: list[TensorRef | Expr | int | float | bool | None]
    mutations: list[tuple[str, TensorRef]]
    aliases: dict[str, str] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    arrivals: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    seen: frozenset[str] = frozenset()
    graph: Any = None
    values: dict[str, TensorRef] = field(default_factory=dict)
    targets: dict[torch.device, Target] = field(default_factory=dict)

    def kernels(self) -> list[KernelPlan]:
        """Every different kernel once (steps that share a name do the same)."""
        by_name: dict[str, KernelPlan] = {}
        for step in self.steps:
            if isinstance(step, KernelPlan):
                by_name.setdefault(step.name, step)
        return list(by_name.values())

    def writes_to_input(self, step: Step) -> bool:
        """Whether a step stores into an input."""
        names = step.mutates if isinstance(step, ExternNode) else [memory_of(self.aliases, o) for o in step.outputs]
        return any(name in self.inputs for name in names)

    def in_host_memory(self, name: str) -> bool:
        """Whether a buffer is one that the host's memory plan and argand's own CPU kernels are for."""
        target = self.targets.get(self.buffers[name].device)
        return target is not None and target.host_memory

    def host_buffers(self) -> dict[str, Buffer]:
        """The buffers for which `in_host_memory` holds."""
        return {name: buffer for name, buffer in self.buffers.items() if self.in_host_memory(name)}
