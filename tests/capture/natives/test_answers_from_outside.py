"""What native code would answer from state of objects that change between calls: texts, instance checks, partials, NaNs."""

from __future__ import annotations

import abc
import collections
import functools
import types
import typing
from typing import Any

import numpy as np
import pytest
import torch

import argand
from capture.agreement import Agreeing, agree

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")


# ---- texts


def texts(x: torch.Tensor, o: Any) -> Any:
    return repr(o), f"{o}", f"{o!r}", "%s" % (o,), str([o]), "{}".format([[o]]), x * len(repr(o))  # noqa: UP031, UP032


def test_text_of_a_module_whose_attributes_change() -> None:
    """A module's text is made in Python, from attributes of the module, for which it may have a `__getattr__`."""
    module: Any = types.ModuleType("made_here")
    check = Agreeing(texts, shape=(2,))
    for name, value in (("x", 1), ("__getattr__", lambda name: 7), ("__name__", "other"), ("__file__", "here.py")):
        setattr(module, name, value)
        check(module)


def test_text_of_a_class_that_is_renamed() -> None:
    class Renamed:
        pass

    check = Agreeing(texts, shape=(2,))
    for name, value in (("x", 1), ("__qualname__", "Another"), ("__module__", "elsewhere")):
        setattr(Renamed, name, value)
        check(Renamed)


class Shown:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __str__(self) -> str:
        return f"<{self.v}>"

    def __repr__(self) -> str:
        return f"[{self.v!r}]"

    def __format__(self, spec: str) -> str:
        return f"({self.v})"


def test_method_that_returns_the_text_of_a_tensor() -> None:
    for fn in (
        lambda x, o: (x, str(o)),
        lambda x, o: (x, repr(o)),
        lambda x, o: (x, f"{o}"),
        lambda x, o: x * len(f"{o!s}"),
        lambda x, o: (x, [str(o), len(repr(o))]),
    ):
        agree(fn, (Shown(torch.tensor(1.0)),), (Shown(2),), (Shown(torch.tensor(12.5)),))


# ---- instance checks of objects that say themselves of which class they are


def claiming(claim: Any) -> Any:
    class Claiming:
        def __getattribute__(self, name: str) -> Any:
            return claim

    return Claiming()


class Abstract(abc.ABC):
    def go(self) -> None: ...


class Concrete(Abstract):
    pass


class Plain(typing.Protocol):
    def go(self) -> None: ...


@typing.runtime_checkable
class Checked(typing.Protocol):
    def go(self) -> None: ...


@pytest.mark.parametrize("claim", [1.5, "x", None, int, list, Concrete, Abstract], ids=repr)
@pytest.mark.parametrize(
    "cls", [int, list, Abstract, Concrete, collections.abc.Iterable, Plain, Checked], ids=lambda cls: cls.__name__
)
def test_instance_check_of_an_object_that_claims_a_class(cls: Any, claim: Any) -> None:
    """Abstract classes ask the object's `__class__` first, and refuse what is no class; others ask the type first."""
    agree(lambda x, o: (x, isinstance(o, cls)), (claiming(claim),))
    agree(lambda x, o: (x, isinstance(o, (str, cls))), (claiming(claim),))


def test_abstract_class_that_begins_to_answer_itself() -> None:
    class Base(abc.ABC):
        pass

    class Below(Base):
        pass

    def program(x: torch.Tensor, o: Any) -> Any:
        return x, isinstance(o, Base), isinstance(o, Below), isinstance(o, collections.abc.Iterable)

    check = Agreeing(program, shape=(2,))
    check(Below())
    Base.__getattribute__ = lambda self, name: 1.5  # type: ignore[method-assign, assignment]
    check(Below())


# ---- partials


def scaled(x: torch.Tensor, a: float, b: float = 1.0) -> torch.Tensor:
    return x * a + b


