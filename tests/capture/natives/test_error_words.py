"""Errors that captured code raises say what CPython says, in its words: which class a method is of, what a type is called."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand
from capture.agreement import Agreeing


class Text(bytes):
    def __format__(self, spec: str) -> str:
        return "formatted" + spec


class Index:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __index__(self) -> Any:
        return self.v


class NotIterable:
    def __iter__(self) -> Any:
        raise TypeError("its own words")


class Own(list):  # type: ignore[type-arg]
    pass


PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "method of a base": (lambda o: o.with_traceback(), (ValueError(1), SystemExit(2), KeyError())),
    "method of a base, one too many": (lambda o: o.add_note(1, 2), (ValueError(1), OSError(2, "a"))),
    "method of bytes": (lambda o: o.isalnum(o), (Text(b"a"), b"a", "a")),
    "method of list": (lambda o: o.append(), (Own([1]), [1])),
    "method of a dict": (lambda o: o.get(), ({}, collections.OrderedDict(), collections.defaultdict(int))),
    "attribute of an alias": (
        lambda o: o.absent,
        (list[int], int | str, types.SimpleNamespace, types.MappingProxyType),
    ),
    "concatenation": (
        lambda o: operator.concat(o, o),
        (torch.ones(2), {}, 1, 1.5, None, [1], (1,), "a", Own([2]), range(2), types.SimpleNamespace()),
    ),
    "concatenation of a list": (
        lambda o: operator.concat([1], o),
        (torch.ones(2), [1], (1,), "a", {}, 1, Own([2]), collections.deque([1])),
    ),
    "concatenation of a tuple": (lambda o: operator.concat((1,), o), (torch.Size([2]), [1], (1,), "a", 2)),
    "concatenation in place": (lambda o: operator.iconcat([1], o), ([1], (1,), "ab", {1: 2}, 1, torch.ones(2))),
    "concatenation with a number": (lambda o: operator.concat(o, 2), ([1], torch.ones(1), Own(), np.ones(2), "a")),
    "reduction": (
        lambda o: functools.reduce(lambda a, b: b, o),
        ([1, 2], [], 1, None, NotIterable(), torch.tensor(1.0), "ab"),
    ),
    "reduction from a value": (lambda o: functools.reduce(lambda a, b: b, o, 5), ([1, 2], [], 1, NotIterable())),
    "ordered dict": (
        lambda o: collections.OrderedDict(o),
        (
            "Q",
            "QA",
            [(1, 2)],
            [(1,)],
            [()],
            [(1, 2, 3)],
            {1, 2},
            [[1, 2], 3],
            {"a": 1},
            5,
            ["ab", (1, 2)],
        ),
    ),
    "ordered dict updated": (
        lambda o: _updated(collections.OrderedDict(k=1), o),
        ([("k", 2), 3], [("a", 1), ("b",)], {"k": 3}, "ab"),
    ),
    "dict": (lambda o: dict(o), ("Q", [(1,)], {1, 2}, [(1, 2, 3)], ["ab"], [np.float64(5)], [(1, 2), NotIterable()])),
    "attribute methods": (lambda o: object.__setattr__(o, "a"), (types.SimpleNamespace(),)),
    "attribute deleted": (lambda o: object.__delattr__(o, "a", 1), (types.SimpleNamespace(a=1),)),
    "attribute read": (lambda o: object.__getattribute__(o), (types.SimpleNamespace(),)),
    "looked for": (
        lambda o: 2 in o,
        (np.float32(1.0), np.ones(2), NotIterable(), 1, None, types.SimpleNamespace(), [1, 2], {2: 1}),
    ),
    "index": (lambda o: int(o), (Index(np.float32(1.0)), Index("a"), Index(types.SimpleNamespace()), Index(3))),
    "operands": (lambda o: o + object(), (types.SimpleNamespace(), collections.deque(), np.float32(1.0), 1)),
    "order": (lambda o: o < object(), (types.SimpleNamespace(), collections.deque(), 1)),
    "bytes": (lambda o: bytes(o), (Text(b"ab"), b"a", "a", [1, 2], [256], Index(2), 3)),
}
"""How objects are used, and the objects."""


def _updated(target: Any, values: Any) -> Any:
    try:
        target.update(values)
    except Exception as error:
        return type(error), str(error), target
    return target


CASES = [(name, i) for name, (_, objects) in PROGRAMS.items() for i in range(len(objects))]


@pytest.mark.parametrize("name,index", CASES)
@pytest.mark.filterwarnings("error:argand. capturing")
def test_words_of_errors(name: str, index: int) -> None:
    use, objects = PROGRAMS[name]

    def program(x: torch.Tensor, o: Any) -> Any:
        t = x * 2
        try:
            return repr(use(o))
        except Exception as error:
            return t.shape, type(error).__name__, str(error)

    def uncaught(x: torch.Tensor, o: Any) -> Any:
        return x * 2, use(o)

    for fn in (program, uncaught):
        check = Agreeing(fn, shape=(2,))
        for _ in range(2):
            check(objects[index])


@pytest.mark.parametrize("use", [sorted, list, lambda v: v[0], lambda v: v.absent, lambda v: {**v}, lambda v: v()])
@pytest.mark.parametrize("number", [(3, 5, 7), (1.5, 2.5, 4.5)])
def test_number_that_varies_is_named_by_its_type(use: Callable[[Any], Any], number: tuple[Any, ...]) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        t = x * 2
        try:
            return t, use(n)
        except Exception as error:
            return t, type(error).__name__, str(error)

    compiled = argand.compile(program, backend="eager")
    for n in number:
        assert repr(compiled(torch.ones(2), n)) == repr(program(torch.ones(2), n))


def test_method_of_an_array_is_a_builtin_method() -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        q = a.setflags
        return x * 2, type(q).__name__, isinstance(q, types.BuiltinMethodType)

    compiled = argand.compile(program, backend="eager")
    a = np.array(3)
    assert repr(compiled(torch.ones(2), a)) == repr(program(torch.ones(2), a))


def _unknown() -> int:
    argand.graph_break()
    return 1


def _of_a_list(x: torch.Tensor, o: Any) -> Any:
    y = x + 1
    return o.clear(_unknown()), y


class _Opaque:
    pass


OPAQUE = _Opaque()

CALLED: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "tensor": lambda x, o: x.dim(1),
    "tensor, before a break": lambda x, o: x.dim(_unknown()),
    "result, before a break": lambda x, o: (x + 1).dim(_unknown()),
    "tensor, given an object": lambda x, o: x.indices(OPAQUE),
    "result, given an object": lambda x, o: (x * 2).indices(OPAQUE),
    "bound beforehand": lambda x, o: [f for f in (x.dim,)][0](OPAQUE),
    "by name": lambda x, o: getattr(x, "dim")(OPAQUE),  # noqa: B009
    "list, before a break": lambda x, o: o.clear(_unknown()),
    "list, behind an operation": _of_a_list,
    "list, bound beforehand": lambda x, o: [f for f in (o.clear,)][0](_unknown()),
    "size": lambda x, o: x.shape.index(),
    "size, given an object": lambda x, o: x.shape.__len__(OPAQUE),
    "bool": lambda x, o: True.bit_length(OPAQUE),
}


@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("parameter", [False, True])
def test_class_that_a_method_of_c_is_said_to_be_of(name: str, parameter: bool) -> None:
    """Called at once it is its own class's (`TensorBase.dim`), bound to an object before that the object's."""

    def program(x: torch.Tensor) -> Any:
        try:
            return CALLED[name](x, Own([1]))
        except TypeError as error:
            return str(error)

    x = torch.nn.Parameter(torch.ones(2)) if parameter else torch.ones(2)
    want = program(x)
    assert type(want) is str
    compiled = argand.compile(program, backend="eager")
    assert [compiled(x) for _ in range(2)] == [want] * 2
    bare = argand.compile(CALLED[name], backend="eager")
    with pytest.raises(TypeError) as raised:
        bare(x, Own([1]))
    assert str(raised.value) == want
