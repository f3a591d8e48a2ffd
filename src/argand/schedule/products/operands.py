"""Products whose kernels also compute their operands: a cast or a scale that nobody else reads costs no kernel.

An operand is computed again by every program that needs it, so that only short loops come into question.
"""

from __future__ import annotations

from dataclasses import replace

from argand.graph.sizes.expr import Expr, Simplifier, Var, as_int, product, sum_of
from argand.ir.kernel import KernelPlan, Schedule, Stage
from argand.ir.loops import CHECKS, Buffer, ExternNode, LoopBody, Origin, TensorRef, statements_of, tensor_refs
from argand.quick_dataclasses import dataclass
from argand.schedule.products.kernels import (
    LOOPS,
    PRODUCTS,
    Proposal,
    Rewriter,
    assembled,
    inverse_of,
    needed_later,
    read_by,
    root_of,
    written_by,
)

_INNER = Var("k0")
_MOST_STATEMENTS = 16
_MOST_LOADS = 2


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand that a product's kernel can compute.

    Arguments:
        ref: it, in a register.
        buffer: what the register would be in memory.
        stage: computes it.
        step: the number of the kernel that does now.
        freed: its buffer took over memory that is read now.
    """

    ref: TensorRef
    buffer: Buffer
    stage: Stage
    step: int
    freed: tuple[str, ...]
    origins: tuple[Origin, ...]


def with_operands(schedule: Schedule, proposal: Proposal) -> Proposal | None:
    """The proposed kernel, with what makes its operands; None where nothing does that for it alone."""
    plan, product = proposal.plan, proposal.plan.product
    assert product is not None  # it is what a proposal is about
    rows, columns = LOOPS[-2], LOOPS[-1]
    batch = LOOPS[: len(product.left.size) - 2]
    sides = {"left": (*batch, rows, _INNER), "right": (*batch, _INNER, columns)}
    by_side = {side: _operand(schedule, proposal, getattr(product, side), side, loops) for side, loops in sides.items()}
    operands = {side: operand for side, operand in by_side.items() if operand is not None}
    if not operands:
        return None
    left, right = (operands[side].ref if side in operands else getattr(product, side) for side in sides)
    changed = replace(product, left=left, right=right)
    registers = {product.result: plan.buffers[product.result]}
    registers.update({operand.ref.buffer: operand.buffer for operand in operands.values()})
    stages = [*(operand.stage for operand in operands.values()), *plan.stages]
    origins = dict.fromkeys((*plan.origins, *(o for operand in operands.values() for o in operand.origins)))
    new = assembled(schedule.buffers, changed, stages, plan.outputs, tuple(origins), registers)
    written = {root_of(schedule, name) for name in plan.outputs if name not in proposal.freed}
    loaded = [value.args[0] for stage in stages[:-1] for value in stage.body.statements if value.op == "load"]
    if not written.isdisjoint(root_of(schedule, name) for name in loaded):
        return None  # programs would write over what others still read
    steps = sorted({operand.step for operand in operands.values()})
    freed = tuple(name for operand in operands.values() for name in operand.freed)
    return Proposal(new, (*steps, *proposal.replaced), (*proposal.freed, *freed), proposal.product)


def _operand(
    schedule: Schedule, proposal: Proposal, ref: TensorRef, side: str, loops: tuple[Var, ...]
) -> _Operand | None:
    step = _maker(schedule, ref.buffer, proposal)
    if step is None:
        return None
    plan, buffer = schedule.steps[step], schedule.buffers[ref.buffer]
    assert isinstance(plan, KernelPlan)  # as `_maker` found
    body = plan.stages[0].body
    store = body.statements[-1]
    flat = sum_of([ref.offset, *(loop * stride for loop, stride in zip(loops, ref.stride))])
    inverse = inverse_of(store.args[1], body, flat, product(buffer.size))
    if inverse is None:
        return None
    old = schedule.aliases.get(ref.buffer)
    loads: dict[str, tuple[str, Expr | None]] = {ref.buffer: (old, None)} if old is not None else {}
    values = Rewriter(inverse, Simplifier(dict(zip(loops, ref.size))), loads).run(body.statements)
    register = f"product.{side}"  # no buffer has such a name
    values[-1] = replace(values[-1], args=(register, flat, values[-1].args[2], None))
    stage = Stage(LoopBody(loops, ref.size, (), (), values), len(loops), plan.stages[0].node)
    freed = (ref.buffer,) if old is not None else ()
    return _Operand(replace(ref, buffer=register), replace(buffer, name=register), stage, step, freed, plan.origins)


def _maker(schedule: Schedule, name: str, proposal: Proposal) -> int | None:
    """The kernel that makes a buffer for a product alone, where what it reads stays until the product runs."""
    last = proposal.replaced[-1]
    makers = [number for number, step in enumerate(schedule.steps) if name in written_by(step)]
    if len(makers) != 1 or needed_later(schedule, name, last) or name in schedule.aliases.values():
        return None
    number, plan = makers[0], schedule.steps[makers[0]]
    if not isinstance(plan, KernelPlan) or number in proposal.replaced or not _is_short(schedule, plan):
        return None
    between = [step for place, step in enumerate(schedule.steps) if number < place <= last]
    readers = [step for step in between if name in read_by(step)]
    used = [ref.buffer for ref in tensor_refs(schedule.steps[proposal.product].args)]  # type: ignore[union-attr]
    if readers != [schedule.steps[proposal.product]] or used.count(name) != 1:
        return None
    sources = {root_of(schedule, source) for source in (*plan.inputs, *plan.outputs)}
    kept = all(root_of(schedule, written) not in sources for step in between for written in written_by(step))
    return number if kept else None


def _is_short(schedule: Schedule, plan: KernelPlan) -> bool:
    """Whether a kernel is one short loop that stores one buffer, and reads no product."""
    if len(plan.stages) != 1 or len(plan.outputs) != 1 or plan.symbols or plan.segments or plan.product or plan.scratch:
        return False
    body = plan.stages[0].body
    operations = [value.op for value in statements_of(body)]
    if body.reduction_vars or len(operations) > _MOST_STATEMENTS or operations.count("load") > _MOST_LOADS:
        return False
    if not {*CHECKS, "reduction", "scan", "masked"}.isdisjoint(operations) or operations.count("store") != 1:
        return False
    store = body.statements[-1]
    if store.op != "store" or store.args[3] or any(as_int(size) is None for size in body.sizes):
        return False
    calls = [step for step in schedule.steps if isinstance(step, ExternNode) and str(step.target) in PRODUCTS]
    results = {name for step in calls for name in written_by(step)}
    return results.isdisjoint(root_of(schedule, name) for name in (*plan.inputs, *plan.outputs))
