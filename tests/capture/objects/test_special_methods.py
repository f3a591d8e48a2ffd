"""Special methods of a class that are no functions: None, a number, a property. CPython calls what it finds."""

from __future__ import annotations

import enum
import functools
import operator
import re
import types
from typing import Any

import pytest
import torch

import argand

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")

_HEAD = """
import collections, functools, math, operator, os, torch
class Base(BASE): pass
class Odd(Base):
    a = 1
    __NAME__ = VALUE
class Holder:
    o = None
def loop(o):
    for q in o: return q
def store(o): o[0] = 1
def remove(o): del o[0]
def set_attribute(o): o.qq = 1
def delete_attribute(o): del o.qq
def enter(o):
    with o as v: return v
def set_in(h): h.o = 1
def f(x, o):
    t = x + 1
    try:
        r = EXPRESSION
    except Exception as e:
        return t, type(e).__name__, str(e)
    return t, type(r).__name__, r
Holder.o = Odd()
"""

_UNARY = {
    "len": ["len(o)", "bool(o)", "not o", "list(o)", "list(reversed(o))"],
    "bool": ["bool(o)", "o and 1", "1 if o else 2"],
    "iter": ["list(o)", "[*o]", "3 in o", "sum(o)", "iter(o)", "loop(o)", "set(o)", "max(*o)", "[1, *o]", "bytes(o)"],
    "next": ["next(o)", "next(o, 3)"],
    "getitem": ["o[0]", "o[0:1]", "3 in o"],
    "contains": ["3 in o", "3 not in o", "operator.contains(o, 3)"],
    "eq": ["o == 3", "3 == o", "o != 3", "o in [3]", "[o] == [3]", "o == Base()", "[Base()].count(o)"],
    "ne": ["o != 3", "3 != o", "Base() != o"],
    "lt": ["o < 3", "3 > o", "sorted([o, o])", "o < Base()", "min(o, 3)"],
    "ge": ["o >= 3", "3 <= o", "Base() <= o"],
    "hash": ["hash(o)", "{o: 1}"],
    "repr": ["repr(o)", "str(o)", "f'{o!r}'"],
    "str": ["str(o)", "f'{o}'", "'%s' % (o,)"],
    "format": ["format(o)", "f'{o:>3}'", "'{}'.format(o)"],
    "index": ["operator.index(o)", "[1, 2, 3][o]", "range(o)", "hex(o)", "int(o)", "float(o)", "complex(o)"],
    "int": ["int(o)"],
    "float": ["float(o)", "math.sqrt(o)", "math.floor(o)"],
    "complex": ["complex(o)"],
    "bytes": ["bytes(o)"],
    "call": ["o()", "callable(o)", "list(map(o, [1]))"],
    "getattr": ["o.zz", "hasattr(o, 'zz')", "getattr(o, 'zz', 1)"],
    "getattribute": ["o.zz", "o.a", "hasattr(o, 'zz')"],
    "setattr": ["set_attribute(o)"],
    "delattr": ["delete_attribute(o)"],
    "missing": ["o['q']"],
    "reversed": ["list(reversed(o))"],
    "length_hint": ["operator.length_hint(o)", "list(o)"],
    "fspath": ["os.fspath(o)"],
    "round": ["round(o)", "round(o, 1)"],
    "abs": ["abs(o)"],
    "neg": ["-o"],
    "setitem": ["store(o)"],
    "delitem": ["remove(o)"],
    "enter": ["enter(o)"],
    "exit": ["enter(o)"],
    "dir": ["dir(o)"],
    "get": ["Holder().o"],
    "set": ["set_in(Holder())"],
    "divmod": ["divmod(o, 2)"],
    "rdivmod": ["divmod(2, o)"],
}
_SYMBOLS = {"add": "+", "mul": "*", "mod": "%", "and": "&", "or": "|"}
_BINARY = {
    **{name: [f"o {s} 2", f"o {s} o", f"o {s} Base()", f"o {s} x"] for name, s in _SYMBOLS.items()},
    **{"r" + name: [f"2 {s} o", f"Base() {s} o", f"x {s} o"] for name, s in _SYMBOLS.items()},
}


