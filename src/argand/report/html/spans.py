"""Time spans of a compile: chromium events, paired into nested spans for the flame graph."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import field
from typing import Any

from argand.quick_dataclasses import dataclass

_DEEP = 200
_MOST_OPEN = 2000
_MOST_LANES = 500


@dataclass(slots=True)
class _Open:
    name: str
    start: float
    compile_id: str
    children: float = 0.0


@dataclass(slots=True)
class Total:
    """Time spent under one name: with and without what ran inside."""

    count: int = 0
    seconds: float = 0.0
    own: float = 0.0
    longest: float = 0.0


@dataclass(slots=True)
class SpanCollector:
    """Pairs begin and end events as they come; keeps the longest `limit` spans.

    Arguments:
        limit: the most spans kept.
    """

    limit: int
    _open: dict[tuple[str, str], list[_Open]] = field(default_factory=lambda: defaultdict(list))
    _kept: list[tuple[float, int, tuple[float, float, int, str, str, str]]] = field(default_factory=list)
    totals: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    dropped: int = 0
    unmatched: int = 0
    first: float = float("inf")
    last: float = 0.0
    _count: int = 0

    def add(self, event: Any) -> bool:
        """Take one chromium event; False when it is none."""
        if not isinstance(event, dict) or not isinstance(event.get("name"), str):
            return False
        when, phase = event.get("ts"), event.get("ph")
        if isinstance(when, bool) or not isinstance(when, (int, float)):
            return False
        when = float(when)
        if not -1e18 < when < 1e18:
            return False
        lane = (str(event.get("pid", ""))[:20], str(event.get("tid", ""))[:20])
        if lane not in self._open and len(self._open) >= _MOST_LANES:
            lane = ("others", "")
        arguments = event.get("args")
        compile_id = str(arguments.get("compile_id") or "")[:30] if isinstance(arguments, dict) else ""
        self.first, self.last = min(self.first, when), max(self.last, when)
        if phase == "B" and len(self._open[lane]) >= _MOST_OPEN:
            self.unmatched += 1
        elif phase == "B":
            self._open[lane].append(_Open(event["name"][:200], when, compile_id))
        elif phase == "E":
            self._end(lane, event["name"][:200], when)
        elif phase == "X":
            length = event.get("dur")
            if not isinstance(length, (int, float)) or not 0 <= length < 1e18:
                return False
            self.last = max(self.last, when + length)
            if self._open[lane]:
                self._open[lane][-1].children += length
            self._keep(when, float(length), float(length), len(self._open[lane]), event["name"][:200], lane, compile_id)
        return True

    def _end(self, lane: tuple[str, str], name: str, when: float) -> None:
        stack = self._open[lane]
        at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].name == name), None)
        if at is None:
            self.unmatched += 1
            return
        self.unmatched += len(stack) - at - 1
        span = stack[at]
        del stack[at:]
        length = max(when - span.start, 0.0)
        if stack:
            stack[-1].children += length
        self._keep(span.start, length, max(length - span.children, 0.0), at, name, lane, span.compile_id)

    def _keep(
        self, start: float, length: float, own: float, depth: int, name: str, lane: tuple[str, str], compile_id: str
    ) -> None:
        if len(self.totals) < 2000 or name in self.totals:
            total = self.totals[name]
            total.count += 1
            total.seconds += length / 1e6
            total.own += own / 1e6
            total.longest = max(total.longest, length / 1e6)
        self._count += 1
        entry = (length, self._count, (start, length, min(depth, _DEEP), name, compile_id, "/".join(lane)))
        if len(self._kept) < self.limit:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)
            self.dropped += 1

    @property
    def unfinished(self) -> int:
        return sum(len(stack) for stack in self._open.values())

    def as_data(self) -> dict[str, Any]:
        """What the page's flame graph draws: names once, spans as `[name, start, length, depth, lane, id]` in µs."""
        spans = sorted((entry[2] for entry in self._kept), key=lambda s: (s[0], s[2]))
        for lane, stack in self._open.items():  # begun and never ended: drawn up to the end of the trace
            for depth, o in enumerate(stack[:_DEEP]):
                left = max(self.last - o.start, 0.0)
                spans.append((o.start, left, depth, f"{o.name} (unfinished)", o.compile_id, "/".join(lane)))
        names: dict[str, int] = {}
        lanes: dict[str, int] = {}
        ids: dict[str, int] = {}
        rows = []
        origin = self.first if spans else 0.0
        for start, length, depth, name, compile_id, lane_name in spans:
            rows.append(
                [
                    names.setdefault(name, len(names)),
                    round(start - origin, 1),
                    round(length, 1),
                    depth,
                    lanes.setdefault(lane_name, len(lanes)),
                    ids.setdefault(compile_id, len(ids)),
                ]
            )
        return {"names": list(names), "lanes": list(lanes), "ids": list(ids), "spans": rows}
