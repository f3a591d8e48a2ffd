"""The "functions" check: code and defaults of Python functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from argand._core import _C


def make() -> Any:
    def f(a: Any, b: Any = 1, *, c: Any = 2.0) -> Any:
        return a

    return f


def other(a: Any, b: Any = 1, *, c: Any = 2.0) -> Any:
    return b


def tree_of(*functions: Any) -> _C.GuardTree:
    tree = _C.GuardTree()
    tree.check(0, "functions", functions, label="functions")
    return tree


def setter(name: str, value: Any) -> Callable[[Any], None]:
    return lambda f: setattr(f, name, value)


CHANGES: list[tuple[Callable[[Any], None], bool]] = [
    (setter("__code__", other.__code__), False),
    (setter("__defaults__", (2,)), False),
    (setter("__defaults__", (1.0,)), False),
    (setter("__defaults__", (True,)), False),
    (setter("__defaults__", (1, 1)), False),
    (setter("__defaults__", None), False),
    (setter("__defaults__", ([],)), False),
    (setter("__defaults__", tuple([1])), True),
    (setter("__kwdefaults__", None), False),
    (setter("__kwdefaults__", {"c": 3.0}), False),
    (setter("__kwdefaults__", {"c": []}), False),
    (setter("__kwdefaults__", {"d": 2.0}), False),
    (setter("__kwdefaults__", {"c": 2.0}), True),
    (lambda f: f.__kwdefaults__.update(c=5.0), False),
    (lambda f: f.__kwdefaults__.update(d=5.0), False),
    (setter("__name__", "g"), True),
    (setter("tag", 1), True),
]


@pytest.mark.parametrize(("change", "holds"), CHANGES)
def test_code_and_defaults(change: Callable[[Any], None], holds: bool) -> None:
    f, unchanged = make(), make()
    tree = tree_of(unchanged, f)
    for _ in range(5):
        assert tree.matches(())
    change(f)
    for _ in range(3):
        assert tree.matches(()) is holds
    answer = tree.evaluate(())
    assert answer is True if holds else "f() has other code or other defaults" in answer[2]  # type: ignore[index]


def test_changed_back() -> None:
    f = make()
    code, tree = f.__code__, tree_of(f)
    f.__code__ = other.__code__
    f.__kwdefaults__["c"] = 9
    assert not tree.matches(())
    f.__code__ = code
    assert not tree.matches(())
    f.__kwdefaults__["c"] = 2.0
    assert tree.matches(())


def test_of_other_defaults_the_number_counts() -> None:
    f = make()
    f.__defaults__, f.__kwdefaults__ = ([],), {"c": []}
    tree = tree_of(f)
    f.__defaults__, f.__kwdefaults__ = ({},), {"c": {}}
    assert tree.matches(())
    f.__defaults__ = None
    assert not tree.matches(())


def test_nothing_is_kept_alive() -> None:
    class Big:
        pass

    big, f = Big(), make()
    f.__defaults__ = (big,)
    seen, gone = weakref.ref(big), weakref.ref(f)
    tree = tree_of(f)
    del big, f
    gc.collect()
    assert seen() is None and gone() is None
    assert tree.matches(())  # what found the function is guarded elsewhere


def test_refused() -> None:
    tree = _C.GuardTree()
    for wrong in ([make()], (len,), (make(), 1)):
        with pytest.raises(TypeError):
            tree.check(0, "functions", wrong, label="functions")
    assert tree.num_guards == 0
