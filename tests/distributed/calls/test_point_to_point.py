"""Messages between two ranks in captured code break the graph and are sent as in eager, in the program's order."""

from __future__ import annotations

from typing import Any

import pytest

import sweeps
from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.calls.point_to_point_programs"


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_form_is_as_in_eager(ranks: int) -> None:
    answers: list[dict[str, Any]] = run_ranks(PROGRAMS, ["compare"], ranks)
    for rank, answer in enumerate(answers):
        assert len(answer["compare"]) == (21 if sweeps.WHOLE else 14 if ranks == 2 else 7)
        for name, error in answer["compare"].items():
            assert error <= (1e-5 if name.endswith("native") else 0.0), (rank, name, error)
