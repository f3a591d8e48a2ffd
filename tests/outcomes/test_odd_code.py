"""Code and functions that no text tells of: their outcomes are not stored, and what they compute is eager's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import argand
from argand.cli import app
from outcomes.processes import STORED, Program

RESUMED = """
import argand
import torch

class Managed:
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        return False

def main(x):
    try:
        with Managed():
            x = x * 2
            argand.graph_break()
            x = x + 1
            raise IndexError(str(x.shape))
    except IndexError as error:
        x = x * len(str(error))
    return x + 3
"""
CONSTANTS = """
import types

class Thing:
    def __bool__(self):
        return True

def _plain(x):
    return x * 2 if "thing" else x

_code = _plain.__code__
main = types.FunctionType(
    _code.replace(co_consts=tuple(Thing() if c == "thing" else c for c in _code.co_consts)), globals(), "main"
)
"""
DEFAULTS = """
holds_itself = [2]
holds_itself.append(holds_itself)

def helper(x, numbers=holds_itself):
    return x * numbers[0]

def main(x):
    return helper(x) + 1
"""
CALLED = """
import types

def _plain(x):
    return x * 2 if x.dim() == "thing" else x + 1

_code = _plain.__code__
helper = types.FunctionType(
    _code.replace(co_consts=tuple(object() if c == "thing" else c for c in _code.co_consts)), globals(), "helper"
)

def main(x):
    return helper(x) * 3
"""
CHECK = """
import torch

def check(compile):
    with torch.no_grad():
        x = torch.randn(5)
        compiled = compile(main)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), main(x))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield


@pytest.mark.parametrize("text", [RESUMED, CONSTANTS, DEFAULTS, CALLED])
def test_it_runs_in_each_process(tmp_path: Path, text: str) -> None:
    program = Program(tmp_path, text + CHECK)
    for _ in range(3):
        program.run()


ABSTRACT = """
import numbers
import torch

class Amount:
    pass

REGISTER = False

def main(x, amount):
    return x + 1 if isinstance(amount, numbers.Number) else x - 1

def check(compile):
    if REGISTER:
        numbers.Number.register(Amount)
    with torch.no_grad():
        x = torch.ones(3)
        torch.testing.assert_close(compile(main)(x, Amount()), main(x, Amount()))
"""


@pytest.mark.parametrize("first", [False, True])
def test_classes_that_only_one_process_registers(tmp_path: Path, first: bool) -> None:
    program = Program(tmp_path, ABSTRACT)

    def register(module: ModuleType) -> None:
        module.REGISTER = True

    def nothing(_: ModuleType) -> None:
        pass

    ways = [register, nothing] if first else [nothing, register]
    assert program.run(ways[0]) == ["stored"]
    assert program.run(ways[0]) == ["hit"]
    assert program.run(ways[1]) == ["mismatch", "stored"]


def test_reasons_are_counted(tmp_path: Path) -> None:
    program = Program(tmp_path, ADDRESS)
    for _ in range(2):
        assert program.run() == ["bypass"]
    shown = CliRunner().invoke(app, ["cache", "stats"])
    assert shown.exit_code == 0 and "     2  an address" in shown.output


ADDRESS = """
import torch
thing = object()
def main(x):
    return x + id(thing) % 7
def check(compile):
    with torch.no_grad():
        torch.testing.assert_close(compile(main)(torch.ones(3)), main(torch.ones(3)))
"""


MEMOIZED = """
import functools
import torch
@functools.lru_cache
def scale(n):
    return n * 2
def main(x):
    return x * scale(x.shape[0])
def check(compile):
    with torch.no_grad():
        torch.testing.assert_close(compile(main)(torch.ones(3)), main(torch.ones(3)))
"""


def test_functions_that_remember_their_results(tmp_path: Path) -> None:
    program = Program(tmp_path, MEMOIZED)
    assert program.run() == ["stored"], program.reasons
    assert program.run() == ["hit"]

    def other(module: ModuleType) -> None:
        module.scale = functools.lru_cache(lambda n: n * 5)

    assert "hit" not in program.run(other)

    def another(module: ModuleType) -> None:
        module.scale.__wrapped__.__code__ = (lambda n: n * 7).__code__

    assert "hit" not in program.run(another)
