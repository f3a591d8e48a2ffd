"""Objects that vmap maps over: a library puts functions of its own in the place of torch's, as tensordict does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.vmap as of_vmap
from torch.utils import _pytree as pytree

import argand


class Weights:
    """Tensors that take themselves apart for vmap."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def _add_batch_dim(self, *, in_dim: int, vmap_level: int) -> Weights:
        add = torch._C._functorch._add_batch_dim
        return Weights(**{name: add(tensor, in_dim, vmap_level) for name, tensor in self.tensors.items()})


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(in_dims: Any, args: Any, func: Any) -> Any:
        flat, spec = pytree.tree_flatten(args)
        dims = pytree._broadcast_to_and_flatten(in_dims, spec)
        first = next(arg for arg, dim in zip(flat, dims) if dim is not None)
        size = first.size(0) if isinstance(first, torch.Tensor) else next(iter(first.tensors.values())).size(0)
        return size, dims, flat, spec

    def create(dims: Any, flat: Any, level: int, spec: Any) -> Any:
        taken = []
        for arg, dim in zip(flat, dims):
            if dim is not None and isinstance(arg, Weights):
                arg = arg._add_batch_dim(in_dim=dim, vmap_level=level)
            elif dim is not None:
                arg = torch._C._functorch._add_batch_dim(arg, dim, level)
            taken.append(arg)
        return pytree.tree_unflatten(taken, spec)

    monkeypatch.setattr(of_vmap, "_process_batched_inputs", process)
    monkeypatch.setattr(of_vmap, "_create_batched_inputs", create)


def _linear(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return x @ weights.tensors["weight"] + weights.tensors["bias"]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("in_dims", [(0, None), (0, 0), 0])
def test_vmap_over_an_object(in_dims: Any) -> None:
    weights = Weights(weight=torch.randn(3, 4, 2, requires_grad=True), bias=torch.randn(3, 2))
    fn = argand.compile(lambda x: torch.vmap(_linear, in_dims)(weights, x), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, 4, 4) if in_dims != (0, None) else torch.randn(4, 4)
        want, got = torch.vmap(_linear, in_dims)(weights, x), fn(x)
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(out.sum(), weights.tensors["weight"])[0] for out in (want, got)]
        torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("library")
