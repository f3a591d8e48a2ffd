"""Nested tensors of the jagged layout are captured as their values and offsets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from tests.capture.torch_functions.nested import chains
from tests.capture.torch_functions.nested.chains import difference, known, nested
from torch.utils.checkpoint import checkpoint

import argand

LENGTHS = [(3, 1, 4), (2, 5, 2), (1, 1, 7), (6, 2, 1)]
LONGER = [(3, 2, 4), (3, 5, 3), (4, 4, 7)]


class Counting:
    """A backend that counts the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph


def agree(function: Any, *, make: Any = nested, lengths: Any = LENGTHS) -> list[Any]:
    """Run a program over one nested tensor, compiled whole, on batches of several lengths; returns its graphs."""
    backend = Counting()
    compiled = argand.compile(function, backend=backend, fullgraph=True)
    for seed, pieces in enumerate(lengths):
        expected, given = function(make(pieces, seed)), compiled(make(pieces, seed))
        assert not difference(expected, given)
    assert len(backend.graphs) == 1
    return backend.graphs


@pytest.mark.parametrize("name", [name for name in chains.UNARY if name != "contiguous"])
def test_operations_are_one_graph_for_all_lengths(name: str) -> None:
    weights = torch.linspace(-1, 1, 64).view(8, 8)
    step = chains.UNARY[name]

    def program(x: Any) -> Any:
        x = x.unsqueeze(-1) if name == "squeeze" else x.unflatten(-1, (2, 4)) if name == "flatten" else x
        return step(x, weights)

    agree(program)


@pytest.mark.parametrize("name", [*chains.BINARY])
def test_two_nested_tensors(name: str) -> None:
    agree(lambda x: chains.BINARY[name](x, x.sin()))


@pytest.mark.parametrize("name", [name for name in chains.LAST if name not in ("shape", "whole")])
def test_results_of_all_kinds(name: str) -> None:
    agree(lambda x: chains.LAST[name](x * 2))
    if name not in ("offsets", "attention"):
        agree(lambda x: chains.LAST[name](x * 2), make=known, lengths=LONGER)


def test_graphs_hold_plain_tensors() -> None:
    """In the graph there are values alone: what is not asked for the lengths is not given the offsets either."""
    (graph,) = agree(lambda x: F.relu(x * 2))
    assert [node.op for node in graph.graph.nodes].count("placeholder") == 1
    assert all("nested" not in str(node.target).lower() for node in graph.graph.nodes)


def test_sizes_and_questions() -> None:
    @argand.compile(backend="eager", fullgraph=True)
    def f(x: Any) -> Any:
        same = x.size(1) == (x * 2).size(1), x.size(1) == 4, x.shape == (x + 1).shape
        return same, x.size(0), x.dim(), x.size(), x.lengths() is None, x.is_nested, x.layout, x.dtype, x * 2

    x = nested((3, 1, 4), 0)
    same, count, dims, size, whole, is_nested, layout, dtype, twice = f(x)
    assert same == (True, False, True) and count == 3 and dims == 3 and whole and is_nested
    assert layout is torch.jagged and dtype is torch.float32
    assert size == x.shape and size[1] == twice.size(1) and twice.offsets() is x.offsets()


def test_text_of_a_ragged_size_is_never_a_constant() -> None:
    compiled = argand.compile(lambda x: (x * 2, str(x.size(1)), f"{x.shape}"), backend="eager")
    for lengths in LENGTHS:
        x = nested(lengths, 0)
        _, text, shape = compiled(x)
        assert text == str(x.size(1)) and shape == f"{x.shape}"


def test_which_inputs_share_offsets_is_guarded() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * 2 if x.size(1) == y.size(1) else x * 3

    backend = Counting()
    compiled = argand.compile(f, backend=backend, fullgraph=True)
    for lengths, shared in [((3, 1), True), ((2, 5), True), ((3, 1), False), ((1, 4), True), ((2, 2), False)]:
        x = nested(lengths, 0)
        y = nested(lengths, 1, offsets=x.offsets() if shared else None)
        assert not difference(f(x, y), compiled(x, y))
    assert len(backend.graphs) == 2


def test_raggedness_that_differs_is_the_error_that_eager_raises() -> None:
    compiled = argand.compile(lambda x, y: x + y, backend="eager")
    x, y = nested((3, 1), 0), nested((3, 1), 1)
    for _ in range(2):
        assert not difference(compiled(x, x), x + x)
        with pytest.raises(RuntimeError, match="cannot call binary pointwise function add"):
            compiled(x, y)


def test_made_inside() -> None:
    def from_values(values: Any, offsets: Any) -> Any:
        x = torch.nested.nested_tensor_from_jagged(values.sin(), offsets)
        return x * 2, torch.nested.nested_tensor_from_jagged(values, offsets) + x

    compiled = argand.compile(from_values, backend="eager", fullgraph=True)
    for lengths in LENGTHS:
        x = nested(lengths, 0)
        given = compiled(x.values(), x.offsets())
        assert not difference(from_values(x.values(), x.offsets()), given)
        assert given[0].size(1) == given[1].size(1) == x.size(1)

    def from_lists(a: Any, b: Any) -> Any:
        x = torch.nested.nested_tensor([a, b], layout=torch.jagged)
        y = torch.nested.as_nested_tensor([a * 2, b], layout=torch.jagged)
        return x.sin(), y, y.to_padded_tensor(0.0)

    a, b = torch.randn(2, 3), torch.randn(4, 3)
    assert not difference(from_lists(a, b), argand.compile(from_lists, backend="eager", fullgraph=True)(a, b))


