"""`argand.compile_times`: how long each stage of compiling took, in this process."""

from __future__ import annotations

from typing import Any

from argand.errors import ConfigError
from argand.events import SpanPath, bus
from argand.quick_dataclasses import dataclass

_NOTHING = "argand has compiled nothing yet."


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times of one stage, as part of those around it.

    Arguments:
        path: names of the stages around it and its own, outermost first.
        seconds: of each occurrence, in order.
        own: seconds that no stage within it accounts for.
    """

    path: SpanPath
    seconds: tuple[float, ...]
    own: float

    @property
    def total(self) -> float:
        return sum(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "stage": "/".join(self.path),
            "count": len(self.seconds),
            "total": self.total,
            "own": self.own,
            "seconds": list(self.seconds),
        }


def stages() -> list[StageTimes]:
    """Every stage that ran, each before the stages that it is made of."""
    taken = {path: tuple(seconds) for path, seconds in list(bus.times.items())}
    inner: dict[SpanPath, float] = {}
    for path, seconds in taken.items():
        inner[path[:-1]] = inner.get(path[:-1], 0.0) + sum(seconds)
    rows: list[StageTimes] = []

    def below(parent: SpanPath) -> None:
        for path, seconds in taken.items():
            if path[:-1] == parent:
                if seconds:
                    rows.append(StageTimes(path, seconds, max(sum(seconds) - inner.get(path, 0.0), 0.0)))
                below(path)

    below(())
    return rows


def compile_times(repr: str = "str", aggregate: bool = False) -> Any:
    """How long compiling took so far in this process, stage by stage; stages within a stage are listed under it.

    Arguments:
        repr: "str": a table to print; "csv": (header, rows as lists of strings), as two values, for a csv writer;
            "dict": a list of dicts with the keys stage, count, total, own and seconds; "flat": a table in which each
            stage is once, wherever it ran, the most expensive first.
        aggregate: sums only, instead of the time of each occurrence too.

    Raises:
        ConfigError: another `repr`.
    """
    if repr not in ("str", "csv", "dict", "flat"):
        raise ConfigError(f"compile_times has no repr {repr!r}", remedy='use "str", "csv", "dict" or "flat"')
    if not isinstance(aggregate, bool):
        raise ConfigError(f"aggregate takes True or False, not {aggregate!r}", remedy="leave it out for False")
    rows = stages()
    if repr == "dict":
        dicts = [row.as_dict() for row in rows]
        return [{k: v for k, v in row.items() if k != "seconds"} for row in dicts] if aggregate else dicts
    if repr == "csv":
        header = ["stage", "count", "total", "own"] + ([] if aggregate else ["seconds"])
        return header, [_cells(row, aggregate) for row in rows]
    return _flat_table(rows) if repr == "flat" else _table(rows, aggregate)


def by_name(rows: list[StageTimes]) -> list[tuple[str, int, float]]:
    """(stage, count, own seconds) of every stage, wherever it ran, the most expensive first."""
    totals: dict[str, tuple[int, float]] = {}
    for row in rows:
        count, own = totals.get(row.path[-1], (0, 0.0))
        totals[row.path[-1]] = (count + len(row.seconds), own + row.own)
    return sorted(((name, count, own) for name, (count, own) in totals.items()), key=lambda item: -item[2])


def _flat_table(rows: list[StageTimes]) -> str:
    if not rows:
        return _NOTHING
    stages = by_name(rows)
    total = sum(own for _, _, own in stages)
    width = max(len(name) for name in ("stage", "total", *(name for name, _, _ in stages)))
    lines = [f"{'stage':{width}s} {'count':>6s} {'own (s)':>10s} {'share':>7s}"]
    for name, count, own in stages:
        lines.append(f"{name:{width}s} {count:6d} {own:10.4f} {100 * own / total if total else 0:6.1f}%")
    return "\n".join([*lines, f"{'total':{width}s} {'':6s} {total:10.4f}"])


def _cells(row: StageTimes, aggregate: bool) -> list[str]:
    cells = ["/".join(row.path), str(len(row.seconds)), f"{row.total:.6f}", f"{row.own:.6f}"]
    return cells if aggregate else [*cells, " ".join(f"{s:.6f}" for s in row.seconds)]


def _table(rows: list[StageTimes], aggregate: bool) -> str:
    if not rows:
        return _NOTHING
    names = ["  " * (len(row.path) - 1) + row.path[-1] for row in rows]
    width = max(map(len, [*names, "stage"]))
    lines = [
        f"{'stage':{width}s} {'count':>6s} {'total (s)':>10s} {'own (s)':>10s}" + ("" if aggregate else "  each (s)")
    ]
    for name, row in zip(names, rows):
        line = f"{name:{width}s} {len(row.seconds):6d} {row.total:10.4f} {row.own:10.4f}"
        if not aggregate:
            shown = [f"{s:.4f}" for s in row.seconds[:8]]
            line += "  " + ", ".join(shown) + (", ..." if len(row.seconds) > 8 else "")
        lines.append(line)
    return "\n".join(lines)
