"""Threads, fork and memory: the hook under concurrency, and that nothing is leaked or freed too early."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
import types
import weakref
from typing import Any

import pytest
from core_helpers import Recorder, always, clone, equals_guard, positional, run_python, type_guard

from argand._core import _C

KEY = object()


def run(callback: Any, fn: Any, *args: Any, key: object = KEY, **kwargs: Any) -> Any:
    return _C.run_with_callback(callback, key, fn, args, kwargs)


# ---- threads ------------------------------------------------------------------------------------------------------


def test_other_threads_are_not_captured() -> None:
    def leaf(x: int) -> int:
        return x + 1

    def work() -> None:
        for _ in range(50):
            leaf(1)
        seen.append(_C.get_callback())

    def f() -> int:
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            thread.join(0.001)
        return leaf(1)

    seen: list[Any] = []
    rec = Recorder(
        {threading.Thread.start.__code__: _C.SKIP_RECURSIVE, threading.Thread.join.__code__: _C.SKIP_RECURSIVE}
    )
    assert run(rec, f) == 2
    assert seen == [(None, None)] and rec.names.count("leaf") == 1 and "work" not in rec.names


def test_many_threads_share_one_code_object() -> None:
    def f(x: Any) -> Any:
        return ("eager", x)

    def g(x: Any) -> Any:
        return ("g", x)

    barrier = threading.Barrier(6)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rec = Recorder(
                {f.__code__: lambda info: _C.Entry(positional(clone(g)), equals_guard(0, info.args[0]), KEY)}
            )
            barrier.wait()
            for i in range(3000):
                value = (i * 7 + seed) % 11
                assert run(rec, f, value) == ("g", value)
                if i % 500 == 250:
                    _C.reset_code(f.__code__)
        except BaseException as e:
            errors.append(e)

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(old)
    assert errors == [] and not _C.is_hook_installed()


def test_two_threads_compile_the_same_code_at_once() -> None:
    inside = threading.Barrier(2)

    def f(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        return ("g", x)

    def answer(info: _C.FrameInfo) -> Any:
        if info.code is f.__code__:
            inside.wait(120)
            return _C.Entry(positional(clone(g)), always(), KEY)
        return None

    results: list[Any] = []
    threads = [threading.Thread(target=lambda i=i: results.append(run(answer, f, i))) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [("g", 0), ("g", 1)] and len(_C.code_entries(f.__code__)) == 2


def test_guards_that_switch_threads() -> None:
    def f(x: int) -> Any:
        return x

    def g(x: int) -> Any:
        return ("g", x)

    def yielding(x: int) -> bool:
        event.wait(0.0005)
        return x % 2 == 0

    def make(info: _C.FrameInfo) -> Any:
        if info.code is not f.__code__:
            return None
        tree = _C.GuardTree()
        node = tree.child(0, "local", 0)
        tree.check(node, "call", yielding, info.args[0] % 2 == 0, label="parity")
        return _C.Entry(positional(clone(g)), tree, KEY)

    event = threading.Event()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(60):
                assert run(make, f, i + seed) == ("g", i + seed)
                if i % 20 == 7:
                    _C.reset_all()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def test_hook_goes_when_the_last_region_leaves() -> None:
    # Locks, whose methods are C: while a callback is asked about a Python frame its thread counts as outside.
    first_in, second_out = threading.Lock(), threading.Lock()
    first_in.acquire()
    second_out.acquire()

    def hold() -> None:
        first_in.release()
        second_out.acquire(timeout=100)

    def quick() -> bool:
        return _C.is_hook_installed()

    rec = Recorder(default=_C.SKIP_RECURSIVE)
    region = _C.Region(Recorder(), KEY, quick)
    thread = threading.Thread(target=lambda: run(lambda info: None, hold))
    thread.start()
    assert first_in.acquire(timeout=100)
    assert region() is True and _C.is_hook_installed()
    second_out.release()
    thread.join()
    assert not _C.is_hook_installed() and rec.infos == []


def test_fork_inside_a_region_with_other_threads() -> None:
    out = run_python(
        """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from argand._core import _C
def leaf(x): return x + 1
def other(x): return x * 10
names = []
def callback(info):
    names.append(info.code.co_name)
    if info.code is leaf.__code__:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "type", int, label="x")
        return _C.Entry(other.__code__, tree, "k")
go = threading.Event()
started = threading.Event()
def hold():
    started.set()
    go.wait(10)
thread = threading.Thread(target=lambda: _C.run_with_callback(callback, "k", hold))
thread.start()
started.wait(10)
def f():
    assert leaf(1) == 10
    pid = os.fork()
    return pid, leaf(2)
