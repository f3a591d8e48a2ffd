"""Two ways to compute the same: timed in passing, the faster one is taken, and remembered in the cache."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import argand
from argand.runtime import process
from argand.runtime.kernels import calm, timed_choice
from argand.runtime.kernels.timed_choice import Rivals


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch({"cache_dir": str(tmp_path)}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed_choice, "_KINDS", 1)
        yield


class Clock:
    """Stands in for the clock: time passes while something is computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(timed_choice.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timed_choice.time, "thread_time", lambda: self.now)
        monkeypatch.setattr(timed_choice, "_LONG", 1e9)

    def way(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds

    def settle(
        self, rivals: Rivals, own: Callable[[], float], library: Callable[[], float], kind: Hashable = None
    ) -> None:
        """Call until one is taken."""
        for _ in range(60):
            if rivals.taken(kind) is None:
                rivals.run(lambda: self.way("own", own()), lambda: self.way("library", library()), kind)
        assert rivals.taken(kind) is not None


@pytest.mark.parametrize(("own", "faster"), [(1.0, True), (3.0, False)])
def test_the_faster_is_taken(own: float, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: not faster, 0.98)
    assert found.known() is None
    clock.settle(found, lambda: own, lambda: 2.0)
    assert found.known() is faster
    clock.calls.clear()
    found.run(lambda: clock.way("own", own), lambda: clock.way("library", 2.0))
    assert clock.calls == ["own" if faster else "library"]
    assert Rivals("products", lambda: not faster, 0.98).known() is faster  # another process
    assert Rivals("others", lambda: faster, 0.98).known() is None


def test_what_takes_long_is_computed_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways take turns, whatever the period of the calls."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    for number in range(2 * (1 + timed_choice._PAIRS)):
        assert found.known() is None and len(clock.calls) == number
        found.run(lambda: clock.way("own", 1.5), lambda: clock.way("library", 2.0))
    assert found.known() is True and clock.calls.count("own") == clock.calls.count("library")
    assert all(len(set(clock.calls[first::period])) == 2 for period in (2, 3, 4) for first in range(period))


@pytest.mark.parametrize(("own", "calls"), [(1e-4, 1), (1.5e-4, 2)])
def test_what_takes_no_time_is_decided_by_two_calls(own: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second goes on where the first was about to make its program wait; what is far apart takes one."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    for _ in range(calls):
        assert found.known() is None
        found.run(lambda: clock.way("own", own), lambda: clock.way("library", 2e-4))
        assert clock.now < 2 * timed_choice._SHORT
    assert found.known() is True and len(clock.calls) >= 2 * (1 + timed_choice._PAIRS)


def test_outcomes_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call decides ten kinds, and ext4 takes up to 12 ms for each file that replaces another."""
    clock, rivals, writes = Clock(monkeypatch), Rivals("products", lambda: False, 0.98), []
    write = timed_choice.cache.write_note
    monkeypatch.setattr(timed_choice.cache, "write_note", lambda *note: writes.append(note) or write(*note))
    kinds = range(6)
    for kind in kinds:  # of each a first call, which does not decide
        rivals.run(lambda: clock.way("own", 0.1), lambda: clock.way("library", 0.2), kind)
    for kind in kinds:
        clock.settle(rivals, lambda: 0.1, lambda: 0.2, kind)
        assert len(writes) == (1 if kind < 5 else 2)
    assert all(Rivals("products", lambda: False, 0.98).taken(kind) for kind in kinds)
    rivals.run(lambda: clock.way("own", 0.1), lambda: clock.way("library", 0.2), "begun")
    clock.settle(rivals, lambda: 0.1, lambda: 0.2, "later")
    rivals._write()  # as the process ends
    assert Rivals("products", lambda: False, 0.98).taken("later")


def test_one_interruption_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    clock.settle(found, lambda: 900.0 if clock.calls.count("own") in (0, 3) else 1.0, lambda: 2.0)
    assert found.known() is True


@pytest.mark.parametrize("disturbed", ["own", "library"])
def test_calls_in_which_others_had_the_processors_do_not_decide(
    disturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where all of one way's are such; the library's way is taken for a while then, and calm calls decide."""
    clock, rivals = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    seconds, taken, moment = {"own": 1e-3, "library": 2e-3}, [0], [1.0]
    monkeypatch.setattr(calm, "taken_away", lambda: taken[0])
    monkeypatch.setattr(timed_choice.time, "monotonic", lambda: moment[0])
    others = [True]

    def way(name: str) -> None:
        if name == disturbed and others[0]:
            taken[0] += 1
            clock.way(name, 50e-3)
        clock.way(name, seconds[name])

    for _ in range(100):
        rivals.run(lambda: way("own"), lambda: way("library"))
    assert rivals.known() is None and clock.calls[-60:] == 60 * ["library"]
    moment[0], others[0] = 1e9, False
    for _ in range(60):
        rivals.run(lambda: way("own"), lambda: way("library"))
    assert rivals.known() is True


def test_luck_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many calls of a way that is mostly slower takes less time than any of the other."""
    monkeypatch.setattr(calm, "_ALIKE", 1.25)
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    library = iter([*3 * [2e-4], 0.5e-4, *30 * [2e-4]])
    clock.settle(found, lambda: 1e-4, lambda: next(library))
    assert found.known() is True


def test_long_ones_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    monkeypatch.setattr(timed_choice, "_LONG", 5.0)
    clock.settle(found, lambda: 1.0, lambda: 2.0)
    assert len(clock.calls) == 2 * (1 + timed_choice._LEAST_PAIRS) and found.known() is True
    clock.calls.clear()
    clock.settle(found, lambda: 0.001, lambda: 0.002, "far apart")
    assert len(clock.calls) == 2 * (1 + timed_choice._FAR_PAIRS) and found.taken("far apart")


def test_times_that_are_close_are_taken_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    own = iter([0.0, 0.0011] + 30 * [0.0009])  # the first that counts was disturbed
    clock.settle(found, lambda: next(own), lambda: 0.001)
    assert timed_choice._LONGER / 0.002 - 1 < len(clock.calls) / 2 <= 1 + timed_choice._MOST_PAIRS
    assert found.known() is True
    monkeypatch.setattr(timed_choice, "_LONG", 5.0)
    clock.calls.clear()
    clock.settle(found, lambda: 1.9, lambda: 2.0, "long")
    assert len(clock.calls) == 2 * (1 + timed_choice._PAIRS)


@pytest.mark.parametrize("presumed", [False, True])
def test_nothing_is_timed_beside_a_compiler(presumed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has ended, the library's way is taken, whatever is presumed, and nothing decided."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: presumed, 0.98)

    def call() -> None:
        found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0))

    with ThreadPoolExecutor(1) as pool:
        compiler = pool.submit(process.run_all, [["sleep", "0.3"]], limit=9.0)
        while not process.compiling() and not compiler.done():
            threading.Event().wait(0.001)
        call()
        assert clock.calls == ["library"] and found.known() is None
        compiler.result()
    for _ in range(2 * (1 + timed_choice._PAIRS)):
        call()
    assert found.known() is True


def test_what_is_made_ready_for_each_kind_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that compiles its kernels in the first call of each size."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    seen: set[int] = set()

    def own(size: int) -> float:
        seconds = 1.0 if size in seen else 90.0
        seen.add(size)
        return seconds

    for size in range(12):
        clock.settle(found, functools.partial(own, size), lambda: 2.0, size)
    assert found.known() is True
    clock.calls.clear()
    for size in range(12):
        found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0), size)
    assert clock.calls == ["own"] * 12


def test_each_kind_has_the_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kinds say nothing of the others, in this process and in the next."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    times = {"forward": (1.0, 2.0), "backward": (3.0, 2.0)}

    def step(of: Rivals) -> None:
        for kind, (own, library) in times.items():
            of.run(lambda own=own: clock.way("own", own), lambda lib=library: clock.way("library", lib), kind)  # type: ignore[misc]

    for _ in range(2 * (1 + timed_choice._PAIRS)):
        step(found)
    for each in (found, Rivals("products", lambda: False, 0.98)):
        clock.calls.clear()
        step(each)
        assert clock.calls == ["own", "library"] and each.known() is True


def test_the_library_is_left_alone_after_some_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_choice, "_KINDS", 3)
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    for kind in range(3):
        assert found.known() is None
        clock.settle(found, lambda: 3.0, lambda: 2.0, kind)
    assert found.known() is False


def test_other_threads_are_another_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    clock.settle(found, lambda: 1.0, lambda: 2.0)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert found.known() is None
    finally:
        torch.set_num_threads(before)
    assert found.known() is True


def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process computes what is presumed."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    torch.use_deterministic_algorithms(True)
    try:
        found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0))
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(clock.calls) == {"library"}
    assert found.known() is None


def test_a_note_that_was_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    clock.settle(found, lambda: 1.0, lambda: 2.0)
    (note,) = tmp_path.rglob("rivals-*.note")
    note.write_text(note.read_text().replace("own", "library"))
    assert Rivals("products", lambda: True, 0.98).known() is None


def test_what_another_kernel_took_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose text changed is timed again."""
    Rivals("changed", lambda: True, 1e9, "products").run(lambda: None, lambda: None)
    assert Rivals("changed", lambda: True, 1e9, "products").known() is True
    monkeypatch.setattr(timed_choice, "_text_digest", lambda name: "another")
    assert Rivals("changed", lambda: True, 1e9, "products").known() is None
