"""Differences from CPython that its own test package led to: whose code runs when, what stays alive, what is left alone."""

from __future__ import annotations

import collections
import decimal
import gc
import importlib
import inspect
import os
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import pytest
import torch
from tests.helpers import collected

import argand
import argand.events

T = torch.ones(2)


def follows(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """One compiled function, called with these arguments in turn, answers as eager does (exceptions too)."""
    compiled = argand.compile(fn, backend="eager")

    def said(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
        try:
            return repr(call(*args))
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    with collected("internal") as internal:
        for args in calls or ((T,), (T,)):
            assert said(compiled, args) == said(fn, args)
    assert not internal


# ---- unbound variables ---------------------------------------------------------------------------------------------


def test_an_unbound_local_that_is_a_cell_says_so_behind_a_graph_break() -> None:
    def fn(x: Any) -> Any:
        argand.graph_break()

        def inner() -> Any:
            return a

        found: list[Any] = []
        try:
            print(a)  # noqa: F821
        except UnboundLocalError as e:
            found += [str(e), e.name, e.__context__, len(traceback.extract_tb(e.__traceback__))]
        try:
            inner()
        except NameError as e:
            found += [type(e).__name__, str(e)]
        try:
            del a  # noqa: F821
        except UnboundLocalError as e:
            found.append(str(e))
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            argand.graph_break()
            try:
                a  # noqa: B018
            except NameError as e:
                found += [type(e).__name__, repr(e.__context__)]
        a = x + 1
        return found, inner()

    follows(fn)


def test_a_cell_that_is_set_and_deleted_again_may_have_been_empty() -> None:
    def fn(x: Any) -> Any:
        def inner() -> Any:
            return a

        argand.graph_break()
        y = x + 1
        for _ in range(2):
            a = 5
            del a
            argand.graph_break()
            y = y * 2
        a = 3
        return y, inner()

    follows(fn)


# ---- nobody asks the program's objects ----------------------------------------------------------------------------


class _Asked:
    log: list[str] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> Any:
        _Asked.log.append(name)
        return object.__getattribute__(self, name)

    def __call__(self, *args: Any) -> int:
        return 7

    def __add__(self, other: Any) -> int:
        return 9


def _asked_items(base: Any) -> Any:
    class Asked(base):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            _Asked.log.append(name)
            return base.__getattribute__(self, name)

        def __len__(self) -> int:
            _Asked.log.append("len")
            return int(base.__len__(self))

        def __getitem__(self, key: Any) -> Any:
            _Asked.log.append("getitem")
            return base.__getitem__(self, key)

        def __iter__(self) -> Any:
            _Asked.log.append("iter")
            return base.__iter__(self)

    return Asked


_MAKERS: dict[str, Callable[[], Any]] = {
    "object": _Asked,
    "exception": lambda: type("E", (ValueError,), {"__getattribute__": _Asked.__getattribute__})(1, 2),
    **{b.__name__: lambda b=b: _asked_items(b)([1, 2]) for b in (list, tuple, set, frozenset, collections.deque)},
}  # fmt: skip


@pytest.mark.parametrize("kind", _MAKERS)
def test_an_object_is_rebuilt_without_asking_it_for_attributes(kind: str) -> None:
    make = _MAKERS[kind]

    def fn(x: Any) -> Any:
        made = make()
        y = x + 1
        argand.graph_break()
        held = {1: made}
        argand.graph_break()
        same = held[1] is made
        return same, y

    def run(call: Callable[..., Any]) -> Any:
        _Asked.log.clear()
        return repr(call(T)), list(_Asked.log)

    want = run(fn)
    compiled = argand.compile(fn, backend="eager")
    assert run(compiled) == want
    assert run(compiled) == want


@pytest.mark.parametrize("kind", ["object", "exception", "set", "frozenset"])
def test_an_argument_is_used_without_asking_it_for_attributes(kind: str) -> None:
    make = _MAKERS[kind]

    def fn(x: Any, obj: Any) -> Any:
        found: list[Any] = [x + 1, type(obj).__name__]
        for step in (lambda: obj(1), lambda: obj + 1, lambda: len(obj), lambda: obj[0]):
            try:
                found.append(step())
            except (TypeError, AttributeError) as e:
                found.append(str(e))
        return found

    def run(call: Callable[..., Any]) -> Any:
        obj = make()
        _Asked.log.clear()
        return repr(call(T, obj)), [name for name in _Asked.log if name != "len"], _Asked.log.count("len") > 0

    want = run(fn)
    compiled = argand.compile(fn, backend="eager")
    assert run(compiled) == want
    assert run(compiled) == want


def test_getattr_static_asks_nothing() -> None:
    called = []

    def fn(x: Any) -> Any:
        class Local:
            def __getattribute__(self, name: str) -> Any:
                called.append(name)
                return {}

        try:
            y = x + 1
            inspect.getattr_static(Local(), "anything")
        except AttributeError:
            return y
        return None

    assert torch.equal(argand.compile(fn, backend="eager")(T), T + 1)
    assert not called


def test_a_class_with_slots_gets_no_new_attribute_when_an_object_is_rebuilt() -> None:
    class Slots:
        __slots__ = ("a", "b")

    def fn(x: Any) -> Any:
        made = Slots()
        made.a = x + 1
        argand.graph_break()
        return made.a, hasattr(made, "b"), sorted(vars(Slots))

    follows(fn)
    assert "__slotnames__" not in vars(Slots)


def test_an_index_that_is_an_int_is_not_asked_for_its_index() -> None:
    class Index(int):
        def __index__(self) -> int:
            return 0

    follows(lambda x: ([10, 11, 12][Index(2)], "abc"[Index(1) :], x + 1))


# ---- what stays alive ----------------------------------------------------------------------------------------------


def test_a_method_of_an_object_in_c_is_not_kept() -> None:
    match = type("S", (str,), {})("abc")

    def fn(x: Any, text: Any) -> Any:
        text.__sizeof__()
        memoryview(b"abc").release()
        return x + 1

    before = sys.getrefcount(match)
    assert torch.equal(argand.compile(fn, backend="eager")(T, match), T + 1)
    gc.collect()
    assert sys.getrefcount(match) == before
    owner = types.SimpleNamespace()
    view = memoryview(bytearray(b"abc"))
    before = sys.getrefcount(view)

    def release(x: Any, held: Any) -> Any:
        held.tobytes()
        return x + 1

    argand.compile(release, backend="eager")(T, view)
    del owner
    gc.collect()
    assert sys.getrefcount(view) == before


def test_an_import_finds_what_sys_modules_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        import colorsys

        return x + len(colorsys.__all__), importlib.import_module("colorsys").__name__

    compiled = argand.compile(fn, backend="eager")
    assert repr(compiled(T)) == repr(fn(T))
    fake = types.ModuleType("colorsys")
    fake.__all__ = ["a"]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "colorsys", fake)
        assert torch.equal(compiled(T)[0], T + 1)
    assert repr(compiled(T)) == repr(fn(T))


def test_a_module_that_a_function_is_given_is_not_kept() -> None:
    module = types.ModuleType("given")
    module.n = 3  # type: ignore[attr-defined]

    def fn(x: Any, given: Any) -> Any:
        y = x + given.n
        argand.graph_break()
        held = [given]
        argand.graph_break()
        return y * held[0].n

    assert torch.equal(argand.compile(fn, backend="eager")(T, module), (T + 3) * 3)
    ref = weakref.ref(module)
    del module
    gc.collect()
    assert ref() is None


def test_the_table_of_modules_is_not_rewritten() -> None:
    def fn(x: Any) -> Any:
        sys.modules["argand_test_entry"] = types
        y = x + 1
        return y, sys.modules.pop("argand_test_entry") is types, any(name == "torch" for name in sys.modules)

    before = list(sys.modules)
    follows(fn)
    assert [name for name in sys.modules if name in before] == before


# ---- values of C ---------------------------------------------------------------------------------------------------


def test_struct_sequences_are_tuples_that_only_c_makes() -> None:
    def fn(x: Any, *sequences: Any) -> Any:
        version = sys.version_info
        if version[:2] > (3, 0) and version.major == 3 and not sys.flags.optimize:
            x = x + 1
        first, *rest = version
        held = [*sequences, version]
        for items in sequences:
            for item in items:
                x = x + item * 0
        argand.graph_break()
        return x, first, rest, held[-1] is version, held[0].st_mtime_ns, held[1].tm_zone, list(held[2])

    args = (T, os.stat(os.sep), time.localtime(0), torch.max(torch.ones(2, 2), 0))
    follows(fn, args, args)


def test_conditions_on_very_large_numbers_are_not_compiled() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        q, r = divmod(a, b)
        if not (q * b + r == a and (0 <= r < b or b < r <= 0)):
            return x
        return x + (1 if q > (1 << 80) else 2)

    follows(fn, (T, 5, 3), (T, 1 << 90, 7), (T, -(1 << 200), 9), (T, 17, -(1 << 70)), (T, 1 << 100, 1 << 3))


# ---- long stretches of plain Python ---------------------------------------------------------------------------------


def _count(n: int) -> int:
    total = 0
    for i in range(n):
        total += i % 3
    return total


def test_a_long_loop_without_tensors_runs_eagerly_soon() -> None:
    def fn(x: Any, n: int) -> Any:
        total = 0
        for i in range(n):
            total += i % 3
        return x + total

    with collected("graph_breaks") as breaks:
        assert torch.equal(argand.compile(fn, backend="eager")(T, 50_000), T + _count(50_000))
    assert [e.data["reason"].kind for e in breaks] == ["long stretch of plain Python"]


def test_a_long_call_without_tensors_breaks_the_graph_once_and_for_all() -> None:
    calls = []

    def fn(x: Any, n: int) -> Any:
        calls.append(n)
        y = x * 2
        return y + _count(n)

    compiled = argand.compile(fn, backend="eager")
    with collected("graph_breaks") as breaks, collected("graph") as graphs:
        for n in (50_000, 50_001, 50_002):
            assert torch.equal(compiled(T, n), T * 2 + _count(n))
    assert {e.data["reason"].kind for e in breaks} == {"long stretch of plain Python"}
    assert len(graphs) >= 2 and calls == [50_000, 50_001, 50_002]


def test_fullgraph_takes_as_long_as_it_takes() -> None:
    def fn(x: Any) -> Any:
        return x + _count(25_000)

    assert torch.equal(argand.compile(fn, backend="eager", fullgraph=True)(T), T + _count(25_000))


def test_a_long_loop_over_tensors_is_captured() -> None:
    def fn(x: Any, n: int) -> Any:
        for i in range(n):
            if i % 4000 == 0:
                x = x + i
        return x

    with collected("graph_breaks") as breaks:
        assert torch.equal(argand.compile(fn, backend="eager")(T, 24_000), fn(T, 24_000))
    assert not breaks


# ---- orders, protocols, exceptions ---------------------------------------------------------------------------------


def test_an_ordered_dict_keeps_its_own_order_across_breaks_and_writes() -> None:
    def fn(x: Any, od: Any) -> Any:
        y = x + 1
        od.move_to_end("a")
        made = collections.OrderedDict(p=1, q=2, r=3)
        made.move_to_end("p")
        argand.graph_break()
        od.move_to_end("b", last=False)
        z = y * 2
        argand.graph_break()
        return z, list(od), list(dict(od)), made, list(reversed(od)), list(od.values())

    def make() -> Any:
        od = collections.OrderedDict(a=1, b=2, c=3)
        od.move_to_end("b")
        return od

    compiled = argand.compile(fn, backend="eager")
    for _ in range(2):
        ours, eagers = make(), make()
        assert repr(compiled(T, ours)) == repr(fn(T, eagers))
        assert list(ours.items()) == list(eagers.items())


def test_a_protocol_that_cannot_be_made_says_so() -> None:
    class P(Protocol):
        x: int

    def fn(x: Any) -> Any:
        try:
            P()  # type: ignore[misc]
        except TypeError as e:
            return str(e), x + 1

    follows(fn)


def test_what_is_told_of_an_exception_asks_for_no_number() -> None:
    def fn(v: int) -> Any:
        raise ValueError(v)

    remove = argand.events.bus.subscribe(lambda event: event.text())
    try:
        follows(fn, (1,), (2,), (5,), (6,))
    finally:
        remove()


# ---- state that C code of a library keeps ----------------------------------------------------------------------------


class _Amount(decimal.Decimal):
    pass


@pytest.mark.parametrize(
    "use",
    [
        int, float, str, bool, hash, abs, round, lambda d: d + 1, lambda d: 1 - d, lambda d: d == 3, lambda d: 0 < d,
        lambda d: f"{d:.1f}", lambda d: [d] == [3], lambda d: d in (3, 2), lambda d: max(d, 1), lambda d: "%s" % d,
        lambda d: 1 if d else 2, lambda d: list(map(int, [d])), lambda d: {d: 1}, lambda d: d.as_tuple(),
    ],
)  # fmt: skip
def test_what_c_code_keeps_in_an_object_is_not_taken_for_constant(use: Callable[[Any], Any]) -> None:
    def fn(x: Any, d: Any) -> Any:
        return use(d), x + 1

    follows(fn, *[(T, _Amount(n)) for n in (-3, 2, 3, 0, 5)])


def test_a_class_whose_module_is_no_text_is_captured() -> None:
    class Meta(type):
        @property
        def __module__(cls) -> str:
            raise AttributeError

    class Nowhere(metaclass=Meta):
        def __call__(self) -> int:
            return 3

    class Numbered(Exception):
        pass

    Numbered.__module__ = 42  # type: ignore[assignment]

    def fn(x: Any, outer: Any) -> Any:
        made, raised = Nowhere(), Numbered("a")
        found = [made(), outer(), str(raised), {made: 1}[made], isinstance(made, int | Nowhere)]
        argand.graph_break()
        try:
            raise raised
        except Numbered as e:
            argand.graph_break()
            return found, e.args, type(made) is Nowhere, x + 1

    follows(fn, (T, Nowhere()), (T, Nowhere()))
