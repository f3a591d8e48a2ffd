"""Every accessor of a guard tree: how a value is reached, and what is said when it is not there."""

from __future__ import annotations

import collections
import gc
import types
from typing import Any

import pytest
from core_helpers import detail, holds, one

from argand._core import _C

GLOBAL_VALUE = 7


# ---- accessors ----------------------------------------------------------------------------------------------------


def test_local() -> None:
    tree = one([("local", 1)], "equals", 5)
    assert holds(tree, 0, 5)
    assert detail(tree, 0, 6) == "expected 5, found 6"
    assert detail(tree, 0) == "the frame has no argument 1"


def test_global_and_builtin() -> None:
    tree = one([("global", "GLOBAL_VALUE")], "equals", 7)
    assert holds(tree, globals=globals())
    assert detail(tree, globals={"GLOBAL_VALUE": 8}) == "expected 7, found 8"
    assert detail(tree, globals={}) == "global 'GLOBAL_VALUE' no longer exists"
    assert detail(tree) == "global 'GLOBAL_VALUE' no longer exists"
    tree = one([("builtin", "len")], "id", len)
    assert holds(tree, builtins={"len": len})
    assert "expected the object <built-in function len>" in detail(tree, builtins={"len": max})
    assert detail(tree, builtins={}) == "builtin 'len' no longer exists"


def test_closure() -> None:
    tree = one([("closure", 1)], "equals", "b")
    assert holds(tree, closure=(types.CellType("a"), types.CellType("b")))
    assert (
        detail(tree, closure=(types.CellType("a"), types.CellType())) == "free variable 1 of frame is missing or empty"
    )
    assert detail(tree, closure=(types.CellType("a"),)) == "free variable 1 of frame is missing or empty"
    assert detail(tree) == "free variable 1 of frame is missing or empty"


def test_const() -> None:
    space = types.SimpleNamespace(x=1)
    tree = one([("const", space), ("attr", "x")], "equals", 1)
    assert holds(tree)
    space.x = 2
    assert detail(tree) == "expected 1, found 2"


def test_attr() -> None:
    class C:
        @property
        def bad(self) -> int:
            raise ValueError("no value")

        @property
        def good(self) -> int:
            return 3

    tree = one([("local", 0), ("attr", "good")], "equals", 3)
    assert holds(tree, C())
    assert detail(tree, 5) == "AttributeError: 'int' object has no attribute 'good'"
    assert detail(one([("local", 0), ("attr", "bad")], "equals", 3), C()) == "ValueError: no value"


def test_type_and_type_attr() -> None:
    class Base:
        flag = "base"

    class C(Base):
        pass

    tree = one([("local", 0), ("type",), ("type_attr", "flag")], "equals", "base")
    instance = C()
    instance.flag = "instance"
    assert holds(tree, instance)
    assert detail(tree, 3) == "attribute 'flag' is missing on int"
    assert "cannot" not in detail(one([("local", 0), ("type_attr", "flag")], "equals", "base"), instance)
    C.flag = "changed"
    assert detail(tree, instance) == "expected 'base', found 'changed'"


def test_type_attr_does_not_run_descriptors() -> None:
    class Noisy:
        def __get__(self, obj: Any, owner: Any) -> Any:
            raise AssertionError("run")

    class C:
        x = Noisy()

    assert holds(one([("local", 0), ("type_attr", "x")], "type", Noisy), C)


def test_instance_dict_and_dict_item() -> None:
    class C:
        pass

    class Slotted:
        __slots__ = ("x",)

    tree = one([("local", 0), ("instance_dict",), ("dict_item", "x")], "equals", 1)
    c = C()
    c.x = 1
    assert holds(tree, c)
    assert detail(tree, C()) == "key 'x' is missing in dict"
    c.x = 2
    assert detail(tree, c) == "expected 1, found 2"
    assert detail(tree, Slotted()) == "Slotted object has no __dict__"
    assert detail(tree, 5) == "int object has no __dict__"
    assert holds(
        one([("local", 0), ("module_dict",), ("dict_item", "gc")], "id", gc), __import__("sys").modules[__name__]
    )


def test_dict_item_is_raw() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("run")

        def __missing__(self, key: Any) -> Any:
            return 1

    for key in ("s", 3, (1, 2), None, 2.5):
        tree = one([("local", 0), ("dict_item", key)], "equals", 1)
        assert holds(tree, {key: 1}) and holds(tree, Loud({key: 1})) and holds(tree, collections.OrderedDict({key: 1}))
        assert "is missing in Loud" in detail(tree, Loud())
    assert detail(one([("local", 0), ("dict_item", 0)], "equals", 1), [1]) == "expected a dict, found list"
    with pytest.raises(TypeError, match="unhashable"):
        one([("local", 0), ("dict_item", [])], "equals", 1)


def test_dict_item_key_that_raises() -> None:
    class Key:
        def __init__(self, bad: bool) -> None:
            self.bad = bad

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if self.bad:
                raise RuntimeError("eq")
            return True

    tree = one([("local", 0), ("dict_item", Key(False))], "equals", 1)
    assert holds(tree, {Key(False): 1})
    assert detail(tree, {Key(True): 1}) == "RuntimeError: eq"


def test_dict_key() -> None:
    tree = one([("local", 0), ("dict_key", 1)], "equals", "b")
    assert holds(tree, {"a": 1, "b": 2})
    assert detail(tree, {"b": 1, "a": 2}) == "expected 'b', found 'a'"
    assert detail(tree, {"a": 1}) == "no key number 1 in dict"
    assert detail(tree, 3) == "no key number 1 in int"


