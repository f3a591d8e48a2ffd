"""Recordings of many tensors, which are compared by the block and hand themselves over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_helpers import Recorder, clone, positional
from test_core_replay import Module, agree
from test_core_replay_tables import PADDING, padded

from argand._core import _C

torch = pytest.importorskip("torch")
KEY = object()


def tensors() -> dict[str, Any]:
    """More than a block of some kind, few of others, and those that are looked at one by one."""
    found: list[Any] = [torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(70)]
    found += [torch.zeros(4) for _ in range(9)]
    found += [torch.nn.Parameter(torch.zeros(())) for _ in range(5)]
    found += [torch.zeros(1, 1, 1, 1, 2, 1) for _ in range(5)]
    found += [torch.zeros(2, 3).t() for _ in range(2)]
    found += [torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64)) for _ in range(6)]
    return {f"p{i}": value for i, value in enumerate(found)}


def exchanged(tensor: Any) -> None:
    tensor.data = tensor.data.clone()[..., None] if tensor.dim() else torch.zeros(1)


TENSOR_CHANGES: dict[str, Callable[[Any], Any]] = {
    "sizes": exchanged,
    "dtype": lambda t: setattr(t, "data", t.data.to(torch.float16)),
    "requires_grad": lambda t: t.requires_grad_(not t.requires_grad),
    "class": lambda t: setattr(
        t, "__class__", torch.nn.Buffer if type(t) is torch.nn.Parameter else torch.nn.Parameter
    ),
    "recorded": lambda t: t.requires_grad_(False).mul_(torch.ones((), requires_grad=True)),
}


@pytest.fixture
def recorded() -> tuple[Module, _C.GuardTree, list[int]]:
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    root = Module()
    root._parameters = tensors()
    tree = padded()
    values = tree.child(tree.child(tree.child(0, "local", 1), "instance_dict"), "dict_item", "_parameters")
    nodes = []
    for name, tensor in root._parameters.items():
        node = tree.child(values, "dict_item", name)
        tree.check(node, "tensor", *_C.tensor_guard_args(tensor), label=name)
        nodes.append(node)
    return root, tree, nodes


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_each_of_many_tensors_is_looked_at(change: str, recorded: Any) -> None:
    root, tree, _ = recorded
    for index in (0, 1, 33, 63, 64, 69, 70, 78, 79, 83, 84, 88, 89, 90, 91, 96):
        assert agree(tree, PADDING, root)
        kept = root._parameters[f"p{index}"]
        changed = kept.detach().clone(memory_format=torch.preserve_format)
        changed = torch.nn.Parameter(changed) if kept.requires_grad else changed
        root._parameters[f"p{index}"] = changed
        assert agree(tree, PADDING, root)
        if change == "recorded" and kept.requires_grad:
            continue  # it would be as before
        TENSOR_CHANGES[change](changed)
        assert not agree(tree, PADDING, root), (change, index)
        root._parameters[f"p{index}"] = kept


@pytest.mark.parametrize("change", [*TENSOR_CHANGES, "a number", "a level", "a class"])
def test_arguments_of_a_small_tree(change: str) -> None:
    """The guards of a function of two tensors: also these are recorded, and the arguments looked at where they lie."""
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    levels: dict[str, object] = {"level": -1}
    kind = type("Kind", (), {})
    tree = _C.GuardTree()
    tree.check(tree.child(tree.child(0, "const", levels), "dict_item", "level"), "equals", -1, label="level")
    tree.check(tree.child(0, "const", kind), "type_version", kind, label="kind")
    given = [torch.zeros(3, 2), torch.nn.Parameter(torch.zeros(3, 2))]
    nodes = [tree.child(0, "local", place) for place in (0, 1)]
    for node, tensor in zip(nodes, given, strict=True):
        tree.check(node, "tensor", *_C.tensor_guard_args(tensor), label="tensor")
    tree.collect([nodes[1], nodes[0]])
    for place in (0, 1):
        assert all(agree(tree, *given) for _ in range(4))
        other = given[place].detach().clone()
        other = torch.nn.Parameter(other) if given[place].requires_grad else other
        now = [other if at == place else tensor for at, tensor in enumerate(given)]
        assert agree(tree, *now)
        if change in TENSOR_CHANGES:
            TENSOR_CHANGES[change](other)
            same = change == "recorded" and given[place].requires_grad  # it is as before
            assert agree(tree, *now) == same
        elif change == "a number":
            assert not agree(tree, *[3.0 if at == place else tensor for at, tensor in enumerate(given)])
        elif change == "a level":
            levels["level"] = 0
            assert not agree(tree, *given)
            levels["level"] = -1
        else:
            kind.asked = place  # type: ignore[attr-defined]
            assert not agree(tree, *given)
            return
    assert agree(tree, *given)


def test_collected_tensors_come_in_order(recorded: Any) -> None:
    root, tree, nodes = recorded
    order = [*nodes[::-2], nodes[5], nodes[5], *nodes[::2]]
    tree.collect(order)

    def source(padding: Any, root: Any) -> Any:
        return "eager"

    def takes(padding: Any, root: Any) -> Any:
        return _C.take_inputs()

    fn = clone(source)
    answer = Recorder({fn.__code__: lambda info: _C.Entry(positional(takes), tree, KEY)})
    for round_ in range(12):
        if round_ % 3 == 2:  # equal for the guards, and another object
            root._parameters["p5"] = torch.nn.Parameter(torch.ones(3, 2))
        taken = _C.run_with_callback(answer, KEY, fn, (PADDING, root))
        expected = [root._parameters[f"p{nodes.index(node)}"] for node in order]
        assert len(taken) == len(expected) and all(a is b for a, b in zip(taken, expected, strict=True))
    assert len(answer.infos) == 1
