"""Targets as data: what was measured, what it should be, and whether it is.

A bench that knows targets takes `--verdicts FILE` and appends what it found there, a JSON object a line;
`bench/targets.py` runs several of them and shows all in one table. A miss that is smaller than the noise of the figure
is called noise.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Of one program under one system: speedup, noise, first_call_s, warm_s, peak_mb, difference, error.
Row = dict[str, Any]
SPEED = {"inference": 1.35, "training": 1.25}  # of torch.compile's speed, in geometric mean
BEHIND = 0.95  # of torch.compile's speed, for each program
COLD, WARM = 25.0, 20.0  # torch.compile's first call over argand's


@dataclass(frozen=True)
class Verdict:
    subject: str  # "demo, training, GPT-2"
    what: str  # "of eager's speed"
    figure: float
    target: float
    at_most: bool = False  # the figure may be at most the target; otherwise it must be at least that
    noise: float = 0.0  # two standard errors of the figure

    @property
    def state(self) -> str:
        """ "holds", "noise" or "MISSED"."""
        beyond = self.figure - self.target if self.at_most else self.target - self.figure
        if math.isnan(beyond):
            return "MISSED"
        return "holds" if beyond <= 0 else "noise" if beyond <= self.noise else "MISSED"

    @property
    def bar(self) -> str:
        """The target in words."""
        return f"{'at most' if self.at_most else 'at least'} {self.target:g}"

    @property
    def measured(self) -> str:
        """The figure in words."""
        return f"{self.figure:.3g} {self.what}"

    def __str__(self) -> str:
        return f"{self.state:6}  {self.subject}: {self.measured} ({self.bar})"


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def of_programs(place: str, mode: str, rows: dict[str, dict[str, Row]], tolerance: float) -> Iterator[Verdict]:
    """Verdicts on `{program: {system: row}}`: of single programs what does not hold, of all of them the means."""
    place = f"{place}, {mode}"
    ours = {name: row["argand"] for name, row in rows.items() if "speedup" in row.get("argand", {})}
    for name, row in rows.items():
        difference = row.get("argand", {}).get("difference", math.inf)  # a program that failed differs by everything
        if not difference <= tolerance:
            yield Verdict(
                f"{place}, {name}", "difference from eager, of the largest value", difference, tolerance, True
            )
    single = [
        Verdict(f"{place}, {name}", "of eager's speed", row["speedup"], 1.0, noise=row["noise"])
        for name, row in ours.items()
    ]
    theirs = {name: rows[name]["torch"] for name in ours if "speedup" in rows[name].get("torch", {})}
    for name, row in theirs.items():
        noise = math.hypot(ours[name]["noise"], row["noise"])
        ratio = ours[name]["speedup"] / row["speedup"]
        single.append(Verdict(f"{place}, {name}", "of torch.compile's speed", ratio, BEHIND, noise=noise))
    single += memory(place, rows)
    yield from (verdict for verdict in single if verdict.state != "holds")
    every = f"{place}, {len(ours)} programs"
    yield Verdict(every, "of eager's speed in geometric mean", geometric_mean(r["speedup"] for r in ours.values()), 1.0)
    if not theirs:
        return
    every = f"{place}, {len(theirs)} programs"
    mean = geometric_mean(ours[name]["speedup"] / row["speedup"] for name, row in theirs.items())
    yield Verdict(every, "of torch.compile's speed in geometric mean", mean, SPEED[mode])
    for key, what, bar in (("first_call_s", "cold", COLD), ("warm_s", "warm", WARM)):
        shares = [row[key] / ours[name][key] for name, row in theirs.items() if key in row and key in ours[name]]
        if shares:
            text = f"times torch.compile's {what} first call takes as long as argand's"
            yield Verdict(every, text, geometric_mean(shares), bar)


def memory(place: str, rows: dict[str, dict[str, Row]]) -> Iterator[Verdict]:
    """Peaks of whole processes against torch.compile's: two per cent is noise."""
    for name, row in rows.items():
        peaks = [row.get(system, {}).get("peak_mb") for system in ("argand", "torch")]
        if None not in peaks:
            share = peaks[0] / peaks[1]  # type: ignore[operator]
            yield Verdict(f"{place}, {name}", "of torch.compile's peak memory", share, 1.0, True, 0.02)


def finish(found: Iterable[Verdict], file: str | None) -> bool:
    """Print verdicts, append them to `file`; whether none is missed."""
    verdicts = list(found)
    for verdict in verdicts:
        print(verdict)
    if file:
        with Path(file).open("a") as out:
            out.writelines(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts)
    sys.stdout.flush()
    return all(verdict.state != "MISSED" for verdict in verdicts)


def read(file: Path) -> list[Verdict]:
    return [Verdict(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
