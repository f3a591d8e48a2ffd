"""Native methods with arguments that they do not take, and frames that raise elsewhere than capture has seen: CPython's errors."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import re
import struct
import types
from typing import Any

import numpy as np
import pytest
import torch

import argand
from capture.agreement import Agreeing, agree

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")


class Held:
    pass


OWNERS: dict[str, Any] = {
    "object": Held, "list": lambda: [1, 2], "dict": lambda: {1: 2}, "tuple": lambda: (1, 2), "str": lambda: "ab",
    "set": lambda: {1, 2}, "int": lambda: 3, "deque": lambda: collections.deque([1]), "slice": lambda: slice(1),
    "type": lambda: Held, "exception": lambda: ValueError(1), "namespace": lambda: types.SimpleNamespace(v=1),
    "partial": lambda: functools.partial(len), "counter": lambda: collections.Counter("ab"),
    "ordered": lambda: collections.OrderedDict(a=1), "iterator": lambda: iter([1, 2]), "property": lambda: property(len),
}  # fmt: skip
_LEFT_OUT = ("__init_subclass__", "__subclasshook__", "__class_getitem__", "__sizeof__", "__dir__")


@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.filterwarnings("ignore")
def test_methods_with_too_few_and_too_many_arguments(name: str) -> None:
    """Every method of a class with arguments that are not there, and with many: what CPython says of them."""
    made = OWNERS[name]
    for attribute in dir(type(made())):
        if attribute in _LEFT_OUT or not callable(getattr(made(), attribute, None)):
            continue
        for given in ((), (1, 2, 3, 4, 5, 6)):

            def program(x: torch.Tensor, o: Any, attribute: str = attribute, given: Any = given) -> Any:
                try:
                    return x, getattr(o, attribute)(*given) is o
                except TypeError as error:
                    return x, str(error)

            argand.reset()
            Agreeing(program, shape=(2,)).of(lambda: (made(),))


FUNCTIONS: tuple[Any, ...] = (
    len, getattr, isinstance, iter, next, reversed, sorted, sum, max, zip, map, range, super, divmod, hash, callable, vars,
    operator.itemgetter, operator.methodcaller, itertools.chain, functools.partial, functools.reduce, dict.fromkeys,
    collections.deque, object, type, str.join, list.append, dict.get, object.__setattr__, object.__getattribute__,
)  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__qualname__)
def test_functions_with_too_few_and_too_many_arguments(fn: Any) -> None:
    for given in ((), (Held, 2, 3, 4, 5, 6)):

        def program(x: torch.Tensor, given: Any = given) -> Any:
            try:
                return x, type(fn(*given)).__name__
            except TypeError as error:
                return x, str(error)

        argand.reset()
        agree(program)


def test_frozen_dataclass_whose_cell_was_replaced() -> None:
    """Its `__init__` calls `object.__setattr__`, by a cell that can hold anything."""

    @dataclasses.dataclass(frozen=True, order=True)
    class Frozen:
        a: float

    def program(x: torch.Tensor, o: Any) -> Any:
        return x, dataclasses.replace(o, a=3).a

    check, one = Agreeing(program, shape=(2,)), Frozen(1.0)
    cell = Frozen.__init__.__closure__[0]  # type: ignore[attr-defined]
    for value in (cell.cell_contents, 3, [6.0], object, cell.cell_contents):
        cell.cell_contents = value
        check(one)


class Lengthless(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "length",
    [2.5, property(lambda self: 4), None, lambda self: 7],
    ids=lambda value: re.sub(r" at 0x[0-9a-f]+", "", repr(value)),
)
def test_dict_whose_length_is_none(length: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: tuple[Any, ...] = (
        lambda x, d: (x, max(d)),
        lambda x, d: (x, list(d), d.update(z=1), d),
        lambda x, d: (x, d.__reduce_ex__(2)[0].__name__),
    )
    monkeypatch.setattr(Lengthless, "__len__", length, raising=False)
    for program in programs:
        Agreeing(program, shape=(2,)).of(lambda: (Lengthless(k=1),))


@pytest.mark.parametrize(
    "value",
    [5, None, [1.0], Held(), np.ones(2)[::-1], np.float64(2), "x"],
    ids=lambda value: re.sub(r" at 0x[0-9a-f]+", "", repr(value)),
)
def test_from_numpy_of_something_else(value: Any) -> None:
    """What shares its memory with the result is refused, and stays as it is."""
    for name in ("from_numpy", "as_tensor", "asarray"):

        def program(x: torch.Tensor, o: Any, name: str = name) -> Any:
            return x + getattr(torch, name)(o)

        argand.reset()
        agree(program, (value,))
    assert not isinstance(value, np.ndarray) or value.flags.writeable


def test_call_that_raises_elsewhere_than_before() -> None:
    """Once a call seems to raise and the frame returns, the graph ends there; another path may have another instruction there."""

    def program(x: torch.Tensor, table: dict[str, Any]) -> Any:
        t, out = x * 1.0, []
        try:
            t = t + torch.full((3,), table["o"])
        except Exception as error:
            out.append((type(error).__name__, str(error)))
        return t, out

    check = Agreeing(program, shape=(2,))
    for value in (3, int, 4, "x", 3):
        check({"o": value})


class Refuses:
    def __iter__(self) -> Any:
        raise TypeError("not now")


class Broken:
    def __iter__(self) -> Any:
        raise ValueError("broken")


@pytest.mark.parametrize("value", [5, None, Held(), Refuses(), Broken(), [], [1, 2]], ids=lambda v: type(v).__name__)
def test_reduce_of_what_cannot_be_iterated(value: Any) -> None:
    def program(x: torch.Tensor, items: Any) -> Any:
        try:
            return x, functools.reduce(operator.add, items)
        except (TypeError, ValueError) as error:
            return x, str(error), repr(error.__context__)

    agree(program, (value,))


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("grad", [True, False])
def test_batch_norm_whose_statistics_require_gradients(name: str, grad: bool) -> None:
    """Eager refuses, and the program may catch that."""
    layer = torch.nn.BatchNorm1d(4).eval()
    getattr(layer, name).requires_grad_()

    def program(x: torch.Tensor) -> Any:
        with torch.set_grad_enabled(grad):
            try:
                return layer(x.reshape(1, 2).repeat(3, 2)).requires_grad
            except RuntimeError as error:
                return str(error)

    agree(program)


@pytest.mark.parametrize("value", [
    lambda x: torch.tensor(x.shape[0]), lambda x: torch.tensor(x.shape[0]) * 2 - 1, lambda x: (x > 0).sum(),
])  # fmt: skip
def test_native_code_that_says_something_else_when_it_cannot_have_a_number(value: Any) -> None:
    """`islice` says ValueError whatever `__index__` raises, which a program may handle."""

    def program(x: torch.Tensor) -> list[Any]:
        answers: list[Any] = [x + 1]
        for call in (
            lambda n: list(itertools.islice(range(9), n)),
            lambda n: list(itertools.islice(range(20), 0, None, n)),
            lambda n: struct.pack("f", n),
            lambda n: struct.pack("f", "no number"),
        ):
            try:
                answers.append(call(value(x)))
            except (ValueError, TypeError, struct.error) as error:
                answers.append(str(error))
        return answers

    compiled = argand.compile(program, backend="eager", dynamic=True)
    for size in (4, 6):
        x = torch.ones(size)
        want, got = program(x), compiled(x)
        assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