def test_dict_value() -> None:
    tree = one([("local", 0), ("dict_value", 1)], "equals", 2)
    moved = collections.OrderedDict(a=2, b=1)
    for value in ({"a": 1, "b": 2}, collections.OrderedDict(a=1, b=2), moved):
        assert holds(tree, value) is (value is not moved)
    moved.move_to_end("a")
    assert holds(tree, moved)
    assert holds(one([("local", 0), ("dict_value", 0)], "equals", 1), collections.OrderedDict(a=1))
    assert detail(tree, {"a": 2}) == "no key number 1 in dict"


def test_sequence_item() -> None:
    Point = collections.namedtuple("Point", "x y")
    tree = one([("local", 0), ("sequence_item", 1)], "equals", 2)
    last = one([("local", 0), ("sequence_item", -1)], "equals", 2)
    for value in ([1, 2], (1, 2), Point(1, 2)):
        assert holds(tree, value) and holds(last, value)
    assert detail(tree, [1]) == "no item 1 in list of length 1"
    assert detail(last, ()) == "no item -1 in tuple of length 0"
    assert detail(tree, {1: 2}) == "expected a list or tuple, found dict"


def test_getitem_len_iter_list_call() -> None:
    class Seq:
        def __getitem__(self, key: Any) -> Any:
            return {"a": 1}[key]

        def __len__(self) -> int:
            return 4

    tree = one([("local", 0), ("getitem", "a")], "equals", 1)
    assert holds(tree, Seq()) and holds(tree, {"a": 1})
    assert detail(tree, {}) == "KeyError: 'a'"
    assert holds(one([("local", 0), ("call", len)], "equals", 4), Seq())
    assert detail(one([("local", 0), ("call", len)], "equals", 4), 5) == "TypeError: object of type 'int' has no len()"
    assert holds(one([("local", 0), ("call", str.upper)], "equals", "AB"), "ab")
    assert "TypeError" in detail(one([("local", 0), ("call", str.upper)], "equals", "AB"), 5)


def test_function_parts() -> None:
    free = 11

    def f(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c + free

    assert holds(one([("local", 0), ("func_code",)], "id", f.__code__), f)
    assert holds(one([("local", 0), ("func_defaults",), ("sequence_item", 0)], "equals", 2), f)
    assert holds(one([("local", 0), ("func_kwdefaults",), ("dict_item", "c")], "equals", 3), f)
    assert holds(one([("local", 0), ("func_closure", 0)], "equals", 11), f)
    assert holds(one([("local", 0), ("func_defaults",)], "is_none"), lambda: 0)
    assert holds(one([("local", 0), ("func_kwdefaults",)], "is_none"), lambda: 0)
    assert (
        detail(one([("local", 0), ("func_code",)], "not_none"), len)
        == "cannot take func_code of builtin_function_or_method"
    )
    assert (
        detail(one([("local", 0), ("func_closure", 5)], "not_none"), f)
        == "free variable 5 of function is missing or empty"
    )


def test_cell_and_method() -> None:
    class C:
        def m(self) -> None: ...

    c = C()
    assert holds(one([("local", 0), ("cell_contents",)], "equals", 1), types.CellType(1))
    assert detail(one([("local", 0), ("cell_contents",)], "equals", 1), types.CellType()) == "the cell is empty"
    assert detail(one([("local", 0), ("cell_contents",)], "equals", 1), 1) == "expected a cell, found int"
    assert holds(one([("local", 0), ("method_self",)], "id", c), c.m)
    assert holds(one([("local", 0), ("method_func",)], "id", C.m), c.m)
    assert detail(one([("local", 0), ("method_self",)], "id", c), C.m) == "expected a bound method, found function"


def test_children_are_deduplicated() -> None:
    tree = _C.GuardTree()
    a = tree.child(0, "local", 0)
    obj1, obj2 = object(), object()
    assert tree.child(0, "local", 0) == a != tree.child(0, "local", 1)
    assert tree.child(a, "attr", "x") == tree.child(a, "attr", "".join(["x"])) != tree.child(a, "attr", "y")
    assert tree.child(0, "const", obj1) == tree.child(0, "const", obj1) != tree.child(0, "const", obj2)
    assert tree.child(a, "dict_item", 1000) == tree.child(a, "dict_item", int("1000"))
    assert tree.child(a, "dict_item", True) != tree.child(a, "dict_item", 1)
    assert tree.child(a, "dict_item", "1") != tree.child(a, "dict_item", 1)
    assert tree.child(a, "instance_dict") == tree.child(a, "module_dict")
    assert tree.num_nodes == 12


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((0, "nope", 1), ValueError),
        ((5, "local", 1), ValueError),
        ((-1, "local", 1), ValueError),
        ((0, "local", -1), ValueError),
        ((0, "local", "x"), TypeError),
        ((0, "local"), TypeError),
        ((0, "global", 3), TypeError),
        ((0, "attr", "x"), ValueError),
        ((1, "local", 0), ValueError),
        ((1, "type", 0), TypeError),
        ((1, "call", 3), TypeError),
        ((1, 3), TypeError),
        (("x", "local", 0), TypeError),
        ((1,), TypeError),
        ((1, "attr", "x", 1), TypeError),
    ],
)
def test_child_errors(args: tuple[Any, ...], error: type[Exception]) -> None:
    tree = _C.GuardTree()
    tree.child(0, "local", 0)
    with pytest.raises(error):
        tree.child(*args)
    assert tree.num_nodes == 2
