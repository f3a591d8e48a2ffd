"""Watched dicts: users see nothing of it, no change is missed, and what happens where CPython cannot watch."""

from __future__ import annotations

import copy
import os
import random
import sys
import threading
from typing import Any

import pytest
from core_helpers import run_python
from test_core_replay import CHANGES, SAME, agree, build, make_tree, modules_of

from argand._core import _C

WATCHERS = sys.version_info >= (3, 12)


def watched(root: Any) -> _C.GuardTree:
    tree = make_tree(root)
    assert all(tree.matches((root, i)) for i in range(5))
    return tree


def test_order_and_identity_of_instance_dicts_are_untouched() -> None:
    root = build(1, 2)
    del root.scale  # a hole in the shared keys
    root.scale = 0.5
    before = [(vars(m), list(vars(m)), [id(v) for v in vars(m).values()], dict(vars(m))) for m in modules_of(root)]
    tree = watched(root)
    for module, (space, keys, ids, items) in zip(modules_of(root), before):
        assert vars(module) is space and list(space) == keys and space == items
        assert [id(v) for v in space.values()] == ids
        assert list(reversed(space)) == keys[::-1]
    root.added = 1
    assert list(vars(root)) == [*before[0][1], "added"]
    assert agree(tree, root, 1)


def test_iterators_over_a_dict_that_gets_watched() -> None:
    root = build(1, 1)
    keys = list(vars(root))
    iterators = [iter(vars(root)), iter(vars(root).items()), reversed(vars(root))]
    seen = [[next(it)] for it in iterators]
    watched(root)
    for it, found in zip(iterators, seen):
        found.extend(it)
    assert seen == [keys, list(vars(root).items()), keys[::-1]]


