"""What classes and objects count as changes: registrations, hooks of abstract classes, members of protocols."""

from __future__ import annotations

import abc
import collections.abc
import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest
import torch

import argand
from helpers import CountingBackend


def follows(fn: Callable[..., Any], obj: Any, *changes: Callable[[], Any], different: int = 2) -> None:
    """The compiled function answers as eager does, before and after each change."""
    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    x = torch.ones(2)
    answers = set()
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            want = fn(x, obj)
            assert torch.equal(compiled(x, obj), want)
        answers.add(want[0].item())
    assert len(answers) == different and len(backend.graphs) <= 1 + len(changes)


def asks(cls: Any) -> Any:
    return lambda x, o: x + 1 if isinstance(o, cls) else x - 1


def empty() -> Any:
    return type("Empty", (), {})()


def test_register_after_compile() -> None:
    class Base(abc.ABC):
        pass

    obj = empty()
    follows(asks(Base), obj, lambda: Base.register(type(obj)))


def test_register_a_base_after_compile() -> None:
    class Base(abc.ABC):
        pass

    class Parent:
        pass

    class Child(Parent):
        pass

    follows(asks(Base), Child(), lambda: Base.register(Parent))


def test_subclasshook_is_asked_again_when_abc_asks_again() -> None:
    class Base(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other: Any) -> Any:
            return hasattr(other, "wanted")

    class Unrelated(abc.ABC):
        pass

    obj = empty()
    follows(asks(Base), obj, lambda: setattr(type(obj), "wanted", 1), lambda: Unrelated.register(int))


def test_instancecheck_of_a_metaclass() -> None:
    answer = [False]

    class Meta(type):
        def __instancecheck__(cls, other: Any) -> bool:
            return answer[0]

    class Base(metaclass=Meta):
        pass

    follows(asks(Base), empty(), lambda: answer.__setitem__(0, True))


def test_subclasscheck_of_a_metaclass() -> None:
    class Meta(abc.ABCMeta):
        def __subclasscheck__(cls, other: Any) -> bool:
            return super().__subclasscheck__(other)

    class Base(metaclass=Meta):
        pass

    obj = empty()
    follows(asks(Base), obj, lambda: Base.register(type(obj)))


def test_collections_abc() -> None:
    class Token(abc.ABC):
        pass

    obj = empty()
    follows(
        asks(collections.abc.Callable), obj,
        lambda: setattr(type(obj), "__call__", lambda self: 1), lambda: Token.register(int),
    )  # fmt: skip


def test_singledispatch() -> None:
    class Base(abc.ABC):
        pass

    @functools.singledispatch
    def chosen(o: Any, x: Any) -> Any:
        return x - 1

    chosen.register(Base, lambda o, x: x + 1)
    obj = empty()
    follows(lambda x, o: chosen(o, x), obj, lambda: Base.register(type(obj)))


def test_class_pattern() -> None:
    class Base(abc.ABC):
        pass

    def fn(x: Any, o: Any) -> Any:
        match o:
            case Base():
                return x + 1
            case _:
                return x - 1

    obj = empty()
    follows(fn, obj, lambda: Base.register(type(obj)))


@runtime_checkable
class Valued(Protocol):
    value: int


@runtime_checkable
class Runnable(Protocol):
    def run(self) -> None: ...


def test_protocol_attribute_of_the_instance() -> None:
    obj = empty()
    follows(asks(Valued), obj, lambda: setattr(obj, "value", 1), lambda: delattr(obj, "value"))


def test_protocol_method_of_the_class() -> None:
    obj = empty()
    follows(asks(Runnable), obj, lambda: setattr(type(obj), "run", lambda self: None))


def test_protocol_method_that_is_none() -> None:
    obj = empty()
    obj.run = lambda: None
    follows(asks(Runnable), obj, lambda: setattr(obj, "run", None), lambda: setattr(obj, "run", print))


def test_protocol_slot() -> None:
    class Slotted:
        __slots__ = ("value",)

    obj = Slotted()
    different = 2 if sys.version_info < (3, 12) else 1  # a slot counts there though it is empty
    follows(asks(Valued), obj, lambda: setattr(obj, "value", 1), lambda: delattr(obj, "value"), different=different)


def test_protocol_attribute_set_in_the_captured_code() -> None:
    def fn(x: Any, o: Any) -> Any:
        o.value = 3
        return x + 1 if isinstance(o, Valued) else x - 1

    x = torch.ones(2)
    assert torch.equal(argand.compile(fn, backend="eager")(x, empty()), fn(x, empty()))
    with pytest.raises(argand.errors.Unsupported, match="asks for an attribute that was set before"):
        argand.compile(fn, backend="eager", fullgraph=True)(x, empty())
