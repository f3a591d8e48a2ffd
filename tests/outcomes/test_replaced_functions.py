"""Functions and methods of torch's that a later process has replaced: what was captured of the old ones is not for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from outcomes.processes import STORED, Program

TEXT = """
import functools
import math
import torch

WRAPPED = functools.wraps

def main(x):
    return torch.sinh(x) + x.cosh() * math.floor(2.5) + torch.nn.functional.gelu(x) + x / 2

def check(compile):
    with torch.no_grad():
        x = torch.randn(5)
        torch.testing.assert_close(compile(main)(x), main(x))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that says it is the one of C."""

    @functools.wraps(function)
    def other(*args: Any) -> Any:
        return function(*args) * 10

    return other


def test_replaced_functions_are_captured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, TEXT)
    assert program.run() == ["stored"]
    assert program.run() == ["hit"]
    for owner, name, other in (
        (torch, "sinh", wrapped(torch.sinh)),
        (torch, "sinh", torch.asinh),
        (torch.nn.functional, "gelu", wrapped(torch.nn.functional.gelu)),
        (torch.nn.functional, "gelu", torch.nn.functional.silu),
        (math, "floor", wrapped(math.floor)),
        (math, "floor", math.ceil),
        (torch.Tensor, "cosh", wrapped(torch.Tensor.cosh)),
        (torch.Tensor, "cosh", torch.Tensor.sin),
        (torch.Tensor, "__truediv__", wrapped(torch.Tensor.__truediv__)),
        (torch.Tensor, "__truediv__", torch.Tensor.__mul__),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, other)
            assert program.run()[0] != "hit", (name, other)  # the first is `main`; parts of it may be as before
    assert program.run()[-1] == "hit"


OPERATORS = """
import torch

OP = torch.ops.argand_stored.composed

PROGRAMS = {
    "namespace": lambda x: torch.ops.argand_stored.composed(x.sin(), 2.0) + 1,
    "overload": lambda x: OP.default(x, 2.0),
    "mapped": lambda x: torch.vmap(lambda row: OP(row, 2.0))(x),
    "shape": lambda x: x * OP(x, 0.0).shape[1],
}

def check(compile):
    x = torch.randn(3, 4)
    for name, fn in PROGRAMS.items():
        torch.testing.assert_close(compile(fn)(x), fn(x), msg=name)
"""


@pytest.mark.filterwarnings("ignore:.*performance drop")
def test_operators_of_a_library_that_is_another(tmp_path: Path) -> None:
    """They become what they are made of when they are traced, which may be in a file that nothing else tells of."""
    program = Program(tmp_path, OPERATORS)
    for shift in (3, 5):
        library = torch.library.Library("argand_stored", "FRAGMENT")
        library.define("composed(Tensor x, float y) -> Tensor")
        library.impl("composed", functools.partial(_composed, shift), "CompositeImplicitAutograd")
        try:
            said = program.run()
        finally:
            library._destroy()
        assert said == ["bypass"] * 4, program.reasons


def _composed(shift: int, x: torch.Tensor, y: float) -> torch.Tensor:
    return x * y + shift if y else x.new_ones(len(x), shift)
