"""Frames of libraries in which nothing of torch's runs: not compiled again for each class and each flag."""

from __future__ import annotations

import dataclasses
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.helpers import CountingBackend, collected

import argand
from argand.capture.driver.explain import Findings
from argand.capture.facts.code import skip

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

def twice(x):
    return x * 2

def tripled(x):
    return x * 3

def coefficient(order, sizes):
    total = sizes[0]
    for number in range(1, order):
        total = total * (sizes[number] - sizes[0])
    return total

def asked(flag):
    if flag is Odd:
        raise AttributeError(flag)
    return flag.on

def answers(flag, x):
    argand.graph_break()
    try:
        return asked(flag)
    except AttributeError:
        return None

def twice_scaled(x):
    return tripled((argand.graph_break(), twice(x))[1])

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


def test_one_operation_of_a_package_is_left_to_python_once_it_differs(library: ModuleType) -> None:
    compiled = argand.compile(lambda x: library.twice_scaled(x) + 1, backend="eager")
    with collected("recompiles") as recompiles:
        for x in (torch.ones(2), torch.ones(3, 1), torch.ones(4, dtype=torch.int64)):
            assert torch.equal(compiled(x), x * 6 + 1)
    assert not [event for event in recompiles if event.data["function"] in ("twice", "tripled")]


def test_a_packages_arithmetic_of_single_numbers_is_left_to_python_once_it_differs(library: ModuleType) -> None:
    """Its versions would take longer to compile than they save."""

    def program(order: int, sizes: torch.Tensor) -> torch.Tensor:
        argand.graph_break()
        return library.coefficient(order, sizes)

    compiled, sizes = argand.compile(program, backend="eager"), torch.arange(1.0, 6.0)
    with collected("recompiles") as recompiles:
        for order in (1, 2, 3, 4, 2):
            assert torch.equal(compiled(order, sizes), program(order, sizes))
    assert not [event for event in recompiles if event.data["function"] == "coefficient"]


def test_a_packages_function_that_raises_again_and_again_is_left_to_python(library: ModuleType) -> None:
    compiled = argand.compile(library.answers, backend="eager")
    with collected("frame_raised") as raised:
        for _ in range(12):
            assert compiled(library.Odd, torch.ones(2)) is None
        library.Fast.on = 7
        assert compiled(library.Fast, torch.ones(2)) == 7
    assert len([event for event in raised if event.data["function"] == "asked"]) in range(5)


def test_single_operations_that_are_to_be_compiled_are(library: ModuleType) -> None:
    """Each of them, by whoever compiles: a backend of the program's, one that makes integers of weights."""
    backend, x = CountingBackend(), torch.ones(2, 3)
    for fn in (torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), torch.nn.Linear(3, 3), library.twice):
        compiled = argand.compile(fn, backend=backend)
        for given in (x, x.double()) if fn is library.twice else (x,):
            torch.testing.assert_close(compiled(given), fn(given))
    assert len(backend.graphs) == 4  # two layers are alike


class Pair(NamedTuple):
    first: int
    second: Any = 0


@dataclasses.dataclass
class Record:
    first: int
    second: Any = 0


@pytest.mark.parametrize("cls", [Pair, Record])
def test_tuples_and_records_made_around_a_break_are_pythons(cls: Any) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        return [cls(n, type(argand.graph_break())), cls(n + 1, second=type(argand.graph_break())), x * 2][0]

    findings = Findings()
    compiled = argand.compile(program, backend="eager")
    with findings.listening():
        for n in (3, 5, 8, 9):
            assert compiled(torch.ones(2), n) == program(torch.ones(2), n)
    assert {each.function for each in findings.recompiles} == {"program"}


