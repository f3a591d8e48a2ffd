"""Enums whose tables change between calls: their classes count, iterate and look up in dicts and lists of the class."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import argand
import sweeps


def color() -> Any:
    class Color(enum.Enum):
        RED = "r"
        GREEN = 2
        BLUE = "b"

        @enum.property
        def value(self) -> Any:
            return self._value_

    return Color


READS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "len": lambda x, c: x * len(c),
    "iterate": lambda x, c: [m.name for m in c],
    "list": lambda x, c: [m.name for m in list(c)],
    "reversed": lambda x, c: [m.name for m in reversed(c)],
    "contains": lambda x, c: c.RED in c,
    "by name": lambda x, c: c["RED"].value,
    "by value": lambda x, c: c("r").value,
    "attribute": lambda x, c: c.RED.value,
    "of a member": lambda x, c: [m.name for m in type(c.GREEN)],
    "members": lambda x, c: [(k, m.value) for k, m in c.__members__.items()],
    "map": lambda x, c: list(map(lambda m: m.value, c)),
    "any": lambda x, c: any(m.value == "r" for m in c),
    "truth": lambda x, c: x * 2 if c else x,
    "shown": lambda x, c: (repr(c), str(c.RED), f"{c.RED}", hash(c.RED) == hash(c.GREEN)),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "names appended": lambda c: c._member_names_.append("RED"),
    "names cut": lambda c: c._member_names_.pop(0),
    "names reversed": lambda c: c._member_names_.reverse(),
    "map replaced": lambda c: c._member_map_.__setitem__("RED", c.BLUE),
    "map cut": lambda c: c._member_map_.pop("RED"),
    "values cut": lambda c: c._value2member_map_.pop("r"),
    "value": lambda c: setattr(c.RED, "_value_", 7),
    "name": lambda c: setattr(c.RED, "_name_", "OTHER"),
}


class Shown:
    text = "a"

    def __repr__(self) -> str:
        return self.text


TEXTS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "repr": lambda x, m: (x * 2, repr(m)),
    "str": lambda x, m: (x * 2, str(m)),
    "format": lambda x, m: (x * 2, f"{m}", "{!r}".format(m), "%s" % m),  # noqa: UP032
    "repr of a list": lambda x, m: (x * 2, repr([m])),
    "repr of a key": lambda x, m: (x * 2, repr({m: 1})),
}
MUTABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: ["q"], lambda v: v.append(1.5)),
    "numbers": (lambda: [7], lambda v: v.__setitem__(0, v[0] + 1)),
    "list in a tuple": (lambda: ("q", ["r"]), lambda v: v[1].append(1.5)),
    "list in a dict": (lambda: {1: [2]}, lambda v: v[1].append(5)),
    "object": (Shown, lambda v: setattr(v, "text", "b")),
    "object in a dict": (lambda: {1: Shown()}, lambda v: setattr(v[1], "text", "b")),
    "array": (lambda: numpy.ones(1), lambda v: v.__setitem__(0, v[0] + 1)),
    "array in a list": (lambda: [numpy.ones(1)], lambda v: v[0].__setitem__(0, v[0][0] + 1)),
    "tensor": (lambda: torch.ones(1), lambda v: v.add_(1)),
    "exception": (lambda: ValueError(1), lambda v: setattr(v, "args", (4,))),
    "member": (lambda: enum.IntEnum("Other", {"A": 1}).A, lambda v: setattr(v, "_name_", [*v._name_, "B"])),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize(
    ("kind", "name", "base"), sweeps.combinations(MUTABLE, ["_name_", "_value_"], [enum.Enum, enum.IntEnum])
)
def test_texts_of_members_whose_names_or_values_change(kind: str, name: str, base: Any) -> None:
    make, change = MUTABLE[kind]
    for fn in TEXTS.values():
        member, held = base("Size", {"S": 1}).S, make()
        setattr(member, name, held)
        compiled = argand.compile(fn, backend="eager")
        for _ in range(3):
            assert outcome(compiled, member) == outcome(fn, member)
            change(held)


def test_texts_of_members_stay_in_the_graph() -> None:
    """What the name and value hold is guarded in depth, where guards can."""
    for value in (1, "a", (1, (2, 3)), [1, [2]], {"a": 1}, torch.float32):
        member = enum.Enum("Size", {"S": value}).S  # type: ignore[attr-defined]
        fn = TEXTS["repr"]
        made = argand.compile(fn, backend="eager", fullgraph=True)(torch.ones(2), member)
        assert made[1] == repr(member)


def outcome(fn: Callable[..., Any], cls: Any) -> str:
    try:
        return repr(fn(torch.ones(2), cls))
    except Exception as error:
        return repr((type(error), str(error)))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.filterwarnings("error:argand. capturing")
def test_change_of_a_table_is_seen(read: str, change: str) -> None:
    fn = READS[read]
    compiled = argand.compile(fn, backend="eager")
    eager, other = color(), color()
    assert outcome(compiled, other) == outcome(fn, eager)
    assert outcome(compiled, other) == outcome(fn, eager)
    CHANGES[change](eager)
    CHANGES[change](other)
    assert outcome(compiled, other) == outcome(fn, eager)


def missing_reads() -> Any:
    class Kind(enum.Enum):
        A = 1
        B = 2

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.B if value == getattr(cls, "other", 7) else cls.A

    return Kind


def called_by_metaclass() -> Any:
    class Meta(enum.EnumMeta):
        def __call__(cls, value: Any, *rest: Any, **named: Any) -> Any:
            return super().__call__(getattr(cls, "other", 7) % 2 + 1, *rest, **named)

    class Kind(enum.Enum, metaclass=Meta):
        A = 1
        B = 2

    return Kind


def flags() -> Any:
    return enum.IntFlag("Kind", {"A": 1, "B": 2})


@pytest.mark.parametrize("make", [missing_reads, called_by_metaclass, flags, color])
def test_call_of_an_enum_runs_its_code(make: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor, cls: Any, value: Any) -> Any:
        return x * 2, cls(value).name

    def changes(cls: Any) -> list[Callable[[], Any]]:
        return [
            lambda: None,
            lambda: setattr(cls, "other", 8),
            lambda: setattr(cls, "_missing_", classmethod(lambda cls, value: next(iter(cls)))),
            lambda: setattr(cls, "_missing_", classmethod(lambda cls, value: 5)),
            lambda: cls._value2member_map_.update({8: list(cls)[-1]}),
        ]

    compiled = argand.compile(fn, backend="eager")
    eager, other = make(), make()
    for change, change_other in zip(changes(eager), changes(other)):
        change()
        change_other()
        for value in (1, 7, 8, 3, "r", "none"):
            found = [
                outcome(lambda x, c, run=run, value=value: run(x, c, value), c)
                for run, c in ((fn, eager), (compiled, other))
            ]
            assert found[0] == found[1]
