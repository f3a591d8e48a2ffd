"""Native code that capture runs for the program calls no Python function of the program that does more than read."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch

import argand
from argand._core import _C
from argand.capture.world import native_watch

LOG: list[str] = []


class Texts(set[int]):
    def __len__(self) -> int:
        LOG.append("len")
        return super().__len__()


class Hinted:
    def __iter__(self) -> Any:
        return iter((1, 2))

    def __length_hint__(self) -> int:
        LOG.append("hint")
        return 2


class Hashed:
    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __eq__(self, other: Any) -> bool:
        return self.n == other.n

    def __hash__(self) -> int:
        self.asked += 1
        return hash(self.n)


@dataclasses.dataclass(frozen=True)
class Key:
    name: str
    n: int = 1


def refuse(function: Any, args: tuple[Any, ...]) -> Any:
    return ValueError(function.__name__)


def test_a_refused_function_does_not_run() -> None:
    LOG.clear()
    with pytest.raises(ValueError, match="__len__"):
        _C.call_watched(refuse, list, Texts((1, 2)))
    assert LOG == []
    assert _C.call_watched(lambda *_: None, len, Texts((1, 2))) == 2 and LOG == ["len"]


class Forgiving:
    def __iter__(self) -> Any:
        raise AssertionError("ran")


def test_native_code_cannot_swallow_a_refusal() -> None:
    def judge(function: Any, args: tuple[Any, ...]) -> Any:
        return AttributeError("refused")

    class Asked:
        @property
        def name(self) -> int:
            LOG.append("name")
            return 1

    LOG.clear()
    with pytest.raises(AttributeError, match="refused"):
        _C.call_watched(judge, getattr, Asked(), "name", 5)
    with pytest.raises(AttributeError, match="refused"):
        _C.call_watched(judge, list, Forgiving())
    assert LOG == [] and list(_C.call_watched(judge, list, (1, 2))) == [1, 2]


def test_what_a_watched_function_calls_is_judged_unless_that_is_suspended() -> None:
    class Outer:
        def __len__(self) -> int:
            return len(Texts((1, 2, 3)))

    def judge(function: Any, args: tuple[Any, ...]) -> Any:
        return watching if function.__qualname__.endswith("Outer.__len__") else ValueError("inner")

    watching: bool | None = None
    assert _C.call_watched(judge, len, Outer()) == 3
    watching = True
    with pytest.raises(ValueError, match="inner"):
        _C.call_watched(judge, len, Outer())


def test_finalizers_and_callbacks_of_the_program_run_in_watched_calls() -> None:
    class Dies:
        def __del__(self) -> None:
            LOG.append("del")

    class Held:
        pass

    def collected(phase: str, info: dict[str, Any]) -> None:
        LOG.append(phase)

    LOG.clear()
    held: list[Any] = [Dies()]
    _C.call_watched(native_watch.judge, held.clear)
    held.append(Held())
    watched = weakref.ref(held[0], lambda ref: LOG.append("gone"))
    finalizer = weakref.finalize(held[0], LOG.append, "finalized")
    _C.call_watched(native_watch.judge, held.clear)
    assert watched() is None and not finalizer.alive
    gc.callbacks.append(collected)
    try:
        _C.call_watched(native_watch.judge, gc.collect)
    finally:
        gc.callbacks.remove(collected)
    assert sorted(LOG) == ["del", "finalized", "gone", "start", "stop"]


@pytest.mark.parametrize("seed", range(3))
def test_effects_of_methods_come_once(seed: int) -> None:
    texts, hinted, key = Texts((1, seed)), Hinted(), Hashed(seed)

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return str(texts), list(hinted), {key: 1}, y + seed

    LOG.clear()
    want = program(torch.ones(2))
    calls, asked = LOG.copy(), key.asked
    LOG.clear()
    got = argand.compile(program, backend="eager")(torch.ones(2))
    assert LOG == calls and key.asked == 2 * asked
    assert got[:3] == want[:3] and torch.equal(got[3], want[3])


def test_keys_whose_methods_only_read_do_not_break_the_graph() -> None:
    def program(x: torch.Tensor, key: Key) -> Any:
        table = {key: x + 1, Key("b"): x * 2}
        return table[Key("a")] + table[Key("b")], Key("b") in table

    x = torch.ones(2)
    got = argand.compile(program, backend="eager", fullgraph=True)(x, Key("a"))
    assert torch.equal(got[0], torch.full((2,), 4.0)) and got[1]


def _reads(self: Any) -> Any:
    return hash((self.name, len(self.parts), isinstance(self, Key))) ^ super(Key, self).__hash__()


def _stores(self: Any) -> Any:
    self.n = 1
    return hash(self.n)


def _appends(self: Any) -> Any:
    LOG.append("x")
    return 1


def _calls(self: Any) -> Any:
    return self.kind(self.n)


def _of_a_local(self: Any) -> Any:
    found = self.kind
    return found(1)


def _in_place(self: Any) -> Any:
    found = self.parts
    found += [1]
    return len(found)


@pytest.mark.parametrize("function", [_reads, Key.__hash__, Key.__eq__, Hashed.__eq__])
def test_functions_that_only_read(function: Any) -> None:
    assert native_watch.is_read_only(function)


@pytest.mark.parametrize("function", [_stores, _appends, _calls, _of_a_local, _in_place, Hashed.__hash__])
def test_functions_that_may_do_more(function: Any) -> None:
    assert not native_watch.is_read_only(function)
