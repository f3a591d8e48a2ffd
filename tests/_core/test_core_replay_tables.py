"""What a recording keeps in tables: empty dicts, classes and names of the frame, and slots of objects."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

import pytest
from test_core_replay import Module, agree, build, guard_value

from argand._core import _C

PADDING = build(1, 2)  # a tree of a dozen nodes is recorded


def padded() -> _C.GuardTree:
    """A tree that is recorded, whatever else is asked."""
    tree = _C.GuardTree()
    guard_value(tree, tree.child(0, "local", 0), PADDING, "padding")
    return tree


def frame_agrees(tree: _C.GuardTree, *frame: Any) -> bool:
    answers = {tree.matches(*frame) for _ in range(3)}
    walked = tree.evaluate(*frame)
    assert answers == {walked is True}, walked
    return walked is True


# ---- dicts below which there is nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 32, 50])
def test_each_of_many_empty_dicts_is_looked_at(count: int) -> None:
    root = Module()
    root.hooks = {i: {} for i in range(count)}
    tree = padded()
    hooks = tree.child(tree.child(tree.child(0, "local", 1), "instance_dict"), "dict_item", "hooks")
    for i in range(count):
        tree.check(tree.child(hooks, "dict_item", i), "len", 0, label=f"hooks[{i}]")
    for i in range(count):
        assert agree(tree, PADDING, root)
        root.hooks[i]["k"] = 1
        assert not agree(tree, PADDING, root)
        del root.hooks[i]["k"]
        assert agree(tree, PADDING, root)


# ---- names and classes ---------------------------------------------------------------------------------------------


def names_tree(names: dict[str, Any]) -> _C.GuardTree:
    tree = padded()
    tree.check(tree.child(0, "global", "helper"), "id", names["helper"], label="helper")
    tree.check(tree.child(0, "global", "limit"), "equals", names["limit"], label="limit")
    tree.check(tree.child(0, "builtin", "len"), "id", len, label="len")
    return tree


def test_names_are_found_again_when_their_dict_changes() -> None:
    names: dict[str, Any] = {"helper": object(), "limit": float("2.5"), "step": 0}
    built = dict(vars(builtins))
    tree = names_tree(names)
    for i in range(20):
        names["step"] = i  # nobody asked
        names["limit"] = float("2.5")  # equal, and another object
        assert frame_agrees(tree, (PADDING,), names, built)
    kept = names["helper"]
    names["helper"] = object()
    assert not frame_agrees(tree, (PADDING,), names, built)
    names["helper"] = kept
    assert frame_agrees(tree, (PADDING,), names, built)
    names["limit"] = 2
    assert not frame_agrees(tree, (PADDING,), names, built)
    names["limit"] = 2.5
    built["len"] = max
    assert not frame_agrees(tree, (PADDING,), names, built)
    del built["len"]
    assert not frame_agrees(tree, (PADDING,), names, built)
    built["len"] = len
    assert frame_agrees(tree, (PADDING,), names, built)


def test_the_names_of_another_frame() -> None:
    names: dict[str, Any] = {"helper": object(), "limit": 3}
    built = dict(vars(builtins))
    tree = names_tree(names)
    assert frame_agrees(tree, (PADDING,), names, built)
    for _ in range(30):  # dicts come and go at the same addresses
        assert not frame_agrees(tree, (PADDING,), {**names, "limit": 4}, built)
        assert frame_agrees(tree, (PADDING,), dict(names), built)
        assert not frame_agrees(tree, (PADDING,), None, built)
        assert not frame_agrees(tree, (PADDING,), names, {**built, "len": min})


def test_a_name_whose_value_turns_into_one_that_can_change() -> None:
    """An object of a class of the program passes "is not None"; a list could pass "type", and its class is its own."""
    names: dict[str, Any] = {"thing": 1}
    tree = padded()
    thing = tree.child(0, "global", "thing")
    tree.check(thing, "not_none", label="thing is not None")
    tree.check(tree.child(0, "global", "limit"), "call", bool, True, label="limit")
    values: list[Any] = [1, Module(), [], "text"]
    for value in values:
        names["thing"] = value
        for limit in (1, [1], {1: 2}):
            names["limit"] = limit
            assert frame_agrees(tree, (PADDING,), names, {})
        names["limit"].clear()
        assert not frame_agrees(tree, (PADDING,), names, {})


def test_classes_by_their_version() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Layer(Base):
        pass

    tree = padded()
    classes = [Layer, Base, type("Other", (Layer,), {})]
    for cls in classes:
        tree.check(tree.child(0, "const", cls), "type_version", cls, label=cls.__name__)
    for _ in range(3):
        assert agree(tree, PADDING)
    Base.method = lambda self: 2  # type: ignore[method-assign]
    assert not agree(tree, PADDING)


def test_dicts_that_the_tree_holds() -> None:
    space: dict[str, Any] = {"torch": types, "flag": True}
    tree = padded()
    node = tree.child(0, "const", space)
    tree.check(node, "not_has_key", "len", label="no len")
    tree.check(tree.child(node, "dict_item", "torch"), "id", types, label="torch")
    for i in range(30):
        space["step"] = i
        assert agree(tree, PADDING)
    space["len"] = 1
    assert not agree(tree, PADDING)
    del space["len"]
    assert agree(tree, PADDING)
    space["torch"] = None
    assert not agree(tree, PADDING)


# ---- slots ---------------------------------------------------------------------------------------------------------


def slotted() -> tuple[type, Any]:
    class Field:
        __slots__ = ("default", "name")

        def __init__(self) -> None:
            self.name: Any = "a name"
            self.default: Any = None

        def there_and_back(self) -> None:
            self.default = 1
            self.default = None

    return Field, Field()


def become_twin(cls: type, field: Any) -> None:
    twin = type("Twin", (), {"__slots__": ("default", "name")})
    field.__class__ = twin
    assert field.name


SLOT_CHANGES: dict[str, Callable[[type, Any], Any]] = {
    "value": lambda cls, field: setattr(field, "name", "another name"),
    "type of the value": lambda cls, field: setattr(field, "name", 1),
    "none": lambda cls, field: setattr(field, "default", 0),
    "deleted": lambda cls, field: delattr(field, "name"),
    "property": lambda cls, field: setattr(cls, "name", property(lambda self: "a property")),
    "class attribute": lambda cls, field: setattr(cls, "default", 5),
    "getattribute": lambda cls, field: setattr(cls, "__getattribute__", lambda self, name: name),
}
SLOT_SAME: dict[str, Callable[[type, Any], Any]] = {
    "equal value": lambda cls, field: setattr(field, "name", "".join(["a ", "name"])),
    "there and back": lambda cls, field: field.there_and_back(),
    "class attribute elsewhere": lambda cls, field: setattr(cls, "other", 5),
    "class": become_twin,
}


@pytest.mark.parametrize("name", [*SLOT_CHANGES, *SLOT_SAME])
def test_values_in_slots(name: str) -> None:
    cls, field = slotted()
    tree = padded()
    node = tree.child(0, "local", 1)
    tree.check(tree.child(node, "attr", "name"), "equals", "a name", label="name")
    tree.check(tree.child(node, "attr", "default"), "is_none", label="default")
    box: Any = Module()
    box.config = field
    inside = tree.child(tree.child(tree.child(0, "local", 2), "instance_dict"), "dict_item", "config")
    tree.check(tree.child(inside, "attr", "name"), "equals", "a name", label="config.name")
    tree.check(tree.child(inside, "attr", "default"), "is_none", label="config.default")
    for i in range(3):
        box.training = bool(i)
        assert agree(tree, PADDING, field, box)
    (SLOT_CHANGES | SLOT_SAME)[name](cls, field)
    assert agree(tree, PADDING, field, box) is (name in SLOT_SAME)
