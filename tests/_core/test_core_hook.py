"""The frame hook: what is asked, what is redirected, what runs untouched."""

from __future__ import annotations

import gc
import os
import sys
import types
from typing import Any

import pytest
from core_helpers import Recorder, always, clone, equals_guard, positional, type_guard

from argand._core import _C

KEY = object()


def run(callback: Any, fn: Any, *args: Any, key: object = KEY, **kwargs: Any) -> Any:
    return _C.run_with_callback(callback, key, fn, args, kwargs)


def entry_for(replacement: Any, guards: Any = None, key: object = KEY, payload: Any = None) -> _C.Entry:
    return _C.Entry(positional(replacement), always() if guards is None else guards, key, payload)


# ---- asking -------------------------------------------------------------------------------------------------------


def test_none_runs_eagerly_and_remembers_nothing() -> None:
    def f(x: int) -> int:
        return x + 1

    rec = Recorder()
    assert [run(rec, f, i) for i in range(3)] == [1, 2, 3]
    assert rec.names == ["f", "f", "f"]
    assert _C.code_entries(f.__code__) == [] and _C.code_mode(f.__code__, KEY) is None
    assert not _C.is_hook_installed()


def test_frame_info_attributes() -> None:
    free = "free"

    def f(a: int, b: int = 2, *rest: int, c: int = 3, **kw: int) -> Any:
        return (a, b, rest, c, kw, free)

    rec = Recorder()
    assert run(rec, f, 1, 5, 6, z=7) == (1, 5, (6,), 3, {"z": 7}, "free")
    (info,) = rec.infos
    assert info.code is f.__code__ and info.func is f and info.globals is globals()
    assert info.builtins["len"] is len
    assert info.closure is f.__closure__ and info.closure[0].cell_contents == "free"
    assert info.args == (1, 5, 3, (6,), {"z": 7})
    assert (info.entries, info.failures) == (0, ())
    with pytest.raises(AttributeError):
        info.args = ()  # type: ignore[misc]


def test_nested_frames_are_asked_outside_of_the_region_are_not() -> None:
    def inner(x: int) -> int:
        return x * 2

    def outer(x: int) -> int:
        return inner(x) + inner(x)

    rec = Recorder()
    assert run(rec, outer, 3) == 12
    assert rec.names == ["outer", "inner", "inner"]
    assert outer(3) == 12 and len(rec.infos) == 3


def test_callback_itself_is_not_captured() -> None:
    def helper() -> None:
        assert _C.get_callback() == (None, None)

    names = []

    def callback(info: _C.FrameInfo) -> None:
        helper()
        names.append(info.code.co_name)

    def f() -> int:
        return 1

    assert run(callback, f) == 1
    assert names == ["f"]


def test_region_state_is_restored_after_exceptions() -> None:
    def f() -> None:
        assert _C.get_callback()[1] is KEY
        raise KeyError("x")

    before = _C.get_callback()
    with pytest.raises(KeyError):
        run(Recorder(), f)
    assert _C.get_callback() == before == (None, None)


def test_regions_nest_with_their_own_keys() -> None:
    def leaf() -> Any:
        return _C.get_callback()[1]

    inner_rec, outer_rec = Recorder(), Recorder()

    def outer() -> Any:
        inside = run(inner_rec, leaf, key="inner")
        return inside, leaf()

    assert run(outer_rec, outer, key="outer") == ("inner", "outer")
    assert inner_rec.names == ["leaf"] and outer_rec.names == ["outer", "run", "leaf"]


def test_disabled_region() -> None:
    def leaf() -> int:
        return 1

    def outer() -> int:
        return _C.run_with_callback(None, None, leaf) + leaf()

    rec = Recorder()
    assert run(rec, outer) == 2
    assert rec.names == ["outer", "leaf"]


def test_set_and_get_callback() -> None:
    rec = Recorder()

    def f() -> int:
        return 4

    assert _C.set_callback(rec, "k") == (None, None)
    assert _C.is_hook_installed()
    try:
        assert f() == 4
    finally:
        old = _C.set_callback(None)
    assert old == (rec, "k") and "f" in rec.names
    assert not _C.is_hook_installed()


