"""The minifier's search: the smallest graph that still fails in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from argand.debug.minify.attempts import Check, attempt
from argand.debug.minify.code import NotCode, path_of
from argand.debug.minify.simplifications import SIMPLIFICATIONS, oddness
from argand.debug.minify.strategies import STRATEGIES, Strategy
from argand.debug.minify.surgery import Program, ancestors, is_call
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.isolation import Limits
from argand.debug.trial.outcome import Outcome
from argand.debug.trial.search import Search
from argand.errors import ArgandError
from argand.quick_dataclasses import dataclass

_PATIENCE = 4.0  # seconds, and four times as long as any attempt took, until a part of a program that hangs hangs


class NotReproduced(ArgandError):
    """The program that is to be shrunk does not fail in a child process, or fails otherwise than it did."""

    stage = "minify"


class Listener:
    """Told how a search goes on (log, progress bar, files); this one tells nobody."""

    def line(self, text: str) -> None:
        """A log line."""

    def attempt(self, search: GraphSearch, outcome: Outcome) -> None:
        """An attempt was made."""

    def shrunk(self, search: GraphSearch) -> None:
        """`search.smallest` is a new smallest failing program."""


@dataclass(slots=True)
class MinifyResult:
    """The smallest program found.

    Arguments:
        gm, inputs: it.
        outcome: how it fails.
        fingerprint: of the original failure.
        attempts, seconds: what the search took.
        history: (strategy, nodes before, nodes after) of each success.
        finished: nothing smaller was found; False when the time was up.
        nodes_before: size of the original.
        verified: the written reproduction fails in the same way in a new process; None when none was written.
    """

    gm: fx.GraphModule
    inputs: list[Any]
    outcome: Outcome
    fingerprint: Fingerprint
    attempts: int
    seconds: float
    history: list[tuple[str, int, int]]
    finished: bool
    nodes_before: int
    verified: bool | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the result, placeholders and output included."""
        return len(self.gm.graph.nodes)

    @property
    def calls(self) -> list[str]:
        """What the result calls, in order: "torch.relu", "aten.neg.default"."""
        return names_of_calls(self.gm.graph)


def names_of_calls(graph: fx.Graph) -> list[str]:
    """What a graph calls, as one would write it."""
    return [_name_of(node) for node in graph.nodes if is_call(node)]


