"""`argand bench`: the compiled functions of a script, eager against compiled, kernel by kernel.

    recorder = Recorder()
    with recorder.observing():            # every function that is compiled is remembered, with its arguments
        ... run the script ...
    for measured in recorder.measured(8, 3.0):
        print(as_text(measured))

The program runs as it would; what was called is then measured on the arguments that it was called with.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from argand._core import _C
from argand.config import config
from argand.debug import gpus
from argand.debug.benchmark import bench_profile
from argand.debug.benchmark.bench_reasons import Measured, reasons
from argand.debug.benchmark.work import GraphWork, graph_work
from argand.debug.observe import JOINT, Observer, place_of, stand_in
from argand.debug.tensors import tensors_in
from argand.debug.trial.surroundings import Surroundings
from argand.events import Event, bus
from argand.graph.nodes.printing import describe
from argand.ir.kernel import Schedule
from argand.quick_dataclasses import dataclass

_WARM_UP = 3
_MAX_ROUNDS = 200
_MIN_ROUNDS = 5
_MAX_PROFILED = 30


@dataclass(slots=True)
class Call:
    """Arguments of one layout with which a compiled function was called, and the settings it was called under."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    surroundings: Surroundings
    count: int = 0

    def shapes(self) -> str:
        """`f32[8, 16][16, 1]` and so on: dtype, sizes and strides of every tensor."""
        return ", ".join(describe(t) for t in tensors_in((self.args, self.kwargs)))


def _signature(args: Any, kwargs: Any) -> tuple[Any, ...]:
    return (torch.is_grad_enabled(), *((t.shape, t.dtype, t.requires_grad) for t in tensors_in((args, kwargs))))


