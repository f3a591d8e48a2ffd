"""What native code reads of objects from outside is guarded, or the graph breaks: answers follow the objects."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.capture.world import native_programs as programs
from tests.helpers import CountingBackend

import argand

X = torch.ones(2)
PARTS = 300
"""`make test` runs one pair in so many; all of them: python tests/capture/world/native_programs.py (minutes)."""

SAMPLE = programs.pairs()[7::PARTS]
TOGETHER = 20


@pytest.fixture(autouse=True)
def _patient() -> Any:
    with argand.config.patch(cache_size_limit=64):
        yield


@pytest.mark.parametrize("start", range(0, len(SAMPLE), TOGETHER))
def test_sample_of_all_pairs(start: int) -> None:
    runner = programs.Runner()
    found = [d for pair in SAMPLE[start : start + TOGETHER] for d in runner.differences(*pair)]
    assert not found, "\n".join(map(str, found))


NAMED: list[tuple[str, str]] = [
    ("itemgetter", "o([1.0, 2.0])"),
    ("attrgetter", "o(1j)"),
    ("methodcaller", "o([1, 2])"),
    ("ValueError", "str(o)"),
    ("ValueError", "repr(o)"),
    ("OSError", 'f"{o}"'),
    ("OSError", "o.errno"),
    ("KeyError", '"%s" % (o,)'),
    ("StopIteration", "o.value"),
    ("ExceptionGroup", "o.exceptions"),
    ("Text", "len(o)"),
    ("Text", "o[0]"),
    ("Text", '",".join([o, "b"])'),
    ("Raw", "o[0]"),
    ("Int", "o.half"),
    ("Int", '"a" * o'),
    ("Int", "{1: 2.0}.get(o)"),
    ("Float", "o.real"),
    ("Float", "o.is_integer()"),
    ("Float", "x * o"),
    ("Float", "[1, 2, 3].count(o)"),
    ("Int gains __index__", "float(o)"),
    ("Index", '"a" * o'),
    ("Index", "list(itertools.repeat(1, o))"),
    ("Index", "dict.fromkeys([o, 1])"),
    ("Key", "{o: 1.0}.get(1)"),
    ("Key", "len({o, 3.0, 1})"),
    ("Point", "o.k"),
    ("c_int", "o.value"),
    ("c array", "o[0]"),
    ("Fields", "o.k"),
    ("mappingproxy", 'o["a"]'),
    ("mappingproxy", '"a" in o'),
    ("keys", "len(o)"),
    ("keys", "1 in o"),
    ("thread's own", 'getattr(o, "k", 7.0)'),
    ("thread's own", 'hasattr(o, "k")'),
    ("thread's own", "o.__dict__"),
    ("proxy", 'getattr(o, "k", 7.0)'),
    ("proxy", "o.__class__.__name__"),
    ("proxy of a sequence", "len(o)"),
    ("Plain", 'sorted(n for n in dir(o) if n[0] != "_")'),
    ("class gains __call__", "callable(o)"),
    ("class gains __str__", "str(o)"),
    ("class gains __index__", "[1, 2, 3][o]"),
    ("Struct", "o.size"),
    ("partial", "o(1)"),
    ("bound append", "o.__self__"),
    ("slice of Index", "[1, 2, 3][o]"),
]


@pytest.mark.parametrize(("subject", "expression"), NAMED)
def test_named(subject: str, expression: str) -> None:
    found = [d for backend in ("eager", "native") for d in programs.Runner(backend).differences(subject, expression)]
    assert not found, "\n".join(map(str, found))


def test_sample_can_fail() -> None:
    """Without the check at the door, the same pairs differ."""
    from argand.capture.world import native_reads

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_reads, "check", lambda *args: None)
        runner = programs.Runner()
        assert any(runner.differences(*pair) for pair in (("Text", "len(o)"), ("Float", "o.is_integer()")))


def _graphs(fn: Callable[..., Any], *args: Any) -> int:
    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend)
    assert repr(compiled(*args)) == repr(fn(*args))
    return len(backend.graphs)


@pytest.mark.parametrize(
    ("fn", "obj"),
    [
        (lambda x, o: x * len(o) + len(o[0]), programs.Text("abc")),
        (lambda x, o: x * o.half + o, programs.Int(3)),
        (lambda x, o: x * o([1, 2]), operator.itemgetter(1)),
        (lambda x, o: x * o(3), functools.partial(max, 1)),
        (lambda x, o: x * o.k, programs.Fields(2, 1)),
        (lambda x, o: x * len(dir(o)), programs.Plain(k=1)),
        (lambda x, o: x * {programs.Key(3): 2.0}[programs.Key(o)], 3),
        (lambda x, o: x * [o].count(o) + (o == o) + (o in (1, o)), programs.Plain()),
        (lambda x, o: x * x.new_ones(o) + x.new_zeros(size=o), ()),
        (lambda x, o: x * callable(o), programs.Plain()),
        (lambda x, o: (x, f"{o} {o!r} {[o]}")[0] + 1, programs.Plain()),
        (lambda x, o: x * o.args[0] * o.errno, OSError(2, "text")),
    ],
)
def test_what_can_be_guarded_stays_in_one_graph(fn: Any, obj: Any) -> None:
    assert _graphs(fn, X, obj) == 1


def test_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    fn = argand.compile(lambda x: x * sys.getrecursionlimit(), backend="eager")
    try:
        for extra in (0, 10):
            sys.setrecursionlimit(limit + extra)
            assert fn(X).tolist() == [limit + extra] * 2
    finally:
        sys.setrecursionlimit(limit)


def test_thread_identity() -> None:
    def ident(x: torch.Tensor) -> torch.Tensor:
        return x.double() * threading.get_ident()

    compiled = argand.compile(ident, backend="eager")
    results: list[bool] = []

    def ask() -> None:
        results.append(compiled(X).tolist() == ident(X).tolist())

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert results == [True, True]


def test_base_value_guard_keeps_no_object_alive() -> None:
    class Held(float):
        pass

    compiled = argand.compile(lambda x, o: x * o.is_integer(), backend="eager")
    held = Held(2.0)
    ref = weakref.ref(held)
    assert compiled(X, held).tolist() == [1.0, 1.0]
    del held
    assert ref() is None


@pytest.mark.parametrize("changes_in_capture", [False, True])
def test_keys_whose_hash_is_python_code(changes_in_capture: bool) -> None:
    """What captured code wrote is not seen by native code, which would hash the key as it was: the graph breaks."""

    def fn(x: torch.Tensor, o: Any) -> Any:
        table = {programs.Key(5): x * 2}
        if changes_in_capture:
            o.v = 5
        return table.get(o, x)

    compiled = argand.compile(fn, backend="eager")
    for value in (5, 6, 5):
        expected, got = fn(X, programs.Key(value)), compiled(X, programs.Key(value))
        assert expected.tolist() == got.tolist()


def test_mapping_unpacking_goes_past_overridden_methods() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            return 9

        def keys(self) -> Any:
            return ["other"]

    def fn(x: torch.Tensor, d: Any) -> Any:
        return x + 1, {**d}, (lambda **kw: kw)(**d), dict(d)

    d = Loud(k=5)
    assert repr(argand.compile(fn, backend="eager")(X, d)) == repr(fn(X, d))


def test_outer_mutable_objects_in_local_containers() -> None:
    """A local list of objects from outside: native code that compares them finds what it would find in eager."""

    def fn(x: torch.Tensor, a: Any, b: Any) -> Any:
        local = [a, b, 2.5]
        return x * local.index(b), local.count(2.5), b in local, local == [a, b, 2.5]

    compiled = argand.compile(fn, backend="eager")
    for pair in [(1, programs.Float(2.5)), (1, programs.Float(1.0)), (programs.Plain(), programs.Plain())]:
        assert repr(compiled(X, *pair)) == repr(fn(X, *pair))
    one = programs.Plain()
    assert repr(compiled(X, one, one)) == repr(fn(X, one, one))


def test_mapping_behind_a_proxy() -> None:
    behind = {"a": 1.0}
    proxy = types.MappingProxyType(behind)

    def through_methods(x: torch.Tensor, o: Any) -> Any:
        return x * o.get("a") * len(list(o.values())), list(o.items())

    assert _graphs(through_methods, X, proxy) == 1
    by_method = argand.compile(through_methods, backend="eager")
    assert repr(by_method(X, proxy)) == repr(through_methods(X, proxy))
    compiled = argand.compile(lambda x: (x * proxy["a"], sorted(proxy), proxy == {"a": 1.0}), backend="eager")
    assert compiled(X)[0].tolist() == [1.0, 1.0]
    behind.update(a=2.0, b=3.0)
    assert repr(by_method(X, proxy)) == repr(through_methods(X, proxy))
    result = compiled(X)
    assert (result[0].tolist(), *result[1:]) == ([2.0, 2.0], ["a", "b"], False)


def test_iterators_from_outside_are_stepped_once() -> None:
    def fn(x: torch.Tensor, it: Any) -> Any:
        return x * next(it), list(itertools.islice(it, 1))

    compiled = argand.compile(fn, backend="eager")
    for make in (lambda: iter([1, 2, 3]), lambda: itertools.count(4), lambda: (v for v in (5, 6))):
        ours, eagers = make(), make()
        assert repr(compiled(X, ours)) == repr(fn(X, eagers))
        with contextlib.suppress(StopIteration):
            assert next(ours) == next(eagers)


def test_containers_that_are_shared_are_looked_through_once() -> None:
    """Each level holds the one below twice: 2 ** 60 paths, 60 containers."""
    held: object = [1]
    for _ in range(60):
        held = [held, held]
    outer = held

    def program(x: torch.Tensor, items: object) -> object:
        inner: object = [2]
        for _ in range(60):
            inner = (inner, inner)
        return x * 2, 2 in [inner, 3], 3 in (items, 3), isinstance([inner], list), {"a": inner} == {"b": 1}

    compiled = argand.compile(program, backend="eager")
    assert compiled(torch.ones(2), outer)[1:] == program(torch.ones(2), outer)[1:]  # type: ignore[index]


class Thing:
    pass


def test_joined_lists_hold_any_object() -> None:
    """Adding and multiplying lists and tuples looks at no item: what they hold may be anything."""

    def f(x: torch.Tensor, o: Any) -> Any:
        grown = [o]
        grown += [1]
        grown *= 2
        return x * 2, [o] + [1], (o,) + (1,), [o] * 2, 2 * (o,), grown  # noqa: RUF005

    for value in (Thing(), object(), threading.Lock(), [Thing()]):
        assert argand.compile(f, backend="eager", fullgraph=True)(X, value)[1:] == f(X, value)[1:]


class Members(set[Any]):
    pass


class Queue(collections.deque[Any]):
    pass


@pytest.mark.parametrize("make", [collections.OrderedDict, Members, Queue])
def test_copies_of_containers_hold_their_attributes(make: Any) -> None:
    def f(x: torch.Tensor, o: Any) -> Any:
        return x * 2, copy.copy(o), copy.deepcopy(o)

    compiled = argand.compile(f, backend="eager")
    held = make()
    for change in ({}, {"note": [1]}, {"note": 3.0, "other": 2}):
        vars(held).update(change)
        for made, wanted in zip(compiled(X, held)[1:], f(X, held)[1:], strict=True):
            assert type(made) is type(wanted) and made == wanted and vars(made) == vars(wanted)
