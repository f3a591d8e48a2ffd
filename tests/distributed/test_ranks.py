"""Ranks that compile differently are told of, without waiting; a rank that dies ends the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argand.debug.ranks import CompiledHere, difference
from distributed.ranks import ended_ranks, run_ranks

PROGRAMS = "tests.distributed.rank_programs"


@pytest.mark.distributed
def test_differences_are_told_with_the_reasons_of_both_ranks() -> None:
    answers = run_ranks(PROGRAMS, ["breaks", "sizes", "order", "recompiles", "alike"])
    told = {name: [text for answer in answers for text in answer[name]] for name in answers[0]}
    assert any("broke: [AG" in text and "print" in text and "rank 0 [0/0] breaking" in text for text in told["breaks"])
    assert len(told["sizes"]) == 1 and "graphs part at: rank 0" in told["sizes"][0]
    assert "f32[4]" in told["sizes"][0] and "f32[5]" in told["sizes"][0]
    assert any("left" in text and "right" in text for text in told["order"])
    assert told["recompiles"] == [] and told["alike"] == []


@pytest.mark.distributed
@pytest.mark.parametrize("how", ["dies", "dies_in_a_graph", "dies_before_a_backward"])
def test_a_rank_that_is_killed_ends_the_others_with_an_error(tmp_path: Path, how: str) -> None:
    """While it compiles; and where the others are in the middle of a graph, waiting for what it sends."""
    first, second = ended_ranks(
        PROGRAMS, [how], 2, str(tmp_path), ARGAND_CACHE_DIR=str(tmp_path / "cache"), RANKS_TIMEOUT="20"
    )
    assert second.code == -9 and first.code == 1
    assert "RuntimeError" in first.text and (
        "Connection closed by peer" in first.text or "Timed out" in first.text or "reset by peer" in first.text
    ), first.text[-3000:]
    if how == "dies_in_a_graph":
        told = first.text.partition("raised by compiled operations of graph")[2]
        assert "it communicates in" in told and "in graph: return funcol.all_reduce(x.exp()" in told, first.text[-3000:]
    if how == "dies_before_a_backward":
        told = first.text.partition("raised by the backward of compiled operations")[2]
        assert "in graph: y = funcol.all_gather_tensor_autograd(x.exp()" in told, first.text[-3000:]


def test_what_is_told_of_a_difference() -> None:
    one = CompiledHere(0, "f (a.py:3)", "[0/0]", "a", ["head", "x = y + 1", "return x"])
    same = CompiledHere(3, "f (a.py:3)", "[1/0]", "a")
    other = CompiledHere(
        2, "f (a.py:3)", "[0/0]", "b", ["head", "x = y + 2", "return x"], ["[AG0001] because"], ["L['x'] changed"]
    )
    assert difference(one, same) == ""
    text = difference(other, one)
    assert (
        text.startswith("ranks 0 and 2 compile differently")
        and "rank 0: x = y + 1" in text
        and "rank 2: x = y + 2" in text
    )
    assert "broke: [AG0001] because" in text and "compiled again: L['x'] changed" in text


@pytest.mark.distributed
@pytest.mark.parametrize(("program", "graphs"), [("one_compile", 1), ("one_compile_of_parts", 2)])
def test_ranks_of_one_job_share_a_compile(tmp_path: Path, program: str, graphs: int) -> None:
    """All begin at once with an empty cache: one captures and compiles, the others load what it stored."""
    answers = run_ranks(
        PROGRAMS, [program], 3, ARGAND_CACHE_DIR=str(tmp_path), ARGAND_PROGRAM_CACHE="1", ARGAND_VERIFY_IR="0"
    )
    found: list[Any] = [answer[program] for answer in answers]
    said = list(zip(*[[one for one in each["said"] if one != "mismatch"] for each in found], strict=True))
    shared = [of_one for of_one in said if sorted(of_one) == ["hit", "hit", "stored"]]
    assert len(shared) >= graphs and all(of_one in shared or set(of_one) == {"hit"} for of_one in said), said
    assert all(each["worst"] < 1e-4 and each.get("parts", 9) > 4 for each in found), found