def _shown(function: Any, value: Any) -> Any:
    try:
        _, *found = function(torch.ones(2), value)
    except Exception as error:
        return "not handled", type(error).__name__
    return re.sub(r"0x[0-9a-f]+", "@", repr(found))


def _differences(base: str, value: str, table: dict[str, list[str]]) -> list[str]:
    found = []
    for name, expressions in table.items():
        for expression in expressions:
            text = _HEAD.replace("BASE", base).replace("NAME", name).replace("VALUE", value)
            code = compile(text.replace("EXPRESSION", expression), "<special method>", "exec")
            shown = []
            for compiled in (False, False, True):
                module = types.ModuleType("special")
                exec(code, module.__dict__)
                function = argand.compile(module.f, backend="eager") if compiled else module.f
                shown.append(_shown(function, module.Odd()))
            if shown[0] == shown[1] != shown[2]:
                found.append(f"__{name}__, {expression}: eager {shown[0]}, compiled {shown[2]}")
    argand.reset()
    return found


@pytest.mark.parametrize("base", ["object", "list", "dict", "int", "str", "collections.deque"])
def test_special_methods_that_are_none(base: str) -> None:
    assert _differences(base, "None", _UNARY | (_BINARY if base in ("object", "int") else {})) == []


@pytest.mark.parametrize("value", ["5", "property(lambda s: 5)"])
def test_special_methods_that_cannot_be_called(value: str) -> None:
    assert _differences("object", value, _UNARY) == []


def _compare(program: Any, *arguments: Any) -> None:
    compiled = argand.compile(program, backend="eager")
    assert _shown(compiled, *arguments) == _shown(program, *arguments)


def test_reflected_comparison_with_none() -> None:
    class Equal:
        def __eq__(self, other: object) -> Any:
            return NotImplemented

        __hash__ = object.__hash__

    def program(x: torch.Tensor, o: Any) -> Any:
        return x, o == Equal(), Equal() != o, None == Equal(), None.__eq__(o), type(None).__eq__(o, o)  # noqa: E711

    _compare(program, None)


def test_index_of_a_deque_that_is_no_number() -> None:
    import collections

    def program(x: torch.Tensor, o: Any) -> Any:
        said = []
        for key in ("k", 1.5, None, slice(1)):
            try:
                o[key]
            except TypeError as error:
                said.append(str(error))
        return x, said

    _compare(program, collections.deque([1]))


def test_spread_of_what_has_items_only_by_key() -> None:
    import numpy

    def program(x: torch.Tensor, o: Any) -> Any:
        said = []
        for spread in (lambda: [*o], lambda: max(*o), lambda: max(1, *o), lambda: {*o}):
            try:
                spread()
            except TypeError as error:
                said.append(str(error))
        return x, said

    _compare(program, numpy.float64(2))


class _Text(str):
    def __iter__(self) -> Any:
        return iter([1])


class _Bytes(bytes):
    def __iter__(self) -> Any:
        return iter([1])


class _Count:
    def __iter__(self) -> Any:
        return iter([1])

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("value", [_Text("a"), _Bytes(b"q"), _Count()], ids=["str", "bytes", "index"])
def test_bytes_of_what_also_iterates(value: Any) -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        said: list[Any] = []
        for make in (bytes, bytearray):
            try:
                said.append(make(o))
            except TypeError as error:
                said.append(str(error))
        return x, said

    _compare(program, value)


class _Number(int):
    pass


def test_operation_with_a_number_of_a_subclass_that_torch_refuses() -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        try:
            r: Any = x.__and__(o)
        except NotImplementedError as error:
            r = str(error)
        return x, r

    _compare(program, _Number(2))


_FORMATS = [
    "'%d' % o", "'%x' % o", "'%c' % o", "'%f' % o", "'%s' % o", "'abc' % o", "'%(k)s' % o", "'%s %s' % o",
    "'%d' % (o,)", "'abc' % (o,)", "'{0[k]}'.format(o)", "'{:d}'.format(o)", "'%*d' % (o, 3)", "b'%d' % o",
]  # fmt: skip