def test_what_is_known_of_lengths_is_what_eager_knows() -> None:
    """How wide a padded tensor is depends on whether the longest piece is known."""

    def f(x: Any) -> Any:
        before = x.to_padded_tensor(0.0)
        return before, x.softmax(1), x.to_padded_tensor(0.0)

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for lengths in LENGTHS:
        x, y = nested(lengths, 0), nested(lengths, 0)
        for _ in range(2):
            assert not difference(f(x), compiled(y))
            assert len(x._metadata_cache) == len(y._metadata_cache)
            assert x.to_padded_tensor(0.0).shape == y.to_padded_tensor(0.0).shape


def test_lengths_of_pieces_are_data() -> None:
    """Pieces one by one have sizes that no graph knows: eager takes them apart."""
    compiled = argand.compile(lambda x: [piece * 2 for piece in (x * 2).unbind()], backend="eager")
    for lengths in LENGTHS:
        assert [len(piece) for piece in compiled(nested(lengths, 0))] == [*lengths]
    with pytest.raises(argand.errors.Unsupported, match="unbind"):
        argand.compile(lambda x: (x * 2).unbind(), backend="eager", fullgraph=True)(nested((2, 3), 0))


def test_softmax_over_the_ragged_dim_has_eagers_gradient() -> None:
    compiled = argand.compile(lambda x: (x * 2).softmax(1).square(), backend="eager")
    gradients = []
    for f in (compiled, lambda x: (x * 2).softmax(1).square()):
        x = nested((3, 1), 0, gradient=True)
        gradients.append(torch.autograd.grad(f(x).values().sum(), x)[0])
    assert torch.allclose(gradients[1].values(), gradients[0].values())


def _written(x: Any) -> Any:
    x.mul_(2)
    return x + 1


def _in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        return x.view(x.size(0), -1, 2, 4) * 2


def _without_gradients(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
    return y + x


def _in_autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, torch.ones(8, 8))


def _named(x: Any) -> Any:
    x.name = "x"
    return x * 2


def _across_a_break(x: Any) -> Any:
    y = x * 2
    size = x.size(1)
    print(end="")
    return (y + x).view(x.size(0), size, 2, 4), y


AS_EAGER = {
    "written": _written,
    "values written": lambda x: (x.values().mul_(2), x + 1),
    "in inference mode": _in_inference_mode,
    "without gradients": _without_gradients,
    "in autocast": _in_autocast,
    "attribute": _named,
    "break": _across_a_break,
    "checkpoint": lambda x: checkpoint(lambda t: t.sin() * 2, x, use_reentrant=False),
    "pieces": lambda x: [piece + 1 for piece in x],
    "parts": lambda x: (x._values * 2, x._offsets, x._ragged_idx),
    "counts": lambda x: (len(x), x.numel(), x * 2),
    "strides": lambda x: (x.transpose(1, 2).contiguous().stride(1), x * 2),
    "hash": lambda x: (len({x.size(1): 1}), x * 2),
    "held": lambda x: [x, {"twice": x * 2}, x],
    "gradient": lambda x: torch.autograd.grad((x * 2).sum(), x)[0] if x.requires_grad else x,
    "causal": lambda x: F.scaled_dot_product_attention(*[chains._heads(x)] * 3, is_causal=True),
    "narrowed": lambda x: torch.nested.narrow(
        torch.arange(24.0).view(3, 8), 1, torch.tensor([0, 1, 2]), torch.tensor([3, 2, 5]), layout=torch.jagged
    ),
    "masked": lambda x: torch.nested.masked_select(torch.arange(12.0).view(3, 4), torch.arange(12).view(3, 4) > 4) * 2,
}


@pytest.mark.parametrize("name", [*AS_EAGER])
@pytest.mark.parametrize("gradient", [False, True])
def test_as_eager(name: str, gradient: bool) -> None:
    """In one graph or not: results, errors and what is written are eager's."""
    function: Any = AS_EAGER[name]
    compiled = argand.compile(function, backend="eager")
    for lengths in LENGTHS[:3]:
        x, y = (nested(lengths, 1).detach().requires_grad_(gradient) for _ in range(2))
        expected, gradients = chains.outcome(function, x)
        given, compiled_gradients = chains.outcome(compiled, y)
        assert not difference(expected, given)
        assert not difference(x.detach(), y.detach())
        if not isinstance(gradients, Exception):
            assert not difference(gradients, compiled_gradients, lengths=False)


# ---------------------------------------------------------------------- models


class Encoder(nn.Module):
    """A block of a transformer over nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(8), nn.LayerNorm(8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        h = self.before(x)
        heads = [each(h).unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.query, self.key, self.value)]
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Bag(nn.Module):
    """An average of embeddings, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        ids = torch.nested.nested_tensor_from_jagged(x.values()[:, 0].abs().mul(5).long() % 20, x.offsets())
        return self.head(self.table(ids).to_padded_tensor(0.0).sum(dim=1) / x.offsets().diff().unsqueeze(1))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", [Encoder, Bag])
def test_training(kind: Any, backend: str) -> None:
    """Batches of various lengths train a model as in eager, by one graph."""
    losses = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model: Any = kind()
        called = argand.compile(model, backend=backend, fullgraph=True) if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = []
        for seed, lengths in enumerate(LENGTHS):
            result = called(nested(lengths, seed))
            loss = (result.values() if result.is_nested else result).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses.append(steps)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gradient", [False, True])
def test_random_chains(seed: int, gradient: bool) -> None:
    assert not chains.check(1000 + seed, "eager", gradient)


@pytest.mark.parametrize("seed", range(2))
def test_random_chains_on_native(seed: int) -> None:
    assert not chains.check(2000 + seed, "native", True)
