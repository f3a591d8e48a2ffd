"""What an iteration consists of, as torch's profiler sees it: operations, kernels, library calls, and the rest."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import Any

import torch

from argand.config import config
from argand.debug import gpus
from argand.debug.benchmark.work import GraphWork, Work, flops_of, is_library, profile_name
from argand.debug.tensors import tensors_in
from argand.graph.compat import DispatchMode
from argand.graph.profiler_compat import allocations
from argand.quick_dataclasses import dataclass

_ROOT = "argand bench iteration"
_WRAPPERS = ("Argand-Compiled Region", "CompiledFunction", "autograd::engine", "torch::autograd::", "ProfilerStep")
_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")


@dataclass(slots=True)
class Row:
    """One line of a table: an operation or a kernel.

    Arguments:
        name: as in torch.profiler.
        kind: "kernel", "library", "allocation" or "operation".
        calls, us: in an iteration.
        bytes: read and written per iteration; None where not known.
        flops: per iteration; None where not known.
        fused: operations that a kernel computes.
    """

    name: str
    kind: str
    calls: float = 0.0
    us: float = 0.0
    bytes: float | None = None
    flops: float | None = None
    fused: tuple[str, ...] = ()

    @property
    def gbs(self) -> float | None:
        return self.bytes / self.us / 1e3 if self.bytes is not None and self.us else None

    @property
    def gflops(self) -> float | None:
        return self.flops / self.us / 1e3 if self.flops is not None and self.us else None


@dataclass(slots=True)
class Side:
    """An iteration, eager or compiled.

    Arguments:
        rows: what ran, what took longest first.
        outside_us: time under the profiler outside all rows: Python, guards, host code.
        allocated, allocations: bytes and number of allocations.
        regions: compiled regions that were entered.
    """

    rows: list[Row] = field(default_factory=list)
    outside_us: float = 0.0
    allocated: float = 0.0
    allocations: float = 0.0
    regions: float = 0.0

    @property
    def total_us(self) -> float:
        return sum(row.us for row in self.rows) + self.outside_us

    def of(self, *kinds: str) -> list[Row]:
        """Rows of these kinds."""
        return [row for row in self.rows if row.kind in kinds]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        total = self.total_us or 1.0
        return {
            "rows": [
                {**asdict(row), "share": row.us / total, "gbs": row.gbs, "gflops": row.gflops} for row in self.rows
            ],
            "outside_us": self.outside_us,
            "allocated": self.allocated,
            "allocations": self.allocations,
            "regions": self.regions,
        }


def _bytes_of(tensor: torch.Tensor) -> int:
    count = int(tensor.element_size())
    for size, stride in zip(tensor.shape, tensor.stride()):
        count *= size if stride else min(size, 1)
    return count


class _Counter(DispatchMode):
    """Counts what every ATen operation reads, writes and computes."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[str, list[Work]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        returns = func._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        moved = 0
        if not is_view and not profile_name(func).startswith(_ALLOCATES):
            seen: dict[int, torch.Tensor] = {}
            for tensor in tensors_in((args, kwargs, result)):
                if tensor.layout is torch.strided:
                    seen.setdefault(id(tensor), tensor)
            moved = sum(map(_bytes_of, seen.values()))
        self.work[profile_name(func)].append(Work(moved, flops_of(func, args, kwargs, result)))
        return result


def operation_work(run: Callable[[], None]) -> dict[str, list[Work]]:
    """Work of every ATen operation of an eager run, by the name that torch's profiler shows."""
    with _Counter() as counter:
        run()
    return dict(counter.work)


