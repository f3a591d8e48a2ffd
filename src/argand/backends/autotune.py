"""`mode="max-autotune"`: which products become kernels of argand's own is found by timing, where they will run.

Each product, with the loops that its kernel would take along, is timed as it is (ATen's product, then the kernel of
these loops) and as one kernel, cut in several ways. What is found is kept in the disk cache, by what was timed, so that
no other process times it again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from argand import events
from argand.codegen.host.products import wants_zeros
from argand.codegen.triton import generate
from argand.codegen.triton.spec import KernelSpec, TritonSource
from argand.errors import GpuError
from argand.graph import product_settings
from argand.graph.sizes.expr import ZERO, Expr, as_int
from argand.graph.sizes.hints import size_hints
from argand.ir.kernel import KernelPlan, Schedule, Step, Tile
from argand.ir.loops import Buffer, ExternNode, TensorRef
from argand.quick_dataclasses import dataclass
from argand.runtime import cache
from argand.runtime.gpu.device.target import triton_version
from argand.runtime.gpu.device.timing import can_time, random_tensor, time_calls
from argand.runtime.gpu.kernels.load import load_triton_kernels
from argand.runtime.gpu.operators.products import padded_product
from argand.schedule.products.kernels import (
    Proposal,
    adopt,
    named,
    operations,
    product_names,
    proposals,
    tiles_for,
    with_tile,
)
from argand.schedule.products.operands import with_operands
from argand.schedule.products.rules import ACTIVATED, activated
from argand.schedule.signature import signature

Timer = Callable[[Sequence[Callable[[], object]], torch.device], list[float]]

_MARGIN = 0.97  # a kernel of argand's must be that much faster: times vary
_VERSION = 1
_INSIDE = "operands computed, "
_CALLS: Mapping[str, Callable[..., object]] = {
    "torch.mm": torch.mm,
    "torch.addmm": torch.addmm,
    "torch.bmm": torch.bmm,
    ACTIVATED: torch._addmm_activation,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What was found for one product.

    Arguments:
        what: the product, in words.
        times: microseconds, by the name of a way (see `_ways`); "ATen" for the steps as they are.
        way: the fastest; None where that is ATen.
        cached: it was found before.
    """

    what: str
    times: Mapping[str, float]
    way: str | None
    cached: bool

    def __str__(self) -> str:
        ways = sorted(self.times.items(), key=lambda way: way[1])
        told = "; ".join(f"{name}: {time:.1f} us" for name, time in ways)
        chosen = "ATen" if self.way is None else f"argand's kernel, {self.way}"
        return f"{self.what}: {chosen}{' (known)' if self.cached else ''} ({told})"


def tuned_schedule(schedule: Schedule, timer: Timer | None = None) -> tuple[Schedule, str | None]:
    """A schedule whose products are kernels of argand's where these are faster; the given one stays as it is.

    Returns also the setting of float32 products that the kernels are made for, where there are such.

    Arguments:
        timer: gives the microseconds of each of some calls; `time_calls` unless told.
    """
    tuned = replace(
        schedule, steps=list(schedule.steps), buffers=dict(schedule.buffers), aliases=dict(schedule.aliases)
    )
    precision = product_settings.float32_products()
    with size_hints(tuned.hints):
        kernels = tune(tuned, precision, timer or time_calls)
    bound = any(
        plan.product is not None and plan.buffers[plan.product.result].dtype is torch.float32 for plan in kernels
    )
    return tuned, precision if bound else None


def tune(schedule: Schedule, precision: str, timer: Timer) -> list[KernelPlan]:
    """Replace products of a schedule by kernels of argand's where these are faster; returns the kernels.

    Arguments:
        precision: of float32 products: "ieee" or "tf32".
        timer: gives the microseconds of each of some calls.
    """
    proposed = proposals(schedule, precision) if can_time() else []
    proposed = [proposal for proposal in proposed if tiles_for(proposal.plan, schedule.targets[proposal.plan.device])]
    ways = [_ways(schedule, proposal) for proposal in proposed]
    keys = [_key(schedule, way) for way in ways]
    decisions = _decisions(schedule, dict(zip(keys, ways)), timer)
    names = product_names(schedule)
    chosen: list[tuple[Proposal, Step]] = []
    for proposal, way, key in zip(proposed, ways, keys):
        fastest = decisions[key].way
        if fastest is not None:
            chosen.append((way[fastest][0], named(with_tile(*way[fastest]), names)))
        elif (step := activated(schedule, proposal)) is not None:
            chosen.append((proposal, step))
    if chosen:
        adopt(schedule, chosen)
    return [step for _, step in chosen if isinstance(step, KernelPlan)]


Ways = Mapping[str, tuple[Proposal, Tile]]


