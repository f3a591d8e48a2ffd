"""The frame hook: what is asked, what is redirected, what runs untouched."""

from __future__ import annotations

import types
from typing import Any

import pytest
from core_helpers import KEY, Recorder, always, clone, entry_for, equals_guard, positional, run, type_guard

from argand._core import _C

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
