"""Differences from CPython that its own test package found (bench/cpython_tests.py), one test each."""

from __future__ import annotations

import functools
import operator
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
from helpers import collected


def both(fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Any:
    """Eager and compiled, twice each, on fresh arguments: equal results."""
    compiled = argand.compile(fn, backend="eager")
    for _ in range(2):
        want, got = fn(*make()), compiled(*make())
        assert repr(got) == repr(want)
    return got


T = torch.ones(2)


def test_outer_iterator_is_not_consumed_while_capturing() -> None:
    def f(items: Iterator[int], t: torch.Tensor) -> Any:
        return list(items), sorted(items), t + 1

    both(f, lambda: (iter([3, 1, 2]), T))
    both(f, lambda: (iter({"a": 1}.keys()), T))


def test_iterator_of_a_subclass_of_a_native_one_is_not_consumed() -> None:
    class Counting(enumerate):
        pass

    def f(items: Any, t: torch.Tensor) -> Any:
        return next(items), next(items), t + 1

    both(f, lambda: (Counting("abc"), T))


def test_native_function_does_not_consume_an_outer_iterator() -> None:
    def f(items: Iterator[int], t: torch.Tensor) -> Any:
        return operator.indexOf(items, 2), next(items), t + 1

    both(f, lambda: (iter([1, 2, 3, 4]), T))


def test_outer_bytearray_is_changed_once() -> None:
    def f(data: bytearray, t: torch.Tensor) -> Any:
        data.append(4)
        data += b"xy"
        del data[0]
        data[1:2] = b"zz"
        return len(data), data[0], bool(data), data == b"bzz\x04xy", t + 1, bytes(data)

    both(f, lambda: (bytearray(b"abc"), T))


def test_outer_bytearray_is_read_at_each_call() -> None:
    data = bytearray(b"a")

    def f(t: torch.Tensor) -> Any:
        return t * len(data), data == b"ab"

    compiled = argand.compile(f, backend="eager")
    assert repr(compiled(T)) == repr(f(T))
    data.append(98)
    assert repr(compiled(T)) == repr(f(T))


def test_finalizer_runs_once() -> None:
    died: list[int] = []

    class Finalized:
        def __new__(cls, number: int) -> Any:
            made = object.__new__(cls)
            made.number = number
            return made

        def __del__(self) -> None:
            died.append(self.number)

    def f(t: torch.Tensor) -> Any:
        held = [Finalized(1), Finalized(2)]
        held.pop()
        print("break")
        return len(held), t + 1

    compiled = argand.compile(f, backend="eager")
    for _ in range(2):
        died.clear()
        compiled(T)
        assert died == [2, 1]


def test_state_is_kept_across_a_break_before_anything_was_recorded() -> None:
    def f() -> Any:
        items = [1, 2, 3]
        ahead, behind = iter(items), iter(items)
        for _ in ahead:
            next(behind)
        items.append(9)
        print("break")
        return list(ahead), list(behind)

    both(f, tuple)


def test_hash_is_called_as_often_as_without_argand() -> None:
    class Key:
        def __init__(self) -> None:
            self.hashed = 0

        def __hash__(self) -> int:
            self.hashed += 1
            return 1

    def f() -> Any:
        key = Key()
        table: dict[Any, int] = {}
        table.setdefault(key, 1)
        print("break")
        return key.hashed

    both(f, tuple)


def test_instancecheck_of_an_instance_is_interpreted() -> None:
    seen: list[Any] = []

    class Anything:
        def __instancecheck__(self, value: Any) -> bool:
            seen.append(value)
            return True

        def __subclasscheck__(self, value: Any) -> bool:
            seen.append(value)
            return True

    anything = Anything()

    def f(t: torch.Tensor) -> Any:
        return isinstance(3, anything), issubclass(int, anything), t + 1

    assert repr(argand.compile(f, backend="eager")(T)) == repr((True, True, T + 1))
    assert seen == [3, int]


def test_class_property_is_read_as_often_as_without_argand() -> None:
    seen: list[int] = []

    class Pretends:
        @property
        def __class__(self) -> type:
            seen.append(1)
            return int

    def f(value: Any, t: torch.Tensor) -> Any:
        return isinstance(value, int), isinstance(value, str), isinstance(value, Pretends), t + 1

    value = Pretends()
    f(value, T)
    want = len(seen)
    seen.clear()
    both_results = argand.compile(f, backend="eager")(value, T), f(value, T)
    assert repr(both_results[0]) == repr(both_results[1])
    assert len(seen) == 2 * want


def test_module_with_getattribute_of_its_own() -> None:
    log: list[str] = []

    class Logging(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return super().__getattribute__(name)

    module = Logging("m")
    module.x = 3

    def f(t: torch.Tensor) -> Any:
        return t + module.x

    assert torch.equal(argand.compile(f, backend="eager")(T), T + 3)
    assert log == ["x"]


def test_singledispatch_sees_what_is_registered_later() -> None:
    @functools.singledispatch
    def kind(value: Any) -> str:
        return "base"

    kind.register(int)(lambda value: "int")

    def f(value: Any, t: torch.Tensor) -> Any:
        return kind(value), kind(True), t + 1

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for value in (1, {}, "a"):
        assert repr(compiled(value, T)) == repr(f(value, T))
    kind.register(dict)(lambda value: "dict")
    kind.register(bool)(lambda value: "bool")
    for value in (1, {}, "a"):
        assert repr(compiled(value, T)) == repr(f(value, T))


def test_classes_made_while_capturing_leave_their_bases() -> None:
    class Parent:
        pass

    def f(t: torch.Tensor) -> Any:
        class Child(Parent):
            pass

        print("break")
        return len(Parent.__subclasses__()), t + 1

    assert argand.compile(f, backend="eager")(T)[0] == 1


def test_empty_cell_from_outside() -> None:
    def f(cell: Any, t: torch.Tensor) -> Any:
        try:
            cell.cell_contents
        except ValueError as error:
            return str(error), t + 1
        return t

    both(f, lambda: (types.CellType(), T))


def test_long_loop_is_left_to_cpython() -> None:
    def f(t: torch.Tensor) -> Any:
        total = 0
        while total < 10_000_000:
            total += 1
        return t + total

    with collected("graph_breaks") as seen:
        assert torch.equal(argand.compile(f, backend="eager")(T), T + 10_000_000)
    assert any("rounds" in event.text() for event in seen)


def test_native_called_with_an_argument_named_self() -> None:
    def f(t: torch.Tensor) -> Any:
        return dict(self=1, fn=2), t + 1

    both(f, lambda: (T,))


@pytest.mark.parametrize("name", ["append", "extend"])
def test_break_while_a_method_waits_for_its_argument(name: str) -> None:
    def f(t: torch.Tensor) -> Any:
        items = [1]
        items.append(print("break"))
        "".join(["a", str(print("break"))])
        getattr(items, name)((print("break"), 2))
        return items, t + 1

    both(f, lambda: (T,))


def test_break_in_a_call_with_keywords_whose_result_is_an_argument() -> None:
    def f(t: torch.Tensor) -> Any:
        return str(print("break", end="\\n")), t + 1

    compiled = argand.compile(f, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(compiled(T)) == repr(f(T))


def test_frames_are_those_of_the_program() -> None:
    def f(t: torch.Tensor) -> Any:
        try:
            raise ValueError
        except ValueError as error:
            print("break")
            same = error.__traceback__.tb_frame is sys._getframe()
        return same, t + 1

    both(f, lambda: (T,))


def test_locals_behind_a_break_are_all_there() -> None:
    def f(t: torch.Tensor) -> Any:
        unused = 3
        print("break")
        return sorted(locals()), t + 1

    both(f, lambda: (T,))


def test_note_is_added_once_to_an_outer_exception() -> None:
    def f(error: Exception, t: torch.Tensor) -> Any:
        error.add_note("note")
        print("break")
        return error.__notes__, t + 1

    both(f, lambda: (ValueError(), T))


def test_outer_container_with_a_finalizer_is_not_copied() -> None:
    died: list[int] = []

    class Finalized(dict):
        def __del__(self) -> None:
            died.append(1)

    def f(table: Any, t: torch.Tensor) -> Any:
        return list(table), str(table), t + 1

    table = Finalized(a=1)
    assert repr(argand.compile(f, backend="eager")(table, T)) == repr(f(table, T))
    assert not died


def test_exception_keeps_its_fields_across_a_break() -> None:
    def f(t: torch.Tensor) -> Any:
        made = [
            StopIteration(2),
            SyntaxError("bad", ("f", 1, 2, "t")),
            ImportError("m", name="n"),
            OSError(2, "s", "p"),
        ]
        argand.graph_break()
        stop, syntax, module, system = made
        return (
            stop.value,
            syntax.msg,
            syntax.lineno,
            module.msg,
            module.name,
            system.errno,
            system.filename,
            made,
            t + 1,
        )

    both(f, lambda: (T,))


def test_outer_exception_is_deep_copied_with_its_arguments() -> None:
    import copy

    def f(error: Exception, t: torch.Tensor) -> Any:
        return copy.deepcopy(error), copy.copy(error).args, t + 1

    both(f, lambda: (ImportError("test"), T))


def test_native_heap_classes_are_not_rebuilt_as_plain_objects() -> None:
    import itertools
    import threading

    def f(t: torch.Tensor) -> Any:
        groups, lock = itertools.groupby("aab"), threading.RLock()
        one, two = itertools.tee("ab")
        argand.graph_break()
        with lock:
            return [key for key, _ in groups], list(one), next(two), t + 1

    both(f, lambda: (T,))


def test_modes_are_left_when_an_operation_of_the_graph_raises() -> None:
    def under_grad(x: torch.Tensor, i: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return torch.index_select(x * 2, 0, i)

    def under_inference(x: torch.Tensor, i: torch.Tensor) -> Any:
        with torch.inference_mode():
            return torch.index_select(x * 2, 0, i)

    def only_grad(x: torch.Tensor, i: torch.Tensor) -> Any:
        with torch.no_grad():
            return torch.index_select(x * 2, 0, i)

    for fn in (under_grad, under_inference, only_grad):
        compiled = argand.compile(fn, backend="eager")
        compiled(T, torch.tensor([0]))
        with pytest.raises(IndexError):
            compiled(T, torch.tensor([7]))
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")


def test_replaced_builtins_are_not_called_by_argand() -> None:
    import builtins

    def f(t: torch.Tensor) -> Any:
        real = builtins.len
        try:
            builtins.len = functools.lru_cache(4)(real)  # type: ignore[assignment]
            argand.graph_break()
            return len("abc"), t + 1
        finally:
            builtins.len = real

    both(f, lambda: (T,))
    assert isinstance(len, types.BuiltinFunctionType)


def test_capture_near_the_recursion_limit_fails_nothing() -> None:
    def f(t: torch.Tensor) -> Any:
        with torch.no_grad():
            return [t + i for i in range(3)]

    def deep(n: int, call: Callable[[], Any]) -> Any:
        return call() if n == 0 else deep(n - 1, call)

    used = 0
    while True:
        try:
            sys._getframe(used)
        except ValueError:
            break
        used += 1
    want = repr(f(T))
    for left in (60, 100, 200, 300, 400):
        compiled = argand.compile(f, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert repr(deep(sys.getrecursionlimit() - used - left, lambda: compiled(T))) == want  # noqa: B023
        assert torch.is_grad_enabled()


def test_values_of_native_classes_are_guarded() -> None:
    import datetime
    import decimal

    def f(d: Any, t: torch.Tensor) -> Any:
        return str(d), -d if isinstance(d, decimal.Decimal) else repr(d), hash(d), t + 1

    compiled = argand.compile(f, backend="eager")
    dates = [datetime.date(2020, 1, day) for day in (1, 2)]
    times = [datetime.datetime(2020, 1, 1, hour) for hour in (1, 2)]
    for value in (decimal.Decimal(3), decimal.Decimal(5), *dates, *times, *map(datetime.timedelta, (1, 2))):
        assert repr(compiled(value, T)) == repr(f(value, T))


def test_values_of_native_classes_in_a_loop_with_breaks() -> None:
    import decimal

    def f(t: torch.Tensor) -> Any:
        found = []
        for a in (8.0, 32.0, 64.0):
            with decimal.localcontext(decimal.Context(prec=50)):
                z = float((decimal.Decimal(a) ** 2).sqrt())
            argand.graph_break()
            found.append(z)
        return found

    both(f, lambda: (T,))


def test_generator_that_raises_when_it_is_dropped_at_return(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))

    def numbers():
        try:
            yield 2
        finally:
            raise ValueError("closed")

    def program(x):
        running = numbers()
        return x * next(running)

    compiled = argand.compile(program, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert told == ["closed"] * 2
