"""Products of matrices as kernels of argand's own, together with the loops that compute from their results.

In: a schedule. Out: for each call of a product the kernel that could take its place and that of its neighbours
(`proposals`); and the schedule with some of them (`adopt`). Which of them pay, nobody knows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from argand.graph.sizes.expr import ZERO, Expr, Simplifier, Var, as_int, substitute, sum_of
from argand.graph.sizes.expr import product as product_of
from argand.ir.kernel import KernelPlan, Product, Schedule, Stage, Step, Tile
from argand.ir.loops import (
    CHECKS,
    Buffer,
    ExternNode,
    LoopBlock,
    LoopBody,
    Origin,
    TensorRef,
    Value,
    statements_of,
    tensor_refs,
)
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.signature import signature
from argand.schedule.space import affine, is_dense_row

PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# What needs too much memory of a program on a device is left out; others would need too many registers.
TILES = {
    "half": (
        Tile(128, 256, 64, 8, 3),
        Tile(128, 128, 64, 4, 3),
        Tile(128, 64, 64, 4, 4),
        Tile(64, 128, 64, 4, 4),
        Tile(64, 64, 64, 4, 5),
        Tile(64, 64, 128, 4, 3),
        Tile(16, 64, 64, 4, 4),
        Tile(128, 128, 32, 8, 2),
        Tile(64, 64, 32, 4, 2),
    ),
    "tf32": (
        Tile(128, 128, 32, 8, 3),
        Tile(128, 64, 32, 4, 4),
        Tile(64, 64, 32, 4, 4),
        Tile(64, 64, 32, 4, 2),
        Tile(16, 64, 64, 4, 4),
    ),
    "ieee": (Tile(128, 64, 32, 8, 3), Tile(64, 64, 32, 4, 3), Tile(64, 64, 32, 4, 2), Tile(16, 64, 64, 4, 4)),
}
_FEWEST = 16  # rows, columns and terms: what tensor cores multiply at once
LOOPS = tuple(Var(f"m{number}") for number in range(3))  # batch, row, column


@dataclass(frozen=True, slots=True)
class Proposal:
    """A kernel that may replace some steps of a schedule.

    Arguments:
        plan: it has no name and no tile yet.
        replaced: the steps whose work it does, by number, in order; it runs where the last one did.
        freed: results that take over no other buffer's memory in it, though they did.
        product: the number of the product's own step.
    """

    plan: KernelPlan
    replaced: tuple[int, ...]
    freed: tuple[str, ...] = ()
    product: int = -1


def proposals(schedule: Schedule, precision: str) -> list[Proposal]:
    """A kernel for every product of the schedule that one can be made for.

    Arguments:
        precision: of float32 products.
    """
    proposed: list[Proposal] = []
    taken: set[int] = set()  # of two products that one kernel reads, the later one is computed with it
    for number, step in reversed(list(enumerate(schedule.steps))):
        if isinstance(step, ExternNode) and _is_product(schedule, step):
            proposed.append(_Finder(schedule, number, step, precision, taken).find())
            taken.update(proposed[-1].replaced)
    return proposed[::-1]


def _is_product(schedule: Schedule, node: ExternNode) -> bool:
    if str(node.target) not in PRODUCTS or node.kwargs or len(node.outputs) != 1:
        return False
    (name,) = node.outputs
    if name is None or name in schedule.aliases:
        return False
    refs = node.args
    if node.out_variant is None or not all(isinstance(ref, TensorRef) and ref.dtype is None for ref in refs):
        return False
    result = schedule.buffers[name]
    target = schedule.targets.get(result.device)
    if target is None or not target.product_kernels or result.dtype not in DTYPES:
        return False
    buffers = [schedule.buffers[ref.buffer] for ref in refs]
    if any(buffer.dtype is not result.dtype or buffer.device != result.device for buffer in buffers):
        return False
    numbers = [size for ref in refs for size in (*ref.size, *ref.stride, ref.offset)] + [*result.size, *result.stride]
    if any(as_int(size) is None for size in numbers):
        return False
    *bias, left, right = refs
    if bias and (len(bias[0].size) != 1 or bias[0].size[0] is not right.size[-1]):
        return False
    shortest = min(as_int(size) or 0 for size in (*left.size[-2:], right.size[-1]))
    whole = is_dense_row(dict(zip(LOOPS, result.stride)), dict(zip(LOOPS, result.size)))
    return shortest >= _FEWEST and whole is product_of(result.size)


@dataclass(slots=True)
class _Finder:
    """Looks for the loops that can share a kernel with one product.

    Arguments:
        number: of the product's step.
        taken: steps that belong to kernels of other products.
    """

    schedule: Schedule
    number: int
    node: ExternNode
    precision: str
    taken: set[int]

    def find(self) -> Proposal:
        """The largest kernel that can be made."""
        *bias, left, right = self.node.args
        name = self.node.outputs[0]
        assert name is not None  # the caller has checked
        product = Product(left, right, bias[0] if bias else None, f"{name}_value", self.precision)
        reader = self._reader(name)
        if reader is not None and reader not in self.taken:
            fused = self._with_epilogue(product, name, reader)
            if fused is not None:
                return fused
        return self._alone(product, name)

    # --- the result

    def _flat(self, name: str) -> tuple[tuple[Var, ...], Expr]:
        """The loops over a result, and the place of a point in memory."""
        buffer = self.schedule.buffers[name]
        loops = LOOPS[-len(buffer.size) :]
        return loops, sum_of([var * stride for var, stride in zip(loops, buffer.stride)])

    def _alone(self, product: Product, name: str) -> Proposal:
        loops, place = self._flat(name)
        buffer, origin = self.schedule.buffers[name], next(iter(self.node.origins), None)
        value = Value(0, "load", (product.result, place), buffer.dtype, origin)
        store = Value(1, "store", (name, place, value, None), buffer.dtype, origin)
        stage = Stage(LoopBody(loops, buffer.size, (), (), [value, store]), len(loops), self.node.name)
        return Proposal(self._plan(product, name, [stage], (name,), self.node.origins), (self.number,), (), self.number)

    def _plan(
        self, product: Product, name: str, stages: Sequence[Stage], outputs: Iterable[str], origins: tuple[Origin, ...]
    ) -> KernelPlan:
        buffer = self.schedule.buffers[name]
        registers = {product.result: replace(buffer, name=product.result)}
        return assembled(self.schedule.buffers, product, stages, tuple(outputs), origins, registers)

    # --- what is computed from it

    def _reader(self, name: str) -> int | None:
        """The first step that reads the product, where the product may wait until then."""
        operands = {root_of(self.schedule, ref.buffer) for ref in self.node.args}
        for number in range(self.number + 1, len(self.schedule.steps)):
            step = self.schedule.steps[number]
            written = {root_of(self.schedule, name) for name in written_by(step)}
            if isinstance(step, KernelPlan) and self._taken(step, name) is not None:
                return number if operands.isdisjoint(written) else None
            if name in read_by(step) or not operands.isdisjoint(written):
                return None
        return None

    def _taken(self, plan: KernelPlan, name: str) -> str | None:
        """By which name a kernel reads `name`: its own, or that of the result that is written over it."""
        if name in plan.inputs:
            return name
        return next((output for output in plan.outputs if self.schedule.aliases.get(output) == name), None)

    def _with_epilogue(self, product: Product, name: str, number: int) -> Proposal | None:
        plan = self.schedule.steps[number]
        assert isinstance(plan, KernelPlan)  # as `_reader` found
        taken = self._taken(plan, name)
        if taken is None or len(plan.stages) != 1 or plan.symbols or plan.segments or plan.product or plan.scratch:
            return None
        body = plan.stages[0].body
        statements = statements_of(body)
        if body.reduction_vars or any(s.op in (*CHECKS, "reduction", "scan") for s in statements):
            return None
        if any(s.op == "store" and s.args[3] for s in statements):
            return None
        places = {s.args[1] for s in statements if s.op == "load" and s.args[0] == taken}
        if len(places) != 1:
            return None
        loops, flat = self._flat(name)
        buffer = self.schedule.buffers[name]
        inverse = inverse_of(places.pop(), body, flat, product_of(buffer.size))
        if inverse is None:
            return None
        needed = taken == name and needed_later(self.schedule, name, number)
        sizes = dict(zip(loops, buffer.size))
        changed = Rewriter(inverse, Simplifier(sizes), {taken: (product.result, flat)}).run(body.statements)
        if needed:
            changed = _stored_too(changed, name, product.result)
        stage = Stage(
            LoopBody(loops, buffer.size, (), (), changed), len(loops), f"{self.node.name} {plan.stages[0].node}"
        )
        outputs = (*plan.outputs, name) if needed else plan.outputs
        origins = tuple(dict.fromkeys((*self.node.origins, *plan.origins)))
        freed = (taken,) if taken != name else ()
        return Proposal(self._plan(product, name, [stage], outputs, origins), (self.number, number), freed, self.number)


def needed_later(schedule: Schedule, name: str, number: int) -> bool:
    """Whether anybody needs a buffer after a step."""
    left = {ref.buffer for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations]))}
    later = schedule.steps[number + 1 :]
    return name in left or name in schedule.kept or any(name in read_by(step) for step in later)


def assembled(
    buffers: Mapping[str, Buffer],
    product: Product,
    stages: Sequence[Stage],
    outputs: tuple[str, ...],
    origins: tuple[Origin, ...],
    registers: Mapping[str, Buffer],
) -> KernelPlan:
    """A kernel without a name, with the arguments that its stages and its product need.

    Arguments:
        buffers: of the schedule.
        registers: what its registers would be in memory.
    """
    loaded = [s.args[0] for stage in stages for s in statements_of(stage.body) if s.op == "load"]
    operands = [ref.buffer for ref in (product.left, product.right, product.bias) if ref is not None]
    inputs = dict.fromkeys(name for name in (*operands, *loaded) if name not in outputs and name not in registers)
    known = {name: buffers[name] for name in (*inputs, *outputs)} | dict(registers)
    device = registers[product.result].device
    return KernelPlan(
        "", (), tuple(stages), {}, frozenset(registers), tuple(inputs), outputs, (), known, origins, device, (), product
    )


def root_of(schedule: Schedule, name: str) -> str:
    """The buffer whose memory another one has."""
    while name in schedule.aliases:
        name = schedule.aliases[name]
    return name


def read_by(step: Step) -> set[str]:
    """Buffers that a step needs; those that it writes over count."""
    if isinstance(step, KernelPlan):
        return {*step.inputs, *step.outputs}
    return {ref.buffer for ref in tensor_refs((step.args, step.kwargs))} | set(step.mutates)


def written_by(step: Step) -> list[str]:
    """Buffers that a step makes or changes."""
    if isinstance(step, KernelPlan):
        return list(step.outputs)
    return [*(name for name in step.outputs if name is not None), *step.mutates]


def inverse_of(place: Expr, body: LoopBody, flat: Expr, count: Expr) -> dict[Var, Expr] | None:
    """Each loop variable of a nest that reads every element once, at `place`, in terms of the element's place."""
    dims = dict(zip(body.vars, body.sizes))
    form = affine(place, dims)
    if form is None or form.rest is not ZERO or set(form.coefficients) != set(body.vars):
        return None
    if is_dense_row(form.coefficients, dims) is not count:
        return None
    inverse: dict[Var, Expr] = {}
    for var, step in form.coefficients.items():
        whole = step * dims[var] is count  # the outermost loop
        inverse[var] = flat // step if whole else flat // step % dims[var]
    return inverse


