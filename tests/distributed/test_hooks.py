"""Communication hooks that torch brings train as in eager: Python's and those of C++, compiled and recorded."""

from __future__ import annotations

from typing import Any

import pytest

from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.hook_programs"


def check(names: list[str], ranks: int = 2) -> None:
    answers: list[dict[str, Any]] = run_ranks(PROGRAMS, names, ranks)
    for rank, answer in enumerate(answers):
        for name, found in answer.items():
            assert found
            for way, one in found.items():
                exact = "native" not in way and ("recorded" in way or ranks == 2)  # sums of four depend on their place
                tolerance = 0.0 if exact else 1e-2 if "16" in way else 1e-4
                assert one["error"] <= tolerance, (rank, name, way, one)
                if "recorded" in way:  # what is not recorded is no graph, and says why
                    assert sum("return" in text for text in one["told"]) >= 1, (rank, name, way, one)


@pytest.mark.distributed
def test_each_hook_under_compiled_modules() -> None:
    check(["compiled", "compiled_natively"])


@pytest.mark.distributed
def test_each_hook_under_compiled_autograd() -> None:
    check(["recorded_eagerly"])


@pytest.mark.distributed
def test_hooks_with_options_of_ddp() -> None:
    check(["accumulated", "static", "unused"])


@pytest.mark.distributed
def test_hooks_of_four_ranks() -> None:
    check(["accumulated"], ranks=4)
