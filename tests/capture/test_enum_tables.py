"""Enums whose tables change between calls: their classes count, iterate and look up in dicts and lists of the class."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


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