def _ways(schedule: Schedule, proposal: Proposal) -> Ways:
    """The kernels that are timed for one product, by name."""
    tiles = tiles_for(proposal.plan, schedule.targets[proposal.plan.device])
    ways = {str(tile): (proposal, tile) for tile in tiles}
    more = with_operands(schedule, proposal)
    if more is not None:
        tiles = tiles_for(more.plan, schedule.targets[more.plan.device])
        ways.update({f"{_INSIDE}{tile}": (more, tile) for tile in tiles})
    return ways


def _decisions(schedule: Schedule, by_key: Mapping[str, Ways], timer: Timer) -> dict[str, Decision]:
    """What is best for each product, by its key; all kernels that have to be timed are compiled together."""
    notes = {key: f"product-{cache.digest(key)}" for key in by_key}
    words = {key: _words(ways) for key, ways in by_key.items()}
    known = {key: _from_note(cache.read_note(notes[key]), words[key]) for key in by_key}
    left = {key: _Trial(schedule, by_key[key], f"t{number}") for number, key in enumerate(by_key) if known[key] is None}
    decisions = {key: decision for key, decision in known.items() if decision is not None}
    if left:
        with events.span("autotune", "backend", products=len(left)):
            _compile(list(left.values()))
            for key, trial in left.items():
                decisions[key] = trial.decide(words[key], timer)
                cache.write_note(notes[key], {name: f"{time:.3f}" for name, time in decisions[key].times.items()})
    for key in by_key:
        _tell(decisions[key])
    return decisions


def _tell(decision: Decision) -> None:
    events.emit(
        "autotuning", "backend", str(decision), product=decision.what,
        chosen=decision.way or "ATen", times=dict(decision.times), cached=decision.cached,
    )  # fmt: skip


# ----------------------------------------------------------------------- one product


def _from_note(note: Mapping[str, str] | None, what: str) -> Decision | None:
    if note is None or "ATen" not in note:
        return None
    times = {name: float(time) for name, time in note.items()}
    return Decision(what, times, _fastest(times), True)


def _fastest(times: Mapping[str, float]) -> str | None:
    ours = {name: time for name, time in times.items() if name != "ATen"}
    best = min(ours, key=lambda name: ours[name], default=None)
    return None if best is None or ours[best] > _MARGIN * times["ATen"] else best


class _Trial:
    """One product on random numbers.

    Arguments:
        ways: kernels that are timed beside the steps that they would replace.
        name: begins the names of the kernels.
    """

    def __init__(self, schedule: Schedule, ways: Ways, name: str) -> None:
        self.schedule = schedule
        largest = max((proposal for proposal, _ in ways.values()), key=lambda proposal: len(proposal.replaced))
        self.device = largest.plan.device
        first = schedule.steps[largest.product]
        assert isinstance(first, ExternNode)  # what is proposed to be replaced
        self.product, self.result = first, first.outputs[0] or ""
        loops = {n: schedule.steps[n] for n in largest.replaced if n != largest.product}
        self.before = self._named([step for n, step in loops.items() if n < largest.product], f"{name}_before")
        self.after = self._named([step for n, step in loops.items() if n > largest.product], f"{name}_after")
        self.inside = frozenset(way for way, (proposal, _) in ways.items() if proposal is largest)
        self.tiled = {way: with_tile(*proposed, f"{name}_{n}") for n, (way, proposed) in enumerate(ways.items())}
        base = next(iter(ways.values()))[0]
        library = activated(schedule, base)
        if library is not None:
            self.product, self.after = library, []
        self.source = TritonSource("", {})
        self.tensors: dict[str, torch.Tensor] = {}

    @staticmethod
    def _named(steps: Sequence[Step], name: str) -> list[KernelPlan]:
        plans = [step for step in steps if isinstance(step, KernelPlan)]
        return [replace(plan, name=f"{name}{number}") for number, plan in enumerate(plans)]

    def kernels(self) -> list[KernelPlan]:
        """All that has to be compiled."""
        return [*self.before, *self.after, *self.tiled.values()]

    def decide(self, what: str, timer: Timer) -> Decision:
        """The fastest way."""
        calls = {"ATen": self._aten()}
        for name, plan in self.tiled.items():
            call = self._own(plan, [] if name in self.inside else self.before)
            if call is not None and self._agrees(calls["ATen"], call, plan):
                calls[name] = call
        times = dict(zip(calls, timer(list(calls.values()), self.device)))
        self.tensors.clear()
        return Decision(what, times, _fastest(times), False)

    # --- memory

    def _tensor(self, buffer: Buffer) -> torch.Tensor:
        """A buffer's tensor; one that takes over another's memory does so here too."""
        root, aliases = buffer.name, self.schedule.aliases
        while root in aliases:
            root = aliases[root]
        if root not in self.tensors:
            base = self.schedule.buffers.get(root, buffer)
            self.tensors[root] = random_tensor(_numbers(base.size), _numbers(base.stride), base.dtype, self.device)
        return self.tensors[root].as_strided(_numbers(buffer.size), _numbers(buffer.stride))

    def _view(self, ref: TensorRef) -> torch.Tensor:
        whole = self._tensor(self.schedule.buffers[ref.buffer])
        return whole.as_strided(_numbers(ref.size), _numbers(ref.stride), int(as_int(ref.offset) or 0))

    # --- ways

    def _aten(self) -> Callable[[], object]:
        node = self.product
        operands = [self._view(ref) for ref in node.args]
        shape = self.schedule.buffers[self.result]
        out = self._view(TensorRef(node.outputs[0] or "", shape.size, shape.stride, ZERO))
        plain = node.out_variant in ("torch.mm", "torch.addmm")
        padded = plain and wants_zeros(node, self.schedule.buffers)
        multiply = padded_product if padded else _CALLS[node.out_variant or ""]
        before, after = ([self._launch(plan) for plan in plans] for plans in (self.before, self.after))

        def call() -> None:
            for launch in before:
                launch()
            multiply(*operands, **node.kwargs, out=out)
            for launch in after:
                launch()

        return call

    def _own(self, plan: KernelPlan, before: Sequence[KernelPlan]) -> Callable[[], object] | None:
        """The launch of a kernel, after those that make its operands; None where the device refuses it."""
        try:
            launches = [self._launch(each) for each in (*before, plan)]
        except GpuError as error:
            tile = plan.product.tile if plan.product is not None else None
            events.bus.detail("autotuning", "backend", f"no kernel of {tile}: {error}")
            return None

        def call() -> None:
            for launch in launches:
                launch()

        return call if before else launches[0]

    def _launch(self, plan: KernelPlan) -> Callable[[], object]:
        spec = self.source.specs[plan.name]
        (kernel,) = load_triton_kernels(self.source.text, {plan.name: spec}, str(self.device))
        tensors = [self._tensor(plan.buffers[name]) for name in (*plan.inputs, *plan.outputs)]
        return functools.partial(kernel, *_grid(spec), *tensors)

    def _agrees(self, aten: Callable[[], object], own: Callable[[], object], plan: KernelPlan) -> bool:
        """Whether a kernel computes what ATen does: whoever writes a compiler does not trust it blindly."""
        results = [self._tensor(plan.buffers[name]) for name in plan.outputs]
        before = {name: tensor.clone() for name, tensor in self.tensors.items()}  # some steps write over what they read
        with torch.no_grad():
            aten()
            wanted = [tensor.clone() for tensor in results]
            for name, kept in before.items():
                self.tensors[name].copy_(kept)
            own()
        return all(_close(got, want) for got, want in zip(results, wanted))


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    scale = want.float().nan_to_num(0.0, 0.0, 0.0).abs().max().item() if want.is_floating_point() else 0.0
    return torch.allclose(got, want, rtol=0.1, atol=0.02 * scale, equal_nan=True)


