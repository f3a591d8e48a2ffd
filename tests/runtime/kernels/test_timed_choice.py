"""Two ways to compute the same: timed in passing, the faster one is taken, and remembered in the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import argand
from argand.runtime import process
from argand.runtime.kernels import timed_choice
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


@pytest.mark.parametrize("presumed", [False, True])
@pytest.mark.parametrize(("own", "faster"), [(1.0, True), (3.0, False)])
def test_the_faster_is_taken(presumed: bool, own: float, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: presumed, 0.98)
    assert found.known() is None
    found.run(lambda: clock.way("own", own), lambda: clock.way("library", 2.0))
    assert clock.calls[-1] == ("own" if presumed else "library") and len(clock.calls) == 2 * (1 + timed_choice._PAIRS)
    assert found.known() is faster
    clock.calls.clear()
    found.run(lambda: clock.way("own", own), lambda: clock.way("library", 2.0))
    assert clock.calls == ["own" if faster else "library"]
    assert Rivals("products", lambda: not faster, 0.98).known() is faster  # another process
    assert Rivals("others", lambda: presumed, 0.98).known() is None


def test_one_interruption_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    found.run(
        lambda: clock.way("own", 900.0 if clock.calls.count("own") in (0, 3) else 1.0),
        lambda: clock.way("library", 2.0),
    )
    assert found.known() is True


def test_luck_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many calls of a way that is mostly slower takes less time than any of the other."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    library = iter([*3 * [2e-4], 0.5e-4, *30 * [2e-4]])
    found.run(lambda: clock.way("own", 1e-4), lambda: clock.way("library", next(library)))
    assert found.known() is True


def test_long_ones_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    monkeypatch.setattr(timed_choice, "_LONG", 5.0)
    found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0))
    assert len(clock.calls) == 2 * (1 + timed_choice._LEAST_PAIRS) and found.known() is True


def test_times_that_are_close_are_taken_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    own = iter([0.0, 0.0011] + 30 * [0.0009])  # the first that counts was disturbed
    found.run(lambda: clock.way("own", next(own)), lambda: clock.way("library", 0.001))
    assert timed_choice._LONGER / 0.002 - 1 < len(clock.calls) / 2 <= 1 + timed_choice._MOST_PAIRS
    assert found.known() is True
    monkeypatch.setattr(timed_choice, "_LONG", 5.0)
    clock.calls.clear()
    found.run(lambda: clock.way("own", 1.9), lambda: clock.way("library", 2.0), "long")
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
    call()
    assert found.known() is True


def test_what_is_made_ready_for_each_kind_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that compiles its kernels in the first call of each size."""
    clock, found = Clock(monkeypatch), Rivals("products", lambda: False, 0.98)
    seen: set[int] = set()

    def own(size: int) -> None:
        clock.way("own", 1.0 if size in seen else 90.0)
        seen.add(size)

    for size in range(12):
        found.run(lambda size=size: own(size), lambda: clock.way("library", 2.0), size)  # type: ignore[misc]
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
        found.run(lambda: clock.way("own", 3.0), lambda: clock.way("library", 2.0), kind)
    assert found.known() is False


def test_other_threads_are_another_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(monkeypatch), Rivals("products", lambda: True, 0.98)
    found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0))
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
    found.run(lambda: clock.way("own", 1.0), lambda: clock.way("library", 2.0))
    (note,) = tmp_path.rglob("rivals-*.note")
    note.write_text(note.read_text().replace("own", "library"))
    assert Rivals("products", lambda: True, 0.98).known() is None


def test_what_another_kernel_took_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose text changed is timed again."""
    Rivals("changed", lambda: True, 1e9, "products").run(lambda: None, lambda: None)
    assert Rivals("changed", lambda: True, 1e9, "products").known() is True
    monkeypatch.setattr(timed_choice, "_text_digest", lambda name: "another")
    assert Rivals("changed", lambda: True, 1e9, "products").known() is None
