"""Functions that an earlier process compiled, on autograd's tape or for many sizes: no trace, no compiler.

What that process did not compile, the backward for other results say, is compiled here from the backward's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from argand import events, garbage_collection
from argand._core import _C
from argand._core.calls import uncaptured
from argand.backends.programs import backward_entries
from argand.backends.small_graphs import Comparison, small_graph
from argand.config import config
from argand.errors import CacheError
from argand.graph import compat
from argand.locks import fork_safe_lock
from argand.outcomes.resolver import module_of
from argand.runtime import stored_modules
from argand.runtime.host import HostCall
from argand.runtime.recipes import with_recipe
from argand.runtime.tape.double_backward import Differentiable, Facts
from argand.runtime.tape.function import Boxed, training_function
from argand.runtime.tape.plan import Kind, Part, Slot, StoredPart, plan_of, slots

Given = tuple[bool, ...]


def stored_function(
    plan: tuple[Any, ...], forward: Boxed, key: str, graph: Callable[..., Any] | None, facts: tuple[Any, ...]
) -> Callable[..., Any]:
    """A function of the forward's inputs, on autograd's tape.

    Arguments:
        plan, facts: of `Plan.described` and `Facts.described`.
        key: of the backward's entry.
        graph: the captured graph.

    Raises:
        CacheError: the backward is not in the cache any more.
    """
    backwards = StoredBackwards(backward_entries.read(key))
    moves = plan_of(plan)
    again = Differentiable(graph, moves.differentiable, lambda: Facts(*facts), backwards.replay)
    function = training_function(moves, forward, backwards, again)
    if not config.lazy_backward:
        backwards.run((True,) * len(moves.differentiable))
    return with_recipe(function, "taped", lambda: (plan, forward, key, graph, facts))


def stored_small(
    compiled: Callable[..., Any], graph: Callable[..., Any], key: str, records: bool, varies: bool
) -> Callable[..., Any]:
    """A small graph, until it is found, or known, that eager's kernels are faster.

    Arguments:
        key: of the backward's entry, or the program's.
        records: the graph records gradients.
        varies: it is for many sizes.
    """

    def compare(args: Sequence[Any]) -> Comparison:
        from argand.backends.eager_contest import Contest  # most processes compare nothing

        try:
            has_backward = records and bool(backward_entries.read(key)["parts"])
        except CacheError:
            return None, 0.0, 0.0
        return Contest(compiled, graph).is_slower(args, has_backward)

    return small_graph(compiled, graph, lambda: key, compare, records=records, varies=varies, stored=True)


def _recorded(call: HostCall, told: tuple[Any, ...]) -> Boxed:
    from argand.runtime.gpu.cuda_graphs.stored_recordings import recorded_again  # only GPUs have them

    return recorded_again(call, told)


class StoredBackwards:
    """The backwards of a graph, as `training.LazyBackward` has them.

    Arguments:
        entry: of `backward_entries.content`.
        kind: of these backwards.
    """

    def __init__(self, entry: dict[str, Any], kind: Kind = "whole") -> None:
        self.entry = entry
        self._kind = kind
        self._kinds: dict[Kind, StoredBackwards] = {kind: self}
        self._parts: dict[Given, Part] = {}
        self._kept: dict[Given, tuple[str, tuple[Any, ...]]] = {}
        for of_kind, given, arguments, gradients, program in entry["parts"]:
            if of_kind != kind:
                continue
            slots_by_input = {position: Slot(kind, index) for position, kind, index in gradients}
            self._parts[given] = StoredPart(list(slots(arguments)), slots_by_input)
            self._kept[given] = program
        self._read = {results: set(slots(held)) for results, held in entry["read"]}
        self._runs: dict[Given, Boxed] = {}
        self._backwards: Any = None
        self._lock = fork_safe_lock()

    def of_kind(self, kind: Kind) -> StoredBackwards:
        """The backwards of a kind."""
        backwards = self._kinds.get(kind)
        if backwards is None:
            backwards = self._kinds.setdefault(kind, StoredBackwards(self.entry, kind))
        return backwards

    def part(self, given: Given) -> Part:
        """What the graph for the results that are `given` reads and gives."""
        part = self._parts.get(given)
        if part is None:
            part = self._parts[given] = self._anew().part(given)
        return part

    def run(self, given: Given) -> Boxed:
        """The compiled graph for the results that are `given`."""
        run = self._runs.get(given)
        if run is None:
            run = uncaptured(_C.call_locked, self._lock, _C.call_restoring, self._load, given)
        return run

    def _load(self, given: Given) -> Boxed:
        run = self._runs.get(given)
        if run is None:
            run = self._runs[given] = self._stored(given) or self._anew().run(given)
        return run

    def _stored(self, given: Given) -> Boxed | None:
        if given not in self._kept:
            return None
        key, recorded = self._kept[given]
        try:
            with garbage_collection.paused(), compat.without_default_device():
                run = stored_modules.stored_call(key, "backward")
                return _recorded(run, recorded) if recorded else run
        except CacheError as error:  # it can be compiled
            events.emit("cache", "backend", str(error), outcome="miss", level="backward", key=key)
            return None

    def run_eagerly(self, given: Given, reason: str) -> Boxed:
        """As `run`, with eager's kernels."""
        run: Boxed = self._anew().run_eagerly(given, reason)
        return run

    def operations(self, given: Given) -> Boxed:
        """As `run`, by calls of the ATen operations."""
        run: Boxed = self._anew().operations(given)
        return run

    def read_by(self, results: int) -> set[Slot]:
        """What is read when any of the results is differentiated."""
        read = self._read.get(results)
        if read is None:
            read = self._read[results] = self._anew().read_by(results)
        return read

    def replay(self) -> Callable[..., Any]:
        """The functional graph of the forward, for gradients of gradients."""
        from argand.backends.late_backward import replay_of

        return replay_of(self.entry)

    def _anew(self) -> Any:
        """The backwards as a process that traced the graph has them."""
        if self._backwards is None:
            from argand.backends.late_backward import backward_of

            self._backwards = backward_of(self.entry).of_kind(self._kind)
        return self._backwards


def exact_sizes(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph for many sizes where a call's are others than its program is for: compiled for a few of them.

    Arguments:
        graph: of `resolving.run_graph`.
    """
    compiled: list[Callable[..., Any]] = []
    lock = fork_safe_lock()

    def call(*args: Any) -> Any:
        with lock:
            if not compiled:
                compiled.append(_compiled_for_sizes(graph))
        return compiled[0](*args)

    return with_recipe(call, "exact sizes", lambda: (graph,))


def _compiled_for_sizes(graph: Callable[..., Any]) -> Callable[..., Any]:
    from argand.backends import late_backward

    return late_backward.for_sizes(module_of(graph))
