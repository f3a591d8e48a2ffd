"""Sources: printing, equality, the paths they become in a guard tree."""

from __future__ import annotations

import pytest
import torch

import argand
from argand._core import _C
from argand.capture.facts import sources as s
from argand.capture.facts.input_names import placeholder_name


def chain() -> s.Source:
    owner = s.LocalSource("self", 0)
    modules = s.DictItemSource(s.InstanceDictSource(owner), "_modules")
    layer = s.DictItemSource(modules, "fc")
    return s.DictItemSource(s.DictItemSource(s.InstanceDictSource(layer), "_parameters"), "weight")


def test_names() -> None:
    assert s.LocalSource("x", 0).name() == "L['x']"
    assert s.GlobalSource("torch").name() == "G['torch']"
    assert chain().name() == "L['self']._modules['fc']._parameters['weight']"
    assert chain().friendly() == "self.fc.weight"


def test_placeholder_names() -> None:
    assert placeholder_name(s.LocalSource("a", 0)) == "a"
    assert placeholder_name(chain()) == "l_self_fc_weight"
    assert placeholder_name(s.SequenceItemSource(s.LocalSource("args", 1), 2)).isidentifier()


def test_equality_is_structural() -> None:
    assert chain() == chain() and hash(chain()) == hash(chain())
    base = s.LocalSource("d", 0)
    assert s.DictItemSource(base, 1) != s.DictItemSource(base, True)
    assert s.DictItemSource(base, 1) != s.DictItemSource(base, 1.0)
    assert s.ConstSource([]) != s.ConstSource([])


def test_immutable() -> None:
    with pytest.raises(AttributeError):
        chain().key = "other"  # type: ignore[misc]


class Holder:
    def __init__(self) -> None:
        self.items = {"k": [10, 20]}


def test_guard_nodes() -> None:
    tree = _C.GuardTree()
    owner = s.LocalSource("self", 0)
    item = s.SequenceItemSource(s.DictItemSource(s.DictItemSource(s.InstanceDictSource(owner), "items"), "k"), 1)
    assert item.guard_node(tree, {}) == item.guard_node(tree, {})
    tree.check(item.guard_node(tree, {}), "equals", 20)
    holder = Holder()
    assert tree.evaluate((holder,)) is True
    holder.items["k"][1] = 21
    assert tree.evaluate((holder,)) is not True


def test_type_lookup() -> None:
    class A:
        x = 1

    class B(A):
        pass

    assert s.type_lookup(B, "x") == 1
    with pytest.raises(AttributeError):
        s.type_lookup(B, "y")


def test_a_tensor_called_self() -> None:
    """It is an argument of the graph's `forward`, which has another one of this name."""

    def scaled(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self * other

    compiled = argand.compile(scaled, backend="eager", fullgraph=True)
    for size in (2, 3, 4):
        x, y = torch.randn(size), torch.randn(size)
        assert torch.equal(compiled(x, y), x * y)
