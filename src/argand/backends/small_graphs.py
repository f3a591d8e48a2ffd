"""Small graphs that record gradients, or only call eager's kernels: left to eager where that was found to be faster.

The first process that calls such a graph often enough compares, once no compiler runs beside it, and twice before it
takes eager's kernels: what else the machine does counts, too. It tells later ones by an entry of the disk cache that is
named after the backward's, or the program's: the key of that says what this depends on, the processor and the number of
threads too. Where the graph is all that its frame does, the frame runs as if argand were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from argand import events, threads
from argand._core import _C
from argand.graph.compat import saved_tensor_hooks_active as is_followed
from argand.graph.nodes.module_text import settled
from argand.runtime import cache
from argand.runtime.recipes import with_recipe

Call = Callable[..., Any]
Compare = Callable[[Sequence[Any]], str | None]

_COMPARE_AT = 16  # calls
# Where it is known: the first call is the quicker for it in a process that has just begun, as the graph is read when it
# is first run.
_KNOWN_AT = 2
_EAGER, _COMPILED = b"eager", b"compiled"


def small_graph(
    compiled: Call, graph: Call, key: Callable[[], str], compare: Compare, *, records: bool, stored: bool = False
) -> Call:
    """`compiled`, until `compare` of the arguments of later calls says that `graph` is faster; and always where hooks
    follow what is saved: a checkpoint compares that with what its second run saves.

    Arguments:
        key: gives the key of the backward's entry, or of the program's.
        compare: what is to be said of a graph that is faster; "" of others, None when it cannot be said.
        records: the graph records gradients.
        stored: an earlier process has told of the graph, perhaps also which is faster.
    """
    told = cache.find(_entry(key()), cache.OUTCOME) if stored else None
    left = {_EAGER: _KNOWN_AT, _COMPILED: 0}.get(told or b"", _COMPARE_AT)
    followed = is_followed if records else None
    current, known, is_described, slower_once = compiled, left != _COMPARE_AT, stored, False

    def parts() -> tuple[Any, ...]:
        nonlocal is_described
        entry = key()  # there may be none: the forward is not kept, or a library cannot be
        is_described = True
        return compiled, graph, entry, records

    def decide(args: Sequence[Any]) -> None:
        nonlocal left, current, slower_once
        if not known and threads.working():
            left = _COMPARE_AT
            return
        slower = "" if known else compare(args)
        if slower and not slower_once:
            left, slower_once = _COMPARE_AT, True
            return
        current = settled(graph) if slower or known else compiled
        if current is not compiled:
            _C.prefer_original(followed)
        if slower:
            events.emit("fallback", "backend", slower, reason=slower, scope="graph")
        if is_described and not known and slower is not None:
            cache.keep(_entry(key()), _EAGER if slower else _COMPILED, cache.OUTCOME)

    def call(*args: Any) -> Any:
        nonlocal left
        if followed is not None and followed():
            return compiled(*args)
        if left:
            left -= 1
            if not left:
                decide(args)
        return current(*args)

    return with_recipe(call, "small", parts)


def _entry(key: str) -> str:
    return cache.digest(f"eager beside {key}")
