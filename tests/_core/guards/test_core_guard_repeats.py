"""`GuardTree.repeat`: the checks that asking one by one would add, of another node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from argand._core import _C

_C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)


def part(width: int = 4, name: str = "a", shared: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        inner={"weight": torch.zeros(width), "name": name}, sizes=(1, width), flag=True, shared=shared
    )


def root(tree: _C.GuardTree, number: int) -> int:
    return tree.child(tree.child(0, "local", 0), "sequence_item", number)


def ask(tree: _C.GuardTree, number: int, like: Any, extra: int) -> int:
    """The checks of one part, one by one; the node of its weight."""
    node, label = root(tree, number), f"local 'parts[{number}]"
    tree.check(node, "type", SimpleNamespace, label=f"{label}' TYPE_MATCH")
    space = tree.child(node, "instance_dict")
    tree.check(space, "not_has_key", "other", label=f"{label}' DICT_NOT_CONTAINS")
    inner = tree.child(space, "dict_item", "inner")
    tree.check(inner, "len", 2, label=f"{label}.inner' SEQUENCE_LENGTH")
    weight = tree.child(inner, "dict_item", "weight")
    tree.check(weight, "tensor", *_C.tensor_guard_args(like.inner["weight"]), label=f"{label}.inner['weight']' TENSOR")
    tree.check(tree.child(inner, "dict_item", "name"), "equals", "a", label=f"{label}.inner['name']' CONSTANT")
    sizes = tree.child(node, "attr", "sizes")
    tree.check(tree.child(sizes, "sequence_item", -1), "equals", 4, label=f"{label}.sizes[-1]' CONSTANT")
    tree.check(tree.child(node, "attr", "shared"), "same_object", extra, label=f"{label}.shared' DUPLICATE")
    tree.check(
        tree.child(node, "attr", "flag"), "same_object", tree.child(space, "dict_item", "flag"), label=f"{label}' X"
    )
    return weight


def both(count: int = 3) -> tuple[_C.GuardTree, _C.GuardTree]:
    """A tree of parts that was asked for one by one, and one that repeats the first part's checks."""
    plain, repeated = _C.GuardTree(), _C.GuardTree()
    for tree in (plain, repeated):
        extra = tree.child(0, "local", 1)
        tree.check(extra, "not_none", label="local 'extra' NOT_NONE")
        first = tree.num_guards
        wanted = [ask(tree, 0, part(), extra)]
        last = tree.num_guards
        tree.check(root(tree, 0), "has_attr", "flag", label="of the first alone")
        for number in range(1, count):
            if tree is plain:
                wanted.append(ask(tree, number, part(), extra))
            else:
                prefixes = "local 'parts[0]", f"local 'parts[{number}]"
                wanted += tree.repeat(first, last, root(tree, 0), root(tree, number), (wanted[0],), *prefixes)
        tree.collect(wanted)
    return plain, repeated


def shape(tree: _C.GuardTree) -> list[tuple[str, list[str]]]:
    return sorted((tree.source(node), [kind for _, kind in tree.checks_of(node)]) for node in range(tree.num_nodes))


def test_as_when_asked_one_by_one() -> None:
    plain, repeated = both()
    assert repeated.describe() == plain.describe()
    assert shape(repeated) == shape(plain)


@pytest.mark.parametrize("change", ["width", "name", "shared", "other", "flag", "class", "sizes", "nothing"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_part_is_checked(change: str, number: int) -> None:
    extra = object()
    parts: list[Any] = [part(shared=extra) for _ in range(3)]
    trees = both()
    for tree in trees:
        for _ in range(4):  # walks, then replays
            assert tree.evaluate((parts, extra)) is True
    if change == "class":
        parts[number] = object()
    elif change != "nothing":
        new = part(5) if change == "width" else part(name="b", shared=extra) if change == "name" else part(shared=extra)
        if change == "other":
            new.other = 1
        elif change == "sizes":
            new.sizes = (4, 1)
        elif change == "shared":
            new.shared = object()
        parts[number] = new
    if change == "flag":
        parts[number] = type("Odd", (SimpleNamespace,), {})(**vars(parts[number]))
    outcomes = [tree.evaluate((parts, extra)) for tree in trees]
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0] is True) == (change == "nothing")
    assert [tree.matches((parts, extra)) for tree in trees] == [change == "nothing"] * 2


def test_what_is_asked_already_is_not_asked_twice() -> None:
    tree = _C.GuardTree()
    first, second = root(tree, 0), root(tree, 1)
    tree.check(first, "len", 2, label="a len")
    tree.check(second, "len", 2, label="b len")
    assert tree.repeat(0, 1, first, second, (), "a", "b") == []
    assert tree.describe() == ["a len", "b len"]


def test_what_cannot_be_repeated_is_refused() -> None:
    tree = _C.GuardTree()
    first, second = root(tree, 0), root(tree, 1)
    tree.check(first, "type_version", SimpleNamespace, {"x"}, label="a class")
    tree.check(first, "len", 2, label="c len")
    for wrong in [(0, 1), (1, 2), (0, 3), (2, 1), (-1, 1)]:
        with pytest.raises(ValueError):
            tree.repeat(*wrong, first, second, (), "a", "b")
    for nodes in [(first, first), (0, second), (first, 0), (first, 99), (-1, first)]:
        with pytest.raises(ValueError):
            tree.repeat(1, 2, *nodes, (), "c", "b")
    later = tree.num_nodes
    with pytest.raises(ValueError):
        tree.repeat(1, 2, first, second, (later,), "c", "b")
    with pytest.raises(TypeError):
        tree.repeat(1, 2, first, second, [first], "c", "b")  # type: ignore[arg-type]
