"""Attributes that captured code has set or deleted, read through the `__dict__` of the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.capture.driver.explain import Findings


class Slots:
    __slots__ = ("slot",)


class Thing(Slots):
    def __init__(self) -> None:
        self.a, self.b = 1, 2


def contained(thing: Any, names: dict[str, Any]) -> Any:
    thing.new = 3
    return "new" in names, "slot" in names, names.get("new"), names["new"], names.get("other", 4)


def replaced(thing: Any, names: dict[str, Any]) -> Any:
    thing.a = 3
    return "a" in names, names["a"], names.get("a"), names["b"]


def deleted(thing: Any, names: dict[str, Any]) -> Any:
    del thing.a
    try:
        return names["a"]
    except KeyError as error:
        return str(error), "a" in names, names.get("a"), hasattr(thing, "a")


def counted(thing: Any, names: dict[str, Any]) -> Any:
    thing.new = 3
    return len(names), bool(names), list(names), names == {"a": 1, "b": 2, "new": 3}


def counted_less(thing: Any, names: dict[str, Any]) -> Any:
    del thing.a, thing.b
    return len(names), bool(names), list(names.values())


def of_a_slot(thing: Any, names: dict[str, Any]) -> Any:
    thing.slot = thing.new = 5
    return names.get("slot"), "slot" in names, list(names), thing.slot, names | {}


def written_through(thing: Any, names: dict[str, Any]) -> Any:
    thing.new = 3
    names["newer"] = names["new"] + 1
    thing.newest = thing.newer + names["newer"]
    return names.pop("new"), names.setdefault("newest", 0), hasattr(thing, "new"), dict(names)


def set_again(thing: Any, names: dict[str, Any]) -> Any:
    """What is deleted and set comes last."""
    value = thing.a
    del thing.a
    thing.new, thing.a = 3, value
    return thing.a


PROGRAMS = [contained, replaced, deleted, counted, counted_less, of_a_slot, written_through, set_again]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_namespace_shows_what_is_pending(program: Callable[..., Any], first: bool) -> None:
    """Whether `__dict__` was read before the object was written to, or after."""

    def step(thing: Any, x: torch.Tensor) -> Any:
        if first:
            return program(thing, thing.__dict__), x + 1
        thing.a = thing.a
        return program(thing, thing.__dict__), x + 1

    compiled = argand.compile(step, backend="eager", fullgraph=True)
    for _ in range(2):
        ours, theirs = Thing(), Thing()
        assert str(compiled(ours, torch.ones(2))) == str(step(theirs, torch.ones(2)))
        assert list(vars(ours).items()) == list(vars(theirs).items())


def test_what_a_module_notes_in_its_first_call_is_no_reason_to_compile_again() -> None:
    """Setting a module's attributes looks into its `__dict__` each time: only what is looked up there is guarded."""

    class Noting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.shape = tuple(x.shape)
            self.last = x * 2
            return self.last + 1

    module, findings = Noting(), Findings()
    compiled = argand.compile(module, backend="eager")
    with findings.listening():
        for _ in range(3):
            x = torch.rand(3)
            assert torch.equal(compiled(x), x * 2 + 1) and torch.equal(module.last, x * 2)
        module.unrelated = 1
        compiled(torch.rand(3))
    assert len(findings.graphs) == 1 and not findings.recompiles