pid, value = _C.run_with_callback(callback, "k", f)
if pid == 0:
    ok = value == 20 and not _C.is_hook_installed() and _C.run_with_callback(callback, "k", leaf, (3,)) == 30
    os._exit(0 if ok and not _C.is_hook_installed() else 1)
_, status = os.waitpid(pid, 0)
go.set()
thread.join()
assert value == 20 and status == 0 and not _C.is_hook_installed()
print("fine")
"""
    )
    assert out == "fine\n"


def test_interpreter_exit_inside_a_region() -> None:
    assert "bye" in run_python(
        """
import sys, atexit
from argand._core import _C
def f(x): return x
class Late:
    def __del__(self): f(1)
keep = Late()
atexit.register(lambda: print("bye"))
_C.set_callback(lambda info: None, "k")
f(1)
sys.exit(0)
"""
    )


# ---- memory -------------------------------------------------------------------------------------------------------


def test_references_of_arguments_and_results() -> None:
    class Thing:
        pass

    def f(x: Any, *rest: Any, k: Any = None, **kw: Any) -> Any:
        return x

    def g(x: Any, k: Any, rest: Any, kw: Any) -> Any:
        return [x, k, rest, kw]

    def fails(x: Any, k: Any, rest: Any, kw: Any) -> Any:
        raise ValueError

    def refuses(info: _C.FrameInfo) -> Any:
        raise LookupError

    thing = Thing()
    good = Recorder({f.__code__: lambda info: _C.Entry(positional(clone(g)), always(), "good")})
    bad = Recorder({f.__code__: lambda info: _C.Entry(positional(clone(fails)), always(), "bad")})
    eager = Recorder()
    before = sys.getrefcount(thing)
    for key, callback in [("good", good), ("bad", bad), ("eager", eager), ("refuse", refuses)]:
        for _ in range(5):
            try:
                run(callback, f, thing, thing, k=thing, key=key, z=thing)
            except (ValueError, LookupError):
                pass
        for recorder in (good, bad, eager):
            recorder.infos.clear()
        gc.collect()
        assert sys.getrefcount(thing) == before, key
    ref = weakref.ref(thing)
    del thing
    assert ref() is None


def test_arguments_die_when_the_frame_returns() -> None:
    class Thing:
        pass

    log: list[str] = []

    def f(x: Any) -> None:
        weakref.finalize(x, log.append, "dead")
        del x
        log.append("returning")

    def g(x: Any) -> None:
        weakref.finalize(x, log.append, "dead")
        del x
        log.append("returning")

    def outer() -> None:
        f(Thing())
        log.append("after")

    _C.skip_code(weakref.finalize.__init__.__code__, recursive=True)
    run(Recorder({f.__code__: lambda info: _C.Entry(positional(g), always(), KEY)}), lambda: None)
    answer = Recorder({f.__code__: lambda info: _C.Entry(positional(g), always(), KEY)})
    callback = lambda info: answer(info) if info.code is f.__code__ else None
    for _ in range(3):
        log.clear()
        run(callback, outer)
        answer.infos.clear()
        gc.collect()
        assert sorted(log) == ["after", "dead", "returning"] and log[0] == "returning"


def flat_memory(step: Any, rounds: int, limit: int = 20_000) -> None:
    """Runs step(rounds) a few times; the memory in use must stop growing."""
    step(rounds // 10)
    gc.collect()
    tracemalloc.start()
    try:
        step(rounds)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        step(rounds)
        gc.collect()
        second = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert second - first < limit, (first, second)


def test_a_million_redirected_calls_keep_memory_flat() -> None:
    code = """
import gc, resource, sys
from argand._core import _C
def f(a, b=2, *rest, c=3, **kw): return a
def g(a, b, c, rest, kw): return [a, b, c, rest, kw]
def callback(info):
    if info.code is f.__code__:
        tree = _C.GuardTree()
        tree.check(tree.child(0, "local", 0), "type", object, label="x")
        return _C.Entry(g.__code__, tree, "k")
def loop(n):
    x = object()
    for _ in range(n):
        f(x, 1, 2, z=3)
