"""Every kind of check of a guard tree, with what it says when it fails."""

from __future__ import annotations

import collections
import gc
import threading
import weakref
from typing import Any

import pytest
from core_helpers import LOCAL, detail, holds, one

from argand._core import _C

GLOBAL_VALUE = 7


# ---- checks -------------------------------------------------------------------------------------------------------


def test_type() -> None:
    tree = one(LOCAL, "type", int)
    assert holds(tree, 1)
    assert detail(tree, True) == "expected type int, found bool"
    A = type("A", (), {})
    other = type("A", (), {})
    assert detail(one(LOCAL, "type", A), other()) == "expected type A, found another class of that name"


def test_classes_are_held_weakly() -> None:
    class C:
        pass

    tree = one(LOCAL, "type", C)
    ref = weakref.ref(C)
    assert holds(tree, C()) and not tree.dead
    del C
    gc.collect()
    assert ref() is None and tree.dead
    assert detail(tree, 1) == "the expected class no longer exists"


def test_base_value() -> None:
    """What an object of a subclass holds as a builtin value, whatever its own methods say."""

    class Text(str):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("called")

        __hash__ = str.__hash__

    class Float(float):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = float.__hash__

    class Int(int):
        pass

    class Raw(bytes):
        pass

    class Complex(complex):
        pass

    assert holds(one(LOCAL, "base_value", "ab"), Text("ab")) and not holds(one(LOCAL, "base_value", "ab"), Text("b"))
    for value, other in [(0.0, -0.0), (float("nan"), 1.0), (2.0, 3.0)]:
        assert holds(one(LOCAL, "base_value", value), Float(value))
        assert not holds(one(LOCAL, "base_value", value), Float(other))
    assert holds(one(LOCAL, "base_value", 1 << 70), Int(1 << 70)) and not holds(one(LOCAL, "base_value", 1), Int(2))
    assert holds(one(LOCAL, "base_value", b"a"), Raw(b"a")) and not holds(one(LOCAL, "base_value", b"a"), Raw(b"b"))
    assert not holds(one(LOCAL, "base_value", complex(0.0, -0.0)), Complex(0.0, 0.0))
    assert not holds(one(LOCAL, "base_value", 1), 1.0) and holds(one(LOCAL, "base_value", 1), True)
    assert detail(one(LOCAL, "base_value", 1), Int(2)) == "expected 1 (int), found 2 (Int)"
    with pytest.raises(TypeError, match="base_value"):
        one(LOCAL, "base_value", Int(1))


def test_generic_attributes() -> None:
    assert _C.generic_attributes(object) == (True, True)
    assert _C.generic_attributes(tuple)[0] and _C.generic_attributes(ValueError) == (True, True)
    assert _C.generic_attributes(threading.local) == (False, False)
    assert _C.generic_attributes(weakref.ProxyType) == (False, False)
    with pytest.raises(TypeError, match="takes a class"):
        _C.generic_attributes(3)  # type: ignore[arg-type]


def test_id_and_not_id() -> None:
    class C:
        def __repr__(self) -> str:
            asked.append(self)  # a message is none of the program's business
            return "<a C>"

    asked: list[C] = []
    a, b = C(), C()
    tree = one(LOCAL, "id", a)
    assert holds(tree, a)
    assert detail(tree, b).startswith("expected the object <C object at 0x")
    assert detail(one(LOCAL, "id", a), [b]).count("<list object at 0x") == 1 and not asked
    del a
    gc.collect()
    assert tree.dead
    assert detail(tree, b) == "the expected object no longer exists"
    for value in (None, 5, "s", (1,), int, len):
        assert holds(one(LOCAL, "id", value), value)


def test_equals() -> None:
    tree = one(LOCAL, "equals", [1, {"a": (2.0, "x")}])
    assert holds(tree, [1, {"a": (2.0, "x")}])
    assert detail(tree, [1, {"a": (2, "x")}]) == "expected [1, {'a': (2.0, 'x')}], found [1, {'a': (2, 'x')}]"
    assert detail(one(LOCAL, "equals", 1), True) == "expected 1 (int), found True (bool)"
    assert detail(one(LOCAL, "equals", "x" * 200), "y").startswith("expected 'xxxx")
    assert len(detail(one(LOCAL, "equals", "x" * 200), "y")) < 120


def test_equals_copies_what_can_change() -> None:
    value = [1, [2, {"k": {3}}], (4, [5])]
    tree = one(LOCAL, "equals", value)
    assert holds(tree, value)
    value[1][1]["k"].add(6)  # type: ignore[index]
    assert not holds(tree, value)
    with pytest.raises(TypeError, match="may change"):
        one(LOCAL, "equals", collections.OrderedDict(a=1))
    with pytest.raises(TypeError, match="may change"):
        one(LOCAL, "equals", [bytearray(b"x")])
    with pytest.raises(TypeError, match="cannot copy the mutable items"):
        one(LOCAL, "equals", collections.namedtuple("P", "x")([1]))
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        one(LOCAL, "equals", loop)


