"""Functions under functools.lru_cache, which answer from what was once."""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import collected

import argand
import sweeps

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")
FACTOR = 2.0


class Settings:
    k = 2.0


SETTINGS = Settings()
LOG: list[int] = []


def of_default(n: int, a: Any = [True, -1]) -> Any:  # noqa: B006
    return a[0] + n


def of_global(n: int) -> Any:
    return FACTOR * n


def of_object(n: int) -> Any:
    return SETTINGS.k * n


def that_notes(n: int) -> Any:
    LOG.append(n)
    return n


def of_tensor(n: int) -> Any:
    return torch.ones(2) * SETTINGS.k * n


def of_list(n: int) -> Any:
    return [SETTINGS.k, n]


def of_arguments(n: int) -> Any:
    return (n * 2, "x" * n)


FUNCTIONS = (of_default, of_global, of_object, that_notes, of_tensor, of_list, of_arguments)


@pytest.mark.parametrize(("fn", "called_before", "maxsize"), sweeps.combinations(FUNCTIONS, [False, True], [None, 1]))
def test_cached_results_outlive_what_they_were_made_of(
    fn: Callable[..., Any], called_before: bool, maxsize: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is seen after the cache is cleared, or the result has left it, and not before."""

    def run(compile_it: bool) -> list[str]:
        of_default.__defaults__ = ([True, -1],)
        monkeypatch.setattr(SETTINGS, "k", 2.0)
        monkeypatch.setitem(globals(), "FACTOR", 2.0)
        LOG.clear()
        cached = functools.lru_cache(maxsize)(fn)

        def program(x: torch.Tensor, n: int) -> Any:
            return x * 2, cached(n), cached(n)

        call = argand.compile(program, backend="eager") if compile_it else program
        seen = []
        if called_before:
            cached(3)
        for change in range(5):
            seen.append(repr((call(torch.ones(2), 3), LOG)))
            seen.append(repr((call(torch.ones(2), 3), LOG)))
            if change == 0:
                of_default.__defaults__[0][0] = 7
                monkeypatch.setattr(SETTINGS, "k", 5.0)
                monkeypatch.setitem(globals(), "FACTOR", 5.0)
            elif change == 1:
                cached.cache_clear()
            elif change == 2:
                monkeypatch.setattr(SETTINGS, "k", 6.0)
                monkeypatch.setitem(globals(), "FACTOR", 6.0)
                cached(4)
        return seen

    assert run(True) == run(False)


def test_cached_flags_and_tables_stay_in_the_graph() -> None:
    @functools.lru_cache
    def available(name: str) -> bool:
        return SETTINGS.k > 1 and bool(name)

    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n) * 2.0

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * table(2) if available("torch") else x

    with collected("graph_breaks") as breaks:
        x = torch.ones(2)
        assert torch.equal(argand.compile(program, backend="eager", fullgraph=True)(x), program(x))
    assert not breaks


@pytest.mark.parametrize("other", [None, lambda n: n * 100, 5], ids=["none", "function", "number"])
def test_a_wrapped_that_was_replaced_is_not_what_runs(other: Any) -> None:
    cached = functools.lru_cache(lambda n: n + 1)
    cached.__wrapped__ = other  # type: ignore[misc]

    def program(x: torch.Tensor) -> Any:
        return x + cached(2)

    assert torch.equal(argand.compile(program, backend="eager")(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.parametrize("maxsize", [None, 8])
def test_what_was_computed_is_the_answer_whatever_has_changed_since(maxsize):
    held = [5, 3]

    @functools.lru_cache(maxsize)
    def first(step=1):
        return held[0] + step

    def program(x):
        try:
            return x * 1, first(), first(2)
        except Exception as error:
            return x * 1, type(error), str(error)

    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    assert compiled(x)[1:] == (6, 7)
    held[0] = ""  # computed anew, that would raise
    assert compiled(x)[1:] == program(x)[1:] == (6, 7)
    held[0] = 9
    first.cache_clear()
    assert compiled(x)[1:] == program(x)[1:] == (10, 11)


class Recipe:
    def __init__(self, n: int, scale: float) -> None:
        self.sizes, self.scale = [n, n], scale


def test_an_object_from_the_cache_is_that_object() -> None:
    calls = []

    @functools.lru_cache
    def recipe(n: int, *, scale: float = 1.0) -> Recipe:
        return Recipe(n, scale + SETTINGS.k)

    @functools.lru_cache
    def cooked(recipe: Recipe, shape: tuple[int, ...]) -> Any:
        calls.append(1) if shape == (0,) else None
        return [recipe.scale, *recipe.sizes, *shape]

    def program(x: torch.Tensor) -> Any:
        made = recipe(3, scale=2.0)
        return x * made.scale, made, made is recipe(3, scale=2.0), cooked(made, tuple(x.shape))

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    first = compiled(x)
    assert first[1] is recipe(3, scale=2.0) and first[2] and first[3] is cooked(first[1], (2,))
    assert recipe.cache_info().misses == cooked.cache_info().misses == 1
    first[1].scale = 7.0
    assert torch.equal(compiled(x)[0], x * 7) and compiled(x)[3] == program(x)[3] == [4.0, 3, 3, 2]
    recipe.cache_clear()
    again = compiled(x)
    assert again[1] is recipe(3, scale=2.0) and again[1] is not first[1] and torch.equal(again[0], x * 4)


def test_what_captured_code_changed_before_is_seen_by_a_cached_function() -> None:
    held, other = {"k": 1}, {"k": 1}

    def run(compile_it: bool) -> Any:
        held["k"] = other["k"] = 1
        asked = functools.lru_cache(lambda n: [n, held["k"]])

        def program(x: torch.Tensor, table: dict[str, int]) -> Any:
            table["k"] += 1
            return x + 1, asked(3)

        call = argand.compile(program, backend="eager") if compile_it else program
        return [call(torch.ones(2), table)[1] for table in (held, other, held)]

    assert run(True) == run(False) == [[3, 2], [3, 2], [3, 2]]


def test_effects_elsewhere_do_not_end_the_graph() -> None:
    table: dict[str, int] = {}
    made = functools.lru_cache(lambda n: Recipe(n, 1.0))

    def program(x: torch.Tensor) -> Any:
        table["seen"] = table.get("seen", 0) + 1
        return x * made(2).scale

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for count in range(1, 4):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2)) and table == {"seen": count}


def test_objects_that_are_keys_are_not_kept_alive() -> None:
    length = functools.lru_cache(maxsize=1)(lambda obj: 2.0)
    compiled = argand.compile(lambda x, obj: x * length(obj), backend="eager")
    thing = Recipe(1, 1.0)
    compiled(torch.ones(2), thing)
    dead = weakref.ref(thing)
    length.cache_clear()
    del thing
    gc.collect()
    assert dead() is None


_log = logging.getLogger("argand.tests.said_once")


@functools.lru_cache(None)
def say_once(logger: logging.Logger, text: str, *values: object) -> None:
    logger.warning(text, *values)


def test_what_a_cached_function_says_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """transformers' `warning_once`: the function itself runs where the graph ends, and its cache remembers."""

    def careful(x: torch.Tensor) -> torch.Tensor:
        say_once(_log, "careful with %s", "sizes")
        return x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return careful(careful(x) * 2)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        say_once.cache_clear()
        caplog.clear()
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
        assert [record.getMessage() for record in caplog.records] == ["careful with sizes"]
        assert say_once.cache_info().currsize == 1


NO_NAMES: tuple[str, ...] = ()
SEPARATOR = " "


@functools.lru_cache(None)
def _split(pattern: str, names: tuple[str, ...] = ()) -> list[str]:
    return [part for part in pattern.split(SEPARATOR) if part not in names]


def test_the_empty_tuple_is_the_same_wherever_it_was_seen_first() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        none = NO_NAMES
        return x * (len(_split("a b c", tuple([]))) + len(none))

    _split.cache_clear()
    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


def asks_after(x: torch.Tensor, made: Any) -> Any:
    y = x * made(1) + made(1)
    made(2.0)
    return y + made.cache_info().hits, made.cache_info()


def asks_between(x: torch.Tensor, made: Any) -> Any:
    one = made.cache_info()
    y = used_elsewhere(x, made)
    return y * made(3), one, made.cache_info()


def used_elsewhere(x: torch.Tensor, made: Any) -> Any:
    return x.sin() * made(1) + made(2)


def asks_after_clearing(x: torch.Tensor, made: Any) -> Any:
    y = x * made(1)
    made.cache_clear()
    return y * made(1), made.cache_info()


@pytest.mark.parametrize("program", [asks_after, asks_between, asks_after_clearing])
@pytest.mark.parametrize("maxsize", [None, 2, 0])
def test_counts_are_those_of_eager(program: Callable[..., Any], maxsize: int | None) -> None:
    x = torch.arange(3.0)
    eager, captured = (functools.lru_cache(maxsize)(lambda n: n * 2) for _ in range(2))
    compiled = argand.compile(program, backend="eager")
    for _ in range(4):
        assert repr(compiled(x, captured)) == repr(program(x, eager))


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("maxsize", [None, 128, 2, 1, 0])
def test_a_cache_made_by_captured_code_is_as_large_as_it_says(maxsize: int | None, typed: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        calls: list[object] = []

        @functools.lru_cache(maxsize, typed)
        def made(*values: object) -> object:
            calls.append(values)
            return [*values]

        told = [made(1, 2), made(3), made(1, 2), made(4), made(1.0, 2), made(3), made(1, 2), made(4)]
        info = made.cache_info()
        same = [told[0] is told[2], told[0] is told[4], told[1] is told[5]]
        made.cache_clear()
        return x + len(calls), told, same, calls, info, made.cache_info()

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert repr(compiled(torch.ones(2))) == repr(program(torch.ones(2)))


def test_a_cache_that_tells_types_apart() -> None:
    def program(x: torch.Tensor, made: Any) -> Any:
        return x * made(2, 1), made(2, 1), made(2.0, 1), made(2, 1)

    compiled = argand.compile(program, backend="eager")
    for typed in (True, False):
        made = functools.lru_cache(typed=typed)(lambda n, m: n * m)
        assert repr(compiled(torch.ones(2), made)) == repr(program(torch.ones(2), made))


def test_guards_and_loads_ask_the_cache_without_a_call_and_an_attempt_asks_as_the_one_before():
    @functools.lru_cache
    def mask(size, dtype):
        return torch.tril(torch.ones(size, size, dtype=dtype))

    def function(x):
        return x @ mask(x.shape[-1], x.dtype)

    compiled = argand.compile(function, backend="eager", fullgraph=True)
    for size in (3, 3, 4, 3, 4, 3):
        assert torch.equal(compiled(torch.ones(2, size)), torch.ones(2, size) @ torch.ones(size, size).tril())
    assert mask.cache_info().misses == 2
    assert mask.cache_info().hits <= 4  # eager's
    mask.cache_clear()
    assert torch.equal(compiled(torch.ones(2, 3)), torch.ones(2, 3) @ torch.ones(3, 3).tril())


def test_tensors_of_a_cache_that_tells_types_apart():
    @functools.lru_cache(typed=True)
    def table(number):
        return torch.full((2,), number)

    def function(x):
        return table(1), table(1.0), x + 1

    compiled = argand.compile(function, backend="eager")
    for _ in range(3):
        whole, real, _ = compiled(torch.ones(2))
        assert (whole.dtype, real.dtype) == (torch.int64, torch.float32)
        assert whole is table(1)
        assert real is table(1.0)


def in_lists(n: int) -> Any:
    return [n, [n * 2]]


def of_two_sizes(n: int) -> Any:
    return n * 2 if n > 3 else n


def that_refuses(n: int) -> Any:
    if n == 4:
        raise ValueError("four")
    return [n]


def kept_in(cached: Any, x: torch.Tensor) -> Any:
    held = cached(x.shape[0])
    return held, held is cached(x.shape[0]), x * 2


def changed(cached: Any, x: torch.Tensor) -> Any:
    cached(x.shape[0])[1].append(3)
    return x * len(cached(x.shape[0])[1])


def caught(cached: Any, x: torch.Tensor) -> Any:
    try:
        return x * cached(x.shape[0])[0]
    except ValueError as error:
        return x + 1, str(error)


@pytest.mark.parametrize(
    ("fn", "use", "versions"),
    [
        (in_lists, lambda cached, x: x * cached(x.shape[0])[1][0], 2),
        (in_lists, kept_in, 0),
        (in_lists, changed, 0),
        (of_two_sizes, lambda cached, x: x * cached(x.shape[0]), 3),
        (of_object, lambda cached, x: x * cached(x.shape[0]), 0),
        (that_refuses, caught, 0),
        (lambda size: tuple(2 * n for n in size), lambda cached, x: x.new_zeros(cached(x.shape)), 2),
    ],
)
def test_sizes_that_vary_are_no_constants_of_a_cached_function(
    fn: Callable[..., Any], use: Callable[..., Any], versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its result is changed or kept, of which a cache has one, or follows from what can change."""

    def run(compile_it: bool) -> list[str]:
        cached = functools.lru_cache(fn)
        monkeypatch.setattr(SETTINGS, "k", 2.0)

        def program(x: torch.Tensor) -> Any:
            return use(cached, x)

        call = argand.compile(program, backend="eager") if compile_it else program
        seen = []
        for turn, n in enumerate((2, 3, 4, 5, 3, 7, 4)):
            monkeypatch.setattr(SETTINGS, "k", 2.0 + turn % 3)
            seen.append(repr(call(torch.ones(n, 2))))
        return seen

    with collected("recompiles") as again:
        assert run(True) == run(False)
    assert not versions or len(again) == versions - 1