@dataclass(slots=True)
class Rewriter:
    """Statements over other loops, with other buffers.

    Arguments:
        inverse: the old loop variables in terms of the new.
        loads: what is loaded from in a buffer's place, and where; None: where the buffer is.
    """

    inverse: Mapping[Var, Expr]
    simplify: Simplifier
    loads: Mapping[str, tuple[str, Expr | None]]

    def run(self, statements: Iterable[Value], known: dict[int, Value] | None = None) -> list[Value]:
        """The new statements."""
        known = {} if known is None else known
        result = []
        for old in statements:
            args = tuple(self._arg(arg, known) for arg in old.args)
            if old.op == "load" and old.args[0] in self.loads:
                name, place = self.loads[old.args[0]]
                args = (name, args[1] if place is None else place, *args[2:])
            known[old.id] = replace(old, args=args)
            result.append(known[old.id])
        return result

    def _arg(self, arg: Any, known: dict[int, Value]) -> Any:
        if isinstance(arg, Value):
            return known[arg.id]
        if isinstance(arg, LoopBlock):
            inner = self.run(arg.statements, known)
            return LoopBlock(inner, known[arg.result.id])
        if isinstance(arg, Expr):
            return self.simplify.simplify(substitute(arg, self.inverse))
        return arg


def _stored_too(statements: list[Value], name: str, register: str) -> list[Value]:
    """The statements, and a store of the register's value: somebody else needs it too."""
    load = next(s for s in statements if s.op == "load" and s.args[0] == register)
    last = max(s.id for s in statements_of(LoopBody((), (), (), (), statements)))
    return [*statements, Value(last + 1, "store", (name, load.args[1], load, None), load.dtype, load.origin)]


