"""What `argand bench` prints: the tables of both sides, and in words where the difference comes from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TextIO

from argand.debug.bench import Measured, Recorder
from argand.debug.bench_profile import Row, Side

_NAME_WIDTH = 60
_COLUMNS = ("% of time", "time", "# of calls", "bytes", "GB/s", "flops", "GFLOP/s")
_OWN = ("operation", "allocation")


def milliseconds(us: float) -> str:
    """A time with its unit, as torch.profiler writes it."""
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


def amount(value: float | None, unit: str = "") -> str:
    """1.2 G, 34 M, 56 k; "" for None."""
    if value is None:
        return ""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {letter}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def _cells(row: Row, total: float) -> list[str]:
    return [
        row.name if len(row.name) <= _NAME_WIDTH else row.name[: _NAME_WIDTH - 3] + "...",
        f"{100 * row.us / total:.2f}%",
        milliseconds(row.us),
        _count(row.calls),
        amount(row.bytes, "B"),
        "" if row.gbs is None else f"{row.gbs:.1f}",
        amount(row.flops),
        "" if row.gflops is None else f"{row.gflops:.1f}",
    ]


def table(side: Side, limit: int = 20) -> list[str]:
    """The rows of one side, what took longest first."""
    total = side.total_us or 1.0
    lines = [["Name", *_COLUMNS]]
    lines += [_cells(row, total) for row in side.rows[:limit]]
    rest = side.rows[limit:]
    if rest:
        lines.append(_cells(Row(f"({len(rest)} more)", "", sum(r.calls for r in rest), sum(r.us for r in rest)), total))
    lines.append(_cells(Row("(outside: Python, guards, dispatch)", "", 0, side.outside_us), total))
    lines[-1][3] = ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = "  ".join("-" * width for width in widths)
    shown = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths)) for line in lines)
    ]
    return [rule, shown[0], rule, *shown[1:], rule]


def _total(rows: list[Row], what: str) -> float:
    return sum(getattr(row, what) or 0.0 for row in rows)


def _many(value: float, noun: str) -> str:
    """`1 kernel`, `12 kernels`."""
    return f"{_count(value)} {noun}{'' if value == 1 else 's'}"


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


def reasons(found: Measured) -> list[dict[str, Any]]:
    """Where the difference comes from.

    Returns:
        For each cause its `kind`, the microseconds that it saves (negative: costs) in an iteration, and a sentence.
        Those of "fusion", "library" and "dispatch" add up to the difference, and what saves most comes first; "memory
        traffic" and "allocations" explain "fusion" and follow it.
    """
    eager, compiled = _Share(found.eager, found.eager_ms * 1e3), _Share(found.compiled, found.compiled_ms * 1e3)
    made = [_fusion(eager, compiled), _dispatch(found, eager, compiled)]
    if eager.calls("library") or compiled.calls("library"):
        made.append(_library(eager, compiled))
    made.sort(key=lambda reason: -reason["saved_us"])
    first = next(number for number, reason in enumerate(made) if reason["kind"] == "fusion")
    made[first + 1 : first + 1] = [_traffic(found, eager, compiled), _allocations(found.eager, found.compiled)]
    return made


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


def _traffic(found: Measured, eager: _Share, compiled: _Share) -> dict[str, Any]:
    before, after = eager.bytes(*_OWN), compiled.bytes("kernel", *_OWN)
    saved = (before - after) / found.copy_gbs / 1e3 if found.copy_gbs else 0.0
    text = f"Avoided memory traffic: eager's read and write {amount(before, 'B')}, compiled ones {amount(after, 'B')}"
    if before > after:
        text += f", {100 * (before - after) / before:.0f} % less"
    if before != after:
        text += f"; from memory, at the {found.copy_gbs:.1f} GB/s of a copy, that is {milliseconds(abs(saved))}"
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


def _dispatch(found: Measured, eager: _Share, compiled: _Share) -> dict[str, Any]:
    """Time outside operations."""
    calls, left = eager.calls("library", *_OWN), compiled.calls("library", *_OWN)
    regions = f" in {_many(found.compiled.regions, 'compiled region')}" if found.compiled.regions > 1 else ""
    text = (
        f"Dispatch: eager enters torch's dispatcher {_many(calls, 'time')} (one element takes {found.call_us:.1f} us), "
        f"compiled {_many(left, 'time')} and launches {_many(compiled.calls('kernel'), 'kernel')}{regions}. Outside "
        f"operations pass {milliseconds(eager.outside_us)} in eager, {milliseconds(compiled.outside_us)} compiled."
    )
    return _reason("dispatch", eager.outside_us - compiled.outside_us, text)


def verdict(found: Measured) -> str:
    """One sentence."""
    difference = (found.eager_ms - found.compiled_ms) * 1e3
    causes = [reason for reason in found.reasons if reason["kind"] in ("fusion", "library", "dispatch")]
    if abs(found.speedup - 1) < 0.03:
        return "Compiled and eager take the same time here, within the noise of the measurement."
    if difference > 0:
        best = max(causes, key=lambda reason: reason["saved_us"])
        return f"The speed-up comes mostly from {_NAMES[best['kind']]}."
    worst = min(causes, key=lambda reason: reason["saved_us"])
    return f"Compiled is slower here, mostly in {_NAMES[worst['kind']]}."


_NAMES = {"fusion": "the fused operations", "library": "library calls", "dispatch": "what passes outside operations"}


def as_text(found: Measured, limit: int = 20) -> str:
    """The report of one function."""
    lines = [f"{found.name}  {found.place}", f"arguments: {found.shapes or 'no tensors'}", ""]
    lines += [f"{found.what}, the fastest of {found.rounds} rounds in turns"]
    lines += [f"eager use: {found.eager_ms:.4f} ms/iter", f"argand use: {found.compiled_ms:.4f} ms/iter"]
    lines += [f"speed up ratio: {found.speedup:.4f}", ""]
    for title, side in (("Eager", found.eager), ("Compiled", found.compiled)):
        lines += [f"{title}: {milliseconds(side.total_us)} an iteration under the profiler", *table(side, limit), ""]
    fused = [row for row in found.compiled.rows[:limit] if row.kind == "kernel"]
    if fused:
        lines += ["Operations in these kernels:"]
        lines += [f"  {row.name}: {', '.join(row.fused)}" for row in fused]
        lines.append("")
    lines += ["Where the difference comes from", verdict(found)]
    for reason in found.reasons:
        sign = "-" if reason["saved_us"] >= 0 else "+"
        saved = f"{sign}{milliseconds(abs(reason['saved_us']))}" if reason["saved_us"] else ""
        lines.append(f"  {saved:>12s}  {reason['text']}")
    return "\n".join(lines)


def write_report(
    found: list[Measured], recorder: Recorder, outcome: str, file: TextIO, *, as_json: bool = False, rows: int = 20
) -> None:
    """Write what was measured.

    Arguments:
        found: the functions that were measured.
        recorder: knows which others there were.
        outcome: how the script ended; functions are measured only where it finished.
        as_json: {"outcome", "functions": [...]} instead of text.
        rows: lines of each table.
    """
    if as_json:
        failed = [{"function": one.name, "place": one.place, "error": e} for one, e in recorder.failed.items()]
        told = {"outcome": outcome, "functions": [one.as_dict() for one in found], "failed": failed}
        file.write(json.dumps(told, indent=1) + "\n")
        return
    if outcome != "finished":
        file.write(f"The script did not finish ({outcome}): nothing was measured.\n")
    elif not found and not recorder.failed:
        what = "called no compiled function" if recorder.all else "compiled nothing"
        file.write(f"The script {what}: use argand.compile or torch.compile in it.\n")
    file.write("\n\n".join(as_text(one, rows) + "\n" for one in found))
    for recorded, error in recorder.failed.items():
        file.write(f"\n{recorded.name}  {recorded.place}\ncould not be called again: {error}\n")
    left = len(recorder.functions()) - len(found) - len(recorder.failed)
    if found and left:
        file.write(f"\n{left} more functions were called: --functions measures more.\n")
