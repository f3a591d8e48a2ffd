"""Frames that the hook leaves alone, and code that goes on where a graph broke."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from core_helpers import KEY, Recorder, always, entry_for, positional, run

from argand._core import _C

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
