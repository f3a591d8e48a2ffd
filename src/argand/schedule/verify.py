"""Checks what a schedule promises to code generation."""

from __future__ import annotations

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr, Var
from argand.ir.kernel import KernelPlan, Schedule, Stage
from argand.ir.loops import LoopBlock, Value, tensor_refs
from argand.ir.target import Target
from argand.schedule.access import is_empty
from argand.schedule.collectives import verify_collectives
from argand.schedule.joining.segments import Interval, overlap, stored_part
from argand.schedule.signature import signature


def verify(schedule: Schedule) -> None:
    """Every buffer is written before it is read, and every kernel keeps the rules of `ir.kernel`.

    Raises:
        InternalError: what is wrong, and where.
    """
    defined = {*schedule.inputs, *schedule.constants}
    named: dict[str, str] = {}
    defined.update(name for name, buffer in schedule.buffers.items() if is_empty(buffer))
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            verify_kernel(step)
            text = signature(step)
            _require(named.setdefault(step.name, text) == text, f"two kernels that differ are {step.name}")
            _require(step.device in schedule.targets, f"{step.name} runs on {step.device}, which has no target")
            verify_legal(step, schedule.targets[step.device])
            reads, writes = step.inputs, step.outputs
            taken = {schedule.aliases[name] for name in writes if name in schedule.aliases}
            _require(taken <= defined, f"{step.name} writes over memory that holds nothing yet: {taken - defined}")
        else:
            reads = tuple(ref.buffer for ref in tensor_refs((step.args, step.kwargs)))
            writes = tuple(name for name in step.outputs if name is not None)
        missing = [name for name in reads if name not in defined]
        _require(not missing, f"step {step.name} reads {missing} before they are written")
        defined.update(writes)
    for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations])):
        _require(ref.buffer in defined, f"output buffer {ref.buffer} is never written")
    verify_collectives(schedule)


def verify_kernel(plan: KernelPlan) -> None:
    """Raises InternalError when `plan` breaks a rule."""
    known = {*plan.inputs, *plan.outputs, *plan.scratch, *plan.registers}
    _require(known <= plan.buffers.keys(), f"{plan.name}: no description of {known - plan.buffers.keys()}")
    _require(not set(plan.inputs) & set(plan.outputs), f"{plan.name}: an input is an output too")
    _verify_segments(plan)
    elsewhere = sorted(name for name, buffer in plan.buffers.items() if buffer.device != plan.device)
    _require(not elsewhere, f"{plan.name} runs on {plan.device}, but {elsewhere} are elsewhere")
    outer = tuple(var for var, _ in plan.outer)
    _require(plan.product is None or not outer, f"{plan.name}: shared loops beside a product")
    _require(len(plan.stages) > 1 or not outer, f"{plan.name}: one stage, yet shared loops")
    for stage in plan.stages:
        body = stage.body
        _require(body.vars[: len(outer)] == outer, f"{plan.name}: a stage does not begin with the shared loops")
        _require(len(body.vars) == len(outer) + stage.inner, f"{plan.name}: a stage miscounts its own loops")
        _require(len(body.vars) == len(body.sizes), f"{plan.name}: loops without size")
        _verify_statements(plan, stage, known)


def _verify_segments(plan: KernelPlan) -> None:
    """Segments name what the stages name, and none touches elements that another writes."""
    written: dict[str, list[Interval | None]] = {}
    for segment in plan.segments:
        names = set(segment.buffers.values())
        _require(names <= {*plan.inputs, *plan.outputs}, f"{plan.name}: a segment's buffers are no arguments")
        own = plan.of_segment(segment)
        for first, name in segment.buffers.items():
            if name in plan.outputs:
                part = stored_part(own, first, segment.numbers)
                clear = not any(overlap(part, other) for other in written.get(name, ()))
                _require(clear, f"{plan.name}: {name} is in two segments")
                written.setdefault(name, []).append(part)
    missing = set(plan.outputs) - set(written) if plan.segments else set()
    _require(not missing, f"{plan.name}: no segment writes {missing}")


def verify_legal(plan: KernelPlan, target: Target) -> None:
    """Raises InternalError when the device cannot run the stages of `plan`."""
    _require(len(plan.segments) <= target.segments, f"{plan.name}: {len(plan.segments)} segments")
    scans = any(statement.op == "scan" for stage in plan.stages for statement in stage.body.statements)
    _require(not scans or target.scan_length > 0, f"{plan.name}: a scan")
    if plan.product is not None:
        _require(target.product_kernels, f"{plan.name}: a product")
        return
    if len(plan.stages) < 2:
        return
    _require(target.barriers or bool(plan.outer), f"{plan.name}: stages without shared loops")
    for stage in plan.stages:
        nested = bool(stage.inner and stage.body.reduction_vars)
        _require(target.nested_reductions or not nested, f"{plan.name}: a stage has own loops around a reduction")


def _verify_statements(plan: KernelPlan, stage: Stage, known: set[str]) -> None:
    loops = {*stage.body.vars, *stage.body.reduction_vars}
    stored: dict[str, set[Expr]] = {}

    def visit(statements: list[Value], values: set[int]) -> None:
        for statement in statements:
            where = f"{plan.name}, statement {statement.id} ({statement.op})"
            for arg in statement.args:
                if isinstance(arg, Value):
                    _require(arg.id in values, f"{where}: value {arg.id} is not defined")
                elif isinstance(arg, LoopBlock):
                    inner = set(values)
                    visit(arg.statements, inner)
                    _require(arg.result.id in inner, f"{where}: block result {arg.result.id} is not defined")
                elif isinstance(arg, Expr):
                    for atom in arg.free:
                        named = isinstance(atom, Var) and atom.name[0] == "i" and int(atom.name[1:]) in values
                        _require(not isinstance(atom, Var) or atom in loops or named, f"{where}: unknown {atom}")
            _require(statement.id not in values, f"{where}: defined twice")
            values.add(statement.id)
            if statement.op in ("load", "store"):
                name, index = statement.args[:2]
                _require(name in known, f"{where}: buffer {name} is not an argument")
                scalar = name in plan.registers and plan.product is None
                _require(not scalar or index == 0, f"{where}: a register has index 0")
                if statement.op == "load":
                    _require(name not in stored, f"{where}: {name} was stored in this stage")
                    _require(name not in plan.inputs or name not in plan.outputs, f"{where}: input stored")
                else:
                    _require(name not in plan.inputs, f"{where}: store to an input")
                    stored.setdefault(name, set()).add(index)

    visit(stage.body.statements, set())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InternalError(f"the schedule is wrong: {message}")