class Partial(functools.partial):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("kind", [functools.partial, Partial])
def test_partial_of_a_partial_from_outside(kind: Any) -> None:
    """`functools.partial` takes the other apart: what it holds must be guarded."""
    agree(
        lambda x, p: kind(p, x)(2.0),
        (kind(scaled, b=2.0),),
        (kind(scaled, b=3.0),),
        (functools.partial(scaled, b=3.0),),
        (functools.partial(torch.add, alpha=3.0),),
    )


# ---- containers with methods of their own


class Answers(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return 4


class AnswersOfList(list):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return 4

    def __len__(self) -> int:
        return 1


class Sequence:
    def __getitem__(self, key: Any) -> Any:
        return key

    def __len__(self) -> int:
        return 3


class NotReversible(Sequence):
    __reversed__ = None


@pytest.mark.parametrize(
    "value",
    [Answers(k=0, j=1), AnswersOfList([1, 2, 3]), Sequence(), NotReversible(), collections.UserList([1, 2]), 5],
    ids=lambda value: type(value).__name__,
)
def test_reversed_asks_the_class_first(value: Any) -> None:
    agree(lambda x, o: (x, list(reversed(o))), (value,))


# ---- NaNs, each of which is another key

NAN, OTHER = float("nan"), float("nan")


def keyed(x: torch.Tensor, a: Any, b: Any, d: Any) -> Any:
    d[b] = 1
    return x, {a: 1, b: 2}, a is b, a in [b], [a] == [b], {a} | {b}, (a,) == (b,), d, a in d, list(d)


@pytest.mark.parametrize("dynamic", [None, True])
def test_nans_are_told_apart(dynamic: bool | None) -> None:
    values = (NAN, OTHER, 1.0, complex(NAN, 0))
    agree(keyed, *((a, b, c) for a in values for b in values for c in ({NAN: 3}, {}, {OTHER: 1})), dynamic=dynamic)
    agree(lambda x, s, a: (x, a in s, s | {a}, (a,) in s), *(({NAN, (NAN,)}, a) for a in values), dynamic=dynamic)


def test_nans_of_a_deque() -> None:
    def program(x: torch.Tensor, items: Any) -> Any:
        return x, {item: 1 for item in items}

    agree(program, *((collections.deque(items),) for items in ([4, 2.0], [NAN, 2.0], [NAN, OTHER], [NAN, NAN])))


# ---- autograd functions


def test_class_of_backward_nodes_that_is_replaced() -> None:
    """`apply` calls `_backward_cls`; what it inherits from torch may be replaced as well."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
            return x * k

    def program(x: torch.Tensor) -> Any:
        return Twice.apply(x, 2.0)

    check = Agreeing(program, shape=(2,))
    made = Twice._backward_cls  # type: ignore[attr-defined]
    for value in (made, "other", made, [1]):  # torch itself crashes with a class of another kind
        Twice._backward_cls = value  # type: ignore[attr-defined]
        check()
    Twice._backward_cls = made  # type: ignore[attr-defined]
    Twice.setup_context = staticmethod(lambda ctx, inputs, output: None)  # type: ignore[method-assign, assignment]
    Twice.forward = staticmethod(lambda x, k: x * k * 2)  # type: ignore[method-assign, assignment]
    check()


# ---- messages


def test_message_of_a_guard_that_fails_does_not_run_the_program() -> None:
    """A class may write its objects' texts in Python, and note that it was asked."""
    asked = []

    class Noted:
        def __init__(self, v: float) -> None:
            self.v = v

        def __repr__(self) -> str:
            asked.append(self)
            return "noted"

    def program(x: torch.Tensor, o: Any) -> torch.Tensor:
        return x * (o.v if type(o) is Noted else 2)

    compiled = argand.compile(program, backend="eager")
    for value in (Noted(1.0), Noted(2.0), 3, [Noted(1.0)], Noted, np.ma.array([1.0, 2.0], mask=[0, 1])):
        compiled(torch.ones(2), value)
    assert not asked
    assert vars(value)["_fill_value"] is None  # its text sets that
