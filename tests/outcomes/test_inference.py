"""Outcomes of functions without gradients: a later process loads what is the same, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import argand
import warm
from argand.outcomes import store
from argand.runtime import environment, toolchain
from outcomes.processes import STORED, Program

MODEL = """
import functools
import torch
import torch.nn.functional as F

SCALE = 2.0
OPTIONS = {"bias": 3, "names": ("a", "b")}
ENABLED = True

def activation(x, slope=0.5):
    return F.leaky_relu(x, slope)

def twice(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args) * 2
    return wrapper

def made(offset):
    def shifted(x):
        return x + offset
    return shifted

@twice
def decorated(x):
    return x - 1

class Base(torch.nn.Module):
    factor = 3
    def scaled(self, x):
        return x * self.factor

class Block(Base):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
    @property
    def half(self):
        return 0.5
    def forward(self, x):
        x = self.scaled(activation(self.linear(x))) * self.half + self.offset
        return x * SCALE + OPTIONS["bias"] if ENABLED else x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.shift = made(1.5)
    def forward(self, x, *, flag=False):
        for block in self.blocks:
            x = block(x)
        x = decorated(self.shift(x))
        return {"out": x, "flag": flag, "sum": x.sum(-1)}

def check(compile):
    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        x = torch.randn(3, 4)
        got, want = compile(net)(x), net(x)
        assert got.keys() == want.keys() and got["flag"] is want["flag"]
        torch.testing.assert_close(got["out"], want["out"])
        torch.testing.assert_close(got["sum"], want["sum"])
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield tmp_path / "cache" / "kernels"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for programs and cache, of tests that want the model to be stored already."""
    return tmp_path_factory.mktemp("outcomes")


@pytest.fixture
def model(tmp_path: Path) -> Program:
    return Program(tmp_path, MODEL)


@pytest.fixture
def stored(shared: Path) -> Iterator[Program]:
    """The model, of which an outcome is stored."""
    with argand.config.patch({**STORED, "cache_dir": str(shared / "cache")}):
        program = Program(shared, MODEL)
        assert program.run()[-1] in ("stored", "hit")
        yield program


def test_a_later_process_loads_what_was_captured(model: Program) -> None:
    assert model.run() == ["stored"]
    assert model.run() == ["hit"]
    assert model.run() == ["hit"]


EDITS = {
    "an inlined function": ("F.leaky_relu(x, slope)", "F.relu(x - slope)"),
    "a default": ("slope=0.5", "slope=0.25"),
    "a global": ("SCALE = 2.0", "SCALE = 3.0"),
    "an item of a global": ('"bias": 3', '"bias": 4'),
    "a flag": ("ENABLED = True", "ENABLED = False"),
    "a closure": ("made(1.5)", "made(2.5)"),
    "a decorator": ("fn(*args) * 2", "fn(*args) * 3"),
    "what is decorated": ("return x - 1", "return x - 2"),
    "an attribute of a base class": ("factor = 3", "factor = 5"),
    "a method": ("return x * self.factor", "return x / self.factor"),
    "a property": ("return 0.5", "return 0.75"),
    "the root": ("x.sum(-1)", "x.sum(-1) * 2"),
    "a module's own state": ("torch.ones(4)", "torch.ones(3, 4)"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_captured_anew(stored: Program, edit: str) -> None:
    stored.edit(*EDITS[edit])
    assert "hit" not in stored.run()


def _replace_method(module: ModuleType) -> None:
    module.Base.scaled = lambda self, x: x - self.factor  # type: ignore[attr-defined]


def _lend_a_method(module: ModuleType) -> None:
    module.Block.scaled = lambda self, x: x * 7  # type: ignore[attr-defined]


def _new_default(module: ModuleType) -> None:
    module.activation.__defaults__ = (0.125,)


def _new_code(module: ModuleType) -> None:
    module.activation.__code__ = (lambda x, slope=0.5: x * slope).__code__


STATES: dict[str, Callable[[ModuleType], Any]] = {
    "a global": lambda module: setattr(module, "SCALE", 7.0),
    "a global function": lambda module: setattr(module, "activation", lambda x: x * 2),
    "an item": lambda module: module.OPTIONS.update(bias=9),
    "a class attribute": lambda module: setattr(module.Base, "factor", 11),
    "a method": _replace_method,
    "a method of a derived class": _lend_a_method,
    "a default": _new_default,
    "code": _new_code,
    "a closure": lambda module: setattr(module, "made", lambda offset: lambda x: x - offset),
    "a property": lambda module: setattr(module.Block, "half", 0.5),
}


@pytest.mark.parametrize("state", STATES)
def test_another_state_of_the_program_is_captured_anew(stored: Program, state: str) -> None:
    assert "hit" not in stored.run(STATES[state])


AROUND: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another torch": lambda patch: patch.setattr(torch, "__version__", "9.9.9"),
    "another processor": lambda patch: patch.setattr(
        toolchain, "cpu_isa", lambda isa=toolchain.cpu_isa(): replace(isa, vector_bytes=16, flags=())
    ),
    "another argand": lambda patch: patch.setattr(environment, "_installation", lambda: "other"),
    "a setting": lambda patch: setattr(argand.config, "fusion", False),
    "threads": lambda patch: torch.set_num_threads(torch.get_num_threads() + 1),
}


@pytest.mark.parametrize("change", AROUND)
def test_other_surroundings_are_captured_anew(stored: Program, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    threads = torch.get_num_threads()
    try:
        with argand.config.patch(fusion=True):
            AROUND[change](monkeypatch)
            environment._installation.cache_clear() if change == "another torch" else None
            assert "hit" not in stored.run()
    finally:
        torch.set_num_threads(threads)
        monkeypatch.undo()
        environment._installation.cache_clear()
    assert stored.run()[-1] == "hit"


FUNCTION = """
import torch
{before}
def main(x):
{body}
def check(compile):
    with torch.no_grad():
        x = torch.randn(5)
        compiled = compile(main)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), main(x))
