"""Traces of many ranks: ranks that compiled alike are one group, which the first of them shows.

A trace is read once and let go of; what stays of it is a digest of what it compiled, its rank and its time. So a
report of a thousand ranks takes the memory of one trace, and pages for each group instead of each rank.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from argand.quick_dataclasses import dataclass
from argand.report.html.collect import Collector
from argand.report.html.model import Limits, Run
from argand.report.html.ranks import facts_of
from argand.report.html.store import Folder
from argand.report.reader import Reader
from argand.report.records import rank_of

_RANGES = 12


class _Nowhere(Folder):
    """A folder that keeps nothing: payloads get their digests only."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull).parent)

    def path(self, name: str) -> Path:
        return Path(os.devnull)


@dataclass(slots=True)
class Group:
    """Ranks that compiled alike.

    Arguments:
        path: the trace of the first.
        ranks: their numbers, or names of files that have none.
        seconds: of compiling, all of them together.
        slowest: the longest of these times, and whose it is.
        problems: what could not be read, of all.
    """

    path: Path
    ranks: list[int | str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def mean(self) -> float:
        return self.seconds / len(self.ranks)

    @property
    def listed(self) -> str:
        """The ranks as ranges: "0–511, 513"."""
        ranges: list[list[int]] = []
        for rank in sorted(rank for rank in self.ranks if isinstance(rank, int)):
            if ranges and rank == ranges[-1][1] + 1:
                ranges[-1][1] = rank
            else:
                ranges.append([rank, rank])
        texts = [f"{first}–{last}" if last > first else str(first) for first, last in ranges]
        texts += [rank for rank in self.ranks if isinstance(rank, str)]
        return ", ".join(texts[:_RANGES]) + (f" and {len(texts) - _RANGES} ranges more" if len(texts) > _RANGES else "")


def grouped(files: Iterable[Path], limits: Limits) -> list[Group]:
    """The ranks by what they compiled, the largest group first."""
    groups: dict[bytes, Group] = {}
    for path in files:
        run = Run(path.name)
        collector = Collector(run, _Nowhere(), limits)
        reader = Reader(path)
        for record in reader:
            collector.add(record)
        collector.pause()
        run.problems.update({key: n - run.problems[key] for key, n in reader.problems.items()})
        group = groups.setdefault(_digest(run), Group(path))
        rank = rank_of(path)
        group.ranks.append(rank if rank >= 0 else path.name)
        group.seconds += run.seconds
        group.slowest = max(group.slowest, (run.seconds, f"rank {rank}" if rank >= 0 else path.name))
        group.problems.update(run.problems)
    return sorted(groups.values(), key=lambda group: -len(group.ranks))


def _digest(run: Run) -> bytes:
    """Of what is compared between ranks: compiles in their order, with their graphs, guards, breaks and caches."""
    digest = hashlib.blake2b(digest_size=16)
    for id, compile in run.compiles.items():
        digest.update(repr((id, sorted(facts_of(compile, run, lambda run, artifact: "").items()))).encode())
    return digest.digest()
