"""What `argand bench` prints: the tables of both sides, and in words where the difference comes from."""

from __future__ import annotations

import json
from typing import TextIO

from argand.debug.benchmark.bench import Recorder
from argand.debug.benchmark.bench_profile import Row, Side
from argand.debug.benchmark.bench_reasons import Measured
from argand.debug.benchmark.quantities import amount, count, milliseconds

_NAME_WIDTH = 60
_COLUMNS = ("% of time", "time", "# of calls", "bytes", "GB/s", "flops", "GFLOP/s")


def _cells(row: Row, total: float) -> list[str]:
    return [
        row.name if len(row.name) <= _NAME_WIDTH else row.name[: _NAME_WIDTH - 3] + "...",
        f"{100 * row.us / total:.2f}%",
        milliseconds(row.us),
        count(row.calls),
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


def verdict(measured: Measured) -> str:
    """One sentence."""
    difference = (measured.eager_ms - measured.compiled_ms) * 1e3
    causes = [reason for reason in measured.reasons if reason["kind"] in ("fusion", "library", "dispatch")]
    if abs(measured.speedup - 1) < 0.03:
        return "Compiled and eager take the same time here, within the noise of the measurement."
    if difference > 0:
        best = max(causes, key=lambda reason: reason["saved_us"])
        return f"The speed-up comes mostly from {_NAMES[best['kind']]}."
    worst = min(causes, key=lambda reason: reason["saved_us"])
    return f"Compiled is slower here, mostly in {_NAMES[worst['kind']]}."


_NAMES = {"fusion": "the fused operations", "library": "library calls", "dispatch": "what passes outside operations"}


def as_text(measured: Measured, limit: int = 20) -> str:
    """The report of one function."""
    lines = [f"{measured.name}  {measured.place}", f"arguments: {measured.shapes or 'no tensors'}", ""]
    lines += [f"{measured.what}, the fastest of {measured.rounds} rounds in turns"]
    lines += [f"eager use: {measured.eager_ms:.4f} ms/iter", f"argand use: {measured.compiled_ms:.4f} ms/iter"]
    lines += [f"speed up ratio: {measured.speedup:.4f}", ""]
    for title, side in (("Eager", measured.eager), ("Compiled", measured.compiled)):
        lines += [f"{title}: {milliseconds(side.total_us)} an iteration under the profiler", *table(side, limit), ""]
    fused = [row for row in measured.compiled.rows[:limit] if row.kind == "kernel"]
    if fused:
        lines += ["Operations in these kernels:"]
        lines += [f"  {row.name}: {', '.join(row.fused)}" for row in fused]
        lines.append("")
    lines += ["Where the difference comes from", verdict(measured)]
    for reason in measured.reasons:
        sign = "-" if reason["saved_us"] >= 0 else "+"
        saved = f"{sign}{milliseconds(abs(reason['saved_us']))}" if reason["saved_us"] else ""
        lines.append(f"  {saved:>12s}  {reason['text']}")
    return "\n".join(lines)


def write_report(
    results: list[Measured], recorder: Recorder, outcome: str, file: TextIO, *, as_json: bool = False, rows: int = 20
) -> None:
    """Write what was measured.

    Arguments:
        results: the functions that were measured.
        recorder: knows which others there were.
        outcome: how the script ended; functions are measured only where it finished.
        as_json: {"outcome", "functions": [...]} instead of text.
        rows: lines of each table.
    """
    if as_json:
        failed = [{"function": one.name, "place": one.place, "error": e} for one, e in recorder.failed.items()]
        told = {"outcome": outcome, "functions": [one.as_dict() for one in results], "failed": failed}
        file.write(json.dumps(told, indent=1) + "\n")
        return
    if outcome != "finished":
        file.write(f"The script did not finish ({outcome}): nothing was measured.\n")
    elif not results and not recorder.failed:
        what = "called no compiled function" if recorder.all else "compiled nothing"
        file.write(f"The script {what}: use argand.compile or torch.compile in it.\n")
    file.write("\n\n".join(as_text(one, rows) + "\n" for one in results))
    for recorded, error in recorder.failed.items():
        file.write(f"\n{recorded.name}  {recorded.place}\ncould not be called again: {error}\n")
    left = len(recorder.functions()) - len(results) - len(recorder.failed)
    if results and left:
        file.write(f"\n{left} more functions were called: --functions measures more.\n")