def profile_side(
    run: Callable[[], None],
    between: Callable[[], None],
    operations: Mapping[str, list[Work]],
    graphs: Mapping[str, GraphWork],
    count: int,
) -> Side:
    """Profile some iterations; the fastest counts.

    Arguments:
        run: one iteration.
        between: called before each, not measured.
        operations: eager's operations by name, where this is an eager run: rows are made of these.
        graphs: the compiled graphs, where it is a compiled one.
        count: how many iterations.
    """
    from torch.profiler import ProfilerActivity, profile

    on_gpu = gpus.in_use()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with config.patch({"cpp.enable_kernel_profile": True}):
        between()
        with profile(activities=activities):  # the first one of a process sets things up
            run()
        between()
        with profile(activities=activities, profile_memory=True) as prof:
            for _ in range(count):
                between()
                gpus.synchronize()
                with torch.profiler.record_function(_ROOT):
                    run()
                    gpus.synchronize()
    roots = [event for event in prof.events() if event.cpu_parent is None and event.device_type.name == "CPU"]
    fastest = min((event for event in roots if event.name == _ROOT), key=lambda event: event.cpu_time_total)
    on_gpu = on_gpu and fastest.device_time_total > 0  # a process that uses a GPU may run this on the CPU
    rows = _Rows(operations, graphs, on_gpu)
    rows.descend(fastest)
    for event in roots:  # what other threads did meanwhile
        if event.name != _ROOT and event.thread != fastest.thread and _within(event, fastest):
            rows.add(event)
    sizes = allocations(prof)
    if on_gpu:  # what the GPU is not busy in
        rows.outside = max(0.0, fastest.cpu_time_total - sum(row.us for row in rows.by_name.values()))
    side = rows.side()
    side.allocated, side.allocations = sum(sizes) / count, len(sizes) / count
    return side


def _within(event: Any, other: Any) -> bool:
    start: float = event.time_range.start
    return bool(other.time_range.start <= start < other.time_range.end)


class _Rows:
    """Sorts the profiler's events into rows.

    Arguments:
        operations, graphs: as `profile_side`.
        on_gpu: a row's time is that of the kernels which it launched.
    """

    def __init__(
        self, operations: Mapping[str, list[Work]], graphs: Mapping[str, GraphWork], on_gpu: bool = False
    ) -> None:
        self.operations = operations
        self.on_gpu = on_gpu
        self.kernels = {name: work for graph in graphs.values() for name, work in graph.kernels.items()}
        self.graphs = graphs
        self.by_name: dict[str, Row] = {}
        self.outside = 0.0
        self.regions = 0

    def descend(self, event: Any) -> None:
        """What is inside a wrapper; the wrapper's own time is nobody's."""
        self.outside += event.self_cpu_time_total
        self.regions += event.name.startswith(_WRAPPERS[0])
        for child in event.cpu_children:
            self.add(child)

    def add(self, event: Any) -> None:
        name = event.name
        if name in self.kernels:
            self._row(name, "kernel", event)
        elif name.startswith("[memory]"):
            return
        elif name.startswith(_WRAPPERS) or (self.operations and name not in self.operations and event.cpu_children):
            self.descend(event)
        elif self.operations and name not in self.operations and not name.startswith("aten::"):
            self.outside += event.cpu_time_total
        else:
            kind = "allocation" if name.startswith(_ALLOCATES) else "operation"
            self._row(name, "library" if is_library(name) else kind, event)

    def _row(self, name: str, kind: str, event: Any) -> None:
        row = self.by_name.setdefault(name, Row(name, kind))
        row.calls += 1
        row.us += event.device_time_total if self.on_gpu else event.cpu_time_total

    def side(self) -> Side:
        """The rows, with what is known of their work."""
        calls = self._library_calls()
        for row in self.by_name.values():
            if row.kind == "kernel":
                work = self.kernels[row.name]
                row.bytes, row.flops, row.fused = work.bytes * row.calls, (work.flops or 0) * row.calls, work.fused
                continue
            known = self.operations.get(row.name) or calls.get(row.name)
            if known:
                share = row.calls / len(known)
                row.bytes = sum(work.bytes for work in known) * share
                flops = [work.flops for work in known if work.flops is not None]
                row.flops = sum(flops) * share if flops else None
        rows = sorted(self.by_name.values(), key=lambda row: -row.us)
        return Side(rows, self.outside, regions=self.regions)

    def _library_calls(self) -> dict[str, list[Work]]:
        """Work of the library calls of the graphs that ran."""
        calls: dict[str, list[Work]] = collections.defaultdict(list)
        for graph in self.graphs.values():
            if not graph.kernels or any(name in self.by_name for name in graph.kernels):
                for name, work in graph.calls.items():
                    calls[name] += work
        return calls
