"""optree's trees of containers: taken apart and put together in the graph, with guards on what is in them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import argand
from argand.errors import Unsupported

optree = pytest.importorskip("optree")


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Node(list):  # type: ignore[type-arg]
    """Which a program may enter as a container."""


def tree() -> dict[str, Any]:
    return {"w": [torch.ones(2), 1.5], "p": Pair(torch.ones(1)), "d": collections.deque([2])}


def doubled(t: Any, x: torch.Tensor) -> Any:
    leaves, spec = optree.tree_flatten(t)
    return optree.tree_unflatten(spec, [leaf * 2 for leaf in leaves]), x + spec.num_leaves


def mapped(t: Any, x: torch.Tensor) -> Any:
    return optree.tree_map(lambda a, b: a + b * x[0], t, t)


def with_leaves_of_its_own(t: Any, x: torch.Tensor) -> Any:
    return optree.tree_leaves(t, is_leaf=lambda part: isinstance(part, list)), x * 2


def compared(t: Any, x: torch.Tensor) -> Any:
    spec = optree.tree_structure((x, {"a": x}))
    return x + 1, spec == optree.tree_structure((1, {"a": 2})), spec != optree.tree_structure(t), spec.children()


PROGRAMS: tuple[Callable[..., Any], ...] = (doubled, mapped, with_leaves_of_its_own, compared)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_as_eager(program: Callable[..., Any]) -> None:
    compiled, given = argand.compile(program, backend="eager", fullgraph=True), tree()
    changes: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: given["w"].append(torch.ones(1)),
        lambda: given.update(b=torch.ones(4)),
        lambda: given.update(p=Pair(torch.zeros(1), 3)),
    )
    for change in changes:
        change()
        for x in (torch.ones(2), torch.zeros(3)):
            assert str(compiled(given, x)) == str(program(given, x))


def test_the_order_in_which_dicts_are_taken_apart() -> None:
    compiled = argand.compile(lambda t: [leaf * 2 for leaf in optree.tree_leaves(t)], backend="eager")
    t = {"b": torch.ones(1), "a": torch.zeros(1)}
    assert [leaf.item() for leaf in compiled(t)] == [0, 2]
    with optree.dict_insertion_ordered(True, namespace="argand"):
        ordered = argand.compile(lambda t: optree.tree_leaves(t, namespace="argand"), backend="eager")
        assert [leaf.item() for leaf in ordered(t)] == [1, 0]
    assert [leaf.item() for leaf in ordered(t)] == [0, 1]


def test_ordered_dicts() -> None:
    """One that was put in another order comes in the order in which its keys came."""
    given = collections.OrderedDict(z=torch.ones(1), a=torch.zeros(1))
    compiled = argand.compile(lambda t, x: (optree.tree_leaves(t), x + 1), backend="eager")
    own = argand.compile(
        lambda x: optree.tree_leaves(collections.OrderedDict(z=x, a=x + 1)), backend="eager", fullgraph=True
    )
    for _ in range(2):
        assert str(compiled(given, torch.ones(1))[0]) == str(optree.tree_leaves(given))
        assert [leaf.item() for leaf in own(torch.ones(1))] == [1, 2]
        given.move_to_end("z")


def test_structures_go_over_graph_breaks() -> None:
    def program(x: torch.Tensor) -> Any:
        leaves, spec = optree.tree_flatten({"b": x, "a": [x + 1]})
        argand.graph_break()
        return optree.tree_unflatten(spec, [leaf * 2 for leaf in leaves]), spec

    compiled = argand.compile(program, backend="eager")
    for x in (torch.ones(2), torch.zeros(2)):
        assert str(compiled(x)) == str(program(x)) and compiled(x)[1] == program(x)[1]


def test_classes_that_may_be_entered_as_containers_break() -> None:
    def program(x: torch.Tensor) -> Any:
        return optree.tree_leaves([Node([x, x])]), x * 2

    with pytest.raises(Unsupported):
        argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    compiled = argand.compile(program, backend="eager")
    assert len(compiled(torch.ones(2))[0]) == 1
    optree.register_pytree_node(Node, lambda node: (list(node), None), lambda _, parts: Node(parts), namespace="argand")
    assert len(compiled(torch.ones(2))[0]) == 1
