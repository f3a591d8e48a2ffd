"""Calls of a program with changes to its world between them, eagerly and compiled (`differential.py --mutate`).

A case is a world and, call by call, the changes before it. They are found while the program runs eagerly; a second eager run must agree with the
first (else the case is dropped), then the compiled run must.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import linecache
import os
import random
import resource
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from changes import Changes
from mutations import choose
from parts import Part
from snapshots import differing, snapshot
from worlds import PARTS, Filler, World, load, world

import argand
from argand import events

SECONDS = 120
SLOW = 15
"""Seconds in which a program must be made up and run eagerly: a loop over gigabytes says nothing about compiling."""

MEMORY = 8 << 30
"""Bytes of address space that a process of `--mutate` may have (half of it is torch's): a program that wants more raises `MemoryError`."""

ATTEMPTS = 3
"""How often changes are chosen anew for a world, when few of them can be seen."""

RUNS_AGAIN = 3
"""How often a program that differs is run eagerly again, to see whether it differs from itself."""


@dataclass
class Case:
    """One program of `--mutate`.

    Arguments:
        steps: the changes before each call.
        training: arguments and parameters require gradients, and each call is followed by a backward.
    """

    seed: int
    world: World
    steps: list[list[str]] = field(default_factory=list)
    backend: str = "eager"
    dynamic: bool | None = None
    training: bool = False


@dataclass
class Verdict:
    """What became of a case."""

    case: Case
    difference: str | None = None
    dropped: str = ""
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    parts: list[str] = field(default_factory=list)


class Run:
    """One world with its arguments, and the calls of one function of it."""

    def __init__(self, source: str, training: bool, wrap: Callable[[Any], Any] = lambda f: f) -> None:
        self.module = load(source)
        self.args = self.module.arguments()
        self.training = training
        if training:
            self.args[0] = self.args[0].requires_grad_()
        self.changes = Changes(self.module, self.args)
        self.module.F = self.module.f
        self.fn = wrap(self.module.f)

    def change(self, statements: list[str]) -> list[str | None]:
        return [self.changes.run(text) for text in statements]

    def call(self) -> Any:
        """Everything visible of one call: outcome, arguments, globals, gradients, the state of random numbers and of the process."""
        try:
            result = self.fn(*self.args)
            outcome: Any = ("returned", snapshot(result))
            if self.training:
                outcome += (backward(result),)
        except (Exception, SystemExit) as error:
            outcome = ("raised", type(error).__name__, snapshot(str(error)))
            if isinstance(error, RecursionError):
                outcome = ("raised", "RecursionError")
        kept = {name: value for name, value in vars(self.module).items() if is_data(value) and name not in HELPERS}
        state = (
            torch.get_rng_state().sum().item(),
            hash(random.getstate()),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
        )
        return outcome, snapshot(self.args), snapshot(kept), state, sys.getrecursionlimit()


HELPERS = ("A", "M", "F", "__builtins__", "__warningregistry__")


def is_data(value: Any) -> bool:
    return (
        isinstance(value, (list, dict, set, torch.Tensor, types.SimpleNamespace))
        or type(value).__module__ == "fuzz_world"
    )


def backward(result: Any) -> str:
    """Run the backward of what a call returned; the gradients are seen at the arguments."""
    tensors = [
        t for t in (result[0], *(v for v in result[1] if isinstance(v, torch.Tensor))) if isinstance(t, torch.Tensor)
    ]
    wanting = [t for t in tensors if t.requires_grad and t.is_floating_point() and not t.is_leaf]
    if not wanting:
        return "no gradient"
    try:
        sum(t.double().sum() for t in wanting).backward()
    except RuntimeError as error:
        return type(error).__name__
    return "gradients"


@contextlib.contextmanager
def own_process_state() -> Iterator[None]:
    """What a world changes of the process comes back, whatever it was."""
    argv, path, environ, filters = list(sys.argv), list(sys.path), dict(os.environ), list(warnings.filters)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
            yield
    finally:
        sys.argv[:], sys.path[:], warnings.filters[:] = argv, path, filters
        for name in set(os.environ) - set(environ):
            del os.environ[name]
        for name in [n for n in sys.modules if n.startswith("fuzz_sub") or n == "fuzz_gone"]:
            del sys.modules[name]
        for name in [n for n in linecache.cache if n.startswith("<world")]:
            del linecache.cache[name]


def replay(case: Case, wrap: Callable[[Any], Any] = lambda f: f) -> list[Any]:
    """What is seen of every call."""
    with own_process_state():
        run = Run(case.world.source(), case.training, wrap)
        try:
            return [(run.change(step), run.call()) for step in case.steps]
        finally:
            run.changes.undo_all()


def generate(seed: int, options: argparse.Namespace, parts: tuple[Part, ...] = PARTS) -> tuple[Case, list[Any]]:
    """A case, and what its first eager run showed."""
    rng = random.Random(seed)
    backend, dynamic, training = options.backend, True if options.dynamic else None, rng.random() < 0.25
    if backend == "mixed":
        backend = rng.choices(("eager", "aot_eager", "native"), (85, 10, 5))[0]
        dynamic = rng.choice((None, None, True, False))
    few = backend == "native"
    with own_process_state():
        made, filler = world(rng, few, 4 if few else 7, parts), Filler(rng, few)
    best: tuple[Case, list[Any]] | None = None
    for _ in range(ATTEMPTS):
        case = Case(seed, made, [], backend, dynamic, training)
        with own_process_state():
            shown = first_run(case, rng, filler, options.calls)
        if best is None or visible(case, shown)[1] > visible(*best)[1]:
            best = case, shown
        if 5 * visible(*best)[1] >= 3 * visible(*best)[0]:
            break
    assert best is not None
    return best


def first_run(case: Case, rng: random.Random, filler: Filler, calls: int) -> list[Any]:
    """Find changes call by call, on a world that runs eagerly."""
    run = Run(case.world.source(), case.training)
    shown = []
    try:
        for number in range(calls):
            step: list[str] = []
            raised: list[str | None] = []
            for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3)) if number else 0):
                statement = choose(rng, case.world, filler, run.module.__dict__, case.training)
                failed = run.changes.run(statement)
                if failed is None or rng.random() < 0.02:
                    step.append(statement)
                    raised.append(failed)
            seen = run.call()
            if seen[0][:2] in (("raised", "RecursionError"), ("raised", "MemoryError")):
                break
            case.steps.append(step)
            shown.append((raised, seen))
        return shown
    finally:
        run.changes.undo_all()