"""

OF_THE_PROCESS = {
    "the order of a set": (
        "",
        "    for name in {'sin', 'cos', str('tan')}:\n        x = getattr(torch, name)(x)\n    return x",
    ),
    "a hash": ("", "    return x + hash('text') % 7"),
    "an address": ("thing = object()", "    return x + id(thing) % 7"),
    "a text": ("thing = object()", "    return x + len(repr(thing)) + ord(repr(thing)[-3])"),
    "a constant result": (
        "import argand\n@argand.assume_constant_result\ndef read():\n    return 3",
        "    return x + read()",
    ),
    "an operation of another library": (
        "try:\n    torch.library.define('stored_tests::half', '(Tensor x) -> Tensor')\n"
        "    torch.library.impl('stored_tests::half', 'CompositeExplicitAutograd')(lambda x: x / 2)\n"
        "    torch.library.register_fake('stored_tests::half')(lambda x: torch.empty_like(x))\n"
        "except RuntimeError:\n    pass\n",
        "    return torch.ops.stored_tests.half(x) + 1",
    ),
}


@pytest.mark.parametrize("what", OF_THE_PROCESS)
def test_what_only_this_process_knows_is_not_stored(tmp_path: Path, what: str) -> None:
    before, body = OF_THE_PROCESS[what]
    program = Program(tmp_path, FUNCTION.format(before=before, body=body))
    for _ in range(2):
        said = program.run()
        assert "hit" not in said and "stored" not in said


RAISING = """
import torch
def main(x, i):
    return (x * 2)[i] + 1
def check(compile):
    with torch.no_grad():
        compiled = compile(main)
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, torch.tensor([1, 4])), main(x, torch.tensor([1, 4])))
        errors = []
        for f in (compiled, main):
            try:
                f(x, torch.tensor([1, 7]))
            except IndexError as error:
                errors.append(str(error))
        assert len(errors) == 2 and errors[0] == errors[1], errors
"""


def test_errors_are_eagers(tmp_path: Path) -> None:
    program = Program(tmp_path, RAISING)
    assert program.run() == ["stored"]
    assert program.run() == ["hit"]


SIZES = """
import torch
def main(x):
    return torch.relu(x) * x.shape[0]
sizes = [4]
def check(compile):
    with torch.no_grad():
        compiled = compile(main)
        for n in sizes:
            torch.testing.assert_close(compiled(torch.ones(n, 3)), main(torch.ones(n, 3)))
"""


def test_sizes_that_vary_are_known_from_the_process_before(tmp_path: Path) -> None:
    program = Program(tmp_path, SIZES)
    assert program.run() == ["stored"]
    graphs: list[Any] = []
    remove = argand.events.bus.subscribe(graphs.append, ("span_begin",))
    try:
        program.run(lambda module: module.sizes.extend([6, 8, 10]))
    finally:
        remove()
    captures = [event for event in graphs if event.data["span"] == "capture_frame"]
    assert len(captures) == 1  # of size 6, and with it of all sizes


def test_damaged_entries_are_captured_anew(model: Program, own_cache: Path) -> None:
    model.run()
    [path] = own_cache.glob("*.outcome")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert model.run() == ["stored"]
    assert model.run() == ["hit"]


def test_a_program_that_is_gone_is_compiled_anew(model: Program, own_cache: Path) -> None:
    model.run()
    for path in own_cache.glob("*.program"):
        path.unlink()
    assert model.run() == ["mismatch", "stored"]


def test_whoever_listens_to_captures_gets_them(model: Program) -> None:
    model.run()
    seen: list[Any] = []
    remove = argand.events.bus.subscribe(seen.append, ("guards",))
    try:
        assert "hit" not in model.run()
    finally:
        remove()
    assert seen


def test_the_setting_turns_it_off(model: Program) -> None:
    with argand.config.patch(outcome_cache=False):
        assert model.run() == []


def test_a_second_process_imports_no_capture(model: Program, own_cache: Path) -> None:
    program = "import stored_program, argand, sys; stored_program.check(argand.compile); print('interpreter', 'argand.capture.interp.interpreter' in sys.modules)"
    settings = {"ARGAND_CACHE_DIR": str(own_cache.parent), "ARGAND_PROGRAM_CACHE": "1", "ARGAND_OUTCOME_CACHE": "1"}
    path = os.pathsep.join([str(model.folder), *sys.path])
    for imported in (True, False):
        done = warm.run(["-c", program], env={**os.environ, **settings, "PYTHONPATH": path})
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"interpreter {imported}" in done.stdout


def test_substitutes_are_the_processs(tmp_path: Path) -> None:
    program = Program(tmp_path, FUNCTION.format(before="import operator", body="    return x + operator.index(3)"))
    assert program.run() == ["stored"]
    store.STORE.substituted = True
    try:
        assert program.run() == []
    finally:
        store.STORE.substituted = False
    assert program.run() == ["hit"]
