"""Loops over time steps in programs of inference: where a round is small kernels and products, these run once a step.

Compiling such a program takes as long for a thousand steps as for a dozen, but for tracing them. Rounds with other
calls stay unrolled: their steps would go through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from argand import events
from argand.codegen.host.convolutions import in_rows
from argand.codegen.host.kernels import kernel_source
from argand.codegen.host.module import KernelSource
from argand.config import config
from argand.graph.nodes.program import AtenProgram, copied
from argand.graph.sizes.expr import as_int
from argand.ir.kernel import KernelPlan, Schedule, memory_of
from argand.ir.loops import ExternNode, TensorRef
from argand.passes.rolling import windows
from argand.passes.rolling.first_look import may_have_loops
from argand.passes.rolling.products import move_products
from argand.passes.rolling.results import layout_of
from argand.passes.rolling.rewriting import Body, body_of, roll
from argand.passes.rolling.slices import even_out
from argand.passes.rolling.windows import Loop, find_loop
from argand.runtime.kernels.steps import Call, Steps

_MOST_BYTES = 64 << 20  # of all steps' results
_MOST_LOOPS = 8
_LINE = 64  # bytes between buffers in the room of a round
_PRODUCTS = {"aten.mm.default": 2, "aten.addmm.default": 2, "aten.bmm.default": 3, "aten.baddbmm.default": 3}

ScheduleProgram = Callable[[AtenProgram], Schedule]


def with_loops(program: AtenProgram, schedule_program: ScheduleProgram, *, tells: bool) -> AtenProgram:
    """A program of inference with loops for rounds of nodes that do the same; itself where there are none.

    Arguments:
        schedule_program: from a program to its kernels.
        tells: whether events say what the loops are.
    """
    if program.kind not in ("inference", "forward", "backward") or program.scalars:
        return program
    if config.check_numerics or not config.fusion:
        return program
    if "roll_loops" in str(config.disabled_passes) or not may_have_loops(program.graph):
        return program
    with events.span("roll_loops", "passes"):
        evened = copied(program)  # where no compiler is found, eager's kernels run the one that came
        even_out(evened)
        rolled = False
        for _ in range(_MOST_LOOPS):
            loop = find_loop(evened.graph)
            while loop is not None and move_products(evened, loop):
                rolled, loop = True, find_loop(evened.graph)
            if loop is None or not _rolled(evened, loop, schedule_program, tells):
                break
            rolled = True
    return evened if rolled else program


def _rolled(program: AtenProgram, loop: Loop, schedule_program: ScheduleProgram, tells: bool) -> bool:
    body = body_of(loop, program)
    if body is None or not _is_small(loop, body):
        return False
    round_ = _Round(loop, body, schedule_program(body.program))
    steps = round_.steps()
    if steps is None:
        return False
    roll(program, loop, body, round_.source.text if round_.source is not None else "", steps, list(round_.inputs))
    if tells:
        events.emit("loop", "passes", f"{len(loop.rounds)} steps of {len(loop.rounds[0])} operations are one loop")
    return True


def _is_small(loop: Loop, body: Body) -> bool:
    vals = [loop.rounds[0][offset].meta["val"] for offset in body.results]
    elements = [prod(val.shape) for val in vals]
    if loop.has_products:
        return all(0 < count <= windows.MOST_ELEMENTS_WITH_PRODUCTS for count in elements)
    total = sum(count * val.element_size() for count, val in zip(elements, vals)) * len(loop.rounds)
    return all(0 < count <= windows.MOST_ELEMENTS for count in elements) and total <= _MOST_BYTES


class _Round:
    """A scheduled round, and what its steps are."""

    def __init__(self, loop: Loop, body: Body, schedule: Schedule) -> None:
        self.loop, self.body, self.schedule = loop, body, schedule
        self.source: KernelSource | None = None
        self.inputs: dict[fx.Node, int] = {}
        self.pointers: dict[tuple[str, int, int, int, int, int], int] = {}
        self.rooms: dict[str, int] = {}
        self.room = 0
        self.results: dict[str, int] = {}

    def steps(self) -> Steps | None:
        """None where a step is neither a kernel nor a product, or something else is as it may not be."""
        schedule, body, loop = self.schedule, self.body, self.loop
        outputs = _outputs(schedule)
        if outputs is None or schedule.constants or not schedule.steps:
            return None
        self.results, self.source = outputs, kernel_source(schedule)
        calls = [self._kernel(s) if isinstance(s, KernelPlan) else self._product(s) for s in schedule.steps]
        results = []
        for offset in body.results:
            val = loop.rounds[0][offset].meta["val"]
            start = self.inputs.setdefault(loop.carried[offset], len(self.inputs)) if offset in loop.carried else -1
            dtype = str(val.dtype).removeprefix("torch.")
            results.append((tuple(val.shape), dtype, start, body.rows(offset, len(loop.rounds))))
        layouts = tuple(layout_of(node) for node in self.inputs)
        known = tuple(call for call in calls if call is not None)
        if len(known) < len(calls):
            return None
        return Steps(len(loop.rounds), layouts, tuple(results), self.room, tuple(self.pointers), known)

    def _kernel(self, plan: KernelPlan) -> Call | None:
        source = self.source
        if source is None or plan.symbols or plan.segments or plan.name in source.flagged:
            return None
        if plan.name not in source.symbols:
            return None
        pointers = [self._pointer(name) for name in (*plan.inputs, *plan.outputs)]
        if None in pointers:
            return None
        return Call(tuple(pointer for pointer in pointers if pointer is not None), source.symbols[plan.name])

    def _product(self, node: ExternNode) -> Call | None:
        rank = _PRODUCTS.get(str(node.target))
        refs = [arg for arg in node.args if isinstance(arg, TensorRef)]
        name = node.outputs[0] if len(node.outputs) == 1 else None
        if rank is None or node.kwargs or len(refs) != len(node.args) or name is None:
            return None
        out = self.schedule.buffers[name]
        if out.dtype not in (torch.float32, torch.float64) or any(
            ref.dtype is not None or self.schedule.buffers[ref.buffer].dtype is not out.dtype for ref in refs
        ):
            return None
        layouts = [(ref.size, ref.stride) for ref in refs]
        layouts = [*([] if len(refs) == 3 else [((), ())]), *layouts, (out.size, out.stride)]
        numbers = [[as_int(number) for part in layout for number in part] for layout in layouts]
        if any(number is None for each in numbers for number in each):
            return None
        sizes = [tuple(int(as_int(n) or 0) for n in size) for size, _ in layouts]
        strides = [_three(size, tuple(int(as_int(n) or 0) for n in stride), sizes[-1])
                   for size, (_, stride) in zip(sizes, layouts)]  # fmt: skip
        batch, m, n = (1, *sizes[-1])[-3:]
        k = sizes[1][-1]
        operands = [self._pointer(ref.buffer, int(as_int(ref.offset) or 0) * out.dtype.itemsize) for ref in refs]
        pointers = [*([] if len(refs) == 3 else [-1]), *operands, self._pointer(name)]
        if min(batch, m, n, k) < 1 or None in pointers or any(as_int(ref.offset) is None for ref in refs):
            return None
        right = list(self.pointers)[pointers[2] or 0]
        constant = right[0] == "input" and right[3] == 0
        return Call(
            tuple(pointer for pointer in pointers if pointer is not None), "", str(out.dtype).removeprefix("torch."),
            (batch, m, n, k), tuple(number for each in strides for number in each), constant,
        )  # fmt: skip

    def _pointer(self, name: str, begin: int = 0) -> int | None:
        """The number of the pointer to a buffer; None where its memory is that of an input too."""
        schedule = self.schedule
        root = memory_of(schedule.aliases, name)
        alike = [other for other in schedule.buffers if memory_of(schedule.aliases, other) == root]
        results = {self.results[other] for other in alike if other in self.results}
        if len(results) > 1 or (root in schedule.inputs and name != root):
            return None
        if name in schedule.inputs:
            kind, number, first, *rest = self._input(schedule.inputs.index(name))
        elif results:
            kind, number, first, *rest = self._result(results.pop(), write=True)
        else:
            kind, number, first, rest = "room", 0, self._room(root), [0, 0, 0]
        pointer: Any = (kind, number, first + begin, *rest)
        return self.pointers.setdefault(pointer, len(self.pointers))

    def _room(self, name: str) -> int:
        if name not in self.rooms:
            buffer = self.schedule.buffers[name]
            self.rooms[name] = self.room
            size = prod(as_int(n) or 1 for n in buffer.size) * buffer.dtype.itemsize
            self.room += (size + _LINE - 1) // _LINE * _LINE
        return self.rooms[name]

    def _input(self, number: int) -> tuple[str, int, int, int, int, int]:
        body, loop = self.body, self.loop
        if number < len(body.outside):
            return ("input", self.inputs.setdefault(body.outside[number], len(self.inputs)), 0, 0, 0, 0)
        number -= len(body.outside)
        if number < len(body.over):
            over = loop.over[body.over[number]]
            val = over.source.meta["val"]
            stride = val.stride(over.dim) * val.element_size()
            place = self.inputs.setdefault(over.source, len(self.inputs))
            return ("input", place, over.first * stride, over.step * stride, 0, 0)
        return self._result(body.results.index(body.carried[number - len(body.over)]), write=False)

    def _result(self, number: int, *, write: bool) -> tuple[str, int, int, int, int, int]:
        offset = self.body.results[number]
        val = self.loop.rounds[0][offset].meta["val"]
        size = prod(val.shape) * val.element_size()
        ahead = int(write and offset in self.loop.carried)
        if offset in self.body.kept:
            return ("result", number, size * ahead, size, 0, 0)
        return ("result", number, 0, size, 1 + (offset in self.loop.carried), ahead)


def _three(size: Sequence[int], stride: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """Strides of an operand's batch, rows and columns; 0 where its size is one and it is repeated."""
    padded = [0] * (3 - len(size)), [0] * (3 - len(size))
    numbers = [*padded[1], *stride]
    sizes = [*padded[0], *size]
    full = [1] * (3 - len(result)) + list(result)
    return tuple(0 if length <= 1 and whole != 1 else step for length, step, whole in zip(sizes, numbers, full))


def _outputs(schedule: Schedule) -> dict[str, int] | None:
    """Which result each buffer is; None where one is no whole buffer, or an input."""
    numbers: dict[str, int] = {}
    for number, ref in enumerate(schedule.outputs):
        if not isinstance(ref, TensorRef) or ref.buffer in numbers or ref.buffer in schedule.inputs or ref.dtype:
            return None
        buffer = schedule.buffers[ref.buffer]
        if as_int(ref.offset) != 0 or not (in_rows(ref.size, ref.stride) and in_rows(buffer.size, buffer.stride)):
            return None
        numbers[ref.buffer] = number
    return numbers