def visible(case: Case, shown: list[Any]) -> tuple[int, int]:
    """Steps with changes, and how many of them eager's result shows."""
    changed = [number for number in range(1, len(shown)) if case.steps[number]]
    return len(changed), sum(differing(shown[n - 1][1][0], shown[n][1][0]) is not None for n in changed)


class Counted:
    """Counts what argand does: graphs compiled, calls of them, frames captured, breaks."""

    NAMES = ("captured", "graph", "graph_breaks", "cache_size_limit", "graph_raised", "cache")
    counts_only = True

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.leave = events.bus.subscribe(self, self.NAMES)

    def __call__(self, event: Any) -> None:
        if event.name == "cache":
            if event.data.get("level") == "outcome":
                self.counts[f"outcome {event.data['outcome']}"] += 1
            return
        self.counts[event.name] += 1
        if event.data.get("frame_skipped"):
            self.counts["frame_skipped"] += 1


def check(case: Case, want: list[Any]) -> Verdict:
    """Compare the compiled run of a case with its eager run."""
    verdict = Verdict(case)
    again = replay(case)
    unstable = differing(want, again, tolerance=1e-6)
    if unstable is not None:
        verdict.dropped = unstable
        return verdict
    counted = Counted()
    calls_of: list[tuple[int, int]] = []

    def wrap(fn: Any) -> Any:
        compiled = argand.compile(fn, backend=case.backend, dynamic=case.dynamic)

        def called(*args: Any) -> Any:
            before = counted.counts["captured"] + counted.counts["frame_skipped"]
            try:
                return compiled(*args)
            finally:
                calls_of.append((before, counted.counts["captured"] + counted.counts["frame_skipped"]))

        return called

    try:
        got = replay(case, wrap)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict.difference = f"{type(error).__name__}: {error}"
        return verdict
    finally:
        counted.leave()
        argand.reset()
    for number, (a, b) in enumerate(zip(want, got)):
        found = differing(a, b)
        if found is not None:
            unstable = next(filter(None, (differing(want, replay(case)) for _ in range(RUNS_AGAIN))), None)
            if unstable is not None:  # the order of a set of objects, which their addresses give
                verdict.dropped = unstable
            else:
                verdict.difference = f"call {number}: {found}"
            break
    tally(verdict, want, calls_of, counted.counts)
    return verdict