@pytest.mark.parametrize(
    "args",
    [(), (None,), (None, None), (None, None, len, [1]), (None, None, len, (), 5), (None, None, len, (), {}, 1)],
)
def test_run_with_callback_argument_errors(args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _C.run_with_callback(*args)
    assert not _C.is_hook_installed()


# ---- redirecting --------------------------------------------------------------------------------------------------


def test_hit_runs_the_entry_without_asking() -> None:
    def f(x: Any) -> Any:
        return ("eager", x)

    def g(x: Any) -> Any:
        return ("compiled", x)

    rec = Recorder({f.__code__: lambda info: entry_for(g, type_guard(0, int), payload="p")})
    assert run(rec, f, 1) == ("compiled", 1)
    assert run(rec, f, 2) == ("compiled", 2)
    assert run(rec, f, 3) == ("compiled", 3)
    assert len(rec.infos) == 1
    (entry,) = _C.code_entries(f.__code__)
    assert (entry.hits, entry.payload, entry.key, entry.code) == (2, "p", KEY, g.__code__)
    assert entry.last_failure is None and entry.alive
    assert f(1) == ("eager", 1)


def test_miss_reports_failures_and_entries_pile_up() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        return ("g", x)

    rec = Recorder({f.__code__: lambda info: entry_for(clone(g), type_guard(0, type(info.args[0]), "L['x'] type"))})
    for value in (1, "s", 2.0):
        assert run(rec, f, value) == ("g", value)
    assert [info.entries for info in rec.infos] == [0, 1, 2]
    assert rec.infos[1].failures == ((0, "L['x'] type", "expected type int, found str"),)
    assert rec.infos[2].failures == (
        (0, "L['x'] type", "expected type str, found float"),
        (1, "L['x'] type", "expected type int, found float"),
    )
    entries = _C.code_entries(f.__code__)
    assert entries[0].last_failure is None and entries[1].last_failure == (
        0,
        "L['x'] type",
        "expected type str, found float",
    )


def test_most_recently_hit_first() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        return x

    rec = Recorder(default=lambda info: entry_for(clone(g), equals_guard(0, info.args[0]), payload=info.args[0]))
    for value in (1, 2, 3):
        run(rec, f, value)
    order = lambda: [entry.payload for entry in _C.code_entries(f.__code__)]
    assert order() == [3, 2, 1]
    run(rec, f, 1)
    assert order() == [1, 3, 2]
    run(rec, f, 1)
    assert order() == [1, 3, 2]
    run(rec, f, 2)
    assert order() == [2, 1, 3] and len(rec.infos) == 3


def test_entries_of_another_key_are_not_used() -> None:
    def f(x: int) -> Any:
        return ("eager", x)

    def g1(x: int) -> Any:
        return ("one", x)

    def g2(x: int) -> Any:
        return ("two", x)

    one = Recorder({f.__code__: lambda info: entry_for(g1, key="one")})
    two = Recorder({f.__code__: lambda info: entry_for(g2, key="two")})
    for _ in range(2):
        assert run(one, f, 1, key="one") == ("one", 1)
        assert run(two, f, 1, key="two") == ("two", 1)
    assert len(one.infos) == len(two.infos) == 1
    assert two.infos[0].entries == 0 and two.infos[0].failures == ()


def test_run_once_entry_is_not_stored() -> None:
    def f(x: int) -> Any:
        return ("eager", x)

    def g(x: int) -> Any:
        return ("once", x)

    entry = _C.Entry(positional(g), None, KEY)
    rec = Recorder({f.__code__: entry})
    assert run(rec, f, 1) == run(rec, f, 1) == ("once", 1)
    assert len(rec.infos) == 2 and _C.code_entries(f.__code__) == []
    assert entry.guards is None and entry.alive and entry.hits == 0


def test_every_kind_of_parameter() -> None:
    def f(a: int, /, b: int, c: int = 3, *rest: int, d: int, e: int = 5, **kw: int) -> Any:
        return None

    def g(a: int, b: int, c: int, d: int, e: int, rest: Any, kw: Any) -> Any:
        return (a, b, c, d, e, rest, kw)

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    for _ in range(2):
        assert run(rec, f, 1, 2, d=4) == (1, 2, 3, 4, 5, (), {})
        assert run(rec, f, 1, b=2, d=4, z=0) == (1, 2, 3, 4, 5, (), {"z": 0})
        assert run(rec, f, 1, 2, 30, 31, 32, d=4, e=50) == (1, 2, 30, 4, 50, (31, 32), {})
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
        run(rec, f, 1, 2)
    assert len(rec.infos) == 1


def test_arguments_that_are_cells() -> None:
    def f(x: int, y: int) -> Any:
        def inner() -> int:
            return x + y

        return inner()

    def g(x: int, y: int) -> Any:
        def inner() -> int:
            return (x + y) * 100

        return inner()

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    assert [run(rec, f, 1, 2), run(rec, f, 3, 4)] == [300, 700]
    assert rec.infos[0].args == (1, 2)


def test_closures_are_those_of_the_calling_function() -> None:
    def make(n: int) -> Any:
        def f(x: int) -> int:
            return x + n

        return f

    def make_replacement(n: int) -> Any:
        def g(x: int) -> int:
            return (x + n) * 10

        return g

    first, second = make(1), make(2)
    assert first.__code__ is second.__code__
    rec = Recorder({first.__code__: lambda info: entry_for(make_replacement(99))})
    for _ in range(3):
        assert run(rec, first, 1) == 20
        assert run(rec, second, 1) == 30
    assert rec.names.count("f") == 1


def test_globals_are_those_of_the_calling_function() -> None:
    spaces = [{"n": 1}, {"n": 2}]
    functions = []
    code = compile("def f(x): return x + n\n", "<test>", "exec").co_consts[0]
    for space in spaces:
        functions.append(types.FunctionType(code, space))
    replacement = compile("def g(x): return (x + n) * 10\n", "<test>", "exec").co_consts[0]
    rec = Recorder({code: lambda info: _C.Entry(replacement, always(), KEY)})
    for _ in range(3):
        assert run(rec, functions[0], 1) == 20
        assert run(rec, functions[1], 1) == 30
    assert len(rec.infos) == 1


def test_recursion_redirects_each_level() -> None:
    def f(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    def g(n: int) -> int:
        return 0 if n == 0 else 10 + f(n - 1)

    # the same free variable, so that the closures fit
    rec = Recorder({f.__code__: lambda info: _C.Entry(g.__code__, always(), KEY)})
    assert run(rec, f, 50) == 500
    assert rec.names == ["f"]


def test_transformed_code_is_never_captured_frames_it_calls_are() -> None:
    def leaf(x: int) -> int:
        return x + 1

    def f(x: int) -> int:
        return 0

    def g(x: int) -> int:
        return leaf(x)

    def g_plain(x: int) -> int:
        return _LEAF(x)

    global _LEAF
    _LEAF = leaf
    rec = Recorder({f.__code__: lambda info: entry_for(g_plain)})
    assert run(rec, f, 1) == 2
    assert rec.names == ["f", "leaf"]
    assert _C.code_mode(g_plain.__code__, KEY) is _C.SKIP
    _C.reset_code(g_plain.__code__)
    assert _C.code_mode(g_plain.__code__, KEY) is _C.SKIP
    assert run(rec, g_plain, 1) == 2 and "g_plain" not in rec.names
    assert g(1) == 2


_LEAF: Any = None


def test_exceptions_of_the_entry_reach_the_caller_and_can_be_caught_inside() -> None:
    def f(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        raise ValueError(x)

    def outer(x: int) -> Any:
        try:
            return f(x)
        except ValueError as e:
            return ("caught", e.args, e.__traceback__.tb_next.tb_frame.f_code.co_name)

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    for i in range(3):
        assert run(rec, outer, i) == ("caught", (i,), "g")
    with pytest.raises(ValueError):
        run(rec, f, 9)


def test_exception_inside_handler_keeps_context() -> None:
    def f() -> None:
        raise KeyError("inner")

    def g() -> None:
        raise IndexError("replaced")

    def outer() -> None:
        try:
            raise ValueError("outer")
        except ValueError:
            f()

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            run(rec, outer)
        assert isinstance(caught.value.__context__, ValueError)


def test_entry_that_does_not_fit_is_refused() -> None:
    def f(x: int, *rest: int) -> Any:
        return x

    def too_few(x: int) -> Any:
        return x

    with pytest.raises(TypeError, match="takes 1 arguments and 0 free variables; the frame has 2 and 0"):
        run(Recorder({f.__code__: lambda info: entry_for(too_few)}), f, 1)
    assert _C.code_entries(f.__code__) == []


def test_entry_refuses_other_shapes_of_code() -> None:
    def star(*a: int) -> None: ...
    def kwonly(*, a: int) -> None: ...
    def gen(a: int) -> Any:
        yield a

    async def coro(a: int) -> None: ...

    for fn in (star, kwonly, gen, coro):
        with pytest.raises(TypeError, match="positional parameters only"):
            _C.Entry(fn.__code__, None, KEY)
    with pytest.raises(TypeError, match="GuardTree or None"):
        _C.Entry((lambda x: x).__code__, 5, KEY)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _C.Entry("code", None, KEY)  # type: ignore[arg-type]


def test_entry_cannot_be_stored_twice() -> None:
    def f(x: int) -> Any:
        return x

    def h(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        return ("g", x)

    entry = entry_for(g)
    rec = Recorder({f.__code__: entry, h.__code__: entry})
    assert run(rec, f, 1) == ("g", 1)
    with pytest.raises(ValueError, match="already stored"):
        run(rec, h, 1)
    _C.reset_code(f.__code__)
    assert run(rec, h, 1) == ("g", 1)


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


# ---- frames left alone --------------------------------------------------------------------------------------------


def test_generators_and_coroutines_are_untouched() -> None:
    def gen(n: int) -> Any:
        got = 0
        for i in range(n):
            try:
                got = yield i + (got or 0)
            except ValueError:
                yield "thrown"

    async def leaf() -> int:
        return 3

    async def coro() -> int:
        return await leaf() + 1

    async def agen() -> Any:
        yield 1
        yield 2

    async def consume() -> list[int]:
        return [x async for x in agen()]

    def drive(c: Any) -> Any:
        try:
            c.send(None)
        except StopIteration as e:
            return e.value
        return None

    def f() -> Any:
        it = gen(3)
        first = next(it)
        second = it.send(10)
        thrown = it.throw(ValueError())
        it.close()
        return first, second, thrown, drive(coro()), drive(consume()), list(gen(3))

    rec = Recorder()
    assert run(rec, f) == (0, 11, "thrown", 4, [1, 2], [0, 1, 2])
    assert set(rec.names) == {"f", "drive"}


def test_class_bodies_and_module_code_are_untouched() -> None:
    def f() -> Any:
        class C:
            x = 1 + 1

            def m(self) -> int:
                return self.x

        space: dict[str, Any] = {}
        exec("y = 3", space)
        return C().m() + space["y"] + eval("1 + 1")

    rec = Recorder()
    assert run(rec, f) == 7
    assert set(rec.names) == {"f", "m"}


def test_sys_settrace_and_setprofile_stay_sound() -> None:
    def leaf(x: int) -> int:
        return x + 1

    def f(x: int) -> int:
        return x

    def g(x: int) -> int:
        y = x * 100
        return y

    def outer(x: int) -> int:
        return leaf(f(x))

    events: list[tuple[str, str]] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name in ("f", "g", "leaf"):
            events.append((frame.f_code.co_name, event))
        return tracer

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    old = sys.gettrace()
    for setter in (sys.settrace, sys.setprofile):
        events.clear()
        setter(tracer)
        try:
            results = [run(rec, outer, i) for i in range(3)]
        finally:
            setter(None)
        assert results == [1, 101, 201]
        assert (
            ("leaf", "call") in events
            and ("g", "call") in events
            and ("g", "return") in events
            and ("f", "call") not in events
        )
    sys.settrace(old)


def test_line_coverage_of_eager_frames() -> None:
    lines = set()

    def f(x: int) -> int:
        if x > 1:
            return 10
        return 20

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is f.__code__ and event == "line":
            lines.add(frame.f_lineno - f.__code__.co_firstlineno)
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert [run(Recorder(), f, 2), run(Recorder(), f, 0)] == [10, 20]
    finally:
        sys.settrace(old)
    assert lines == {1, 2, 3}


@pytest.mark.parametrize("depth", [100, 700, 940 - 60])
def test_recursion_as_deep_as_without_us(depth: int) -> None:
    def f(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    assert run(Recorder(), f, min(depth, sys.getrecursionlimit() - 150)) == min(depth, sys.getrecursionlimit() - 150)


def test_endless_recursion_is_a_recursion_error() -> None:
    def f() -> Any:
        return f()

    def catching() -> str:
        try:
            return f()
        except RecursionError:
            return "recursion"

    assert run(Recorder(), catching) == "recursion"
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    try:
        assert run(Recorder(), catching) == "recursion"
    finally:
        sys.setrecursionlimit(old)


def test_redirected_frames_at_every_place_of_the_data_stack() -> None:
    """Frames are freed by us from 3.12 on; some of them open a new chunk of the data stack."""

    def f(a: int, b: int, c: int, d: int) -> int:
        return -1

    def g(a: int, b: int, c: int, d: int) -> int:
        return a + b + c + d

    def descend(n: int) -> int:
        return f(n, 1, 2, 3) + (descend(n - 1) if n else 0)

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    expected = sum(n + 6 for n in range(301))
    for _ in range(5):
        assert run(rec, descend, 300) == expected
    failing = Recorder()

    def raising(info: _C.FrameInfo) -> None:
        failing(info)
        if info.code is f2.__code__:
            raise LookupError

    def f2(a: int, b: int, c: int, d: int) -> int:
        return -1

    def descend2(n: int) -> int:
        try:
            return f2(n, 1, 2, 3)
        except LookupError:
            return 1 + (descend2(n - 1) if n else 0)

    for _ in range(5):
        assert run(raising, descend2, 300) == 301


def test_frame_introspection_inside_an_entry() -> None:
    def f(x: int) -> Any:
        return None

    def g(x: int) -> Any:
        frame = sys._getframe()
        return frame, frame.f_code.co_name, frame.f_back.f_code.co_name, dict(frame.f_locals)["x"]

    def outer(x: int) -> Any:
        return f(x)

    rec = Recorder({f.__code__: lambda info: entry_for(g)})
    for _ in range(3):
        frame, name, back, x = run(rec, outer, 7)
        assert (name, back, x) == ("g", "outer", 7)
        assert frame.f_globals is globals() and frame.f_locals["x"] == 7


def test_region_object() -> None:
    def f(self: Any, x: int = 1, *, y: int = 2) -> Any:
        """doc"""
        return (self, x, y, _C.get_callback()[1])

    rec = Recorder()
    region = _C.Region(rec, "key", f)
    assert region(0) == (0, 1, 2, "key") and region(0, 5, y=6) == (0, 5, 6, "key")
    assert (region.callback, region.key, region.fn) == (rec, "key", f)
    import functools

    functools.update_wrapper(region, f)
    assert region.__name__ == "f" and region.__doc__ == "doc" and region.__wrapped__ is f

    class C:
        m = region

    c = C()
    assert c.m(3) == (c, 3, 2, "key") and C.m is region and C.m(c, 4) == (c, 4, 2, "key")
    assert _C.Region(None, None, f)(0)[3] is None
    for bad in [(1, 2, f), (None, 2, 3)]:
        with pytest.raises(TypeError):
            _C.Region(*bad)
    assert "region of" in repr(region)
    import weakref

    assert weakref.ref(region)() is region


def test_sentinels() -> None:
    assert [s.name for s in (_C.SKIP, _C.SKIP_RECURSIVE, _C.RUN_ONLY)] == ["SKIP", "SKIP_RECURSIVE", "RUN_ONLY"]
    assert repr(_C.SKIP) == "argand._core._C.SKIP"
    import copy

    assert copy.deepcopy(_C.SKIP) is _C.SKIP
    with pytest.raises(TypeError):
        type(_C.SKIP)()


def test_importing_the_core_imports_no_torch() -> None:
    import subprocess

    code = "import sys; import argand._core._C; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join([os.path.join(os.path.dirname(__file__), "..", "..", "src"), *sys.path])
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}).returncode == 0


# ---- code that goes on where a graph broke, and calls none --------------------------------------------------------------


def looped(rounds: int, *, resumed: bool = True, graph_every: int | None = None) -> tuple[int, Any]:
    """How often the entry of a frame without a graph fitted, and what is remembered of its code.

    Arguments:
        graph_every: after so many rounds an entry with a graph runs.
    """

    def plain(x: int) -> int:
        return x

    def transformed(x: int) -> int:
        return x

    def work(x: int) -> int:
        return x + 1

    def worked(x: int) -> int:
        return x + 1

    for function in (plain, work):
        _C.reset_code(function.__code__)
    without = _C.Entry(positional(transformed), always(), KEY, resumed=resumed)
    with_graph = _C.Entry(positional(worked), always(), KEY, graph=True)
    recorder = Recorder({plain.__code__: lambda info: without, work.__code__: lambda info: with_graph})

    def loop() -> None:
        for number in range(rounds):
            plain(number)
            if graph_every is not None and number % graph_every == 0:
                work(number)

    run(recorder, loop)
    return without.hits, _C.code_mode(plain.__code__, KEY)


def test_code_is_left_alone_after_a_thousand_rounds_without_a_graph() -> None:
    hits, mode = looped(3000)
    assert 990 < hits < 1010 and mode is _C.SKIP


def test_it_is_kept_where_a_graph_runs_in_between() -> None:
    assert looped(3000, graph_every=900) == (2999, None)


def test_code_that_goes_on_after_no_break_is_kept() -> None:
    assert looped(3000, resumed=False) == (2999, None)
