"""Whether the ranks of a job compile the same: `config.check_ranks`.

Ranks that break a graph at different places, or for different sizes, often wait for each other for ever: nobody tells
why. Here each compile says in the process group's store what it made. The first rank to come to a place is the one that
the others compare with, so that nobody waits: a rank that compiles once more than the others is no deadlock. What
differs is a warning and a `rank_difference` event that tell both ranks' reasons.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections import Counter
from dataclasses import asdict, field
from typing import Any

from argand import events
from argand._core.calls import locked
from argand.config import config
from argand.events import Event
from argand.graph.nodes.module_text import module_text
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass

_EVENTS = ("frame_start", "graph", "graph_breaks", "recompiles", "span_end")
_LINES, _LINE = 2000, 200  # of a graph's text that are kept for showing where graphs part
_DEVICE = re.compile(r"\b([a-z]+):\d+\b")


@dataclass(slots=True)
class CompiledHere:
    """What a rank made of a frame.

    Arguments:
        rank: the rank.
        place: function, file and line.
        compile_id: as in logs.
        digest: of the graph's text; "" where there is no graph.
        lines: the graph's text.
        breaks: why graphs ended. recompiles: why what was compiled before did not fit.
    """

    rank: int
    place: str
    compile_id: str
    digest: str = ""
    lines: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    recompiles: list[str] = field(default_factory=list)

    def same(self, other: CompiledHere) -> bool:
        """Whether both ranks run the same."""
        return (self.place, self.digest, self.breaks) == (other.place, other.digest, other.breaks)

    def summary(self) -> str:
        """One rank's side of a difference."""
        what = f"a graph of {max(len(self.lines) - 3, 0)} lines" if self.digest else "no graph"
        parts = [f"  rank {self.rank} {self.compile_id} {self.place}: {what}"]
        parts += [f"    broke: {text}" for text in self.breaks] + [f"    compiled again: {t}" for t in self.recompiles]
        return "\n".join(parts)


def difference(mine: CompiledHere, other: CompiledHere) -> str:
    """What two ranks made differently of the same place, or at the same point of their runs; "" when nothing."""
    if mine.same(other):
        return ""
    first, second = sorted((mine, other), key=lambda one: one.rank)
    text = f"ranks {first.rank} and {second.rank} compile differently:\n{first.summary()}\n{second.summary()}"
    if first.place == second.place and first.digest != second.digest:
        pairs = zip([*first.lines, ""], [*second.lines, ""])
        a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
        text += f"\n  graphs part at: rank {first.rank}: {a.strip() or '(its end)'}"
        text += f"\n                  rank {second.rank}: {b.strip() or '(its end)'}"
    return f"{text}\n  What to do: make what the ranks decide on (sizes, data, settings) the same on all of them."


class RankCheck:
    """Listens to compiles, and compares them with other ranks'."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self._process = -1
        self._open: dict[str, CompiledHere] = {}
        self._times: Counter[str] = Counter()
        self._order = 0
        self._store: Any = None

    def install(self) -> None:
        """Listen from now on, as long as `config.check_ranks` is set."""
        if self._process != os.getpid():
            self._process, self._store = os.getpid(), None
            events.bus.unsubscribe(self)
            events.bus.subscribe(self, _EVENTS)

    def __call__(self, event: Event) -> None:
        if config.check_ranks and event.compile_id is not None:
            self._hear(event)

    @locked
    def _hear(self, event: Event) -> None:
        one: Any = event.compile_id
        key = f"[{one.frame}/{one.recompile}]"
        if event.name == "frame_start":
            data = event.data
            place = f"{data['function']} ({os.path.basename(data['filename'])}:{data['lineno']})"
            self._open[key] = CompiledHere(_rank(), place, key)
        compiled = self._open.get(key)
        if compiled is None:
            return
        if event.name == "graph" and event.data.get("graph") is not None:
            text = _DEVICE.sub(r"\1", module_text(event.data["graph"]))
            compiled.digest = hashlib.sha256(text.encode()).hexdigest()
            compiled.lines = [line.partition("  #")[0][:_LINE] for line in text.splitlines()[:_LINES]]
        elif event.name == "graph_breaks":
            reason = event.text().splitlines()
            if reason and reason[0] not in compiled.breaks:
                compiled.breaks.append(reason[0])
        elif event.name == "recompiles":
            compiled.recompiles = [str(reason) for reason in event.data.get("reasons", ())]
        elif event.name == "span_end" and event.data.get("span") == "capture_frame":
            self._compare(self._open.pop(key))

    def _compare(self, own: CompiledHere) -> None:
        own.rank = _rank()
        if own.rank < 0 or not (own.digest or own.breaks):
            return
        number = self._times[own.place]
        self._times[own.place] += 1
        names = [f"place/{own.place}/{number}"]
        if (
            number == 0
        ):  # a rank may compile again, for sizes that the others have not seen, and then goes on as they do
            names.append(f"order/{self._order}")
            self._order += 1
        for name in names:
            other = self._first(name, own)
            text = difference(own, other) if other is not None else ""
            if text:
                events.emit("rank_difference", "debug", text, rank=own.rank, other=other.rank if other else -1)
                warnings.warn(f"argand: {text}", stacklevel=2)
                return

    def _first(self, name: str, own: CompiledHere) -> CompiledHere | None:
        """What the first rank to come here made; None when it is this one, or the store does not answer."""
        try:
            distributed: Any = sys.modules["torch.distributed"]
            if self._store is None:
                store = distributed.distributed_c10d._get_default_store()
                self._store = distributed.PrefixStore("argand ranks", store)
            text = json.dumps(asdict(own))
            stored = self._store.compare_set(name, "", text).decode()
            return None if stored == text else CompiledHere(**json.loads(stored))
        except Exception as error:  # the rank that keeps the store is gone, say: the program will hear of it
            events.emit("rank_check", "debug", f"ranks cannot be compared: {error}")
            return None


def _rank() -> int:
    """The rank of this process; -1 outside a process group of several."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return -1
    return int(distributed.get_rank()) if distributed.get_world_size() > 1 else -1


RANKS = RankCheck()
