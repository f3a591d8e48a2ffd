"""Loops of installed packages in which a graph breaks run as they are written; what they call is captured."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings
from helpers import CountingBackend

_SOURCE = """
def field(y):
    return y.sin() * 2 + 1

def solve(y, rounds):
    out = []
    for step in range(rounds):
        y = field(y)
        if y.sum() > 1000:  # decided by values
            break
        out.append(y * step)
    return sum(out)

def search(y):
    rounds = 0
    while True:
        y = field(y) / 3
        rounds += 1
        if y.abs().max() < 1.2 or rounds > 4:
            return y, rounds

def before(y, rounds):
    y = (y * 3).cos()
    print(end="")
    return y + 1
"""


def library(place: str) -> types.SimpleNamespace:
    namespace: dict[str, Any] = {}
    exec(compile(_SOURCE, place, "exec"), namespace)
    return types.SimpleNamespace(**namespace)


@pytest.mark.parametrize("name", ["solve", "search"])
def test_one_break_and_the_rest_is_pythons(name: str) -> None:
    program = getattr(library("/lib/site-packages/solvers/fixed.py"), name)
    args = (4,) if name == "solve" else ()
    backend, findings = CountingBackend(), Findings()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    with findings.listening():
        for _ in range(4):
            want, got = program(x, *args), compiled(x, *args)
            assert str(want) == str(got)
        seen = len(backend.graphs)
        assert str(program(x + 1, *args)) == str(compiled(x + 1, *args)) and len(backend.graphs) == seen
    assert len(findings.breaks) == 1 and len(findings.recompiles) == 0
    assert [backend.ops] == [3]  # of `field`


def test_what_is_not_in_a_loop_is_captured_on_both_sides() -> None:
    program = library("/lib/site-packages/solvers/fixed.py").before
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    for _ in range(2):
        assert torch.equal(program(x, 2), compiled(x, 2))
    assert len(backend.graphs) == 2


def test_loops_of_the_program_are_compiled_round_by_round() -> None:
    program = library("/home/me/train.py").solve
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    x = torch.rand(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, 4), program(x, 4))
    assert backend.ops > 3
