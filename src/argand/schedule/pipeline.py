"""The scheduler's passes, in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from argand import events
from argand.config import config
from argand.ir.kernel import KernelPlan, Schedule, Step
from argand.ir.loops import Buffer, ExternNode, LoopNode, Origin, Program
from argand.ir.target import Target, Targets, on_cpu
from argand.schedule import dump
from argand.schedule.access import Graph, build_graph, is_empty
from argand.schedule.collectives import arrive_in_place, overlap
from argand.schedule.fusion.forms import Forms
from argand.schedule.fusion.fuse import Unit, fuse, order
from argand.schedule.inplace import reuse_in_place
from argand.schedule.joining.equal_kernels import join_alike
from argand.schedule.joining.parts import join_parts
from argand.schedule.joining.segments import join_segments
from argand.schedule.joining.small_kernels import join_small
from argand.schedule.signature import signature
from argand.schedule.split import split_reductions
from argand.schedule.verify import verify, verify_legal

if TYPE_CHECKING:
    import torch

_NUMBER = re.compile(r"(_\d+)+$")
# Parts of a kernel's name; the rest of the ops is in its comments.
_MAX_NAMES = 6


def schedule(
    program: Program,
    *,
    targets: Targets | None = None,
    fusion: bool = True,
    whole: Callable[[Schedule], Schedule] | None = None,
) -> Schedule:
    """Order and fuse a loop program.

    Arguments:
        program: what lowering made.
        targets: what kernels may be like on each device; a CPU of one thread where nothing is said.
        fusion: False gives one kernel per loop node (for tests and for finding faults).
        whole: makes the schedule of a program of which this one is a part.
    """
    known = _targets(program, targets or on_cpu(1))
    program = split_reductions(program, known)
    graph = build_graph(program)
    forms = Forms(program.buffers, known)
    units = order(fuse(graph, program.buffers, forms, enabled=fusion))
    if events.bus.wanted("fusion") or events.bus.wanted("compute_dependencies"):
        _report(graph, units)
    steps = _emit(graph, units, forms)
    if fusion:
        steps = join_small(join_parts(join_alike(steps, known), known), known)
    steps = overlap(steps, program.buffers)
    ordered = Schedule(
        steps,
        list(program.inputs),
        list(program.input_symbols),
        _existing(program, steps),
        dict(program.constants),
        list(program.outputs),
        list(program.mutations),
        hints=dict(program.hints),
        floats=program.floats,
        graph=program.graph,
        values=program.values,
        arrivals=program.arrivals,
        targets=known,
    )
    if fusion:
        arrive_in_place(ordered)
        reuse_in_place(ordered)
    name_kernels(ordered)
    if whole is not None:
        ordered = whole(ordered)
    if config.verify_ir:
        verify(ordered)
    events.emit(
        "schedule",
        "schedule",
        lambda: _text("order_text", ordered),
        kernels=len(ordered.kernels()),
        steps=len(ordered.steps),
    )
    return ordered


def join_kernels(ordered: Schedule) -> None:
    """Join alike kernels, in place: the last thing to do to a schedule, when it is known what is written where."""
    before = len(ordered.steps)
    join_segments(ordered)
    if len(ordered.steps) != before:
        name_kernels(ordered)
    if config.verify_ir:
        verify(ordered)


def _targets(program: Program, find: Targets) -> dict[torch.device, Target]:
    devices = dict.fromkeys(buffer.device for buffer in program.buffers.values())
    by_device = {device: find(device) for device in devices}
    return {device: target for device, target in by_device.items() if target is not None}


def _emit(graph: Graph, units: list[Unit], forms: Forms) -> list[Step]:
    steps: list[Step] = []
    for unit in units:
        if unit.group is None:
            node = graph.nodes[unit.positions[0]]
            assert isinstance(node, ExternNode)  # loop nodes always have a group
            steps.append(node)
            continue
        mine = set(unit.positions)
        needed = frozenset(
            name
            for name in unit.group.writes()
            if name in graph.kept or name not in graph.readers or any(r not in mine for r in graph.readers[name])
        )
        plan = forms.emit(unit.group, needed)
        verify_legal(plan, forms.targets[plan.device])
        steps.append(plan)
    return steps


def _existing(program: Program, steps: Iterable[Step]) -> dict[str, Buffer]:
    names: dict[str, None] = dict.fromkeys((*program.inputs, *program.constants))
    for step in steps:
        if isinstance(step, KernelPlan):
            names.update(dict.fromkeys((*step.inputs, *step.outputs)))
        else:
            names.update(dict.fromkeys(name for name in step.outputs if name is not None))
    names.update(dict.fromkeys(name for name, buffer in program.buffers.items() if is_empty(buffer)))
    return {name: program.buffers[name] for name in names if name in program.buffers}


def name_kernels(ordered: Schedule) -> None:
    """Name kernels after their ops; kernels that do the same share one name, and so one compiled function.

    Whoever changes kernels that have names (which buffers are written in place, say) names all of them again.
    """
    known: dict[str, str] = {}
    count = 0
    for step in ordered.steps:
        if not isinstance(step, KernelPlan):
            continue
        key = signature(step)
        name = known.get(key)
        if name is None:
            name = known[key] = f"{ordered.targets[step.device].name}_fused_{_ops(step.origins)}_{count}"
            count += 1
        step.name = name


def _ops(origins: Iterable[Origin]) -> str:
    names: dict[str, None] = {}
    for origin in origins:
        names[re.sub(r"\W", "_", _NUMBER.sub("", origin.fx_node)).strip("_")] = None
    used = [name for name in names if name] or ["loop"]
    return "_".join(used[:_MAX_NAMES])


def _report(graph: Graph, units: list[Unit]) -> None:
    fused = [unit for unit in units if len(unit.positions) > 1]
    loops = sum(1 for node in graph.nodes if isinstance(node, LoopNode))
    events.emit(
        "fusion", "schedule", lambda: _text("fusion_text", graph, units),
        loop_nodes=loops, units=len(units), fused=len(fused),
    )  # fmt: skip
    events.bus.detail("compute_dependencies", "schedule", lambda: _text("dependencies_text", graph))


def _text(function: str, *args: object) -> str:
    """A text of `schedule.dump`, which is imported only when somebody reads it."""
    text: str = getattr(dump, function)(*args)
    return text
