"""`config.check_numerics`: every kernel's results are compared with ATen's while the program runs.

The ATen graph that was lowered runs beside the compiled one, on the same inputs, in its own dtypes and in float64;
after each kernel the buffers that it wrote and that hold the result of a node are compared. The first that deviates
raises `NumericsError`, which names the kernel, the node and the user's line. Slow, and exact about where an error comes
from.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from argand._core.calls import capture_off
from argand.backends.compile_watchers import CompileProgram, compiled_through
from argand.backends.programs import generation
from argand.backends.registry import Backend
from argand.backends.targets import devices_in, without_target
from argand.debug import accuracy, gpus
from argand.debug.accuracy import Mismatch
from argand.debug.trial.eager import in_float64, values_of_nodes, widened
from argand.debug.trial.kernels import Kernel, Launches, host_module
from argand.errors import ArgandError, UserLine
from argand.graph.nodes.meta import user_line, user_lines
from argand.graph.nodes.printing import target_name
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.expr import Expr, evaluate
from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import TensorRef


class NumericsError(ArgandError):
    """A compiled kernel computes something else than ATen.

    Arguments:
        kernel: its name.
        node: the FX node whose value is wrong.
        mismatch: how.
    """

    stage = "codegen"

    def __init__(self, kernel: str, node: str, mismatch: Mismatch, where: tuple[UserLine, ...] = ()) -> None:
        super().__init__(
            f"the kernel {kernel} computes {node} wrong: {mismatch.text}",
            remedy='compile with backend="aot_eager" meanwhile; ARGAND_REPRO_AFTER=aot ARGAND_REPRO_LEVEL=4 makes a '
            "file that shows the error",
            where=where,
        )
        self.kernel = kernel
        self.node = node
        self.mismatch = mismatch
        self.data = {"output": node.split(" = ")[0], "mismatch": mismatch.kind, "size": mismatch.size}


def checked(function: Backend) -> Backend:
    """A backend whose kernels are checked as they run (those of the native compiler; others are as they were)."""
    return compiled_through(function, _watcher)


def _watcher(compile_program: CompileProgram, backend: str, boxed: bool) -> CompileProgram:
    if backend != "native":
        return compile_program

    def compile_checked(program: AtenProgram) -> Callable[..., Any]:
        if without_target(devices_in(program)):
            return compile_program(program)
        return CheckedGraph(generation.schedule_program(program))

    return compile_checked


class CheckedGraph:
    """A compiled graph that checks its kernels.

    Arguments:
        schedule: what it runs, with `graph` and `values`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.launches = Launches(schedule)
        self.module = host_module(schedule, self._with_check)
        self.nodes: dict[str, fx.Node] = {node.name: node for node in schedule.graph.nodes}
        self.complete = self._complete()
        self.gm = fx.GraphModule(dict(schedule.constants), schedule.graph)
        self.expected: dict[str, Any] = {}
        self.right: dict[str, Any] = {}

    def _complete(self) -> list[list[tuple[str, TensorRef]]]:
        """For each launch, the nodes whose buffers are complete after it."""
        last: dict[str, int] = {}
        for number, plan in enumerate(self.launches.steps):
            for name in plan.outputs:
                last[name] = number
        complete: list[list[tuple[str, TensorRef]]] = [[] for _ in self.launches.steps]
        for node, ref in self.schedule.values.items():
            uninitialised = "empty" in str(self.nodes[node].target)
            if ref.buffer in last and ref.dtype is None and not uninitialised:
                complete[last[ref.buffer]].append((node, ref))
        return complete

    def __call__(self, args: list[Any]) -> Any:
        with capture_off():
            inputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in args]
            state = gpus.generators()
            with torch.no_grad():
                self.expected = values_of_nodes(self.gm, inputs)
                gpus.set_generators(state)
                self.right = _values_in_float64(self.gm, inputs)
            gpus.set_generators(state)
            self.launches.begin(args)
            try:
                return self.module.call(args)
            finally:
                self.expected = self.right = {}

    def _with_check(self, plan: KernelPlan, kernel: Kernel) -> Kernel:
        def run(*args: Any) -> None:
            kernel(*args)
            number, tensors = self.launches.take(args)
            for node, ref in self.complete[number]:
                self._check(plan.name, node, ref, tensors[ref.buffer])

        return run

    def _check(self, kernel: str, name: str, ref: TensorRef, buffer: torch.Tensor) -> None:
        size, stride = (tuple(map(self._number, part)) for part in (ref.size, ref.stride))
        actual = buffer.as_strided(size, stride, buffer.storage_offset() + self._number(ref.offset))
        expected = self.expected.get(name)
        if not isinstance(expected, torch.Tensor):
            return
        right = self.right.get(name)
        node = self.nodes[name]
        arbiter = right if isinstance(right, torch.Tensor) else None
        mismatch = accuracy.compare(expected, actual, arbiter, floor=self._floor(node, expected.dtype))
        if mismatch is not None:
            raise NumericsError(kernel, _code(node), mismatch, user_lines(node))

    def _floor(self, node: fx.Node, dtype: torch.dtype) -> float:
        """Rounding errors of what a value is computed from, where that cancels."""
        if not dtype.is_floating_point:
            return 0.0
        largest = 0.0
        sources = node.all_input_nodes
        if node.target is operator.getitem:
            sources = [further for source in sources for further in source.all_input_nodes]
        for source in sources:
            value = self.expected.get(source.name)
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                largest = max(largest, float(torch.nan_to_num(value.detach(), 0.0, 0.0, 0.0).abs().max()))
        return 16 * torch.finfo(dtype).eps * largest

    def _number(self, value: Expr | int) -> int:
        return int(evaluate(value, defaultdict(int, self.launches.sizes)))


def _code(node: fx.Node) -> str:
    args = ", ".join([str(arg) for arg in node.args] + [f"{key}={value}" for key, value in node.kwargs.items()])
    line = user_line(node)
    return f"{node.name} = {target_name(node.target)}({args})" + (f" ({line})" if line else "")


def _values_in_float64(gm: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    try:
        return values_of_nodes(in_float64(gm), list(map(widened, inputs)))
    except Exception:  # an op without a float64 kernel: eager's values alone decide
        return {}