def test_none_truth_len() -> None:
    assert (
        holds(one(LOCAL, "is_none"), None)
        and detail(one(LOCAL, "is_none"), 0) == "expected None (NoneType), found 0 (int)"
    )
    assert (
        holds(one(LOCAL, "not_none"), 0) and detail(one(LOCAL, "not_none"), None) == "expected something else than None"
    )
    for value in ([1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", range(2)):
        assert holds(one(LOCAL, "len", 2), value)
        assert detail(one(LOCAL, "len", 3), value) == "expected length 3, found 2"
    assert detail(one(LOCAL, "len", 3), 4) == "TypeError: object of type 'int' has no len()"


def test_dict_keys() -> None:
    tree = one(LOCAL, "dict_keys", ("a", 1, (2, 3)))
    assert holds(tree, {"a": 0, 1: 0, (2, 3): 0}) and holds(tree, collections.OrderedDict({"a": 0, 1: 0, (2, 3): 0}))
    assert detail(tree, {1: 0, "a": 0, (2, 3): 0}) == "expected keys ('a', 1, (2, 3)), found (1, 'a', (2, 3))"
    assert not holds(tree, {"a": 0, True: 0, (2, 3): 0}) and not holds(tree, {"a": 0, 1: 0})
    assert detail(tree, 5) == "expected a dict, found int"
    assert holds(one(LOCAL, "dict_keys", ()), {})


def test_ordered_dicts_have_their_own_order() -> None:
    value = collections.OrderedDict(a=1, b=2)
    keys, first = one(LOCAL, "dict_keys", ("a", "b")), one([("local", 0), ("dict_key", 0)], "equals", "a")
    assert holds(keys, value) and holds(first, value)
    value.move_to_end("a")
    assert detail(keys, value) == "expected keys ('a', 'b'), found ('b', 'a')"
    assert detail(first, value) == "expected 'a', found 'b'"
    other = collections.OrderedDict(b=2, a=1)
    assert _C.exact_equal(value, other) and not _C.exact_equal(value, collections.OrderedDict(a=1, b=2))
    assert holds(one(LOCAL, "len", 2), value) and not holds(one(LOCAL, "len", 1), value)


def test_keys_and_attributes() -> None:
    tree = one(LOCAL, "has_key", "a")
    assert holds(tree, {"a": 1}) and holds(tree, ["a"]) and detail(tree, {}) == "key 'a' is missing in dict"
    tree = one(LOCAL, "not_has_key", "a")
    assert holds(tree, {}) and detail(tree, {"a": 1}) == "key 'a' was not expected in dict"
    assert "TypeError" in detail(tree, 5)

    class C:
        x = 1

        def __getattr__(self, name: str) -> Any:
            if name == "boom":
                raise ValueError("boom")
            raise AttributeError(name)

    assert holds(one(LOCAL, "has_attr", "x"), C())
    assert detail(one(LOCAL, "has_attr", "y"), C()) == "attribute 'y' is missing in C"
    assert holds(one(LOCAL, "not_has_attr", "y"), C())
    assert detail(one(LOCAL, "not_has_attr", "x"), C()) == "attribute 'x' was not expected in C"
    assert detail(one(LOCAL, "not_has_attr", "boom"), C()) == "ValueError: boom"


def test_type_version() -> None:
    class Base:
        pass

    class C(Base):
        def m(self) -> int:
            return 1

    tree = one(LOCAL, "type_version", C)
    c = C()
    assert holds(tree, c) and holds(tree, C)
    c.x = 1
    assert c.m() == 1 and holds(tree, c)
    assert detail(tree, Base()) == "expected type C, found Base"
    Base.new = 5
    assert detail(tree, c) == "class C or a base of it was modified"
    again = one(LOCAL, "type_version", C)
    assert holds(again, c)
    C.m = lambda self: 2
    assert not holds(again, c)
    assert holds(one(LOCAL, "type_version", int), 5)


def test_a_class_may_gain_what_it_inherits() -> None:
    class Base:
        flag, other, items = None, 3, ()

    class Between(Base):
        other = 4

    class C(Between):
        pass

    names = {"flag", "other", "items", "new"}
    tree = one(LOCAL, "type_version", C, names)
    C.flag, C.other, C.unasked = None, 4, 5
    assert holds(tree, C()) and C.flag is None
    for name, value, kept in [("flag", True, None), ("other", 3, 4), ("other", 4.0, 4), ("other", True, 4)]:
        setattr(C, name, value)
        assert not holds(tree, C())
        setattr(C, name, kept)
        assert holds(tree, C())
    Base.__odd__ = 1
    tree = one(LOCAL, "type_version", C, names)
    for name, value in [("items", ()), ("new", None), ("__odd__", 1)]:
        setattr(C, name, value)
        assert not holds(tree, C())
        delattr(C, name)
        assert holds(tree, C())
    Base.flag = 1
    assert not holds(tree, C())


def test_call_and_global_state() -> None:
    tree = one(LOCAL, "call", str.upper, "AB")
    assert holds(tree, "ab") and detail(tree, "b") == "upper: expected 'AB', found 'B'"
    state = {"grad": True}

    def grad_enabled() -> bool:
        return state["grad"]

    tree = one([], "global_state", ((grad_enabled, True), (dict, {})))
    assert holds(tree)
    state["grad"] = False
    assert detail(tree) == "grad_enabled: expected True, found False"
    del state["grad"]
    assert detail(tree) == "KeyError: 'grad'"


def test_relations() -> None:
    tree = _C.GuardTree()
    nodes = [tree.child(0, "local", i) for i in range(3)]
    tree.check(nodes[0], "same_object", nodes[1], label="same")
    assert tree.evaluate(([], [], 1)) == (0, "same", "local[0] and local[1] are different objects")
    x: list[int] = []
    assert tree.evaluate((x, x, 1)) is True
    tree = _C.GuardTree()
    nodes = [tree.child(0, "local", i) for i in range(3)]
    tree.check(0, "distinct", nodes, label="distinct")
    a, b, c = object(), object(), object()
    assert tree.evaluate((a, b, c)) is True
    assert tree.evaluate((a, b, a)) == (0, "distinct", "local[0] and local[2] are the same object")
    tree = _C.GuardTree()
    nodes = [tree.child(tree.child(0, "local", i), "call", len) for i in range(2)]
    tree.check(0, "python", lambda m, n: m == n, nodes, label="same length")
    assert tree.evaluate(([1], (2,))) is True
    assert tree.evaluate(([1], ()))[:2] == (0, "same length")
    assert tree.evaluate(([1], 5)) == (0, "same length", "TypeError: object of type 'int' has no len()")


@pytest.mark.parametrize("count", [2, 40, 300])
def test_distinct_of_many(count: int) -> None:
    tree = _C.GuardTree()
    nodes = [tree.child(tree.child(0, "local", 0), "sequence_item", i) for i in range(count)]
    tree.check(0, "distinct", nodes, label="distinct")
    values = [[] for _ in range(count)]
    assert tree.evaluate((values,)) is True
    values[-1] = values[0]
    result = tree.evaluate((values,))
    assert result[2] == f"local[0].sequence_item[0] and local[0].sequence_item[{count - 1}] are the same object"


def test_python_with_many_values() -> None:
    tree = _C.GuardTree()
    nodes = [tree.child(0, "local", i) for i in range(40)]
    tree.check(0, "python", lambda *v: sum(v) == sum(range(40)), nodes, label="sum")
    assert tree.matches(tuple(range(40))) and not tree.matches((*range(39), 0))


@pytest.mark.parametrize(
    ("kind", "args", "error"),
    [
        ("nope", (), ValueError),
        ("type", (5,), TypeError),
        ("type", (), TypeError),
        ("type", (int, 1), TypeError),
        ("dict_keys", (["a"],), TypeError),
        ("len", ("x",), TypeError),
        ("len", (None,), TypeError),
        ("has_key", ([],), TypeError),
        ("has_attr", (5,), TypeError),
        ("call", (5, 5), TypeError),
        ("same_object", (99,), ValueError),
        ("same_object", ("x",), TypeError),
        ("distinct", ([0],), ValueError),
        ("distinct", (5,), TypeError),
        ("python", (5, [1]), TypeError),
        ("global_state", ([],), TypeError),
        ("global_state", ((1,),), TypeError),
        ("type_version", (5,), TypeError),
    ],
)
def test_check_errors(kind: str, args: tuple[Any, ...], error: type[Exception]) -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    with pytest.raises(error):
        tree.check(node, kind, *args, label="g")
    assert tree.num_guards == 0 and tree.evaluate((1,)) is True


def test_check_argument_errors() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    for bad in (lambda: tree.check(node), lambda: tree.check(0, "type", int), lambda: tree.check(9, "is_none")):
        with pytest.raises((TypeError, ValueError)):
            bad()
    with pytest.raises(TypeError, match="label"):
        tree.check(node, "is_none", label=5)
    with pytest.raises(TypeError, match="keyword"):
        tree.check(node, "is_none", name="x")
    assert tree.check(node, "is_none") == 0 and tree.describe() == ["is_none"]