def test_other_threads_never_see_half_a_dict() -> None:
    stop = threading.Event()
    shown: list[Any] = [build(0, 0)]
    expected = list(vars(shown[0]))
    errors: list[Any] = []

    def look() -> None:
        while not stop.is_set():
            module = shown[0]
            if list(vars(module)) != expected or module.ordered["p"] != 1 or len(vars(module)) != len(expected):
                errors.append(list(vars(module)))

    threads = [threading.Thread(target=look) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for _ in range(150):
            root = build(1, 1)
            shown[0] = modules_of(root)[1]
            watched(root)
    finally:
        stop.set()
        for t in threads:
            t.join()
        sys.setswitchinterval(interval)
    assert errors == []


@pytest.mark.parametrize("rounds", [1, 200])
def test_attributes_set_by_specialised_code(rounds: int) -> None:
    root = build(1, 1)
    child = modules_of(root)[1]
    tree = watched(root)

    def change(value: Any) -> None:
        child.scale = value

    for _ in range(rounds):
        change(3.0)
        assert tree.matches((root, 1)) is False
        change(0.5)
        assert tree.matches((root, 1)) is True
    assert agree(tree, root, 1)


@pytest.mark.parametrize("seed", range(12))
def test_dicts_that_change_between_all_calls(seed: int) -> None:
    """A few that changed are looked at again by themselves; of many, all; of one dict that is found twice, both lookups."""
    draw = random.Random(seed)
    root = build(2, 2)
    inner = modules_of(root)[2]
    root._modules["again"] = inner
    tree, other = watched(root), watched(inner)
    for _ in range(60):
        for _ in range(draw.choice((0, 1, 2, 5, 63, 64, 65, 130))):
            module = draw.choice(modules_of(root))
            draw.choice(list(SAME.values()))(module) if draw.random() < 0.2 else setattr(module, "step", object())
        assert agree(tree, root, 1) and agree(other, inner, 1)
        module, kept = draw.choice(modules_of(root)), draw.random() < 0.5
        saved = dict(vars(module))
        copies = [(value, value.copy()) for value in saved.values() if isinstance(value, (dict, list))]
        config, fn, cls = copy.deepcopy(saved["config"]), saved["fn"], type(module)
        defaults, code = fn.__defaults__, fn.__code__
        name = draw.choice(list(CHANGES))
        CHANGES[name](module)
        for _ in range(draw.choice((0, 1, 64))):
            root.step = object()
        assert not agree(tree, root, 1), name
        agree(other, inner, 1)
        module.__class__ = cls
        if kept:
            module.__dict__ = dict(saved)
        else:
            vars(module).clear()
            vars(module).update(saved)
        for value, before in copies:
            value.clear()
            value.update(before) if isinstance(value, dict) else value.extend(before)
        module.config, fn.__defaults__, fn.__code__ = config, defaults, code
        assert agree(tree, root, 1) and agree(other, inner, 1), name


def test_a_dict_of_which_two_places_ask_different_things() -> None:
    root = build(0, 0)
    tree = _C.GuardTree()
    for place, key in enumerate(("training", "scale")):
        space = tree.child(tree.child(0, "local", place), "instance_dict")
        tree.check(tree.child(space, "dict_item", key), "equals", vars(root)[key], label=key)
        for other in ("config", "fn", "hooks", "listed"):
            tree.check(tree.child(space, "dict_item", other), "not_none", label=other)
    for key, changed in (("training", True), ("scale", 0.75)):
        for _ in range(4):
            assert agree(tree, root, root)
        before = vars(root)[key]
        setattr(root, key, changed)
        assert not agree(tree, root, root)
        setattr(root, key, before)


def test_a_dict_that_becomes_an_objects_own() -> None:
    root, other = build(1, 2), build(1, 2)
    vars(other).update(vars(root))
    tree, apart = watched(root), watched(other)
    for number in range(3):
        other.step = number
        assert agree(tree, root, 1) and agree(apart, other, 1)
    root.__dict__ = vars(other)
    assert agree(tree, root, 1)
    other.training = True
    assert not agree(tree, root, 1)


def test_dicts_that_die_while_watched_and_objects_that_outlive_them() -> None:
    root = build(1, 2)
    tree = watched(root)
    child = root._modules.pop("m1")
    space = vars(child)
    assert not agree(tree, root, 1)
    root._modules["m1"] = child
    assert agree(tree, root, 1)
    child.__dict__ = dict(space)
    assert agree(tree, root, 1)
    space["scale"] = 7  # the object's no longer
    assert agree(tree, root, 1)
    child.scale = 7
    assert not agree(tree, root, 1)


def test_dict_that_outlives_its_object() -> None:
    root = build(1, 1)
    tree = watched(root)
    space = vars(root._modules["m0"])
    keys = list(space)
    del root._modules["m0"]
    assert not agree(tree, root, 1) and list(space) == keys


@pytest.mark.skipif(not WATCHERS, reason="dict watchers came with CPython 3.12")
def test_without_a_free_watcher_id() -> None:
    tests = os.path.dirname(__file__)
    out = run_python(
        f"""
import ctypes, sys
sys.path.insert(0, {tests!r})
api = ctypes.pythonapi
kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
ignore = kind(lambda event, space, key, value: 0)
taken = 0
try:
    while api.PyDict_AddWatcher(ignore) >= 0:
        taken += 1
except RuntimeError:
    pass
from argand._core import _C
import test_core_replay as replay
for name, change in replay.CHANGES.items():
    for cls in (replay.Module, replay.Many):
        replay.test_each_change_is_seen(name, cls)
import test_core_watch as watch
watch.test_order_and_identity_of_instance_dicts_are_untouched()
watch.test_attributes_set_by_specialised_code(50)
print("taken", taken > 0)
"""
    )
    assert out == "taken True\n"


def test_subinterpreters_are_refused() -> None:
    out = run_python(
        """
import sys
from argand._core import _C
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
program = '''
import sys
try:
    from argand._core import _C
except ImportError as error:
    print("subinterpreters" in str(error), flush=True)
'''
for kind in ((), ("legacy",)) if sys.version_info >= (3, 13) else ((),):
    made = interpreters.create(*kind)
    interpreters.run_string(made, "import sys; sys.path[:] = " + repr(sys.path))
    interpreters.run_string(made, program)
    interpreters.destroy(made)
def f(x): return x
assert _C.run_with_callback(lambda info: None, "k", f, (1,)) == 1
print("fine")
"""
    )
    assert out == ("True\nTrue\n" if sys.version_info >= (3, 13) else "True\n") + "fine\n"


def test_importing_the_module_anew() -> None:
    out = run_python(
        """
import sys
from argand._core import _C as first
def f(x): return x
def g(x): return [x]
entry = first.Entry(g.__code__, first.GuardTree(), "k")
assert first.run_with_callback(lambda info: entry, "k", f, (1,)) == [1]
del sys.modules["argand._core._C"]
import argand._core
del argand._core._C
from argand._core import _C as second
assert second is not first and second.Entry is first.Entry
assert second.run_with_callback(None, "k", f, (1,)) == 1
assert second.code_entries(f.__code__) == [entry]
print("fine")
"""
    )
    assert out == "fine\n"


def test_fork_after_entries_were_made() -> None:
    out = run_python(
        f"""
import os, sys, warnings
sys.path.insert(0, {os.path.dirname(__file__)!r})
warnings.simplefilter("ignore")
from argand._core import _C
import test_core_replay as replay, test_core_inputs as inputs
root = replay.build(1, 2)
def f(root, x): return "eager"
entry = _C.Entry(inputs.takes.__code__, inputs.collecting_tree(root), "k")
answer = lambda info: entry if info.code is f.__code__ else None
call = lambda: _C.run_with_callback(answer, "k", f, (root, 1))
expected = (*inputs.weights(root), 1)
assert all(call() == expected for _ in range(5))
pid = os.fork()
if pid == 0:
    ok = call() == expected
    root._modules["m1"].scale = 9
    try:
        ok = ok and call() != expected
    except ValueError:  # the same entry is answered again: it was looked at and did not match
        pass
    else:
        ok = False
    os._exit(0 if ok and entry.hits > 4 else 1)
_, status = os.waitpid(pid, 0)
assert status == 0 and call() == expected
print("fine")
"""
    )
    assert out == "fine\n"
