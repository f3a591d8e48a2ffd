"""Functions in which the graph breaks: a later process loads each part, and none that is another than it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import argand
from argand import events
from outcomes.processes import STORED, Program

BREAKS = """
import contextlib
import torch
import argand

SCALE = 2.0
SAID = []

def say(x):
    argand.graph_break()
    SAID.append(float(x.sum()))

def steps(x, n):
    for i in range(n):
        x = x * SCALE + i
        argand.graph_break()
        x = x - 1
    return x

class Guarded:
    def __enter__(self):
        SAID.append("in")
    def __exit__(self, *error):
        SAID.append("out")

def within(x):
    with Guarded():
        y = x * 3
        argand.graph_break()
        y = y.exp()
    return y

def closed(x):
    total = 0
    def add(y):
        nonlocal total
        total = total + y.sum()
        return lambda: total
    x = x + 1
    got = add(x)
    argand.graph_break()
    add(x * 2)
    return x, got(), add.__code__ is closed.__code__.co_consts[CODE]

CODE = next(i for i, c in enumerate(closed.__code__.co_consts) if hasattr(c, "co_name"))

def branch(x):
    y = x.sin()
    if y.sum() > 0:
        return y + 1
    return y - 1

def caught(x):
    try:
        y = x + 1
        argand.graph_break()
        raise ValueError("no")
    except ValueError as error:
        z = y * 2
        argand.graph_break()
        return z, str(error)

@contextlib.contextmanager
def managed(x):
    def inner():
        yield x * 2
        yield x * 3
    pairs = inner()
    next(pairs)
    yield pairs
    SAID.append("over")

def yields(x):
    with managed(x) as pairs:
        y = x + 1
        argand.graph_break()
        return y + next(pairs)

def main(x):
    y = x * SCALE
    say(y)
    y = y.relu() + 1
    say(y)
    return y * y, steps(x, 3), within(x), closed(x), branch(x), branch(-x), caught(x), yields(x)

def same(got, want):
    assert type(got) is type(want), (got, want)
    if isinstance(got, tuple):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b)
    elif isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want

def trained(x, w):
    y = (x @ w).tanh()
    argand.graph_break()
    return (y * y).mean()

def gradient(fn):
    w = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()
    fn(torch.ones(2, 3), w).backward()
    return w.grad

def check(compile):
    same(gradient(compile(trained)), gradient(trained))
    x = torch.arange(6.0).reshape(2, 3) / 3
    with torch.no_grad():
        SAID.clear()
        want = main(x), SAID[:]
        SAID.clear()
        fn = compile(main)
        got = fn(x), SAID[:]
        assert got[1] == want[1], (got[1], want[1])
        same(got[0], want[0])
        same(fn(x), want[0])
"""


def loaded(program: Program, change: Callable[[ModuleType], Any] | None = None) -> bool:
    """Whether a later process captures nothing; what it computes is compared with eager."""
    said = program.run(change)
    assert "hit" in said
    return "stored" not in said and "bypass" not in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("breaks")


@pytest.fixture
def stored(folder: Path) -> Iterator[Program]:
    """The program, of which all parts are stored."""
    with argand.config.patch({**STORED, "cache_dir": str(folder / "cache")}):
        program = Program(folder, BREAKS)
        assert "bypass" not in program.run(), program.reasons
        yield program


def test_a_later_process_captures_no_part(stored: Program) -> None:
    assert loaded(stored), stored.reasons


def test_breaks_are_told_of_again(stored: Program) -> None:
    def breaks() -> list[tuple[str, ...]]:
        told: list[tuple[str, ...]] = []
        note = events.bus.subscribe(
            lambda event: told.append((event.data["function"], str(event.data["reason"]))), ("graph_breaks",)
        )
        stored.run()
        note()
        return sorted(told)

    again = breaks()
    assert "graph break on request" in str(again) and "data-dependent branch" in str(again)
    with argand.config.patch(outcome_cache=False):
        assert breaks() == again


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return y * y, steps", "return y * y + 1, steps"),  # behind the last break
        ("        x = x - 1", "        x = x - 2"),  # in a loop
        ("y = y.exp()", "y = y.log1p()"),  # in a `with`
        ("total = total + y.sum()", "total = total - y.sum()"),  # in a function that is inlined on both sides
        ("SAID.append(float(x.sum()))", "SAID.append(float(x.mean()))"),  # in a function that runs eagerly
        ("yield x * 3", "yield x * 4"),  # in a generator that has begun
        ('SAID.append("over")', 'SAID.append("done")'),  # in a context manager's
        ("return y - 1", "return y - 3"),  # behind a branch
        ("return (y * y).mean()", "return (y * y).sum()"),  # with gradients
    ],
)
def test_an_edited_part_is_captured_anew(stored: Program, old: str, new: str) -> None:
    stored.edit(old, new)
    assert not loaded_at_all(stored)


def loaded_at_all(program: Program) -> bool:
    """Whether anything that was stored is used."""
    return "hit" in program.run()


def test_a_changed_global_is_seen_in_each_part(stored: Program) -> None:
    def change(module: ModuleType) -> None:
        module.SCALE = 3.0

    assert not loaded(stored, change)


def test_parts_of_other_arguments_are_captured(stored: Program) -> None:
    with stored.process() as (module, said):
        compiled = argand.compile(module.main)
        for x in (torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 3, dtype=torch.float64)):
            with torch.no_grad():
                module.same(compiled(x), module.main(x))
    assert "stored" in said and "hit" in said


def test_where_breaks_are_errors_none_is_loaded(stored: Program) -> None:
    with stored.process() as (module, said), argand.error_on_graph_break(True):
        with pytest.raises(argand.errors.Unsupported, match="graph break"):
            argand.compile(module.trained)(torch.ones(2, 3), torch.ones(3, 2))
    assert said == []


LOOP = """
import torch
import argand

ROUNDS = 3

def solve(x):
    for n in range(ROUNDS):
        x = x * 2
        argand.graph_break()
        x = x + n
    return x

def check(compile):
    x, fn = torch.arange(6.0), compile(solve)
    for _ in range(3):
        torch.testing.assert_close(fn(x), solve(x))
"""


def test_a_package_whose_loop_runs_as_written_is_not_captured_to_find_that_again(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(package, LOOP)
        assert "stored" in program.run(), program.reasons
        assert loaded(program), program.reasons
        assert "mismatch" in program.run(lambda module: setattr(module, "ROUNDS", 5))
        program.edit("x + n", "x - n")
        assert "hit" not in program.run()


OPERATOR = """
import torch

def main(x):
    return torch.ops.aten.special_airy_ai(x) + 1

def check(compile):
    x = torch.arange(6.0)
    torch.testing.assert_close(compile(main)(x), main(x))
"""


def test_an_operator_that_a_process_has_not_looked_up_yet_is_found(tmp_path: Path) -> None:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(tmp_path, OPERATOR)
        assert "stored" in program.run(), program.reasons
        assert loaded(program, lambda module: vars(torch.ops.aten).pop("special_airy_ai")), program.reasons