def adopt(schedule: Schedule, chosen: Sequence[tuple[Proposal, Step]]) -> None:
    """Put steps in the place of those that proposals replace. No step is replaced twice.

    Arguments:
        chosen: each with what takes the place: the proposed kernel, with a name and a tile, or a call that writes the
            same to the same memory, in the shape of the product.
    """
    before = {name for step in schedule.steps for name in written_by(step)}
    gone = {number for proposal, _ in chosen for number in proposal.replaced[:-1]}
    for proposal, step in chosen:
        if isinstance(step, ExternNode):
            (name,), (product,) = written_by(step), written_by(schedule.steps[proposal.product])
            schedule.buffers[name] = replace(schedule.buffers[product], name=name)
        schedule.steps[proposal.replaced[-1]] = step
        for name in proposal.freed:
            del schedule.aliases[name]
    schedule.steps[:] = [step for number, step in enumerate(schedule.steps) if number not in gone]
    for name in before.difference(*(written_by(step) for step in schedule.steps)):
        del schedule.buffers[name]


def tiles_for(plan: KernelPlan, target: Target) -> list[Tile]:
    """The ways to cut a proposed kernel that may be fast on a device, those for large products first."""
    assert plan.product is not None  # it is what a proposal is about
    _, rows, columns, inner = plan.product.sizes
    half = plan.buffers[plan.product.result].dtype.itemsize == 2
    left, right = (_bytes_read(plan, ref) for ref in (plan.product.left, plan.product.right))
    tiles = []
    for tile in TILES["half" if half else plan.product.precision]:
        memory = (tile.rows * left + tile.columns * right) * tile.inner * tile.stages
        fits = tile.rows < 2 * max(rows, 16) and tile.columns < 2 * columns and tile.inner < 2 * inner
        if fits and memory <= target.program_memory:
            tiles.append(tile)
    return tiles


