"""Attributes that are not there: what is read, written and deleted tells so in CPython's words."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


class Plain:
    pass


class Slotted:
    __slots__ = ("kept",)


class Computed:
    @property
    def fixed(self) -> int:
        return 1

    @property
    def broken(self) -> int:
        raise AttributeError("of its own")


class Asked:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Member(enum.Enum):
    ONE = 1


class Pair(collections.namedtuple("Pair", "kept other")):  # noqa: PYI024
    __slots__ = ()


OWNERS: dict[str, Callable[[], Any]] = {
    "plain": Plain, "slotted": Slotted, "computed": Computed, "asked": Asked, "a class": lambda: Plain,
    "member": lambda: Member.ONE, "module": lambda: types, "layer": torch.nn.Identity, "tuple": lambda: Pair(1, 2),
    "number": lambda: 3, "list": lambda: [1], "method": lambda: Asked().__getattr__, "iterator": lambda: iter([]),
    "error": lambda: ValueError(1), "dtype": lambda: torch.float32, "namespace": types.SimpleNamespace,
}  # fmt: skip


def _set_text(o: Any) -> None:
    o.__doc__ = 3


def _set_fixed(o: Any) -> None:
    o.fixed = 3


def _delete(o: Any) -> None:
    del o.absent


def _delete_kept(o: Any) -> None:
    del o.kept


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "read": lambda o: o.absent,
    "called": lambda o: o.absent(),
    "by getattr": lambda o: getattr(o, "absent"),  # noqa: B009
    "past hooks": lambda o: object.__getattribute__(o, "absent"),
    "slot read": lambda o: o.kept,
    "broken": lambda o: o.broken,
    "deleted": _delete,
    "by delattr": lambda o: delattr(o, "absent"),
    "deleted past hooks": lambda o: object.__delattr__(o, "absent"),
    "slot deleted": _delete_kept,
    "text set": _set_text,
    "fixed set": _set_fixed,
}
CHANGING = {("text set", "a class"), ("text set", "module"), ("fixed set", "a class"), ("fixed set", "module")}


@pytest.mark.parametrize("made_inside", [False, True], ids=["given", "made"])
@pytest.mark.parametrize("owner", OWNERS)
def test_in_the_words_of_python(owner: str, made_inside: bool) -> None:
    make = OWNERS[owner]
    for action, act in ACTIONS.items():
        if (action, owner) in CHANGING or (action == "fixed set" and owner == "member"):
            continue

        def program(x: torch.Tensor, o: Any, act: Callable[[Any], Any] = act) -> Any:
            o = make() if made_inside else o
            try:
                return x + 1, type(act(o))
            except Exception as error:
                told = x - 1, (type(error), str(error), len(error.args))
                if act is ACTIONS["broken"]:  # from 3.12 on, what CPython notes in it depends on how often the line ran
                    return told
                return *told, getattr(error, "name", "-"), type(getattr(error, "obj", None))

        argand.reset()
        compiled = argand.compile(program, backend="eager")
        for _ in range(2):
            want, got = program(torch.ones(2), make()), compiled(torch.ones(2), make())
            assert got[1:] == want[1:], action
            assert torch.equal(got[0], want[0])


def test_a_class_is_no_object_to_write_to() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            object.__setattr__(Plain, "absent", 3)
        except TypeError as error:
            return x + 1, str(error)
        return x, None

    want, got = program(torch.ones(2)), argand.compile(program, backend="eager")(torch.ones(2))
    assert want[1] == got[1]
    assert not hasattr(Plain, "absent")