class _Plain:
    pass


class _Float:
    def __float__(self) -> float:
        return 2.5


class _Complex(complex):
    def __float__(self) -> float:
        return 1.0


class _Int:
    def __int__(self) -> int:
        return 4

    def __str__(self) -> str:
        return "int"


class _Index:
    def __index__(self) -> Any:
        return 1.5


class _Both:
    def __int__(self) -> int:
        return 7

    def __index__(self) -> int:
        return 66


class _Items:
    def __getitem__(self, key: str) -> str:
        return key

    def __str__(self) -> str:
        return "items"


_FORMATTED = [_Plain(), _Float(), _Complex(1), _Int(), _Index(), _Both(), _Items()]


@pytest.mark.parametrize("value", _FORMATTED, ids=[type(v).__name__ for v in _FORMATTED])
def test_formats_of_what_has_some_of_the_methods(value: Any) -> None:
    for expression in _FORMATS:
        module = types.ModuleType("formats")
        exec(_HEAD.replace("EXPRESSION", expression).replace("BASE", "object").replace("VALUE", "1"), module.__dict__)
        assert _shown(argand.compile(module.f, backend="eager"), value) == _shown(module.f, value), expression


class _AnswersAll:
    def __getattr__(self, name: str) -> Any:
        return -2.0


class _HasOwn:
    pass


_ANSWERING = types.ModuleType("answering")
_ANSWERING.__getattr__ = lambda name: 1  # type: ignore[method-assign]
_OWN = _HasOwn()
_OWN.__torch_function__ = lambda *args: 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [_AnswersAll(), _ANSWERING, _OWN], ids=["getattr", "module", "own"])
def test_torch_function_of_an_object_and_not_of_its_class(value: Any) -> None:
    for expression in ("x + o", "x.sum(o)", "o < x", "torch.add(x, o)"):
        module = types.ModuleType("protocol")
        exec(_HEAD.replace("EXPRESSION", expression).replace("BASE", "object").replace("VALUE", "1"), module.__dict__)
        assert _shown(argand.compile(module.f, backend="eager"), value) == _shown(module.f, value), expression


def test_flag_whose_value_was_replaced() -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        said: list[Any] = []
        for make in (list, tuple, lambda flag: [*flag]):
            try:
                said.append(make(o))
            except (AttributeError, TypeError) as error:
                said.append((type(error).__name__, str(error)))
        return x, said

    bits = enum.Flag("bits", "a b")  # type: ignore[misc]
    flag = bits.a | bits.b
    _compare(program, flag)
    flag._value_ = "abc"
    _compare(program, flag)


def test_cached_property_without_a_name() -> None:
    class Cached:
        @functools.cached_property
        def slow(self) -> int:
            return 1

    vars(Cached)["slow"].attrname = None

    def program(x: torch.Tensor, o: Any) -> Any:
        try:
            return x, o.slow
        except TypeError as error:
            return x, str(error)

    _compare(program, Cached())


@pytest.mark.parametrize(
    ("name", "method", "ask"),
    [
        ("__repr__", lambda o: "text", lambda o: (repr(o), f"{o}")),
        ("__bool__", lambda o: False, lambda o: (not o, bool(o))),
        ("__eq__", lambda o, other: True, lambda o: (o == 1, o in [2], 1 == o)),
        ("__hash__", lambda o: 5, hash),
        ("__length_hint__", lambda o: 5, operator.length_hint),
    ],
)
def test_given_to_a_class_in_captured_code(name: str, method: Any, ask: Any) -> None:
    """What the class had before was asked."""

    def results(compiled: bool) -> Any:
        cls: Any = type("Late", (), {})

        def fn(x: torch.Tensor) -> Any:
            setattr(cls, name, method)
            return x + 1, ask(cls())

        return (argand.compile(fn, backend="eager") if compiled else fn)(torch.ones(2))[1]

    assert results(True) == results(False)
