"""Collectives in compiled code are operations of its graphs, and compute what eager computes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import sweeps
from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.calls.collective_programs"
CALLS = "tests.distributed.calls.call_programs"
GRAPHS = {
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
}
"""Functions of torch.distributed that are operations of graphs."""

TOLERANCE = {"eager": 1e-6, "aot_eager": 1e-6, "native": 1e-4}


def wrong(answers: list[dict[str, object]]) -> list[str]:
    """Where a rank's result is not eager's."""
    return [
        f"rank {rank}: {name} {way}: {found}"
        for rank, answer in enumerate(answers)
        for name, ways in answer.items()
        if isinstance(ways, Mapping) and name not in ("operators", "sent_by_backwards")
        for way, found in ways.items()
        if not found <= TOLERANCE[way.split()[-1]]
    ]


@pytest.mark.distributed
def test_two_ranks() -> None:
    names = ["compare", "gradients", "breaks", "operators", "sent_by_backwards", "raising", "failing", "audited"]
    answers = run_ranks(PROGRAMS, names)
    assert not wrong(answers), "\n".join(wrong(answers))
    for answer in answers:
        calls = answer["operators"]
        assert isinstance(calls, Mapping)
        assert len(calls["eager"]) == 8
        for backend in ("aot_eager", "native"):
            for way in (backend, f"{backend} graph"):
                assert _starts(calls[way]) == _starts(calls["eager"])
                assert len(calls[way]) == len(calls["eager"])
            assert calls[f"{backend} difference"] < 1e-5
        sent = answer["sent_by_backwards"]
        assert isinstance(sent, Mapping)
        for name, (eager, *ours) in sent.items():
            assert eager[-1] != "c10d::backward" and ours == [eager, eager], (name, eager, ours)


def _starts(calls: list[str]) -> list[str]:
    """What is sent, whether it arrives in its place or in memory of its own."""
    return [name.removesuffix("_") for name in calls if not name.endswith("wait_tensor")]


@pytest.mark.distributed
def test_four_ranks_in_groups() -> None:
    answers = run_ranks(PROGRAMS, ["groups", "compare", "mixed"], ranks=4)
    assert not wrong(answers), "\n".join(wrong(answers))


@pytest.mark.distributed
def test_calls_in_many_forms() -> None:
    """Results, their classes, memory, gradients and errors are eager's, and what is said to be captured is."""
    for answer in run_ranks(CALLS, ["calls", "breaks"]):
        found, broken = answer["calls"], answer["breaks"]
        assert isinstance(found, Mapping) and isinstance(broken, Mapping)
        assert not found["wrong"], "\n".join(f"{name}: {how}" for name, how in found["wrong"].items())
        assert found["count"] > (200 if sweeps.WHOLE else 100)
        for name, ids in broken.items():
            assert bool(ids) == (name.partition(",")[0] not in GRAPHS and not name.startswith("functional")), name
            assert set(ids) <= {"AG0105", *({"AG0028", "AG0038", "AG0142"} if "work" in name or "send" in name else ())}


@pytest.mark.distributed
def test_writes_to_what_has_arrived() -> None:
    """A backward after one is eager's, or refused; where eager refuses, it is."""
    for answer in run_ranks("tests.distributed.worlds.write_programs", ["arrived"]):
        found = answer["arrived"]
        assert isinstance(found, Mapping)
        assert not found["wrong"] and found["refused"] >= 10, found