def _numbers(sizes: Sequence[Expr]) -> tuple[int, ...]:
    return tuple(int(as_int(size) or 0) for size in sizes)


def _compile(trials: Sequence[_Trial]) -> None:
    """Compile the kernels of all trials at a time; what the device refuses is found again when it is asked for."""
    plans: dict[torch.device, list[KernelPlan]] = {}
    for trial in trials:
        plans.setdefault(trial.device, []).extend(trial.kernels())
    for device, wanted in plans.items():
        source = generate(wanted, trials[0].schedule.targets[device].processors)
        for trial in trials:
            if trial.device == device:
                trial.source = source
        with contextlib.suppress(GpuError):
            load_triton_kernels(source.text, source.specs, str(device))


def _grid(spec: KernelSpec) -> tuple[int, ...]:
    blocks = [-(-int(as_int(points) or 0) // block) for points, block in zip(spec.points, spec.blocks, strict=True)]
    return (*blocks, *(1,) * (3 - len(blocks)))


def _words(ways: Ways) -> str:
    plan = next(iter(ways.values()))[0].plan
    assert plan.product is not None  # it is what a proposal is about
    batch, rows, columns, inner = plan.product.sizes
    several = f"{batch} x " if batch > 1 else ""
    dtype = str(plan.buffers[plan.product.result].dtype).removeprefix("torch.")
    return f"{operations(plan)} {several}({rows}, {inner}) @ ({inner}, {columns}) {dtype}"


def _key(schedule: Schedule, ways: Ways) -> str:
    """What the times depend on."""
    parts = []
    for proposal in dict.fromkeys(proposal for proposal, _ in ways.values()):
        parts.append(signature(proposal.plan))
        parts += [f"{buffer.dtype} {buffer.size} {buffer.stride}" for buffer in proposal.plan.buffers.values()]
        steps = [schedule.steps[number] for number in proposal.replaced]
        parts += [step.out_variant or "" if isinstance(step, ExternNode) else signature(step) for step in steps]
        device = proposal.plan.device
    parts += [_device_name(device), torch.__version__, triton_version(), str(list(ways)), str(_VERSION)]
    return "\n".join(parts)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
