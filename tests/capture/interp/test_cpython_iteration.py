"""Differences from CPython that its own test package led to, in iteration."""

from __future__ import annotations

import collections
import fractions
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.capture.interp.test_cpython_protocols import follows

# ---- iteration -----------------------------------------------------------------------------------------------------


class _Hinting:
    def __init__(self, log: list[str], hint: Any) -> None:
        self.log, self.hint = log, hint

    def __iter__(self) -> Iterator[int]:
        self.log.append("iter")
        return iter((1, 2))

    def __len__(self) -> int:
        self.log.append("len")
        raise TypeError

    def __length_hint__(self) -> Any:
        self.log.append("hint")
        if isinstance(self.hint, type):
            raise self.hint("no hint")
        return self.hint


@pytest.mark.parametrize("hint", [3, -1, "s", ValueError, TypeError, NotImplemented])
def test_a_length_hint_is_asked_for_where_cpython_does(hint: Any) -> None:
    def fn(x: Any) -> Any:
        log: list[str] = []
        found: list[Any] = []
        for use in (
            list, tuple, sorted, set, sum, max, bytes, lambda h: [*h], lambda h: (lambda *a: a)(*h), lambda h: [].extend(h),
            collections.deque,
        ):  # fmt: skip
            try:
                found.append(use(_Hinting(log, hint)))
            except (ValueError, TypeError) as e:
                found.append(str(e))
            log.append("|")
        return found, log, x + 1

    follows(fn)


@pytest.mark.parametrize(
    "use",
    [
        lambda g, log: sum(g([1, 2, "a", 3], log)),
        lambda g, log: max(g([1, "a", 2], log)),
        lambda g, log: set(g([1, [], 2], log)),
        lambda g, log: {*g([1, [], 2], log)},
        lambda g, log: dict(g([(1, 2), (3,), (4, 5)], log)),
        lambda g, log: dict.fromkeys(g([1, [], 2], log)),
        lambda g, log: math.prod(g([1, "a", "b", 2], log)),
        lambda g, log: bytes(g([1, 300, 2], log)),
    ],
)
def test_what_raises_on_one_element_asks_for_no_more(use: Callable[..., Any]) -> None:
    def elements(items: list[Any], log: list[str]) -> Iterator[Any]:
        for item in items:
            log.append(str(item))
            yield item

    def fn(x: Any) -> Any:
        log: list[str] = []
        try:
            found = use(elements, log)
        except (TypeError, ValueError) as e:
            found = str(e)
        return found, log, x + 1

    follows(fn)


def test_elements_before_the_one_that_raises_are_taken() -> None:
    def raising(first: Any) -> Iterator[Any]:
        yield first
        raise ValueError

    def fn(x: Any) -> Any:
        held: set[Any] = {0}
        pairs: dict[Any, Any] = {}
        counted: Any = collections.Counter()
        for take in (
            lambda: held.update([1, [], 2]), lambda: held.update(raising(3)), lambda: pairs.update([(1, 2), (3,)]),
            lambda: pairs.update(raising((5, 6))), lambda: counted.update([1, 1, [], 2]),
        ):  # fmt: skip
            try:
                take()
            except (TypeError, ValueError):
                pass
        return held, pairs, dict(counted), x + 1

    follows(fn)


def test_floats_before_another_number_are_summed_as_exactly_as_cpython_does() -> None:
    class Other:
        def __radd__(self, other: Any) -> Any:
            return other

    follows(lambda x: (sum([0.1] * 10 + [Other()]), sum([0.1] * 10), sum([fractions.Fraction(1, 3), 0.5]), x + 1))


def test_an_ordered_dict_gives_its_items_in_its_own_order() -> None:
    def fn(x: Any) -> Any:
        od = collections.OrderedDict(a=1, b=2, c=3)
        od.move_to_end("a")
        return list(dict(od)), list({**od}), (lambda **k: list(k))(**od), x + 1

    follows(fn)
