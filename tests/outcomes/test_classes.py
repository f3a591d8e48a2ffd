"""Classes that were registered with abstract ones, or had another metaclass, where an outcome was made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.outcomes import records, store
from argand.outcomes.references import Describer, Unstorable
from argand.outcomes.resolver import Resolver
from outcomes.processes import STORED, Program

TEXT = """
import abc
import collections.abc
import functools

class Abstract(abc.ABC):
    pass

class Derived(Abstract):
    pass

class Mine:
    pass

@functools.singledispatch
def times(value):
    return 2.0

@times.register(Abstract)
def _(value):
    return 3.0

MINE = Mine()

def by_class(x):
    return x + 1 if issubclass(Mine, Derived) else x - 1

def by_object(x):
    return x + 1 if isinstance(MINE, (int, Derived)) else x - 1

def by_match(x):
    match MINE:
        case collections.abc.Sequence():
            return x + 1
    return x - 1

def by_dispatch(x):
    return x * times(MINE)

def of_library(x):
    return x + 1 if isinstance({}, collections.abc.Mapping) else x - 1
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield


@pytest.mark.parametrize(
    "name, registered",
    [
        ("by_class", "Derived"),
        ("by_object", "Derived"),
        ("by_match", "collections.abc.Sequence"),
        ("by_dispatch", "Abstract"),
        ("of_library", ""),
    ],
)
def test_registrations_are_asked_for_again(tmp_path: Path, name: str, registered: str) -> None:
    program, x = Program(tmp_path, TEXT), torch.randn(5)
    said = []
    for register in (True, False, True):
        with program.process() as (module, outcomes), torch.no_grad():
            if register and registered:
                eval(registered, vars(module)).register(module.Mine)
            fn = getattr(module, name)
            torch.testing.assert_close(argand.compile(fn)(x), fn(x))
            said.append(list(outcomes))
    assert said[0] == ["stored"]
    assert said[2][-1] == "hit"
    if registered:
        assert "mismatch" in said[1] and "hit" not in said[1]


METACLASS = """
class Meta(type):
    asked = 0

class Mine(metaclass=Meta):
    lazy = 3.0

def main(x):
    return x * (2 if hasattr(Mine, "lazy") else 1)
"""


def answers_all(cls: type, name: str) -> float:
    return 2.0


def refuses_all(cls: type, name: str) -> float:
    raise ValueError(name)


@pytest.mark.parametrize("answer", [answers_all, refuses_all])
def test_metaclasses_that_answer_anything_do_not_keep_outcomes_from_being_looked_for(
    tmp_path: Path, answer: Callable[[type, str], float]
) -> None:
    program, x = Program(tmp_path, METACLASS), torch.randn(5)
    with program.process() as (module, outcomes), torch.no_grad():
        argand.compile(module.main)(x)
        assert outcomes == ["stored"]
    with program.process() as (module, outcomes), torch.no_grad():
        module.Meta.__getattribute__ = answer
        try:
            want = module.main(x)
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)):
                argand.compile(module.main)(x)
        else:
            torch.testing.assert_close(argand.compile(module.main)(x), want)
        assert "hit" not in outcomes


def test_another_thread_takes_the_same_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = Program(tmp_path, METACLASS), torch.randn(5)
    with program.process() as (module, outcomes), torch.no_grad():
        argand.compile(module.main)(x)
        assert outcomes == ["stored"]
    with program.process() as (module, outcomes), torch.no_grad():
        installed = records.installed

        def while_another_does(record: records.Record, info: Any, *rest: Any) -> Any:
            for waiting in store.STORE._of(info.code).values():
                waiting.clear()
            return installed(record, info, *rest)

        monkeypatch.setattr(records, "installed", while_another_does)
        torch.testing.assert_close(argand.compile(module.main)(x), module.main(x))
        assert outcomes == ["hit"]


def test_a_metaclass_that_no_module_has_is_that_of_a_class() -> None:
    """pybind11's, of placements of DTensors and process groups in torch 2.11."""
    metaclass = type(torch._C.Graph)
    assert metaclass.__module__ not in sys.modules
    described = Describer((lambda: 0).__code__, globals(), {})
    number = described.row(metaclass)
    assert Resolver(described.rows, {}, None).object(number) is metaclass  # type: ignore[arg-type]
    with pytest.raises(Unstorable):
        described.row(type("Mine", (metaclass,), {}))
