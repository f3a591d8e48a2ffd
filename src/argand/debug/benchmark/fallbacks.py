"""`argand fallbacks`: which operations of a program's compiled graphs run as eager's kernels, why, and for how long.

    watch = FallbackWatch()
    with watch.observing():
        ... run the program ...
        found = watch.steps(8, 1.0)
    write_fallbacks(found, watch, "finished", sys.stdout)

A product or convolution that is meant to be a library's call is none of them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch

from argand.debug.benchmark.bench import Recorder
from argand.debug.benchmark.bench_profile import Side
from argand.debug.benchmark.quantities import count, milliseconds
from argand.debug.benchmark.work import profile_name
from argand.errors import ArgandError
from argand.events import Event, bus
from argand.ir.kernel import Schedule
from argand.ir.loops import ExternNode, tensor_refs
from argand.quick_dataclasses import dataclass

_SHAPES = 3  # of an operation that are printed


@dataclass(frozen=True, slots=True)
class Call:
    """One call of eager's kernel in a compiled graph.

    Arguments:
        op: the ATen overload.
        profile: its name in torch's profiler.
        shapes: of the tensors that it takes.
        reason: why it has no loops.
        where: the line of the program.
    """

    op: str
    profile: str
    shapes: str
    reason: str
    where: str


@dataclass(slots=True)
class Fallback:
    """An operation of a function's step that runs as eager's kernel.

    Arguments:
        op, reasons, shapes, where: as in its calls, each once.
        calls: in a step.
        us: microseconds of a step under the profiler.
        share: of the step's time.
    """

    op: str
    reasons: list[str]
    shapes: list[str]
    where: list[str]
    calls: float
    us: float
    share: float


@dataclass(slots=True)
class Step:
    """One compiled function: what a call (with its backward) takes, and what of it runs as eager's kernels."""

    function: str
    place: str
    what: str
    ms: float
    fallbacks: list[Fallback] = field(default_factory=list)


class FallbackWatch(Recorder):
    """Remembers, besides the compiled functions, the calls of eager's kernels in their graphs.

    Attributes:
        calls: of each graph.
        larger: graphs, backwards and functions that run eagerly as a whole: the reasons, and how often.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Call]] = {}
        self.larger: Counter[str] = Counter()

    @contextmanager
    def observing(self) -> Iterator[None]:
        remove = bus.subscribe(self._take_fallback, ("fallback",))
        try:
            with super().observing():
                yield
        finally:
            remove()

    def _take_fallback(self, event: Event) -> None:
        if "node" not in event.data and event.data.get("scope") != "op":
            self.larger[str(event.data.get("reason") or event.text())] += 1

    def take_schedule(self, graph: str, schedule: Schedule) -> None:
        """The calls of a compiled graph."""
        super().take_schedule(graph, schedule)
        self.calls[graph] = [_call(step, schedule) for step in schedule.steps if _is_fallback(step)]

    def steps(self, limit: int, seconds: float) -> list[Step]:
        """What the first `limit` functions' steps consist of; those that cannot be called again are in `failed`."""
        return [
            Step(one.name, one.place, one.what, one.compiled_ms, self._fallbacks(one.compiled))
            for one in self.measured(limit, seconds)
        ]

    def _fallbacks(self, side: Side) -> list[Fallback]:
        ran = {row.name for row in side.rows}
        graphs = [
            name
            for name, graph in self.graphs.items()
            if ran.intersection(graph.kernels) or (not graph.kernels and ran.issuperset(graph.calls))
        ]
        fallbacks = []
        for row in side.rows:
            calls = [call for name in graphs for call in self.calls.get(name, ()) if call.profile == row.name]
            if not calls:
                continue
            every = sum(len(self.graphs[name].calls.get(row.name, ())) for name in graphs)
            part = min(len(calls) / max(every, 1), 1.0)  # others of its name may be meant to be library calls
            us = row.us * part
            fallbacks.append(
                Fallback(
                    ", ".join(dict.fromkeys(call.op for call in calls)),
                    list(dict.fromkeys(call.reason for call in calls)),
                    list(dict.fromkeys(call.shapes for call in calls)),
                    list(dict.fromkeys(call.where for call in calls)),
                    row.calls * part,
                    us,
                    us / (side.total_us or 1.0),
                )
            )
        return sorted(fallbacks, key=lambda one: -one.us)


def _is_fallback(step: object) -> bool:
    return isinstance(step, ExternNode) and bool(step.reason)


