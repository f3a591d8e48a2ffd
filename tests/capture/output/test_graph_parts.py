"""Sizes that depend on data, by default: no graph breaks, and "native" compiles what is between in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import assert_same, collected

LINEAR = torch.nn.Linear(8, 8)


def masked_edges(x: Any, edges: Any) -> Any:
    edges = edges[:, edges[0] != edges[1]]
    loops = torch.arange(x.size(0)).repeat(2, 1)
    edges = torch.cat([edges, loops], 1)
    weights = x.new_ones(edges.size(1)) / edges.size(1)
    messages = LINEAR(x)[edges[0]] * weights.view(-1, 1)
    return torch.tanh(torch.zeros_like(x).index_add(0, edges[1], messages)).relu()


def several_masks(x: Any, edges: Any) -> Any:
    rows = x[x.sum(1) > 0]
    rows = (LINEAR(rows).sin() * 2 + 1).softmax(-1)
    columns = rows.reshape(-1)[rows.reshape(-1) > 0.1]
    again = x[x.sum(1) > 0] * 2 + rows
    return columns.exp().cumsum(0).mul(3), again.tanh().sum(0), rows.shape, len(columns)


def places(x: Any, edges: Any) -> Any:
    i, j = torch.where(x > 0.5)
    values, counts = torch.unique(edges, return_counts=True)
    return (x[i, j] * 2 + 1).exp().sum(), values * 2, counts.float().softmax(0), torch.bincount(edges[0]) + 1


def with_effects(x: Any, edges: Any) -> Any:
    """Writes to a result of an earlier part, to a view of it and to an argument; other modes; random numbers."""
    y = LINEAR(x) * 2 + 1
    view = y[0]
    with torch.no_grad():
        chosen = y[y > 0].exp() * 2 + 1
    noise = torch.rand(chosen.shape) + chosen
    y = y.clone()
    view = y[1]
    view.mul_(3)
    edges.add_(1)
    return y.sin().sum(1) * 2, chosen, noise, edges[edges > 2] * 2, torch.rand(2)


PROGRAMS: list[Callable[..., Any]] = [masked_edges, several_masks, places, with_effects]


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    count = (6, 6, 6, 5)[seed]
    x = torch.randn(count, 8, generator=generator) - (4.0 if seed == 2 else 0.0)  # nothing is selected
    return x, torch.randint(0, count, (2, 9), generator=generator)


def outcome(fn: Any, seed: int) -> Any:
    """What a call gives, its gradients, and what it has done to its arguments."""
    x, edges = inputs(seed)
    x.requires_grad_()
    LINEAR.zero_grad()
    torch.manual_seed(seed)
    results = fn(x, edges)
    flat = results if isinstance(results, tuple) else (results,)
    loss = sum(each.sum() for each in flat if isinstance(each, torch.Tensor) and each.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return results, x.grad, LINEAR.weight.grad, edges


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_graph(program: Any, backend: str) -> None:
    with argand.config.patch(fallback_random=True), collected("graph_breaks", "cache_size_limit") as events:
        compiled = argand.compile(program, backend=backend)
        for seed in (0, 1, 2, 3, 0):
            want, got = outcome(program, seed), outcome(compiled, seed)
            assert_same(want, got)
    assert not events


def test_parts_are_compiled_for_all_sizes() -> None:
    with collected("frame_start", "recompiles", "fallback") as events:
        compiled = argand.compile(several_masks)
        for seed in (0, 1, 0):
            outcome(compiled, seed)
    names = [event.name for event in events]
    assert names.count("frame_start") > 2, names  # the function, and parts of its graph
    assert "recompiles" not in names and "fallback" not in names, names


def test_graphs_of_other_backends_break() -> None:
    """They may trace the graph with the sizes of one call."""
    graphs: list[Any] = []

    def theirs(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    with collected("graph_breaks") as events:
        outcome(argand.compile(masked_edges, backend=theirs), 0)
    assert [event.data["reason"].id for event in events] == ["AG0004"]
    assert len(graphs) == 2


def test_results_are_let_go() -> None:
    """A part's results live as long as later parts need them."""
    import weakref

    alive: list[Any] = []

    @torch.library.custom_op("argand_tests::remember", mutates_args=())
    def remember(x: torch.Tensor) -> torch.Tensor:
        alive.append(weakref.ref(x))
        return x + 1

    remember.register_fake(torch.empty_like)

    @torch.library.custom_op("argand_tests::count_alive", mutates_args=())
    def count_alive(x: torch.Tensor) -> torch.Tensor:
        return x + sum(ref() is not None for ref in alive)

    count_alive.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        large = x.sin() * 2 + 1
        chosen = large[large > 0]
        total = remember(large).exp().sum()
        del large
        chosen = chosen.sin().cos() * total
        chosen = chosen[chosen > 0]
        return count_alive(chosen.sin().cos() * 2)

    x = torch.rand(6)
    compiled = argand.compile(f)
    want = f(x)
    alive.clear()
    compiled(x)
    alive.clear()
    assert_same(want, compiled(x))
