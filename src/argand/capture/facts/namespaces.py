"""Classes that change while a capture runs: what was read of them before is no answer for another call.

Native code that runs for real writes to classes: a class gets its `__annotations__` when they are first asked for (an
instance check of a protocol asks the classes of the object), and its `__slotnames__` when an object is first copied;
imports do what they like. Guards compare with what a class holds when the capture ends, so each class is remembered
as it was when it was first looked at.
"""

from __future__ import annotations

import abc
import contextlib
import operator
from collections.abc import Container, Iterable, Iterator
from typing import Any, Final

from argand.capture.facts.handlers import Function

_get_dict: Function = type.__dict__["__dict__"].__get__
_MADE_WHEN_ASKED: Final = ("__annotations__", "__slotnames__")
"""Names that Python puts into a class when it is asked for them, and makes again when they are gone."""
_MISSING: Final = object()


class Namespaces:
    """What the classes held that a capture looked at, each when it was first looked at."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[type, dict[str, object]]] = {}
        self._asked: list[Any] = []

    def look(self, classes: Iterable[type]) -> None:
        """Remember classes that were not looked at before."""
        for cls in classes:
            if id(cls) not in self._seen:
                self._seen[id(cls)] = cls, _get_dict(cls).copy()

    def changed(self) -> Iterator[tuple[type, str]]:
        """Classes, and the names that they have gained or lost, or that have another value now."""
        for klass, before in self._seen.values():
            now = _get_dict(klass)
            if not _same(before, now):
                for name in {**before, **now}:
                    if before.get(name, _MISSING) is not now.get(name, _MISSING):
                        yield klass, name

    def affects(self, names: Container[str] | None, made_here: Container[int]) -> bool:
        """Whether a class changed in what was looked at.

        Arguments:
            names: that were looked up; None: all.
            made_here: ids of the classes that the program itself made, which are nobody else's.
        """
        return any(
            id(klass) not in made_here and (names is None or name in names) for klass, name in list(self.changed())
        )

    def ask(self, base: object) -> None:
        """Remember an abstract class that is asked about another one: it remembers the answer, and asks no more."""
        self._asked.append(base)

    def take_back(self) -> None:
        """Take away what Python made because capture asked: the program is to find its classes as they were. Once."""
        own_changes = [(klass, name) for klass, name in self.changed() if self._is_made(klass, name)]
        for klass, name in own_changes:
            with contextlib.suppress(AttributeError, TypeError):
                type.__delattr__(klass, name)
        if own_changes:
            for base in self._asked:
                _forget_answers(base)
        self._seen.clear()
        self._asked.clear()

    def _is_made(self, klass: type, name: str) -> bool:
        held, before = _get_dict(klass).get(name), self._seen[id(klass)][1]
        return name in _MADE_WHEN_ASKED and name not in before and (name != "__annotations__" or held == {})


def _same(before: dict[str, object], now: Any) -> bool:
    """Whether two namespaces hold the same objects; runs no Python of theirs."""
    return (
        len(before) == len(now)
        and all(map(operator.is_, before, now))
        and all(map(operator.is_, before.values(), now.values()))
    )


def _forget_answers(base: abc.ABCMeta) -> None:
    """Have an abstract class, and those that derive from it, ask again which classes are theirs."""
    todo: list[object] = [base]
    seen: set[int] = set()
    clear: Any = vars(abc.ABCMeta)["_abc_caches_clear"]
    subclasses: Any = vars(type)["__subclasses__"]
    while todo:
        one = todo.pop()
        if id(one) not in seen and isinstance(one, abc.ABCMeta):
            seen.add(id(one))
            clear(one)
            todo.extend(subclasses(one))


ONCE: Final = "THIS_CALL_ONLY"
"""Label of the guard below."""


class ThisCallOnly:
    """A guard of an entry that is right for the call at hand and for no other."""

    def __init__(self) -> None:
        self.open = True

    def __call__(self, _: object) -> bool:
        return self.open
