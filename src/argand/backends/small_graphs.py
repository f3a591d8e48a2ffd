"""Small graphs: left to eager's kernels where these were found to be faster.

The first process that calls such a graph often enough compares, once no compiler runs beside it, and twice before it
takes eager's kernels: what else the machine does counts, too. It tells later ones by an entry of the disk cache that is
named after the backward's, or the program's: the key of that says what this depends on, the processor and the number of
threads too. A graph for many sizes is compared at each power of two of what varies. Where the graph is all that its
frame does, the frame runs as if argand were not there; so it is with one whose graph breaks, where all that its parts
gain is less than what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand import events, threads
from argand._core import _C
from argand.graph.compat import saved_tensor_hooks_active as is_followed
from argand.graph.nodes.module_text import settled
from argand.runtime import cache
from argand.runtime.recipes import with_recipe

Call = Callable[..., Any]
Comparison = tuple[str | None, float, float]
"""What `small_graph` asks of a comparison."""
Compare = Callable[[Sequence[Any]], Comparison]

_COMPARE_AT = 16  # calls
_LAST = 1024  # calls from one comparison to the next, should nothing be known: twice as many each time
# Where it is known: the first call is the quicker for it in a process that has just begun, as the graph is read when it
# is first run.
_KNOWN_AT = 2
_EAGER, _COMPILED = b"eager", b"compiled"  # the latter with the seconds that it gains in the backward


def small_graph(
    compiled: Call,
    graph: Call,
    key: Callable[[], str],
    compare: Compare,
    *,
    records: bool,
    varies: bool,
    stored: bool = False,
) -> Call:
    """`compiled`, until `compare` of the arguments of later calls says that `graph` is faster for calls of their size;
    and always where hooks follow what is saved: a checkpoint compares that with what its second run saves.

    Arguments:
        key: gives the key of the backward's entry, or of the program's.
        compare: what is to be said of a graph that is faster; "" of others, None while that is not known. And how many
            seconds a call of the compiled one gains, and of these how many in the backward.
        records: the graph records gradients.
        varies: it is for many sizes.
        stored: an earlier process has told of the graph, perhaps also which is faster.
    """
    followed = is_followed if records else None
    size_class = _C.size_class if varies else _only_one
    undecided = _Undecided(compiled, graph, key, compare, followed, size_class, stored)
    settled_for = undecided.settled.get
    current: Call = undecided

    def parts() -> tuple[Any, ...]:
        entry = key()  # there may be none: the forward is not kept, or a library cannot be
        undecided.is_described = True
        return compiled, graph, entry, records, varies

    def call(*args: Any) -> Any:
        if followed is not None and followed():
            return compiled(*args)
        return settled_for(size_class(), undecided)(*args)

    def call_of_one_size(*args: Any) -> Any:
        nonlocal current
        if followed is not None and followed():
            return compiled(*args)
        if current is undecided:
            current = settled_for(0, undecided)
        return current(*args)

    return with_recipe(call if varies else call_of_one_size, "small", parts)


def left_to_eager(graph: Call, varies: bool) -> Call:
    """A small graph of which nothing could be compiled: its frame runs as if argand were not there.

    Arguments:
        varies: it is for many sizes, of which those of a call are told apart by powers of two.
    """
    left = _KNOWN_AT

    def call(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            _C.prefer_original(_C.size_class() if varies else -1, is_followed)
        return graph(*args)

    return with_recipe(call, "left to eager", lambda: (graph, varies))


def _only_one() -> int:
    return 0


class _Undecided:
    """Calls of a small graph, until those of their size were compared. Arguments: as `small_graph`'s.

    Fields:
        settled: what is called, by size.
        told: what an earlier process says, by size.
        left: calls until it is decided, by size.
        between: calls from one comparison to the next, by size.
        slower: sizes at which the compiled graph was slower once.
    """

    def __init__(
        self,
        compiled: Call,
        graph: Call,
        key: Callable[[], str],
        compare: Compare,
        followed: Any,
        size_class: Callable[[], int],
        stored: bool,
    ) -> None:
        self.compiled, self.graph, self.key, self.compare, self.followed = compiled, graph, key, compare, followed
        self.size_class = size_class
        self.is_described = self.stored = stored
        self.settled: dict[int, Call] = {}
        self.told: dict[int, bytes | None] = {}
        self.left: dict[int, int] = {}
        self.between: dict[int, int] = {}
        self.slower: set[int] = set()

    def __call__(self, *args: Any) -> Any:
        sizes = self.size_class()
        left = self.left.get(sizes)
        if left is None:
            self.told[sizes] = cache.find(_entry(self.key(), sizes), cache.OUTCOME) if self.stored else None
            kind = (self.told[sizes] or b"").partition(b" ")[0]
            left = {_EAGER: _KNOWN_AT, _COMPILED: 1}.get(kind, _COMPARE_AT)
        self.left[sizes] = left - 1
        if left == 1:
            self._decide(sizes, args)
        return self.settled.get(sizes, self.compiled)(*args)

    def _decide(self, sizes: int, args: Sequence[Any]) -> None:
        told = self.told[sizes]
        if told is None and threads.working():
            self.left[sizes] = _COMPARE_AT
            return
        slower, gain, later = self.compare(args) if told is None else _told(told)
        classes = -1 if self.size_class is _only_one else sizes  # other numbers of the frame may vary
        between = self.between.get(sizes, _COMPARE_AT)
        if slower is None and self.followed is None and not torch.are_deterministic_algorithms_enabled():
            _C.prefer_original(classes, None, 0)  # all that it gains is seen when its frame is timed
        if slower is None and between < _LAST:
            self.left[sizes] = self.between[sizes] = 2 * between
            return
        if slower and sizes not in self.slower:
            self.left[sizes] = _COMPARE_AT
            self.slower.add(sizes)
            return
        eager = bool(slower) or told == _EAGER
        self.settled[sizes] = settled(self.graph) if eager else self.compiled
        if eager or (slower is not None and gain < math.inf):
            _C.prefer_original(classes, self.followed, -1 if eager else max(0, int(later * 1e9)))
        if slower:
            events.emit("fallback", "backend", slower, reason=slower, scope="graph")
        if self.is_described and told is None and slower is not None:
            known = _EAGER if slower else _COMPILED if gain == math.inf else b"%s %.9f" % (_COMPILED, later)
            cache.keep(_entry(self.key(), sizes), known, cache.OUTCOME)


def _told(entry: bytes) -> Comparison:
    """What an earlier process found of a graph that runs compiled: how much it gains in the backward, where that is
    known."""
    later = float(entry.partition(b" ")[2] or math.inf)
    return "", later, later


def _entry(key: str, sizes: int) -> str:
    return cache.digest(f"eager beside {key} at {sizes}")