def test_an_object_that_is_not_mapped_over_is_seen_as_it_is() -> None:
    weights = Weights(weight=torch.randn(4, 2), bias=torch.randn(2))
    fn = argand.compile(lambda x: torch.vmap(lambda row: _linear(weights, row))(x), backend="eager", fullgraph=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(fn(x), _linear(weights, x))


def test_torchs_own_functions_refuse_such_an_object() -> None:
    weights = Weights(weight=torch.randn(3, 4, 2), bias=torch.randn(3, 2))
    fn = argand.compile(lambda x: torch.vmap(_linear, (0, None))(weights, x), backend="eager")
    with pytest.raises(ValueError, match="vmap"):
        fn(torch.randn(4, 4))


class Rows:
    """Tensors with their batch's sizes, as a TensorDict has them: a pytree, whose batch vmap takes and gives back."""

    def __init__(self, tensor: torch.Tensor, sizes: tuple[int, ...]) -> None:
        self.tensor, self.sizes = tensor, sizes

    def _add_batch_dim(self, *, in_dim: int, vmap_level: int) -> Rows:
        added = torch._C._functorch._add_batch_dim(self.tensor, in_dim, vmap_level)
        return Rows(added, self.sizes[:in_dim] + self.sizes[in_dim + 1 :])


class Table(Rows):
    """What gives vmap its tensors, and takes them back."""

    def values(self, nested: bool, leaves: bool) -> list[torch.Tensor]:
        return [self.tensor]

    def clone(self, recurse: bool) -> Table:
        return Table(self.tensor, self.sizes)

    def _add_batch_dim(self, *, in_dim: int, vmap_level: int) -> Table:
        added = torch._C._functorch._add_batch_dim(self.tensor, in_dim, vmap_level)
        return Table(added, self.sizes[:in_dim] + self.sizes[in_dim + 1 :])

    def _maybe_remove_batch_dim(self, funcname: str, vmap_level: int, batch_size: int, out_dim: int) -> Table:
        tensor = of_vmap._maybe_remove_batch_dim(funcname, self.tensor, vmap_level, batch_size, out_dim)
        return Table(tensor, (*self.sizes[:out_dim], batch_size, *self.sizes[out_dim:]))


pytree.register_pytree_node(Rows, lambda rows: ([rows.tensor], rows.sizes), lambda held, sizes: Rows(*held, sizes))
pytree.register_pytree_node(Table, lambda rows: ([rows.tensor], rows.sizes), lambda held, sizes: Table(*held, sizes))


def _unbatched(tree: Any) -> Any:
    return pytree.tree_flatten(tree, is_leaf=lambda node: isinstance(node, Rows))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(in_dims: Any, args: Any, func: Any) -> Any:
        flat, spec = _unbatched(args)
        dims = pytree._broadcast_to_and_flatten(in_dims, spec)
        first, dim = next((arg, dim) for arg, dim in zip(flat, dims) if dim is not None)
        return (first.tensor if isinstance(first, Rows) else first).size(dim), dims, flat, spec

    def create(dims: Any, flat: Any, level: int, spec: Any) -> Any:
        taken = []
        for arg, dim in zip(flat, dims):
            if dim is None:
                taken.append(arg.clone(False) if isinstance(arg, Table) else arg)
            elif isinstance(arg, Rows):
                taken.append(arg._add_batch_dim(in_dim=dim, vmap_level=level))
            else:
                taken.append(torch._C._functorch._add_batch_dim(arg, dim, level))
        return pytree.tree_unflatten(taken, spec)

    def unwrap(out: Any, out_dims: Any, level: int, size: int, func: Any) -> Any:
        flat, spec = _unbatched(out)
        remove = of_vmap._maybe_remove_batch_dim
        return pytree.tree_unflatten(
            [
                each._maybe_remove_batch_dim("", level, size, dim)
                if isinstance(each, Table)
                else Rows(remove("", each.tensor, level, size, dim), (size, *each.sizes))
                if isinstance(each, Rows)
                else remove("", each, level, size, dim)
                for each, dim in zip(flat, pytree._broadcast_to_and_flatten(out_dims, spec))
            ],
            spec,
        )

    for name, function in (("process_batched_inputs", process), ("create_batched_inputs", create)):
        monkeypatch.setattr(of_vmap, f"_{name}", function)
    monkeypatch.setattr(of_vmap, "_unwrap_batched", unwrap)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("out_dims", [0, 1])
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, 0)])
def test_tables_are_mapped_over_and_come_of_it_in_one_graph(in_dims: Any, out_dims: int) -> None:
    outer = torch.randn(3, 3)

    def function(table: Table, x: torch.Tensor) -> Any:
        def inner(table: Table, x: torch.Tensor) -> Any:
            mixed = Table(table.tensor.sin() @ x, table.sizes)
            return {"mixed": mixed, "kept": Table(table.tensor * 2, table.sizes), "sum": [mixed.tensor + outer[0]]}

        got = torch.vmap(inner, in_dims, out_dims)(table, x)
        mixed, kept = got["mixed"], got["kept"]
        return mixed.tensor, mixed.sizes, kept.tensor, kept.sizes, type(kept), *got["sum"]

    table = Table(torch.randn(3, 3, 3, 3, requires_grad=True), (3, 3))
    x = torch.randn(3, 3, 3)
    fn = argand.compile(function, backend="aot_eager", fullgraph=True)
    for want, got in zip(function(table, x), fn(table, x)):
        torch.testing.assert_close(got, want) if isinstance(want, torch.Tensor) else None
        assert isinstance(want, torch.Tensor) or got == want
    gradients = [torch.autograd.grad(f(table, x)[0].sum(), table.tensor)[0] for f in (function, fn)]
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("given", ["object", "tensor"])
def test_a_pytree_that_does_not_take_its_batch_back_is_left_to_the_library(given: str) -> None:
    def of_object(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda rows: rows.tensor.sum() + 10 * len(rows.sizes))(Rows(x, tuple(x.shape[:1])))

    def of_tensor(x: torch.Tensor) -> torch.Tensor:
        rows = torch.vmap(lambda row: Rows(row * 2, ()))(x)
        return rows.tensor + len(rows.sizes)

    f, x = (of_object if given == "object" else of_tensor), torch.randn(3, 4)
    torch.testing.assert_close(argand.compile(f, backend="eager")(x), f(x))
