"""Small training graphs beside eager's kernels: one process compares, and tells those that load what it compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import argand
from argand import threads
from argand._core import _C
from argand.backends import eager_contest
from argand.backends.small_graphs import small_graph
from outcomes.processes import STORED, Program

TEXT = """
import torch

CALLS = 40

def f(x, w):
    return (x @ w).sin()

def check(compile):
    compiled = compile(f)
    for _ in range(CALLS):
        x = torch.randn(4, 4)
        weights = [torch.eye(4).requires_grad_() for _ in range(2)]
        results = [run(x, w) for run, w in zip((compiled, f), weights)]
        torch.testing.assert_close(*results)
        if BACKWARD:
            for result in results:
                result.sum().backward()
            torch.testing.assert_close(*[w.grad for w in weights])
    global last
    last = type(results[0].grad_fn).__name__

BACKWARD = True
"""


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each comparison was with gradients; what it finds is `ANSWER`."""
    seen: list[bool] = []

    def is_slower(_: Any, args: Any, backward: bool) -> tuple[str | None, float, float]:
        seen.append(backward)
        return ANSWER[0], GAINS[0], GAINS[0] / 2

    monkeypatch.setattr(eager_contest.Contest, "is_slower", is_slower)
    monkeypatch.setattr(threads, "working", lambda: False)
    monkeypatch.setitem(ANSWER, 0, "slower")
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield seen


ANSWER: dict[int, str | None] = {0: "slower"}
GAINS = {0: math.inf}


def run(program: Program, **settings: object) -> tuple[list[str], str]:
    """What the cache said, and the class of the last result's node on autograd's tape: eager's is `SinBackward0`."""
    with program.process() as (module, said):
        for name, value in settings.items():
            setattr(module, name, value)
        module.check(argand.compile)
        return said, module.last


EAGER = "SinBackward0"


def test_what_one_process_finds_holds_for_the_next(tmp_path: Path, compared: list[bool]) -> None:
    program = Program(tmp_path, TEXT)
    assert run(program) == (["stored"], EAGER)
    assert run(program, CALLS=3) == (["hit"], EAGER)
    assert run(program, CALLS=1)[1] != EAGER, "the first call is the compiled graph's, which is quicker to load"
    assert compared == [True] * 2, "eager's kernels are faster twice"


@pytest.mark.parametrize("gain", [math.inf, 1.0])
def test_a_graph_that_is_faster_compiled_stays_so(
    tmp_path: Path, compared: list[bool], gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gains in the backward is told, too: its frame may be slower than the program's own code."""
    told: list[tuple[Any, ...]] = []
    prefer = _C.prefer_original
    monkeypatch.setattr(_C, "prefer_original", lambda *given: told.append(given) or prefer(*given))
    monkeypatch.setitem(GAINS, 0, gain)
    program = Program(tmp_path, TEXT)
    ANSWER[0] = ""
    assert run(program)[1] != EAGER
    ANSWER[0] = "slower"
    assert run(program)[0] == ["hit"] and run(program)[1] != EAGER
    assert compared == [True]
    assert [given[2] for given in told] == ([] if gain == math.inf else [5 * 10**8] * 3)


@pytest.mark.parametrize("backward", [True, False])
def test_a_later_process_compares_where_the_first_did_not(tmp_path: Path, compared: list[bool], backward: bool) -> None:
    program = Program(tmp_path, TEXT)
    run(program, CALLS=3, BACKWARD=backward)
    assert compared == []
    ANSWER[0] = None  # a profiler runs, say: it is not known then
    assert run(program, BACKWARD=backward)[1] != EAGER
    ANSWER[0] = "slower"
    assert run(program, BACKWARD=backward)[1] == EAGER
    assert run(program, CALLS=3, BACKWARD=backward)[1] == EAGER
    assert compared == [backward] * 3


def test_another_number_of_threads_is_another_matter(tmp_path: Path, compared: list[bool]) -> None:
    program = Program(tmp_path, TEXT)
    run(program)
    with program.process() as (module, _):
        before = module.torch.get_num_threads()
        module.torch.set_num_threads(before + 1)
        try:
            module.check(argand.compile)
        finally:
            module.torch.set_num_threads(before)
    assert compared == [True] * 4


@pytest.mark.parametrize(("unknown", "at"), [(0, 16), (1, 48), (3, 240)])
def test_where_nothing_is_known_a_later_call_compares(unknown: int, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many calls later each time: others have the processors, which takes nothing from the program."""
    monkeypatch.setattr(threads, "working", lambda: False)
    answers, calls = iter([*unknown * [None], ""]), 0
    compared: list[int] = []

    def compare(args: Any) -> tuple[str | None, float, float]:
        compared.append(calls)
        return next(answers), 0.0, 0.0

    call = small_graph(lambda: "compiled", lambda: "eager", lambda: "", compare, records=False, varies=False)
    for calls in range(1, 300):
        assert call() == "compiled"
    assert compared[-1] == at and len(compared) == unknown + 1