def tally(verdict: Verdict, want: list[Any], calls_of: list[tuple[int, int]], counts: collections.Counter[str]) -> None:
    """The figures that tell whether the cases test anything."""
    case, into = verdict.case, verdict.counts
    into.update(counts)
    into.update(calls=len(case.steps), reused=sum(a == b for a, b in calls_of))
    into["with_breaks"] = int(counts["graph_breaks"] > counts["frame_skipped"])
    into["eager_frames"] = int(counts["frame_skipped"] > 0)
    into["graphless"] = int(counts["graph"] == 0)
    into["training"], into["dynamic"] = int(case.training), int(case.dynamic is True)
    into["on " + case.backend] = 1
    steps, seen = visible(case, want)
    into["steps"] += steps
    into["seen"] += seen


class _TooLong(BaseException):
    """A case that takes longer than `SECONDS`."""


def _alarm(number: int, frame: Any) -> None:
    raise _TooLong


def check_seed(seed: int, options: argparse.Namespace) -> Verdict:
    """Generate the case of a seed and check it, within `SECONDS`."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    case: Case | None = None
    try:
        start = time.monotonic()
        case, want = generate(seed, options)
        if time.monotonic() - start > SLOW:
            return Verdict(case, dropped=f"takes longer than {SLOW} s eagerly")
        verdict = check(case, want)
    except _TooLong:
        if case is not None:
            verdict = Verdict(case, f"takes longer than {SECONDS} s")
        else:  # to make up, or to run eagerly
            verdict = Verdict(Case(seed, World()), dropped=f"no case within {SECONDS} s")
    except Exception as error:
        if case is not None:
            raise
        verdict = Verdict(Case(seed, World()), dropped=f"no case: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    verdict.parts = sorted({p.part.name for p in verdict.case.world.placed})
    return verdict


def bound_memory() -> None:
    """Let a program that takes memory without end raise, eagerly and compiled, instead of taking the machine's."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))


def report(total: collections.Counter[str], programs: int, dropped: int) -> str:
    """The figures of a whole run."""
    n, steps, calls = max(programs - dropped, 1), max(total["steps"], 1), max(total["calls"], 1)
    backends = ", ".join(f"{k[3:]} {v}" for k, v in sorted(total.items()) if k.startswith("on "))
    return "\n".join(
        (
            f"dropped, as eager differs from eager: {dropped} ({100 * dropped / max(programs, 1):.2f} %)",
            f"backends: {backends}; training {total['training']}, dynamic {total['dynamic']}",
            f"calls: {calls}; steps with changes: {steps}, after which eager's result differed: {100 * total['seen'] / steps:.0f} %",
            f"frames compiled: {total['captured']}, graphs: {total['graph']}; calls answered without compiling: {100 * total['reused'] / calls:.0f} %",
            f"stored outcomes: loaded {total['outcome hit']}, stored {total['outcome stored']}, not for the call at hand {total['outcome mismatch']}, known to one process only {total['outcome bypass']}",
            f"programs with graph breaks: {100 * total['with_breaks'] / n:.0f} %, with frames that run eagerly: {100 * total['eager_frames'] / n:.0f} %, without any graph: {100 * total['graphless'] / n:.0f} %",
        )
    )