def _call(step: object, schedule: Schedule) -> Call:
    assert isinstance(step, ExternNode)
    shapes = []
    for ref in tensor_refs((step.args, step.kwargs)):
        dtype = ref.dtype or schedule.buffers[ref.buffer].dtype
        shapes.append(f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, ref.size))}]")
    origin = step.origins[0] if step.origins else None
    where = (origin.caller or origin.user_line) if origin is not None else ""
    return Call(str(step.target), profile_name(step.target), ", ".join(shapes), step.reason, where)


def write_fallbacks(
    steps: list[Step],
    watch: FallbackWatch,
    outcome: str,
    file: TextIO,
    *,
    as_json: bool = False,
    above: float = 0.0,
) -> None:
    """Write what was found.

    Arguments:
        steps: the steps that were measured.
        watch: knows the functions that could not be, and what runs eagerly as a whole.
        outcome: how the program ended.
        as_json: {"outcome", "functions": [...], "larger", "failed"} instead of text.
        above: leave out operations with a smaller share of the step, in percent.
    """
    for step in steps:
        step.fallbacks = [one for one in step.fallbacks if 100 * one.share >= above]
    if as_json:
        failed = [{"function": one.name, "place": one.place, "error": error} for one, error in watch.failed.items()]
        told = {"outcome": outcome, "functions": [asdict(step) for step in steps], "larger": dict(watch.larger)}
        file.write(json.dumps({**told, "failed": failed}, indent=1) + "\n")
        return
    if not steps and not watch.failed:
        file.write("No compiled function was called: use argand.compile or torch.compile in the program.\n")
    file.write("\n".join("\n".join(_lines(step, above)) + "\n" for step in steps))
    for recorded, error in watch.failed.items():
        file.write(f"\n{recorded.name}  {recorded.place}\ncould not be called again: {error}\n")
    if watch.larger:
        file.write("\nWhole graphs or parts of them that run eagerly:\n")
        file.writelines(f"  {number} x {reason}\n" for reason, number in watch.larger.most_common())


def _lines(step: Step, above: float) -> list[str]:
    lines = [f"{step.function}  {step.place}", f"{step.what}, {step.ms:.4f} ms"]
    if not step.fallbacks:
        return [*lines, "no operation runs as eager's kernel" + (f" for {above:g} % or more" if above else "")]
    lines.append(f"{'share':>7s} {'time':>10s} {'calls':>7s}  operation: why")
    for one in step.fallbacks:
        cells = f"{100 * one.share:6.2f}% {milliseconds(one.us):>10s} {count(one.calls):>7s}"
        lines.append(f"{cells}  {one.op}: {'; '.join(one.reasons)}")
        shown = [shapes for shapes in one.shapes if shapes]
        lines += [" " * 28 + shapes for shapes in shown[:_SHAPES]]
        if len(shown) > _SHAPES:
            lines.append(" " * 28 + f"and {len(shown) - _SHAPES} more")
        lines += [" " * 28 + f"at {where}" for where in one.where[:1] if where]
    total = sum(one.share for one in step.fallbacks)
    return [*lines, f"{100 * total:6.2f}% together"]


def zoo(names: list[str], compiler: Callable[[torch.nn.Module], Callable[..., Any]]) -> Iterator[Callable[[], None]]:
    """The models of `bench/models.py`, small: of each a program that calls it, and one that makes a training step.

    Arguments:
        names: of the models; all if there are none.
        compiler: makes the compiled model.

    Raises:
        ArgandError: this is not a checkout of argand's repository, or it has no model of that name.
    """
    models = _zoo_module().MODELS
    for name in names or models:
        if name not in models:
            raise ArgandError(f"the zoo has no model {name!r}", remedy=f"choose among {', '.join(models)}")
        for training in (False, True):
            yield partial(_call_model, models[name], compiler, training)


def _call_model(build: Callable[..., Any], compiler: Callable[..., Any], training: bool) -> None:
    """Build a model, and call it compiled."""
    model, inputs = build(short=True)
    model.train(training)
    compiled = compiler(model)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            compiled(**inputs)


def _zoo_module() -> ModuleType:
    path = Path(__file__).parents[4] / "bench" / "models.py"
    spec = importlib.util.spec_from_file_location("argand_zoo", path)
    if not path.exists() or spec is None or spec.loader is None:
        raise ArgandError("the zoo is part of argand's repository", remedy="run the command in a checkout of it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
