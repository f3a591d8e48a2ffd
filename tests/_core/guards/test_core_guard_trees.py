"""A guard tree as a whole: labels, order, cycles, threads, what ends it."""

from __future__ import annotations

import enum
import gc
import weakref
from typing import Any

import pytest
from core_helpers import LOCAL, detail, holds, one

from argand._core import _C

GLOBAL_VALUE = 7


# ---- the tree -----------------------------------------------------------------------------------------------------


def test_describe_counts_sources() -> None:
    tree = _C.GuardTree()
    x = tree.child(0, "local", 0)
    w = tree.child(tree.child(x, "instance_dict"), "dict_item", "weight")
    assert tree.check(x, "type", int, label="type of x") == 0
    assert tree.check(w, "not_none", label="weight") == 1
    assert tree.check(x, "type", int, label="again") == 0
    assert (tree.num_guards, tree.num_nodes) == (2, 4)
    assert tree.describe() == ["type of x", "weight"]
    assert tree.source(w) == "local[0].instance_dict().dict_item('weight')"
    assert tree.checks_of(x) == [(0, "type")] and tree.checks_of(w) == [(1, "not_none")]
    assert repr(tree) == "<GuardTree of 2 guards on 4 nodes>"


def test_repeated_checks_are_told_apart() -> None:
    tree = _C.GuardTree()
    x = tree.child(0, "local", 0)
    checks = [
        ("equals", 1),
        ("equals", True),
        ("equals", 1.0),
        ("equals", "1"),
        ("len", 1),
        ("len", 2),
        ("has_attr", "a"),
        ("not_has_attr", "a"),
        ("has_key", "a"),
        ("id", None),
        ("equals", (1, 2)),
        ("equals", 0.0),
        ("equals", -0.0),
        ("equals", float("nan")),
    ]
    indices = [tree.check(x, *check, label="c") for check in checks]
    assert indices == list(range(len(checks)))
    assert [tree.check(x, *check, label="c") for check in checks[:8]] == indices[:8]


def test_nodes_without_checks_are_not_fetched() -> None:
    class Loud:
        @property
        def x(self) -> int:
            raise AssertionError("fetched")

    tree = _C.GuardTree()
    tree.child(tree.child(0, "local", 0), "attr", "x")
    assert tree.evaluate((Loud(),)) is True
    assert tree.evaluate(()) is True


def test_own_checks_come_before_children() -> None:
    class Loud:
        @property
        def x(self) -> int:
            raise AssertionError("fetched")

    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    tree.check(tree.child(node, "attr", "x"), "equals", 1, label="x")
    tree.check(node, "type", int, label="type")
    assert tree.evaluate((Loud(),)) == (1, "type", "expected type int, found Loud")


def test_cheap_siblings_come_first() -> None:
    order = []

    def slow(x: Any) -> bool:
        order.append("slow")
        return True

    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", 0), "call", slow, True, label="slow")
    tree.check(tree.child(0, "local", 1), "equals", 2, label="quick")
    assert tree.evaluate((1, 3)) == (1, "quick", "expected 2, found 3") and order == []
    assert tree.evaluate((1, 2)) is True and order == ["slow"]


def test_missing_node_names_the_first_guard_below() -> None:
    tree = _C.GuardTree()
    mid = tree.child(tree.child(0, "local", 0), "attr", "mid")
    tree.check(tree.child(mid, "attr", "b"), "equals", 1, label="b")
    tree.check(tree.child(mid, "attr", "a"), "equals", 1, label="a")
    assert tree.evaluate((5,)) == (0, "b", "AttributeError: 'int' object has no attribute 'mid'")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_outside_exception_propagate(error: type[BaseException]) -> None:
    def raises(x: Any) -> Any:
        raise error

    for tree in (one(LOCAL, "call", raises, 1), one([("local", 0), ("call", raises)], "equals", 1)):
        for ask in (tree.evaluate, tree.matches):
            with pytest.raises(error):
                ask((1,))