def test_a_decorator_around_another_function_is_no_recompile() -> None:
    def printing(fn: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(x: torch.Tensor) -> Any:
            argand.graph_break()
            return fn(x) + 1

        return wrapper

    first, second = printing(torch.sin), printing(lambda x: x * 2)
    third, findings = printing(lambda x: x * 3), Findings()
    compiled = argand.compile(lambda fn, x: fn(x), backend="eager")
    with findings.listening():
        for fn in (first, second, third, first):
            torch.testing.assert_close(compiled(fn, torch.ones(2)), fn(torch.ones(2)))
        assert not [each for each in findings.recompiles if "wrapper" in each.function]
        torch.testing.assert_close(compiled(third, torch.ones(2, 1)), third(torch.ones(2, 1)))
    assert len([each for each in findings.recompiles if "wrapper" in each.function]) == 1


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


def test_versions_of_ones_own_python_alone_end_quietly() -> None:
    compiled = argand.compile(lambda x, name: (x, name.upper()), backend="eager")
    x, names = torch.ones(2), [chr(ord("a") + n) for n in range(12)]
    with collected("recompiles") as recompiles, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [compiled(x, name)[1] for name in names] == [name.upper() for name in names]
    assert not recompiles


ARRAYS = """
import numpy as np
import torch

def variance_explained(guess, truth):
    spread = np.var(truth)
    return np.nan if spread == 0 else float(1 - np.var(truth - guess) / spread)

def drawn(array, count):
    rows = np.random.randint(0, len(array), size=count)
    return torch.as_tensor(array[rows]) * 2

def flattened(array):
    return np.swapaxes(array, 0, 1).reshape(-1) * 2

def scaled(array, x):
    spread = np.var(array)
    return x * 2 if spread == 0 else x * float(spread)

def learned(model, array):
    y = model(torch.as_tensor(array[np.random.randint(0, len(array), size=2)]))
    return y * 2
"""


@pytest.fixture
def library_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """As `pip install --target` leaves it."""
    (tmp_path / "arrays-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "arrays.py"
    namespace: dict[str, Any] = {}
    exec(compile(ARRAYS, str(path), "exec"), namespace)
    return types.SimpleNamespace(**namespace)


_ARGUMENTS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], int]] = {
    "variance_explained": (lambda array: (array, array + array**2), 1),
    "drawn": (lambda array: (array, 3), 1),
    "flattened": (lambda array: (array[:, : int(array[0, 0] > 0) + 1],), 0),
}


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_functions_of_arrays_that_break_are_numpys(library_of_arrays: types.SimpleNamespace, name: str) -> None:
    arrays = [np.random.default_rng(seed).normal(size=(5, 2)) for seed in range(4)]
    program, findings, seen = getattr(library_of_arrays, name), Findings(), []
    arguments, breaks = _ARGUMENTS[name]
    for call in (program, argand.compile(program, backend="eager")):
        np.random.seed(0)
        with findings.listening():
            seen.append([call(*arguments(array)) for array in arrays])
    assert str(seen[0]) == str(seen[1])
    assert len(findings.breaks) == breaks and not findings.recompiles


def test_arrays_beside_tensors_do_not_keep_these_from_graphs(library_of_arrays: types.SimpleNamespace) -> None:
    array = np.random.default_rng(0).normal(size=(5, 2)).astype("float32")
    scaled, learned = library_of_arrays.scaled, library_of_arrays.learned
    for program, args in ((scaled, (array, torch.ones(3))), (learned, (torch.nn.Linear(2, 3), array))):
        backend, seen = CountingBackend(), []
        for call in (program, argand.compile(program, backend=backend)):
            np.random.seed(0)
            seen.append(call(*args))
        torch.testing.assert_close(*seen)
        assert backend.ops >= 1


BREAKING = """
import argand

def coefficient(order, steps):
    step = steps[-1]
    argand.graph_break()
    return order / 4

def scaled(order, x):
    argand.graph_break()
    return x * order + 1

def sampled(x, order):
    return x * coefficient(order, x) + 1
"""


def _library(tmp_path: Path, text: str) -> types.SimpleNamespace:
    namespace: dict[str, Any] = {}
    exec(compile(text, str(tmp_path / "site-packages" / "coefficients.py"), "exec"), namespace)
    return types.SimpleNamespace(**namespace)


def test_a_break_in_functions_without_graphs_is_told_of_once(tmp_path: Path) -> None:
    library, findings = _library(tmp_path, BREAKING), Findings()
    compiled = argand.compile(lambda *given: library.coefficient(*given), backend="eager")
    with findings.listening():
        steps = torch.arange(5)
        assert [compiled(order, steps) for order in range(5)] == [order / 4 for order in range(5)]
    of_it = [reason for reason in findings.breaks if reason.where[-1].function == "coefficient"]
    assert len(of_it) == 1 and not [each for each in findings.recompiles if "coefficient" in each.function]


def test_what_goes_on_behind_a_break_with_a_graph_is_captured_for_each(tmp_path: Path) -> None:
    library, backend = _library(tmp_path, BREAKING), CountingBackend()
    compiled = argand.compile(library.scaled, backend=backend)
    for order in ("a", 2, 3.5, True):
        if order != "a":
            assert torch.equal(compiled(order, torch.ones(2)), torch.ones(2) * order + 1)
    assert len(backend.graphs) == 3


PARSER = """
import sys

def notes(lines, after):
    lines.append(sys._getframe(1).f_lineno)
    return each(after)

def each(after):
    return after()

def doubled(x):
    return x * 2
"""


def test_packages_without_torch_run_as_they_are_but_what_they_call_is_captured(tmp_path: Path) -> None:
    def compiled_functions(text: str) -> list[str]:
        path = tmp_path / "site-packages" / "parser_of_notes.py"
        module = ModuleType("parser_of_notes")
        exec(compile(text, str(path), "exec"), vars(module))
        sys.modules[module.__name__] = module
        lines: list[str] = []

        def inner() -> torch.Tensor:
            return torch.ones(2).sin()

        def step(x: torch.Tensor) -> torch.Tensor:
            argand.graph_break()
            y = module.notes(lines, inner)
            argand.graph_break()
            return module.doubled(x) + y

        try:
            with collected("frame_start") as frames:
                assert torch.equal(argand.compile(step, backend="eager")(torch.ones(2)), step(torch.ones(2)))
        finally:
            del sys.modules[module.__name__]
        return [event.data["function"] for event in frames]

    assert not {"notes", "each"} & {*(functions := compiled_functions(PARSER))}, functions
    assert "inner" in functions
    skip._has_torch.cache_clear()
    assert "notes" in compiled_functions("import torch\n" + PARSER)
    skip._has_torch.cache_clear()
