"""Every accessor and kind of check of a guard tree, with what it says when it fails."""

from __future__ import annotations

import collections
import enum
import gc
import threading
import types
import weakref
from typing import Any

import pytest

from argand._core import _C

GLOBAL_VALUE = 7


def one(accessors: list[tuple[Any, ...]], kind: str, *args: Any) -> _C.GuardTree:
    """A tree with one check at the end of a path; the label is "g"."""
    tree = _C.GuardTree()
    node = 0
    for accessor in accessors:
        node = tree.child(node, *accessor)
    tree.check(node, kind, *args, label="g")
    return tree


def detail(tree: _C.GuardTree, *args: Any, **frame: Any) -> str:
    """The explanation of a failure; checks that the quick answer agrees."""
    result = tree.evaluate(args, **frame)
    assert tree.matches(args, **frame) is (result is True)
    assert isinstance(result, tuple), result
    assert result[:2] == (0, "g")
    return result[2]


def holds(tree: _C.GuardTree, *args: Any, **frame: Any) -> bool:
    result = tree.evaluate(args, **frame)
    assert tree.matches(args, **frame) is (result is True)
    return result is True


LOCAL = [("local", 0)]


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

        def __iter__(self) -> Any:
            return iter("xy")

    tree = one([("local", 0), ("getitem", "a")], "equals", 1)
    assert holds(tree, Seq()) and holds(tree, {"a": 1})
    assert detail(tree, {}) == "KeyError: 'a'"
    assert holds(one([("local", 0), ("len",)], "equals", 4), Seq())
    assert detail(one([("local", 0), ("len",)], "equals", 4), 5) == "TypeError: object of type 'int' has no len()"
    assert holds(one([("local", 0), ("iter_list",)], "equals", ["x", "y"]), Seq())
    assert "not iterable" in detail(one([("local", 0), ("iter_list",)], "equals", []), 3)
    assert holds(one([("local", 0), ("call", str.upper)], "equals", "AB"), "ab")
    assert "TypeError" in detail(one([("local", 0), ("call", str.upper)], "equals", "AB"), 5)


def test_function_parts() -> None:
    free = 11

    def f(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c + free

    assert holds(one([("local", 0), ("func_code",)], "id", f.__code__), f)
    assert holds(one([("local", 0), ("func_defaults",), ("sequence_item", 0)], "equals", 2), f)
    assert holds(one([("local", 0), ("func_kwdefaults",), ("dict_item", "c")], "equals", 3), f)
    assert holds(one([("local", 0), ("func_globals",), ("dict_item", "GLOBAL_VALUE")], "equals", 7), f)
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
    inverse = one(LOCAL, "not_id", a)
    assert holds(inverse, b) and detail(inverse, a).startswith("expected another object than <C object at 0x")
    assert detail(one(LOCAL, "id", a), [b]).count("<list object at 0x") == 1 and not asked
    del a
    gc.collect()
    assert tree.dead and not inverse.dead
    assert detail(tree, b) == "the expected object no longer exists" and holds(inverse, b)
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
    assert holds(one(LOCAL, "truth", True), [1]) and holds(one(LOCAL, "truth", False), [])
    assert detail(one(LOCAL, "truth", True), "") == "expected a true value, found ''"
    for value in ([1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", range(2)):
        assert holds(one(LOCAL, "len", 2), value)
        assert detail(one(LOCAL, "len", 3), value) == "expected length 3, found 2"
    assert detail(one(LOCAL, "len", 3), 4) == "TypeError: object of type 'int' has no len()"


def test_truth_that_raises() -> None:
    class C:
        def __bool__(self) -> bool:
            raise RuntimeError("ambiguous")

    assert detail(one(LOCAL, "truth", True), C()) == "RuntimeError: ambiguous"


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


def test_isinstance() -> None:
    class Meta(type):
        def __instancecheck__(cls, obj: object) -> bool:
            return obj == 5

    class Odd(metaclass=Meta):
        pass

    tree = one(LOCAL, "isinstance", int)
    assert holds(tree, True) and detail(tree, "s") == "expected an instance of int, found str"
    assert holds(one(LOCAL, "isinstance", Odd), 5) and not holds(one(LOCAL, "isinstance", Odd), 6)


def test_int_range() -> None:
    tree = one(LOCAL, "int_range", 2, 5)
    assert [holds(tree, i) for i in (1, 2, 5, 6)] == [False, True, True, False]
    assert detail(tree, 9) == "expected from 2 to 5, found 9"
    assert detail(tree, True) == "expected an int, found bool"
    assert detail(one(LOCAL, "int_range", 2, None), 1) == "expected at least 2, found 1"
    assert detail(one(LOCAL, "int_range", None, 2), 3) == "expected at most 2, found 3"
    huge = 1 << 80
    assert holds(one(LOCAL, "int_range", 2, None), huge) and not holds(tree, huge)
    assert holds(one(LOCAL, "int_range", None, 2), -huge) and not holds(one(LOCAL, "int_range", 2, None), -huge)
    assert holds(one(LOCAL, "int_range", None, None), 0)


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
    nodes = [tree.child(tree.child(0, "local", i), "len") for i in range(2)]
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
        ("int_range", ("a", None), TypeError),
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
        ("int_range", 0, 1),
        ("int_range", 0, None),
        ("int_range", None, 0),
        ("has_key", "a"),
        ("id", None),
        ("not_id", None),
        ("truth", True),
        ("truth", False),
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
