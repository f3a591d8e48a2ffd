"""Inputs that guards hand over, and calls whose arguments only the callee holds: `collect`, `call_with_*`."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from core_helpers import Recorder, always, clone, positional
from test_core_replay import build, make_tree, modules_of

from argand._core import _C

KEY = object()


class Thing:
    """Something to see die."""


def run(callback: Any, fn: Any, *args: Any) -> Any:
    return _C.run_with_callback(callback, KEY, fn, args)


def source(root: Any, x: Any) -> Any:
    return "eager"


def takes(root: Any, x: Any) -> Any:
    return _C.take_inputs()


def collecting_tree(root: Any) -> _C.GuardTree:
    """Collects the weight of every module of the tree, and the argument x."""
    tree = make_tree(root)
    nodes = []

    def visit(module: Any, node: int) -> None:
        space = tree.child(node, "instance_dict")
        nodes.append(tree.child(tree.child(space, "dict_item", "_parameters"), "dict_item", "weight"))
        for name, child in module._modules.items():
            visit(child, tree.child(tree.child(space, "dict_item", "_modules"), "dict_item", name))

    visit(root, tree.child(0, "local", 0))
    tree.collect([*nodes, tree.child(0, "local", 1)])
    return tree


def weights(root: Any) -> list[Any]:
    found = [root._parameters["weight"]]
    for child in root._modules.values():
        found += weights(child)
    return found


def test_inputs_are_what_the_guards_saw() -> None:
    root, fn = build(2, 2), clone(source)
    answer = Recorder({fn.__code__: lambda info: _C.Entry(positional(takes), collecting_tree(root), KEY)})
    for i in range(6):  # the first evaluations walk, the others replay
        assert run(answer, fn, root, i) == (*weights(root), i)
    assert len(answer.infos) == 1
    modules_of(root)[1]._parameters["weight"] = other = object.__new__(type(root._parameters["weight"]))
    assert run(answer, fn, root, 7) == (*weights(root), 7) and other in weights(root)
    assert len(answer.infos) == 2  # a weight is guarded by identity here


def test_nothing_to_take_outside_of_an_entry() -> None:
    with pytest.raises(RuntimeError, match="take_inputs"):
        _C.take_inputs()
    with pytest.raises(RuntimeError, match="take_inputs"):
        _C.call_with_inputs(print)
    fn = clone(source)
    answer = Recorder({fn.__code__: lambda info: _C.Entry(positional(takes), always(), KEY)})
    with pytest.raises(RuntimeError, match="take_inputs"):
        run(answer, fn, 1, 2)


def test_inputs_taken_once_and_not_by_what_the_entry_calls() -> None:
    root = build(1, 1)

    def twice(root: Any, x: Any) -> Any:
        first = _C.take_inputs()
        try:
            _C.take_inputs()
        except RuntimeError:
            return first

    for code in (positional(twice), positional(takes)):
        fn = clone(source)
        answer = Recorder({fn.__code__: lambda info: _C.Entry(code, collecting_tree(root), KEY)})
        assert run(answer, fn, root, 1) == run(answer, fn, root, 1) == (*weights(root), 1)


def test_inputs_not_taken_are_let_go() -> None:
    root, fn = build(1, 1), clone(source)

    def ignores(root: Any, x: Any) -> Any:
        return None

    answer = Recorder({fn.__code__: lambda info: _C.Entry(positional(ignores), collecting_tree(info.args[0]), KEY)})
    for _ in range(5):
        assert run(answer, fn, root, 1) is None
    ref = weakref.ref(root)
    del root
    answer.infos.clear()
    _C.reset_code(fn.__code__)
    gc.collect()
    assert ref() is None


def dead_on_arrival(*things: Any) -> list[bool]:
    refs = [weakref.ref(thing) for thing in things]
    del things
    return [ref() is None for ref in refs]


class Holder:
    def early(self, first: Any, second: Any) -> list[bool]:
        refs = [weakref.ref(first), weakref.ref(second)]
        del first, second
        return [ref() is None for ref in refs]


@pytest.mark.parametrize("uncaptured", [False, True], ids=["plain", "region without callback"])
@pytest.mark.parametrize("callee", [dead_on_arrival, Holder().early], ids=["function", "method"])
def test_only_the_callee_holds_the_items_of_a_list(callee: Callable[..., Any], uncaptured: bool) -> None:
    fn = _C.Region(None, None, callee) if uncaptured else callee

    def outer() -> Any:
        things = [Thing(), Thing()]
        return _C.call_with_list(fn, things), things

    assert run(lambda info: None, outer) == ([True, True], [])


@pytest.mark.parametrize("fn", [max, Thing, lambda *a: a, _C.Region(lambda info: None, KEY, max)])
def test_call_with_list_calls_anything(fn: Any) -> None:
    items = [] if fn is Thing else [1, 2]
    expected = fn(*items)
    assert type(_C.call_with_list(fn, items)) is type(expected) and items == []
    items = [] if fn is Thing else [1, 2]
    assert type(run(lambda info: None, _C.call_with_list, fn, items)) is type(expected) and items == []


@pytest.mark.parametrize("call", [_C.call_with_list, _C.call_in_place])
def test_call_with_list_refuses(call: Callable[..., Any]) -> None:
    for args in ((1, []), (max, ()), (max,), (max, [], 1)):
        with pytest.raises(TypeError):
            call(*args)


def stack(error: bool) -> list[str]:
    """The functions under way, innermost first."""
    names: list[str] = []
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "run":
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    if error:
        raise ValueError(names)
    return names


@pytest.mark.parametrize("error", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_frame_that_calls_in_its_own_place_is_not_on_the_stack_meanwhile(hooked: bool, error: bool) -> None:
    def rest(error: bool) -> list[str]:
        return stack(error)

    def begun(error: bool) -> list[str]:
        rest_too = [*map(stack, [False])]
        try:
            names = _C.call_in_place(rest, [error])
        except ValueError as raised:
            (names,) = raised.args
        assert [stack(False)] == rest_too
        return names  # type: ignore[no-any-return]

    def numbers(error: bool) -> Any:
        yield begun(error)

    def outer(error: bool) -> list[list[str]]:
        return [begun(error), *numbers(error)]

    expected = [["stack", "rest", "outer"], ["stack", "rest", "numbers", "outer"]]
    assert run((lambda info: None) if hooked else None, outer, error) == expected


def test_a_region_without_callback_stays_uncaptured_and_the_rest_captured() -> None:
    asked: list[str] = []

    def inner(x: Any) -> Any:
        return helper(x), _C.get_callback()

    def outer() -> Any:
        state = _C.call_with_list(region, [1])
        return state, helper(2), _C.get_callback()[1]

    def helper(x: Any) -> Any:
        return x

    region = _C.Region(None, None, inner)

    def callback(info: Any) -> None:
        asked.append(info.code.co_name)

    assert run(callback, outer) == ((1, (None, None)), 2, KEY)
    assert asked == ["outer", "helper"]


def test_errors_of_the_callee_and_of_binding() -> None:
    def fails(x: Any) -> Any:
        raise KeyError(x)

    for fn in (fails, _C.Region(None, None, fails)):
        for count, error in ((1, KeyError), (2, TypeError)):
            thing = Thing()
            ref = weakref.ref(thing)
            items = [thing] * count
            del thing
            with pytest.raises(error):
                run(lambda info: None, _C.call_with_list, fn, items)
            gc.collect()
            assert ref() is None


CALLEE = _C.Region(None, None, dead_on_arrival)


def calls(root: Any, x: Any) -> Any:
    del root, x
    return _C.call_with_inputs(CALLEE)


def collecting(fn: Any, kind: type, callee: Any) -> Any:
    """Answers for `fn` with an entry whose guards collect its two arguments, of that type, and which runs `callee`."""

    def answer(info: Any) -> Any:
        if info.code is not fn.__code__:
            return None
        tree = _C.GuardTree()
        nodes = [tree.child(0, "local", i) for i in range(2)]
        for node in nodes:
            tree.check(node, "type", kind, label="type")
        tree.collect(nodes)
        return _C.Entry(positional(callee), tree, KEY)

    return answer


def test_collected_inputs_die_in_the_callee() -> None:
    fn = clone(source)
    answer = collecting(fn, Thing, calls)

    def outer() -> Any:
        return _C.call_with_list(fn, [Thing(), Thing()])

    run(answer, outer)  # FrameInfo holds the arguments of the frame that is asked about
    assert run(answer, outer) == [True, True] and run(answer, outer) == [True, True]


def in_a_cell(*things: Any) -> Any:
    return [lambda: things][0]()


def with_options(*things: Any, last: Any = None, **more: Any) -> Any:
    return (*things, last, more)[:-2]


def first_apart(first: Any, *things: Any) -> Any:
    return (first, *things)


def one_by_one(*things: Any) -> Any:
    yield from things


def changed(*things: Any) -> Any:
    things = (*things[:1], *things[1:])
    return things


@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize(
    "callee", [lambda *things: things, in_a_cell, with_options, first_apart, one_by_one, changed, max, "{0}{1}".format]
)
def test_collected_inputs_are_the_arguments_of_any_callee(callee: Any, region: bool) -> None:
    fn = clone(source)
    answer = collecting(fn, int, calls_any)
    CALLS[0] = _C.Region(None, None, callee) if region else callee
    one, two = 2**70, 2**80
    for _ in range(4):
        before, want = (sys.getrefcount(one), sys.getrefcount(two)), callee(one, two)
        found = run(answer, fn, one, two)
        assert type(found) is type(want)
        assert (list(found) == list(want)) if callee is one_by_one else (found == want)
        del found, want
        assert (sys.getrefcount(one), sys.getrefcount(two)) == before


CALLS: list[Any] = [None]


def calls_any(root: Any, x: Any) -> Any:
    del root, x
    return _C.call_with_inputs(CALLS[0])


def test_many_threads_collect_from_one_entry() -> None:
    roots = [build(1, 2) for _ in range(3)]
    fn = clone(source)
    made = threading.Lock()
    errors: list[BaseException] = []

    def answer(info: Any) -> Any:
        if info.code is not fn.__code__:
            return None
        with made:
            return _C.Entry(positional(takes), collecting_tree(info.args[0]), KEY)

    def work(seed: int) -> None:
        try:
            for i in range(150):
                root = roots[(seed + i) % len(roots)]
                assert run(answer, fn, root, i) == (*weights(root), i)
                if i % 50 == seed % 50:
                    _C.reset_code(fn.__code__)
                roots[seed % len(roots)]._modules["m1"].step = i
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interrupt_in_the_callback_leaves_everything_in_order(error: type[BaseException]) -> None:
    root, fn = build(1, 1), clone(source)
    armed = [True]

    def answer(info: Any) -> Any:
        if armed and info.code is fn.__code__:
            raise error
        if info.code is fn.__code__:
            return _C.Entry(positional(takes), collecting_tree(root), KEY)

    thing = Thing()
    ref = weakref.ref(thing)
    with pytest.raises(error):
        run(answer, fn, thing, 1)
    assert _C.get_callback() == (None, None) and not _C.is_hook_installed()
    del thing
    gc.collect()
    assert ref() is None
    armed.clear()
    assert run(answer, fn, root, 1) == run(answer, fn, root, 1) == (*weights(root), 1)


def test_code_objects_that_die_free_their_entries_and_trees() -> None:
    root = build(1, 1)
    fn: types.FunctionType | None = clone(source)  # type: ignore[assignment]
    assert fn is not None
    payload = Thing()
    ref = weakref.ref(payload)
    answer: Any = Recorder({fn.__code__: _C.Entry(positional(takes), collecting_tree(root), KEY, payload)})
    for _ in range(5):
        assert run(answer, fn, root, 1) == (*weights(root), 1)
    del payload, answer
    gc.collect()
    assert ref() is not None  # the cache of the code keeps it
    fn = None
    gc.collect()
    assert ref() is None
    root._modules["m0"].scale = 2  # watched once: nobody listens any more
    del root
    gc.collect()