def test_repr_that_raises_does_not_break_the_explanation() -> None:
    class C:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    assert "C object at 0x" in detail(one(LOCAL, "equals", 1), C())


def test_a_tree_cannot_change_while_it_is_evaluated() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)

    def meddle(x: Any) -> bool:
        with pytest.raises(RuntimeError, match="while it is evaluated"):
            tree.check(node, "is_none", label="late")
        with pytest.raises(RuntimeError, match="while it is evaluated"):
            tree.child(0, "local", 5)
        return True

    tree.check(node, "call", meddle, True, label="meddle")
    assert tree.evaluate((1,)) is True
    tree.check(node, "is_none", label="later")
    assert tree.evaluate((1,))[1] == "later"


def test_a_tree_may_be_evaluated_inside_itself() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    depth = []

    def again(x: Any) -> bool:
        if len(depth) < 3:
            depth.append(x)
            return tree.evaluate((x,)) is True
        return True

    tree.check(node, "call", again, True, label="again")
    tree.check(0, "distinct", [node, tree.child(0, "const", object())], label="distinct")
    assert tree.evaluate((1,)) is True and len(depth) == 3


def test_values_that_mutate_their_container_during_evaluation() -> None:
    class Evil:
        def __eq__(self, other: object) -> bool:
            box.clear()
            return False

        __hash__ = None  # type: ignore[assignment]

    for make in (lambda: [Evil(), Evil(), 1], lambda: {"a": Evil(), "b": 2}):
        box: Any = make()
        tree = _C.GuardTree()
        node = tree.child(0, "local", 0)
        tree.check(node, "equals", (1,), label="g")
        expected = [Evil(), Evil(), 1] if isinstance(box, list) else {"a": Evil(), "b": 2}
        assert _C.exact_equal(box, expected) is False
        assert tree.evaluate((box,)) is not True


def test_trees_are_collected_with_their_cycles() -> None:
    class Holder:
        pass

    holder = Holder()
    tree = _C.GuardTree()
    holder.tree = tree
    tree.check(tree.child(0, "const", holder), "call", lambda x, h=holder: True, True, label="cycle")
    assert tree.evaluate(()) is True
    ref = weakref.ref(holder)
    del holder, tree
    gc.collect()
    assert ref() is None


def test_evaluate_argument_errors() -> None:
    tree = _C.GuardTree()
    for bad in [([1],), ((), 5), ((), {}, 5), ((), {}, {}, [1]), ((), {}, {}, (1,))]:
        with pytest.raises(TypeError):
            tree.evaluate(*bad)


def test_enum_and_other_objects() -> None:
    class Color(enum.IntEnum):
        RED = 1
        BLUE = 2

    tree = one(LOCAL, "equals", Color.RED)
    assert holds(tree, Color.RED) and not holds(tree, Color.BLUE) and not holds(tree, 1)
    assert holds(one(LOCAL, "equals", slice(1, 2)), slice(1, 2)) and not holds(
        one(LOCAL, "equals", slice(1, 2)), slice(True, 2)
    )
    assert holds(one(LOCAL, "equals", range(3)), range(0, 3, 1)) and not holds(one(LOCAL, "equals", range(3)), range(4))


def test_checks_of_several_values_see_those_that_each_walk_makes_anew() -> None:
    """A recording of a walk that held has no `__dict__` to hand out."""

    class Thing:
        def __init__(self) -> None:
            self.x = 1

    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    tree.check(node, "type", Thing)
    space = tree.child(node, "instance_dict")
    item = tree.child(space, "dict_item", "x")
    tree.check(item, "equals", 1)
    given: list[tuple[object, ...]] = []

    def seen(*values: object) -> bool:
        given.append(values)
        return True

    tree.check(0, "python", seen, [node, space, item])
    thing = Thing()
    for _ in range(6):
        assert tree.matches((thing,))
        assert given.pop() == (thing, {"x": 1}, 1)
    thing.x = 2
    assert not tree.matches((thing,))