def _bytes_read(plan: KernelPlan, ref: TensorRef) -> int:
    """What is read for an element of an operand."""
    own = plan.buffers[ref.buffer].dtype.itemsize
    if ref.buffer not in plan.registers:
        return own
    stages = [stage for stage in plan.stages if stage.body.statements[-1].args[0] == ref.buffer]
    loads = [value.dtype.itemsize for value in stages[0].body.statements if value.op == "load"]
    return max(sum(loads), own)


def with_tile(proposal: Proposal, tile: Tile, name: str = "") -> KernelPlan:
    """The proposed kernel, cut so."""
    plan = proposal.plan
    assert plan.product is not None  # it is what a proposal is about
    return replace(plan, name=name, product=replace(plan.product, tile=tile))


def product_names(schedule: Schedule) -> dict[str, str]:
    """The names of the products' kernels in a schedule, by what they do."""
    plans = [step for step in schedule.steps if isinstance(step, KernelPlan) and step.product is not None]
    return {signature(plan): plan.name for plan in plans}


def named(plan: KernelPlan, names: dict[str, str]) -> KernelPlan:
    """A kernel with its name in a schedule; kernels that do the same share one.

    Arguments:
        names: what `product_names` gave, to which it is added.
    """
    plan.name = names.setdefault(signature(plan), f"triton_product_{operations(plan)}_{len(names)}")
    return plan


def operations(plan: KernelPlan) -> str:
    """Names of what a kernel computes, for its own name."""
    names = dict.fromkeys(origin.fx_node.rstrip("0123456789").rstrip("_") for origin in plan.origins)
    return "_".join([name for name in names if name.isidentifier()][:4]) or "loop"
