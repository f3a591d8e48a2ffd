"""Code that the frame hook does not ask about, or no longer: skipped, run only, forgotten."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from core_helpers import KEY, Recorder, clone, entry_for, run, type_guard

from argand._core import _C

# ---- skipping -----------------------------------------------------------------------------------------------------


def test_skip_is_remembered_per_key_and_nested_frames_stay_hooked() -> None:
    def leaf() -> int:
        return 1

    def f() -> int:
        return leaf()

    rec = Recorder({f.__code__: _C.SKIP})
    for _ in range(3):
        assert run(rec, f) == 1
    assert rec.names == ["f", "leaf", "leaf", "leaf"]
    assert _C.code_mode(f.__code__, KEY) is _C.SKIP and _C.code_mode(f.__code__, "other") is None
    other = Recorder()
    run(other, f, key="other")
    assert other.names == ["f", "leaf"]
    _C.reset_code(f.__code__)
    run(rec, f)
    assert rec.names.count("f") == 2


def test_skip_recursive_covers_the_dynamic_extent() -> None:
    def leaf() -> int:
        return 1

    def f() -> int:
        return leaf()

    def outer() -> int:
        return f() + leaf()

    rec = Recorder({f.__code__: _C.SKIP_RECURSIVE})
    for _ in range(2):
        assert run(rec, outer) == 2
    assert rec.names == ["outer", "f", "leaf", "outer", "leaf"]
    assert not _C.is_hook_installed()


def test_run_only_uses_entries_and_does_not_ask() -> None:
    def f(x: Any) -> Any:
        return ("eager", x)

    def g(x: Any) -> Any:
        return ("g", x)

    answers = iter([entry_for(g, type_guard(0, int)), _C.RUN_ONLY])
    rec = Recorder({f.__code__: lambda info: next(answers)})
    assert run(rec, f, 1) == ("g", 1)
    assert run(rec, f, "s") == ("eager", "s")
    assert run(rec, f, 2.0) == ("eager", 2.0)
    assert run(rec, f, 2) == ("g", 2)
    assert len(rec.infos) == 2


def test_entries_whose_objects_are_gone_are_dropped_where_nothing_is_compiled_any_more() -> None:
    """No other call takes the time to find that they do not match."""

    def f(x: Any) -> Any:
        return ("eager", x)

    def g(x: Any) -> Any:
        return ("g", x)

    classes = [type("Mine", (), {}) for _ in range(3)]
    answers = iter([*(entry_for(g, type_guard(0, cls)) for cls in (int, *classes)), _C.RUN_ONLY])
    rec = Recorder({f.__code__: lambda info: next(answers)})
    for value in (1, *(cls() for cls in classes), "none"):
        run(rec, f, value)
    assert len(_C.code_entries(f.__code__)) == 4
    kept = classes.pop()
    del value, classes
    rec.infos.clear()  # which hold the arguments
    gc.collect()
    for _ in range(100):
        run(rec, f, "none")
    assert len(_C.code_entries(f.__code__)) == 2 and not rec.infos
    assert run(rec, f, 1)[0] == run(rec, f, kept())[0] == "g"


@pytest.mark.parametrize("recursive", [False, True])
def test_skip_code_holds_for_every_key(recursive: bool) -> None:
    def leaf() -> int:
        return 1

    def f() -> int:
        return leaf()

    _C.skip_code(f.__code__, recursive=recursive)
    rec = Recorder()
    run(rec, f, key="a")
    run(rec, f, key="b")
    assert rec.names == ([] if recursive else ["leaf", "leaf"])
    assert _C.code_mode(f.__code__, "c") is (_C.SKIP_RECURSIVE if recursive else _C.SKIP)
    _C.reset_code(f.__code__)
    run(rec, f, key="a")
    assert "f" in rec.names


def test_bad_answers_raise_in_the_caller() -> None:
    def f(x: int) -> int:
        return x

    def outer(x: int) -> Any:
        try:
            return f(x)
        except TypeError as e:
            return str(e)

    rec = Recorder({f.__code__: 5})
    assert "must return None, SKIP, SKIP_RECURSIVE, RUN_ONLY or an Entry, not int" in run(rec, outer, 1)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_callback_exception_reaches_the_caller_of_the_frame(error: type[BaseException]) -> None:
    calls = []

    def f(x: int) -> int:
        calls.append(x)
        return x

    def callback(info: _C.FrameInfo) -> None:
        if info.code is f.__code__:
            raise error("from the callback")

    def outer(x: list[int]) -> Any:
        try:
            return f(x[0])
        except error as e:
            return ("caught", str(e), _C.get_callback()[1])

    assert run(callback, outer, [1]) == ("caught", "from the callback", KEY)
    with pytest.raises(error):
        run(callback, f, 1)
    assert calls == [] and _C.get_callback() == (None, None) and not _C.is_hook_installed()


def test_reset_all_and_code_entries() -> None:
    def f(x: int) -> int:
        return x

    def g(x: int) -> int:
        return x + 1

    _C.reset_all()
    run(Recorder({f.__code__: lambda info: entry_for(g)}), f, 1)
    (entry,) = _C.code_entries(f.__code__)
    assert _C.reset_all() == 1
    assert _C.code_entries(f.__code__) == [] and entry.code is g.__code__
    assert _C.reset_all() == 0
    for bad in (f, None, 3):
        with pytest.raises(TypeError):
            _C.code_entries(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _C.reset_code(bad)  # type: ignore[arg-type]


def test_entries_reset_while_their_guards_run() -> None:
    def f(x: int) -> Any:
        return ("eager", x)

    def g(x: int) -> Any:
        return ("g", x)

    def reset(value: int) -> bool:
        _C.reset_code(f.__code__)
        return value > 0

    def make(info: _C.FrameInfo) -> _C.Entry:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "call", reset, True, label="resets")
        return entry_for(clone(g), tree)

    rec = Recorder({f.__code__: make})
    for value in (1, 2, -1, -2, 3):
        assert run(rec, f, value) == ("g", value)
    gc.collect()


def test_guards_that_run_python_are_not_captured() -> None:
    def predicate(x: int) -> bool:
        return helper(x)

    def helper(x: int) -> bool:
        return x > 0

    def f(x: int) -> Any:
        return ("eager", x)

    def g(x: int) -> Any:
        return ("g", x)

    def make(info: _C.FrameInfo) -> _C.Entry:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "call", predicate, True, label="positive")
        return entry_for(g, tree)

    rec = Recorder({f.__code__: make})
    assert [run(rec, f, 1), run(rec, f, 2)] == [("g", 1), ("g", 2)]
    assert rec.names == ["f"]


def test_keyboard_interrupt_in_a_guard_propagates() -> None:
    armed = False

    def predicate(x: int) -> bool:
        if armed:
            raise KeyboardInterrupt
        return True

    def f(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        return ("g", x)

    def make(info: _C.FrameInfo) -> _C.Entry:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "call", predicate, True, label="p")
        return entry_for(g, tree)

    rec = Recorder({f.__code__: make})
    assert run(rec, f, 1) == ("g", 1)
    armed = True
    with pytest.raises(KeyboardInterrupt):
        run(rec, f, 1)
    armed = False
    assert run(rec, f, 1) == ("g", 1) and len(rec.infos) == 1


def test_dead_entries_are_dropped_on_a_miss() -> None:
    class Thing:
        pass

    def f(x: Any) -> Any:
        return "eager"

    def g(x: Any) -> Any:
        return "g"

    def make(info: _C.FrameInfo) -> _C.Entry:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "id", info.args[0], label="id")
        return entry_for(clone(g), tree)

    rec = Recorder({f.__code__: make})
    thing = Thing()
    assert run(rec, f, thing) == "g"
    (entry,) = _C.code_entries(f.__code__)
    assert entry.alive
    rec.infos.clear()
    del thing
    gc.collect()
    assert not entry.alive
    assert run(rec, f, Thing()) == "g"
    assert rec.infos[0].entries == 0
    assert rec.infos[0].failures == ((0, "id", "the expected object no longer exists"),)
    assert entry not in _C.code_entries(f.__code__)
