"""A function, eager against compiled, as `bench` measured it; in words, where the difference comes from."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from argand.debug.benchmark.bench_profile import Row, Side
from argand.debug.benchmark.quantities import amount, count, milliseconds
from argand.quick_dataclasses import dataclass

_OWN = ("operation", "allocation")


@dataclass(slots=True)
class Measured:
    """One function, eager against compiled.

    Arguments:
        name, place: of the function.
        shapes: of the arguments.
        what: "forward", "forward and backward", or "call" of a function that makes the backward itself.
        calls: how often the script called it.
        eager_ms, compiled_ms: wall time of the fastest iteration.
        eager, compiled: what an iteration consists of.
        copy_gbs: bandwidth that a large copy reaches on this machine, in GB/s.
        call_us: time that eager takes for an operation on one element.
    """

    name: str
    place: str
    shapes: str
    what: str
    calls: int
    eager_ms: float
    compiled_ms: float
    eager: Side
    compiled: Side
    copy_gbs: float
    call_us: float
    rounds: int = 0
    reasons: list[dict[str, Any]] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return self.eager_ms / self.compiled_ms if self.compiled_ms else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        told |= {"function": told.pop("name"), "arguments": told.pop("shapes"), "speedup": self.speedup}
        return told | {"eager": self.eager.as_dict(), "compiled": self.compiled.as_dict()}


def _total(rows: list[Row], what: str) -> float:
    return sum(getattr(row, what) or 0.0 for row in rows)


def _many(value: float, noun: str) -> str:
    """`1 kernel`, `12 kernels`."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class _Share:
    """A side's wall time, divided as the profiler saw it: what the profiler itself costs is left out."""

    side: Side
    wall_us: float

    def us(self, *kinds: str) -> float:
        return _total(self.side.of(*kinds), "us") * self._scale

    def calls(self, *kinds: str) -> float:
        return _total(self.side.of(*kinds), "calls")

    def bytes(self, *kinds: str) -> float:
        return _total(self.side.of(*kinds), "bytes")

    @property
    def outside_us(self) -> float:
        return self.side.outside_us * self._scale

    @property
    def _scale(self) -> float:
        return self.wall_us / (self.side.total_us or 1.0)


def reasons(measured: Measured) -> list[dict[str, Any]]:
    """Where the difference comes from.

    Returns:
        For each cause its `kind`, the microseconds that it saves (negative: costs) in an iteration, and a sentence.
        Those of "fusion", "library" and "dispatch" add up to the difference, and what saves most comes first; "memory
        traffic" and "allocations" explain "fusion" and follow it.
    """
    eager, compiled = (
        _Share(measured.eager, measured.eager_ms * 1e3),
        _Share(measured.compiled, measured.compiled_ms * 1e3),
    )
    causes = [_fusion(eager, compiled), _dispatch(measured, eager, compiled)]
    if eager.calls("library") or compiled.calls("library"):
        causes.append(_library(eager, compiled))
    causes.sort(key=lambda reason: -reason["saved_us"])
    first = next(number for number, reason in enumerate(causes) if reason["kind"] == "fusion")
    causes[first + 1 : first + 1] = [
        _traffic(measured, eager, compiled),
        _allocations(measured.eager, measured.compiled),
    ]
    return causes


def _reason(kind: str, saved: float, text: str) -> dict[str, Any]:
    return {"kind": kind, "saved_us": saved, "text": text}


def _fusion(eager: _Share, compiled: _Share) -> dict[str, Any]:
    before = eager.us(*_OWN)
    kernels, left = compiled.us("kernel"), compiled.us(*_OWN)
    text = (
        f"{_many(eager.calls(*_OWN), 'operation')} of eager ({milliseconds(before)}) became "
        f"{_many(compiled.calls('kernel'), 'fused kernel')} ({milliseconds(kernels)})"
    )
    if compiled.calls(*_OWN):
        text += f" and {_many(compiled.calls(*_OWN), 'operation')} of torch's ({milliseconds(left)})"
    return _reason("fusion", before - kernels - left, f"Fused operations: {text}.")


def _traffic(measured: Measured, eager: _Share, compiled: _Share) -> dict[str, Any]:
    before, after = eager.bytes(*_OWN), compiled.bytes("kernel", *_OWN)
    saved = (before - after) / measured.copy_gbs / 1e3 if measured.copy_gbs else 0.0
    text = f"Avoided memory traffic: eager's read and write {amount(before, 'B')}, compiled ones {amount(after, 'B')}"
    if before > after:
        text += f", {100 * (before - after) / before:.0f} % less"
    if before != after:
        text += f"; from memory, at the {measured.copy_gbs:.1f} GB/s of a copy, that is {milliseconds(abs(saved))}"
    if saved > eager.us(*_OWN):
        text, saved = f"{text}, more than it took: the data was in the CPU's cache", 0.0
    return _reason("memory traffic", saved, f"{text}.")


def _allocations(eager: Side, compiled: Side) -> dict[str, Any]:
    text = (
        f"Avoided allocations: eager allocates {_many(eager.allocations, 'time')} ({amount(eager.allocated, 'B')}), "
        f"compiled {_many(compiled.allocations, 'time')} ({amount(compiled.allocated, 'B')})"
    )
    if compiled.allocations < eager.allocations:
        text += ": temporaries share memory that is kept from call to call"
    return _reason("allocations", 0.0, f"{text}.")


def _library(eager: _Share, compiled: _Share) -> dict[str, Any]:
    before, after = eager.us("library"), compiled.us("library")
    text = (
        f"Library calls (matrix products, convolutions, attention): {_many(eager.calls('library'), 'call')} in eager, "
        f"{milliseconds(before)}; {_many(compiled.calls('library'), 'call')} compiled, {milliseconds(after)}."
    )
    return _reason("library", before - after, text)


def _dispatch(measured: Measured, eager: _Share, compiled: _Share) -> dict[str, Any]:
    """Time outside operations."""
    calls, left = eager.calls("library", *_OWN), compiled.calls("library", *_OWN)
    regions = f" in {_many(measured.compiled.regions, 'compiled region')}" if measured.compiled.regions > 1 else ""
    text = (
        f"Dispatch: eager enters torch's dispatcher {_many(calls, 'time')} (one element takes "
        f"{measured.call_us:.1f} us), compiled {_many(left, 'time')} and launches "
        f"{_many(compiled.calls('kernel'), 'kernel')}{regions}. Outside "
        f"operations pass {milliseconds(eager.outside_us)} in eager, {milliseconds(compiled.outside_us)} compiled."
    )
    return _reason("dispatch", eager.outside_us - compiled.outside_us, text)