class Recorded:
    """One compiled function: what was called, and with what."""

    def __init__(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> None:
        self.compiled = compiled
        self.original = original
        self.calls: dict[tuple[Any, ...], Call] = {}

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of this call; of one layout those of the last."""
        signature = _signature(args, kwargs)
        count = self.calls[signature].count if signature in self.calls else 0
        self.calls[signature] = Call(args, kwargs, Surroundings.now(), count + 1)

    @property
    def name(self) -> str:
        bound = getattr(self.original, "__self__", None)
        if isinstance(bound, torch.nn.Module) and self.original.__name__ == "forward":
            return type(bound).__name__
        return str(getattr(self.original, "__qualname__", repr(self.original)))

    @property
    def place(self) -> str:
        return place_of(self.original)

    def usual(self) -> Call:
        """The layout that most calls had; the last of those."""
        return max(reversed(self.calls.values()), key=lambda call: call.count)


class Recorder(Observer):
    """Remembers the compiled functions of a program, their arguments, and what their graphs consist of."""

    def __init__(self) -> None:
        self.all: list[Recorded] = []
        self.graphs: dict[str, GraphWork] = {}
        self.failed: dict[Recorded, str] = {}
        self._current: dict[int, str] = {}

    def function(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, whose calls are remembered."""
        recorded = Recorded(compiled, original)
        self.all.append(recorded)

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            recorded.note(args, kwargs)
            return compiled(*args, **kwargs)

        return stand_in(original, call)

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Take in what is compiled, and what is called; nothing is left to eager's kernels for being slower."""
        remove = bus.subscribe(self._take, ("span_begin", "fused_graph"))
        JOINT.observer = self
        try:
            with config.patch(tell_slower=False):
                yield
        finally:
            JOINT.observer = None
            remove()

    def _take(self, event: Event) -> None:
        thread = threading.get_ident()
        if event.name == "span_begin":
            if event.data.get("span") == "compile_graph":
                self._current[thread] = f"graph_{str(event.data['graph']).rpartition('_')[2]}"
            return
        graph = self._current.get(thread)
        if graph is not None:
            self.take_schedule(graph, event.data["schedule"])

    def take_schedule(self, graph: str, schedule: Schedule) -> None:
        """What a compiled graph consists of; its kernels' names in profiles begin with `graph`."""
        self.graphs[graph] = graph_work(graph, schedule)

    def functions(self) -> list[Recorded]:
        """Those that were called, the most called first."""
        called = [recorded for recorded in self.all if recorded.calls]
        return sorted(called, key=lambda one: -sum(call.count for call in one.calls.values()))

    def measured(self, limit: int, seconds: float) -> list[Measured]:
        """`measure` of the first `limit` functions; those that cannot be called again are in `failed` then."""
        results: list[Measured] = []
        for recorded in self.functions()[:limit]:
            try:
                results.append(measure(recorded, self.graphs, seconds=seconds))
            except Exception as error:  # the function's own: the others are measured all the same
                text = str(error).strip().splitlines()
                self.failed[recorded] = f"{type(error).__name__}{f': {text[0]}' if text else ''}"
        return results


class _Iteration:
    """One iteration of a recorded call: the call, and the backward where the result has one."""

    def __init__(self, recorded: Recorded, call: Call) -> None:
        self.call = call
        self.backward = False
        self.what = "forward"
        leaves = [t for t in tensors_in((call.args, call.kwargs)) if t.is_leaf and t.requires_grad]
        module = getattr(recorded.original, "__self__", None)
        if isinstance(module, torch.nn.Module):
            leaves += [p for p in module.parameters() if p.requires_grad]
        self.leaves = leaves
        self.gradients = [leaf.grad for leaf in leaves]

    def run(self, function: Callable[..., Any]) -> Any:
        result = function(*self.call.args, **self.call.kwargs)
        if self.backward:
            _backward(_differentiable(result))
        return result

    def decide(self, function: Callable[..., Any]) -> None:
        """Find out whether the result has a backward that is still to be made."""
        outputs = _differentiable(self.run(function))
        if not self.call.surroundings.grad or not outputs:
            return
        try:
            _backward(outputs)
        except RuntimeError:  # a training step: its own backward has freed what was saved
            self.what = "call"
        else:
            self.backward, self.what = True, "forward and backward"

    def clear(self) -> None:
        """Gradients as after zero_grad()."""
        for leaf in self.leaves:
            leaf.grad = None

    def restore(self) -> None:
        for leaf, gradient in zip(self.leaves, self.gradients):
            leaf.grad = gradient


def _differentiable(result: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(result) if t.requires_grad and t.grad_fn is not None]


def _backward(outputs: list[torch.Tensor]) -> None:
    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


def measure(recorded: Recorded, graphs: dict[str, GraphWork], *, seconds: float = 3.0) -> Measured:
    """Time a function on the arguments that it was usually called with, and find out where the time goes.

    Arguments:
        recorded: the function.
        graphs: work of the compiled graphs (`Recorder.graphs`).
        seconds: how long to measure, about.
    """
    call = recorded.usual()
    iteration = _Iteration(recorded, call)

    def eager() -> None:
        with regions_off():
            iteration.run(recorded.original)

    def compiled() -> None:
        iteration.run(recorded.compiled)

    with call.surroundings.restored():
        iteration.decide(recorded.compiled)
        times = interleaved({"eager": eager, "compiled": compiled}, iteration.clear, seconds)
        costs = bench_profile.operation_work(eager)
        iteration.clear()
        sides = {}
        for name, run in (("eager", eager), ("compiled", compiled)):
            rows = costs if name == "eager" else {}
            parts = graphs if name == "compiled" else {}
            count = int(min(max(seconds / 8 / min(times[name]), _MIN_ROUNDS), _MAX_PROFILED))
            sides[name] = bench_profile.profile_side(run, iteration.clear, rows, parts, count)
    iteration.restore()
    device = gpus.device_of(tensors_in((call.args, call.kwargs, iteration.leaves)))
    measured = Measured(
        recorded.name,
        recorded.place,
        call.shapes(),
        iteration.what,
        sum(one.count for one in recorded.calls.values()),
        min(times["eager"]) * 1e3,
        min(times["compiled"]) * 1e3,
        sides["eager"],
        sides["compiled"],
        gpus.copy_bandwidth(device) / 1e9,
        call_cost(device) * 1e6,
        len(times["eager"]),
    )
    measured.reasons = reasons(measured)
    return measured


@contextlib.contextmanager
def regions_off() -> Iterator[None]:
    """Compiled functions run eagerly."""
    before = _C.set_regions_enabled(False)
    try:
        yield
    finally:
        _C.set_regions_enabled(before)


def interleaved(
    calls: dict[str, Callable[[], None]], between: Callable[[], None], seconds: float
) -> dict[str, list[float]]:
    """Seconds of each run of each, which take turns, so that what else the machine does meets both."""
    times: dict[str, list[float]] = {name: [] for name in calls}

    def once(name: str) -> float:
        between()
        gpus.synchronize()
        start = time.perf_counter()
        calls[name]()
        gpus.synchronize()
        return time.perf_counter() - start

    for _ in range(_WARM_UP):
        for name in calls:
            once(name)
    end = time.perf_counter() + seconds
    for number in range(_MAX_ROUNDS):
        if number >= _MIN_ROUNDS and time.perf_counter() > end:
            break
        for name in calls:
            times[name].append(once(name))
    between()
    return times


@functools.cache
def call_cost(device: torch.device) -> float:
    """Seconds of an operation on one element: nearly all of it is Python and dispatch."""
    x = torch.ones(1, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(100):
                torch.neg(x)
            best = min(best, (time.perf_counter() - start) / 100)
    return best