def _name_of(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    try:
        return path_of(node.target).removeprefix("torch.ops.")
    except NotCode:
        return str(node.target)


@dataclass(slots=True)
class GraphSearch(Search[Program]):
    """One search.

    Arguments:
        check, limits, listener: of `minify`.
        wanted: the failure to keep.
        outcome: how the smallest program fails.
        slowest: seconds of the longest attempt that came to an end.
        history: (strategy, nodes before, nodes after) of each success.
        strategy: what is tried.
        head: the line that says so, until it has been said.
    """

    check: Check = field(kw_only=True)
    limits: Limits = field(kw_only=True)
    listener: Listener = field(kw_only=True)
    wanted: Fingerprint = field(kw_only=True)
    outcome: Outcome = field(kw_only=True)
    slowest: float = 0.0
    history: list[tuple[str, int, int]] = field(default_factory=list)
    strategy: str = ""
    head: str = ""

    @property
    def out_of_time(self) -> bool:
        return 0 < self.limits.total_seconds < self.seconds

    def key(self, candidate: Program) -> str:
        return candidate.key

    def is_smaller(self, candidate: Program) -> bool:
        return measure(candidate) < measure(self.smallest)

    def attempt(self, candidate: Program) -> bool:
        if self.head:
            self.listener.line(self.head)
            self.head = ""
        limits = self.limits
        if self.wanted.kind == "hung":  # parts of the program need not be waited for as long as all of it
            limits = replace(limits, attempt_seconds=min(limits.attempt_seconds, _PATIENCE + 4 * self.slowest))
        outcome = attempt(self.check, candidate, limits)
        if outcome.kind != "hung":
            self.slowest = max(self.slowest, outcome.seconds)
        fails = outcome.failed and self.wanted.matches(fingerprint(outcome), self.related(candidate))
        if fails:
            self.outcome = outcome
        self.listener.attempt(self, outcome)
        return fails

    def related(self, candidate: Program) -> frozenset[str]:
        """Nodes in which a wrong value of the smallest program may come up in a smaller one: what it depends on."""
        output = self.wanted.output
        if output.startswith("gradient of "):
            nodes = (*self.smallest.graph.nodes, *candidate.graph.nodes)
            return frozenset(f"gradient of {node.name}" for node in nodes)
        now = str(self.outcome.data.get("output", output))
        return ancestors(self.smallest.graph, now) or frozenset([output])

    def accept(self, candidate: Program) -> None:
        self.history.append((self.strategy, self.smallest.nodes, candidate.nodes))
        self.smallest = candidate
        self.listener.shrunk(self)

    def use(self, strategy: Strategy, granularity: int) -> bool:
        """Try what one strategy proposes; whether the program became smaller."""
        before = self.smallest
        said = f"({before.nodes} nodes, {len(before.inputs)} inputs)"
        self.head = f"Strategy: {strategy.name} (G: {granularity}) {said}"
        self.strategy = strategy.name
        if self.apply(strategy.propose(self, granularity)):
            self.listener.line(f"SUCCESS: Went from {before.nodes} to {self.smallest.nodes} nodes")
            return True
        if not self.head:
            self.listener.line(f"FAIL: {strategy.name}")
        return False


def measure(program: Program) -> tuple[int, ...]:
    """What must become smaller: calls, then inputs and results, then how much they hold, then how odd it looks."""
    elements = sum(value.numel() for value in program.inputs if isinstance(value, torch.Tensor))
    return len(program.calls), len(program.inputs) + len(program.outputs), elements, oddness(program)


def minify(
    gm: fx.GraphModule,
    inputs: Iterable[Any],
    check: Check,
    *,
    wanted: Fingerprint | None = None,
    limits: Limits | None = None,
    listener: Listener | None = None,
    tried: dict[str, bool] | None = None,
    outcome: Outcome | None = None,
    simplify: bool = True,
) -> MinifyResult:
    """Shrink a graph to the least that fails in the same way.

    Arguments:
        gm: the graph: torch functions and methods, or ATen operators.
        inputs: a value for each placeholder; they are not written to.
        check: called as `check(gm, inputs)` in a child process; raises (or crashes, or hangs) where the program fails
            and returns where it does not. `accuracy.AccuracyError` says that a result is wrong. `checks` has the ones
            for backends.
        wanted: the failure to keep; by default the one that the whole program shows.
        limits: of time and memory.
        listener: told how it goes on.
        tried: what attempts of an earlier, interrupted search found; extended.
        outcome: how the whole program fails, where `attempt` has just found that out.
        simplify: go on with sizes, numbers and dtypes when no node can be left out.

    Raises:
        NotReproduced: the whole program passes, or fails otherwise than `wanted`.
    """
    limits, listener = limits or Limits(), listener or Listener()
    program = Program(gm, list(inputs))
    outcome = outcome or attempt(check, program, limits)
    wanted = _failure_to_keep(outcome, wanted)
    tried = {} if tried is None else tried
    search = GraphSearch(program, tried, check=check, limits=limits, listener=listener, wanted=wanted, outcome=outcome)
    before = program.nodes
    listener.line(f"Started off with {before} nodes")
    finished = _shrink(search)
    if simplify and finished:
        while not search.out_of_time and sum(search.use(strategy, 1) for strategy in SIMPLIFICATIONS):
            finished = _shrink(search)
    final = search.smallest
    return MinifyResult(
        final.gm,
        final.inputs,
        search.outcome,
        search.wanted,
        search.attempts,
        search.seconds,
        search.history,
        finished and not search.out_of_time,
        before,
    )


def _failure_to_keep(outcome: Outcome, wanted: Fingerprint | None) -> Fingerprint:
    """The failure that all smaller programs must show: the one that was asked for, in the words of the whole program.

    Raises:
        NotReproduced: the whole program passes, or fails otherwise.
    """
    failure = fingerprint(outcome)
    if not outcome.failed:
        raise NotReproduced(
            "the program does not fail when it is run by itself in another process",
            remedy="what it fails on may be outside the graph: state of the backend, memory, other threads",
        )
    if wanted is not None and not _same_start(wanted, failure):
        raise NotReproduced(
            f"run by itself the program fails otherwise: {failure}, not {wanted}",
            remedy="the failure depends on something outside the graph",
        )
    return wanted if wanted is not None and wanted.matches(failure) else failure


def _same_start(wanted: Fingerprint, reproduced: Fingerprint) -> bool:
    """The failure in the child is the one that was seen in the process (where a crash has other signs)."""
    return wanted.matches(reproduced) or (bool(wanted.mismatch) and wanted.mismatch == reproduced.mismatch)


def _shrink(search: GraphSearch) -> bool:
    """Run the strategies at doubling granularities until a whole round brings nothing; False when time is up.

    What is left when a piece was taken out is looked at more closely before more is tried at the same granularity.
    """
    progress = True
    while progress and not search.out_of_time:
        progress = False
        granularity = 2
        while granularity < 2 * search.smallest.nodes:
            search.listener.line(f"Trying granularity {granularity}")
            for strategy in STRATEGIES:
                if search.use(strategy, granularity):
                    progress = True
                    if strategy.takes_apart:
                        break
            granularity *= 2
    return not search.out_of_time
