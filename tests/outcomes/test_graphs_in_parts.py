"""Graphs whose sizes depend on data, in parts: a later process captures neither the graph nor a part of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import argand
from outcomes.processes import STORED, Program

TEXT = """
import torch

SCALE = 2

def outer(factor):
    def chosen(x):
        keep = x[x[:, 0] > 0]
        y = (keep * factor + 1).relu().sum(1) + keep.shape[0]
        places = torch.nonzero(y > 1).squeeze(1)
        return inner(y[places] * SCALE).cos().tanh() * 3, places
    return chosen

def inner(y):
    return y.sin()

FACTOR = 2
GRADIENTS = False

def called(fn, rows):
    torch.manual_seed(rows)
    x = torch.randn(rows, 4, requires_grad=GRADIENTS)
    values, places = fn(x)
    return values.detach(), places, torch.autograd.grad(values.sum(), x) if GRADIENTS else None

def check(compile):
    fn = outer(FACTOR)
    compiled = compile(fn)
    for rows in (20, 20, 30):
        torch.testing.assert_close(called(compiled, rows), called(fn, rows))
"""
OPERATOR = TEXT.replace(
    "def inner(y):\n    return y.sin()",
    """@torch.library.custom_op("argand_tests::sine", mutates_args=())
def inner(y: torch.Tensor) -> torch.Tensor:
    return y.sin()

inner.register_fake(torch.empty_like)""",
)


def with_gradients(module: ModuleType) -> None:
    module.GRADIENTS = True  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _stored(tmp_path: Path) -> object:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield


@pytest.mark.parametrize("change", [None, with_gradients], ids=["inference", "gradients"])
def test_a_later_process_loads_the_graph_and_its_parts(tmp_path: Path, change: object) -> None:
    program = Program(tmp_path, TEXT)
    assert "bypass" not in program.run(change), program.reasons
    assert set(program.run(change)) == {"hit"}, program.reasons


def test_what_was_edited_is_captured_anew(tmp_path: Path) -> None:
    program = Program(tmp_path, TEXT)
    program.run()
    for old, new in (("return y.sin()", "return y.neg()"), ("relu()", "sigmoid()")):
        program.edit(old, new)
        assert "stored" in program.run(), program.reasons


@pytest.mark.parametrize("name", ["SCALE", "FACTOR"])
def test_values_of_a_process_are_checked(tmp_path: Path, name: str) -> None:
    """Globals and cells."""
    program = Program(tmp_path, TEXT)
    program.run()
    assert "mismatch" in program.run(lambda module: setattr(module, name, 7)), program.reasons


def test_operators_of_the_program_are_told_by_their_code(tmp_path: Path) -> None:
    program = Program(tmp_path, OPERATOR)
    program.run()
    assert set(program.run()) == {"hit"}, program.reasons
    program.edit("return y.sin()", "return y.neg()")
    assert "stored" in program.run(), program.reasons
