"""Frames of libraries in which nothing of torch's runs: not compiled again for each class and each flag."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.helpers import CountingBackend, collected

import argand

LIBRARY = """
import argand

class Flag:
    on = False

class Fast(Flag): on = True
class Slow(Flag): pass
class Odd(Flag): pass

def is_on(flag):
    return flag.on

def scaled(x, flag):
    if flag is Odd:
        return x * 3
    return x

def graph_break_and(flag, x):
    argand.graph_break()
    return is_on(flag), scaled(x, flag)
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[ModuleType]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    path = folder / "library_of_flags.py"
    path.write_text(LIBRARY)
    module = ModuleType("library_of_flags")
    module.__file__ = str(path)
    exec(compile(LIBRARY, str(path), "exec"), vars(module))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_questions_are_left_to_python_once_they_differ(library: ModuleType) -> None:
    calls = argand.compile(
        lambda flag, x: (argand.graph_break(), library.is_on(flag), argand.graph_break(), x * 2)[1], backend="eager"
    )
    x = torch.ones(2)
    with collected("recompiles") as recompiles:
        for flag in (library.Fast, library.Slow, library.Odd, library.Fast):
            assert calls(flag, x) is flag.on
        library.Slow.on = 5
        assert calls(library.Slow, x) == 5
    assert not [event for event in recompiles if event.data["function"] == "is_on"]


def test_what_computes_for_another_argument_is_compiled(library: ModuleType) -> None:
    def program(x: torch.Tensor, flags: list[type]) -> list[torch.Tensor]:
        return [library.graph_break_and(flag, x)[1] for flag in flags]

    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    for flag in (library.Fast, library.Odd, library.Odd):
        assert torch.equal(compiled(x, [flag])[0], program(x, [flag])[0])


def test_a_program_of_ones_own_is_always_captured() -> None:
    backend = CountingBackend()

    @argand.compile(backend=backend)
    def program(x: torch.Tensor, times: int) -> object:
        if times < 2:
            return times
        return x * times

    x = torch.ones(2)
    assert [program(x, 0), program(x, 1)] == [0, 1] and torch.equal(program(x, 2), x * 2)
    assert len(backend.graphs) == 1