_C.run_with_callback(callback, "k", loop, (1000,))
blocks = sys.getallocatedblocks()
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_C.run_with_callback(callback, "k", loop, (1_000_000,))
gc.collect()
assert _C.code_entries(f.__code__)[0].hits == 1_000_999, _C.code_entries(f.__code__)
assert sys.getallocatedblocks() - blocks < 200, sys.getallocatedblocks() - blocks
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 4096
print("flat")
"""
    assert run_python(code) == "flat\n"


def test_misses_resets_and_failures_keep_memory_flat() -> None:
    def f(x: Any) -> Any:
        return x

    def g(x: Any) -> Any:
        return [x]

    def answer(info: _C.FrameInfo) -> Any:
        if info.code is not f.__code__:
            return None
        if info.args[0] % 7 == 3:
            raise LookupError(info.args[0])
        if info.args[0] % 7 == 5:
            return _C.Entry(positional(clone(g)), None, KEY)
        return _C.Entry(
            positional(clone(g)), equals_guard(0, info.args[0], "x" * (info.args[0] % 50 + 1)), KEY, object()
        )

    def step(count: int) -> None:
        for i in range(count):
            try:
                run(answer, f, i % 60)
            except LookupError:
                pass
            if i % 20 == 0:
                _C.reset_code(f.__code__)

    flat_memory(step, 3000)


def test_building_and_failing_guards_keep_memory_flat() -> None:
    def step(count: int) -> None:
        for i in range(count):
            tree = _C.GuardTree()
            x = tree.child(0, "local", 0)
            for k, check in enumerate(
                [
                    ("type", int),
                    ("equals", [i, {"a": i}]),
                    ("id", int),
                    ("len", 3),
                    ("dict_keys", ("a",)),
                    ("has_key", "q"),
                    ("has_attr", "zz"),
                    ("type_version", int),
                    ("call", str, "x"),
                ]
            ):
                node = tree.child(x, "dict_item", k)
                tree.check(node, *check, label=f"{k}")
                tree.evaluate(({j: object() for j in range(k + 1)},))
                tree.matches((5,))
            tree.check(0, "distinct", [x, tree.child(0, "local", 1)], label="d")
            tree.check(x, "same_object", tree.child(0, "local", 1), label="s")
            tree.check(0, "python", lambda *a: False, [x], label="p")
            tree.check(0, "global_state", ((int, 1),), label="g")
            tree.evaluate((1, 1))
            tree.describe(), tree.source(x), tree.checks_of(x)
            for bad in (("nope",), ("type", 5), ("distinct", [99]), ("len", "x"), ("equals", [bytearray()])):
                with pytest.raises((TypeError, ValueError)):
                    tree.check(x, *bad, label="bad")
            with pytest.raises((TypeError, ValueError)):
                tree.child(x, "attr", 5)

    flat_memory(step, 300)


def test_entries_die_with_their_code() -> None:
    class Payload:
        pass

    space: dict[str, Any] = {"__name__": "not_imported"}
    exec("def f(x): return x\ndef g(x): return [x]", space)
    f = space["f"]
    payload = Payload()
    ref, globals_ref = weakref.ref(payload), weakref.ref(f)
    entry = _C.Entry(space["g"].__code__, type_guard(0, int), KEY, payload)
    answer = Recorder({f.__code__: entry})

    assert run(answer, f, 1) == [1]
    assert run(answer, f, 2) == [2]
    del f, payload, answer, entry, space
    gc.collect()
    assert ref() is None and globals_ref() is None


def test_closures_are_not_kept_by_the_entry() -> None:
    class Big:
        pass

    def make(big: Any) -> Any:
        def f(x: int) -> Any:
            return (x, big)

        return f

    def make_other(big: Any) -> Any:
        def g(x: int) -> Any:
            return [x, big]

        return g

    template = make(None)
    rec = Recorder({template.__code__: lambda info: _C.Entry(make_other(None).__code__, always(), KEY)})
    refs = []
    for i in range(3):
        big = Big()
        refs.append(weakref.ref(big))
        assert run(rec, make(big), i) == [i, big]
        rec.infos.clear()
        del big
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_functions_of_entries_survive_a_reset_while_running() -> None:
    def f(n: int) -> Any:
        return n

    def g(n: int) -> Any:
        _RESET()
        return [n, [i for i in range(n)]]

    global _RESET

    def reset() -> None:
        _C.reset_all()
        gc.collect()

    _RESET = reset
    callback = lambda info: _C.Entry(positional(clone(g)), always(), KEY) if info.code is f.__code__ else None
    for i in range(5):
        assert run(callback, f, i) == [i, list(range(i))]


_RESET: Any = None


def test_code_objects_come_and_go() -> None:
    def callback(info: _C.FrameInfo) -> Any:
        if info.code.co_name == "f":
            return _C.Entry(compile("def g(x): return [x]", "<t>", "exec").co_consts[0], type_guard(0, int), KEY)
        return _C.SKIP

    def step(count: int) -> None:
        for i in range(count):
            code = compile("def f(x): return x", "<t>", "exec").co_consts[0]
            fn = types.FunctionType(code, {})
            assert run(callback, fn, i) == [i] and run(callback, fn, i) == [i]

    flat_memory(step, 1000)
