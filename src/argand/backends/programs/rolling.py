"""Loops over time steps in programs of inference: where the body is one small kernel, that is called once a step.

Compiling such a program takes as long for a thousand steps as for a hundred, but for tracing them. Bodies of several
kernels or with products stay unrolled: their steps would go through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torch import fx

from argand import events
from argand.codegen.host.kernels import kernel_source
from argand.config import config
from argand.graph.metadata.strides import is_contiguous
from argand.graph.nodes.program import AtenProgram, copied
from argand.graph.sizes.expr import Expr, as_int
from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import TensorRef
from argand.passes.rolling.rewriting import Body, body_of, layout_of, roll
from argand.passes.rolling.windows import Loop, find_loop
from argand.runtime.kernels.steps import MOST_POINTERS, Steps

_MOST_ELEMENTS = 1 << 15  # of a result of a step: larger ones leave the caches between two steps
_MOST_BYTES = 64 << 20  # of all steps' results
_MOST_LOOPS = 8

ScheduleProgram = Callable[[AtenProgram], Schedule]


def with_loops(program: AtenProgram, schedule_program: ScheduleProgram) -> AtenProgram:
    """A program of inference with loops for rounds of nodes that do the same; itself where there are none.

    Arguments:
        schedule_program: from a program to its kernels.
    """
    if program.kind != "inference" or program.scalars or config.check_numerics or not config.fusion:
        return program
    if "roll_loops" in str(config.disabled_passes) or find_loop(program.graph) is None:
        return program
    with events.span("roll_loops", "passes"):
        rolled = copied(program)  # where no compiler is found, eager's kernels run the one that came
        for _ in range(_MOST_LOOPS):
            loop = find_loop(rolled.graph)
            if loop is None or not _rolled(rolled, loop, schedule_program):
                break
    return rolled


def _rolled(program: AtenProgram, loop: Loop, schedule_program: ScheduleProgram) -> bool:
    body = body_of(loop, program)
    if body is None or not _is_small(loop, body):
        return False
    schedule = schedule_program(body.program)
    if len(schedule.steps) != 1 or schedule.constants or schedule.aliases:
        return False
    (plan,) = schedule.steps
    if not isinstance(plan, KernelPlan) or not set(plan.inputs) <= set(schedule.inputs):
        return False
    source = kernel_source(schedule)
    outputs = _outputs(schedule, plan)
    if source is None or plan.symbols or plan.name in source.flagged or plan.segments or outputs is None:
        return False
    if plan.name not in source.symbols or len(plan.inputs) + len(plan.outputs) > MOST_POINTERS:
        return False
    inputs: dict[fx.Node, int] = {}
    pointers = []
    for name in (*plan.inputs, *plan.outputs):
        if name in outputs:
            pointers.append(("write", outputs[name], 0, 0))
        else:
            pointers.append(_pointer(loop, body, schedule.inputs.index(name), inputs))
    results = []
    for offset in body.results:
        val = loop.rounds[0][offset].meta["val"]
        start = inputs.setdefault(loop.carried[offset], len(inputs)) if offset in loop.carried else -1
        results.append((tuple(val.shape), str(val.dtype).removeprefix("torch."), start))
    whole = [_moved(pointer, body, loop) for pointer in pointers]
    layouts = tuple(layout_of(node) for node in inputs)
    steps = Steps(source.symbols[plan.name], len(loop.rounds), layouts, tuple(results), tuple(whole))
    roll(program, loop, body, source.text, steps, list(inputs))
    events.emit("loop", "passes", f"{len(loop.rounds)} steps of {len(loop.rounds[0])} operations are one loop")
    return True


def _is_small(loop: Loop, body: Body) -> bool:
    vals = [loop.rounds[0][offset].meta["val"] for offset in body.results]
    elements = [prod(val.shape) for val in vals]
    total = sum(count * val.element_size() for count, val in zip(elements, vals)) * len(loop.rounds)
    return all(0 < count <= _MOST_ELEMENTS for count in elements) and total <= _MOST_BYTES


def _outputs(schedule: Schedule, plan: KernelPlan) -> dict[str, int] | None:
    """Which result each buffer that the kernel writes is; None where one is no whole buffer, or none of the results."""
    numbers: dict[str, int] = {}
    for number, ref in enumerate(schedule.outputs):
        if not isinstance(ref, TensorRef) or ref.buffer in numbers or ref.buffer not in plan.outputs or ref.dtype:
            return None
        buffer = schedule.buffers[ref.buffer]
        if as_int(ref.offset) != 0 or not (_is_dense(ref.size, ref.stride) and _is_dense(buffer.size, buffer.stride)):
            return None
        numbers[ref.buffer] = number
    return numbers if set(numbers) == set(plan.outputs) else None


def _is_dense(size: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    sizes, strides = ([n for n in map(as_int, numbers) if n is not None] for numbers in (size, stride))
    return len(sizes) == len(strides) == len(size) and is_contiguous(sizes, strides)


def _pointer(loop: Loop, body: Body, number: int, inputs: dict[fx.Node, int]) -> tuple[str, int, int, int]:
    """What an input of the body is."""
    if number < len(body.outside):
        return ("input", inputs.setdefault(body.outside[number], len(inputs)), 0, 0)
    number -= len(body.outside)
    if number < len(body.over):
        over = loop.over[body.over[number]]
        stride = over.source.meta["val"].stride(over.dim)
        return ("input", inputs.setdefault(over.source, len(inputs)), over.first * stride, over.step * stride)
    return ("read", body.results.index(body.carried[number - len(body.over)]), 0, 0)


def _moved(pointer: tuple[str, int, int, int], body: Body, loop: Loop) -> tuple[str, int, int, int]:
    """A pointer to a result with where it begins, and how far it advances."""
    kind, number, *_ = pointer
    if kind == "input":
        return pointer
    offset = body.results[number]
    size = prod(loop.rounds[0][offset].meta["val"].shape)
    return (kind, number, size if kind == "write" and offset in loop.carried else 0, size)
