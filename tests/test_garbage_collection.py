"""While argand compiles no garbage is collected, and what was made then is not walked again and again later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from argand import garbage_collection


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in most programs; the tests' own process keeps torch frozen."""
    monkeypatch.setattr(garbage_collection, "_process", garbage_collection._Process())
    gc.unfreeze()
    gc.enable()
    yield
    gc.freeze()


@pytest.mark.parametrize("much", [False, True])
def test_what_was_made_is_old_and_much_garbage_is_freed(much: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_MOST", 100 if much else 10**9)
    with garbage_collection.paused():
        assert not gc.isenabled()
        gone = [weakref.ref(Ring()) for _ in range(100)]
        assert all(each() is not None for each in gone)
        made = [[number] for number in range(2 * garbage_collection._MANY)]
    assert gc.isenabled()
    assert not any(each() is not None for each in gone) or not much
    old = set(map(id, gc.get_objects(generation=2)))
    assert all(id(each) in old for each in made)


def test_what_the_program_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count it takes long where it is much: that is asked for once."""
    gc.freeze()
    asked: list[int] = []
    monkeypatch.setattr(garbage_collection.gc, "get_freeze_count", lambda: asked.append(1) or 1_000_000)
    for _ in range(3):
        with garbage_collection.paused():
            made = [[number] for number in range(2 * garbage_collection._MANY)]
    monkeypatch.undo()
    assert gc.get_freeze_count() and made and len(asked) == 1


def test_a_collector_that_the_program_disabled_stays_disabled() -> None:
    gc.disable()
    try:
        with garbage_collection.paused(), garbage_collection.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
