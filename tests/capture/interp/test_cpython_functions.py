"""Differences from CPython that its own test package found, about functions, classes and their lives; one test each."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import linecache
import traceback
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand

from .test_cpython_semantics import both

T = torch.ones(2)


def test_attributes_of_a_method_found_in_a_class_are_guarded_and_written_each_call() -> None:
    """They were read and written while capturing only, as if the function had been made there."""

    class Holder:
        def method(self) -> None:
            pass

    def f(t: torch.Tensor) -> Any:
        Holder.method.count = getattr(Holder.method, "count", 0) + 1  # type: ignore[attr-defined]
        defaults = Holder.method.__defaults__
        return t * Holder.method.count, defaults, Holder.method.__name__, Holder.method.__doc__  # type: ignore[attr-defined]

    compiled = argand.compile(f, backend="eager")
    for call in range(1, 5):
        if call == 3:
            Holder.method.__defaults__, Holder.method.__name__, Holder.method.__doc__ = (1,), "other", "text"
        t, defaults, name, doc = compiled(T)
        assert t[0] == call == Holder.method.count  # type: ignore[attr-defined]
        assert (defaults, name, doc) == (((1,), "other", "text") if call >= 3 else (None, "method", None))

    def g(t: torch.Tensor) -> Any:
        del Holder.method.count  # type: ignore[attr-defined]
        return t + 1

    compiled = argand.compile(g, backend="eager")
    for _ in range(2):
        Holder.method.count = 1  # type: ignore[attr-defined]
        compiled(T)
        assert not hasattr(Holder.method, "count")


def test_generator_in_the_annotations_of_a_method_is_not_consumed_while_capturing() -> None:
    def f(holder: Any, t: torch.Tensor) -> Any:
        return list(holder["cls"].method.__annotations__["x"]), t + 1

    def make() -> tuple[Any, ...]:
        class Holder:
            def method(self) -> None:
                pass

        Holder.method.__annotations__["x"] = (n for n in (1, 2))
        return {"cls": Holder}, T

    both(f, make)


def test_display_with_a_star_goes_on_after_a_break() -> None:
    """What followed the element that broke was lost (3.12+)."""

    class Broken:
        def __iter__(self) -> Iterator[int]:
            argand.graph_break()
            return iter((1, 2))

    items = Broken()

    def f(t: torch.Tensor) -> Any:
        return repr((*items, 3, *items, 4)), repr([*items, 5]), t + 1

    both(f, lambda: (T,))

    variables = typing.TypeVarTuple("variables")

    def g(t: torch.Tensor) -> Any:
        return len((*variables, int)), t + 1

    both(g, lambda: (T,))


def test_type_hints_and_signatures_of_functions_of_one_code() -> None:
    def make(default: Any, annotation: Any) -> Callable[..., Any]:
        def made(x: Any = default) -> typing.NoReturn:
            raise AssertionError

        made.__annotations__ = {"x": annotation, "return": typing.NoReturn}
        return made

    def hints(fn: Any, t: torch.Tensor) -> Any:
        found = typing.get_type_hints(fn)
        return found["x"], found["return"] is typing.NoReturn, found, t + 1

    def signature(fn: Any, t: torch.Tensor) -> Any:
        return inspect.signature(fn).parameters["x"].default, inspect.getfullargspec(fn).defaults, t + 1

    for fn in (hints, signature):
        compiled = argand.compile(fn, backend="eager")
        for arguments in ((1, int), (2, str), (3, int)):
            made = make(*arguments)
            want, got = fn(made, T), compiled(made, T)
            assert repr(got) == repr(want)
            assert got[1] == want[1]


def test_singledispatch_asks_the_cache_that_the_program_put_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[type] = []

    class Cache(collections.UserDict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            asked.append(key)
            return super().__getitem__(key)

    monkeypatch.setattr(weakref, "WeakKeyDictionary", Cache)

    @functools.singledispatch
    def kind(value: Any) -> str:
        return "any"

    monkeypatch.undo()

    def f(t: torch.Tensor) -> Any:
        return kind(1), kind(2), t + 1

    compiled = argand.compile(f, backend="eager")
    assert compiled(T)[:2] == ("any", "any")
    assert asked == [int, int]


def test_guards_and_caches_keep_no_class_of_the_program_alive() -> None:
    def f(t: torch.Tensor) -> Any:
        class Local:
            def __init__(self, value: torch.Tensor) -> None:
                self.value = value

            def get(self, scale: int = 2) -> torch.Tensor:
                return self.value * scale

        argand.graph_break()
        y = Local(t).get() + Local(t).get()
        ref = weakref.ref(Local)
        argand.graph_break()
        return y, ref

    compiled = argand.compile(f, backend="eager")
    y, ref = compiled(T)
    gc.collect()
    assert y.tolist() == [4.0, 4.0]
    assert ref() is None


def test_warning_of_native_code_behind_a_handler_names_the_programs_line() -> None:
    def warns(level: int) -> None:
        warnings.warn("behind", UserWarning, stacklevel=level)

    def f(t: torch.Tensor) -> Any:
        return functools.reduce(lambda a, b: warns(2) or a + b, [1, 2]), t + 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        argand.compile(f, backend="eager")(T)
    assert [warning.filename for warning in caught] == [__file__]


def test_capture_leaves_linecache_as_it_is() -> None:
    def f(t: torch.Tensor) -> Any:
        argand.graph_break()
        return t + 1

    linecache.clearcache()
    compiled = argand.compile(f, backend="eager")
    compiled(T)
    assert __file__ not in linecache.cache
    reasons = argand.explain(f)(T).break_reasons
    assert reasons[0].where[-1].text == "argand.graph_break()"


def test_function_that_walks_the_stack_is_not_split() -> None:
    def f(t: torch.Tensor) -> Any:
        def deeper() -> Any:
            return list(traceback.walk_stack(None))

        first = list(traceback.walk_stack(None))
        y = t + 1
        return len(deeper()) - len(first), len(traceback.extract_stack()) - len(first), y

    both(f, lambda: (T,))


def test_weak_reference_with_a_callback_keeps_it() -> None:
    """The reference made while capturing, to the real object, was not the one that the program got."""

    class Owner:
        pass

    def f(owner: Any, t: torch.Tensor) -> Any:
        gone: list[int] = []
        ref = weakref.ref(owner, lambda ref: gone.append(1))
        argand.graph_break()
        return ref, gone, t + 1

    compiled = argand.compile(f, backend="eager")
    for _ in range(2):
        owner = Owner()
        ref, gone, _ = compiled(owner, T)
        assert ref() is owner and ref.__callback__ is not None and not gone
        del owner
        gc.collect()
        assert ref() is None and gone == [1]


def test_metaclass_whose_call_is_no_plain_function() -> None:
    class Meta(type):
        @classmethod
        def __call__(cls, a: Any) -> Any:
            return cls.__name__, a

    class Static(type):
        @staticmethod
        def __call__(a: Any) -> Any:
            return a

    class Bound(type):
        __call__ = types.MethodType(lambda owner, a: (owner, a), 7)

    class Partial(type):
        __call__ = functools.partial(lambda x, y: (x, y), 1)

    def make(meta: Any) -> Any:
        class Made(metaclass=meta):
            def __init__(self, b: Any) -> None:
                raise AssertionError

        return Made

    def f(cls: Any, t: torch.Tensor) -> Any:
        return cls(5), t + 1

    for meta in (Meta, Static, Bound, Partial):
        cls = make(meta)
        both(f, lambda cls=cls: (cls, T))  # type: ignore[misc]


def test_method_of_a_native_base_at_a_break_is_not_the_overriding_one() -> None:
    import io

    class Buffer(io.TextIOWrapper):
        def __init__(self, text: str = "", newline: str = "\n") -> None:
            super().__init__(io.BufferedWriter(io.BytesIO(text.encode())), "utf-8", newline=newline)  # type: ignore[arg-type,type-var]

    def f(t: torch.Tensor) -> Any:
        return type(Buffer()).__name__, t + 1

    both(f, lambda: (T,))
