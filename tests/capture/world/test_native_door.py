"""Ways in which C code once read objects of the program past `Interpreter.native`; see tests/test_ground_rules.py."""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


class Watched:
    """Callable, and tells which of its attributes are asked for."""

    def __init__(self) -> None:
        self.__dict__["asked"] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)

    def __call__(self, *args: Any) -> int:
        return 1


class Named(str):
    """A string that is equal to what a global says."""

    def __eq__(self, other: object) -> bool:
        return SAYS["equal"]

    __hash__ = str.__hash__


class Loud(type):
    def __repr__(cls) -> str:
        return SAYS["repr"]

    def __eq__(cls, other: object) -> bool:
        return SAYS["equal"]

    __hash__ = type.__hash__


class Made(Exception, metaclass=Loud):
    def __new__(cls) -> Any:
        return 5


class Items(dict):
    def items(self) -> Any:
        SAYS["called"] += 1
        return super().items()


class At:
    def __index__(self) -> int:
        return SAYS["at"]


class Key(enum.Enum):
    A = 1


SAYS: dict[str, Any] = {"equal": False, "repr": "first", "called": 0, "at": 0}
WATCHED = Watched()
AT = At()
ITEMS = Items(a=1, b=2)


def after_a_star(x: torch.Tensor) -> Any:
    try:
        WATCHED(*5)
    except TypeError as error:
        return x + 1, str(error).partition(" object")[0]


def raised_by_class(x: torch.Tensor) -> Any:
    try:
        raise Made
    except TypeError as error:
        return x + 1, str(error)


def thrown(x: torch.Tensor) -> Any:
    def generator() -> Any:
        yield 1

    try:
        generator().throw(Made)
    except TypeError as error:
        return x + 1, str(error)


def matched(x: torch.Tensor) -> Any:
    match {Key.A: 1, 2: 3}:
        case {Key.A: found, 2: other}:
            return x + found + other
    return x


def merged(x: torch.Tensor) -> Any:
    def inner(**kwargs: Any) -> int:
        return len(kwargs)

    try:
        return x + inner(a=1, **{Named("a"): 2})
    except TypeError as error:
        return x, str(error)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "callable after a star": after_a_star,
    "iter with a sentinel": lambda x: x + len(list(iter(iter([1, 2, 3]).__next__, 3))),
    "re.sub with a function": lambda x: x + len(re.sub("a", lambda m: "bb", "aaa", count=2)),
    "re.sub with a keyword": lambda x: x + len(re.sub("a", string="aa", repl=lambda m: "bbb")),
    "pattern.sub with a function": lambda x: x + len(re.compile("a").sub(repl=lambda m: "bbb", string="aa")),
    "re.sub with a text": lambda x: x + len(re.sub("a", "bbb", "aa")),
    "class in the message of raise": raised_by_class,
    "class in the message of throw": thrown,
    "keys of a pattern": matched,
    "keyword given twice": merged,
    "index from a position": lambda x: x + [3, 1, 3].index(3, AT),
    "index up to a position": lambda x: x + [AT, 1, 3].index(3, 0, 3),
    "items of a kind of dict": lambda x: x + len(str(ITEMS)) + [ITEMS].count(ITEMS),
    "group split by a function": lambda x: (
        x + len(ExceptionGroup("", [ValueError()]).subgroup(lambda e: True).exceptions)
    ),
    "instance of a class with equality": lambda x: x + type.__instancecheck__(Made, (i for i in ())),
}
CHANGES: list[tuple[str, Any]] = [("repr", "second"), ("equal", True), ("at", 1), ("equal", False)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager_while_the_answers_change(name: str) -> None:
    program = PROGRAMS[name]
    before = dict(SAYS)
    try:
        compiled = argand.compile(program, backend="eager")
        for key, value in (*before.items(), *CHANGES):
            SAYS[key] = value
            x = torch.ones(2)
            counted, asked = SAYS["called"], len(WATCHED.asked)
            wanted = str(program(x))
            eager = SAYS["called"] - counted, len(WATCHED.asked) - asked
            counted, asked = SAYS["called"], len(WATCHED.asked)
            assert str(compiled(x)) == wanted
            assert (SAYS["called"] - counted, len(WATCHED.asked) - asked) == eager
    finally:
        SAYS.clear()
        SAYS.update(before)


def test_a_class_that_becomes_callable() -> None:
    class Later:
        pass

    later = Later()

    def sub(x: torch.Tensor) -> Any:
        return x + (1 if callable(later) else 2)

    def mapped(x: torch.Tensor) -> Any:
        try:
            return x + len(list(iter(later, 1)))
        except TypeError:
            return x + 5

    x = torch.ones(2)
    for program in (sub, mapped):
        if "__call__" in vars(Later):
            del Later.__call__
        compiled = argand.compile(program, backend="eager")
        assert torch.equal(compiled(x), program(x))
        Later.__call__ = lambda self: 1
        assert torch.equal(compiled(x), program(x))


def test_from_import_of_an_odd_module() -> None:
    class Odd(types.ModuleType):
        @property
        def __name__(self) -> str:
            return SAYS["repr"]

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    import sys

    sys.modules["odd_module_of_a_test"] = Odd("odd_module_of_a_test")

    def program(x: torch.Tensor) -> Any:
        try:
            from odd_module_of_a_test import nothing
        except ImportError as error:
            return x + 1, error.name
        return nothing

    x = torch.ones(2)
    try:
        compiled = argand.compile(program, backend="eager")
        for said in ("first", "second", "first"):
            SAYS["repr"] = said
            assert str(compiled(x)) == str(program(x))
    finally:
        SAYS["repr"] = "first"
        del sys.modules["odd_module_of_a_test"]
