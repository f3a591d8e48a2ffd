"""Programs that torch's models are made of, each in one graph. What each line names was found in a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend, assert_same, check


def whole(fn: Callable[..., Any], *args: Any) -> None:
    """`fn` is one graph and gives what eager gives."""
    argand.reset()
    check(fn, *args, fullgraph=True)


def test_numel_of_a_size() -> None:
    """idefics3"""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape.numel()) * x.shape[1:].numel() + torch.Size((2, 3)).numel()

    whole(fn, torch.randn(3, 4))
    compiled = argand.compile(fn, backend="eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        assert_same(fn(x), compiled(x))


def test_split_by_data_with_a_keyword() -> None:
    """jetmoe: sizes that are the values of a tensor, and the dim by name."""

    def fn(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        parts = x.split(sizes.tolist(), dim=0)
        return torch.cat([part * i for i, part in enumerate(parts)], dim=0)

    whole(fn, torch.randn(6, 2), torch.tensor([1, 3, 2]))


def select_then_contiguous(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = x[mask] * 2
    return chosen.contiguous().view(-1), chosen.float().to(torch.float32)


def test_contiguous_where_the_layout_is_not_known() -> None:
    """jetmoe: `contiguous` may return its argument, `to` does for sure."""
    mask = torch.tensor([True, False, True])
    whole(select_then_contiguous, torch.randn(3, 4), mask)
    whole(select_then_contiguous, torch.randn(4, 3).t(), mask)


def test_identity_of_contiguous_is_not_guessed() -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> bool:
        chosen = torch.cat([x[mask], x])
        return chosen.contiguous() is chosen

    check(fn, torch.randn(3, 4), torch.tensor([True, False, True]))


def test_transforms_of_distributions() -> None:
    """autoformer: a transformed distribution of a student-t, its checks and its loss."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        base = torch.distributions.StudentT(x.abs() + 2, x, x.abs() + 1)
        affine = torch.distributions.AffineTransform(1.0, 2.0)
        return -torch.distributions.TransformedDistribution(base, [affine]).log_prob(x)

    whole(fn, torch.randn(3, 4))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tensor([x.sum(), x.max()]),
        lambda x: torch.tensor([[x.sum(), 2], [x[0, 0], 1.5]]),
        lambda x: torch.tensor([x.argmax(), 3]),
        lambda x: torch.as_tensor([x.sum()]),
        lambda x: torch.tensor([x.half().sum(), 1]),
        lambda x: torch.tensor([True, x.argmax()]),
        lambda x: torch.tensor([x.double().sum(), x.sum()], dtype=torch.float16),
    ],
)
def test_tensor_of_a_list_of_tensors(fn: Callable[..., Any]) -> None:
    whole(fn, torch.randn(3, 4))
    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    x = torch.randn(3, 4, requires_grad=True)
    assert not compiled(x).requires_grad


def test_a_list_of_long_tensors_is_an_error() -> None:
    check(lambda x: torch.tensor([x[0], x[1]]), torch.randn(3, 4))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.tensor_split(torch.tensor([1, 3])),
        lambda x: x.tensor_split(torch.tensor(2), dim=1),
        lambda x: torch.signal.windows.hann(4) * x,
        lambda x: torch.signal.windows.kaiser(4, beta=2.0) * x,
        lambda x: x.type(torch.DoubleTensor),
        lambda x: (x > 0).type(torch.Tensor) + x.long().type("torch.Tensor"),
        lambda x: torch.nn.utils.get_total_norm([x, x.sum(0)]),
        lambda x: torch.zeros(2).repeat((x > 100).sum() + 2),
    ],
)
def test_small_programs(fn: Callable[..., Any]) -> None:
    whole(fn, torch.randn(4, 4))


def test_clipping_gradients() -> None:
    def fn(parameters: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    outcomes = []
    for compiled in (fn, argand.compile(fn, backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        outcomes.append((compiled(parameters), [p.grad for p in parameters]))
    assert_same(*outcomes)


def test_a_size_in_a_tensor_as_a_bound() -> None:
    """deberta with varying length: `torch.tensor(size)`, then arithmetic, then a slice, a clamp and `item`."""

    def fn(x: torch.Tensor, table: torch.Tensor) -> Any:
        span = torch.tensor(min(x.size(0), 6))
        rows = table[8 - span : 8 + span].sum(0)
        clamped = torch.clamp(torch.arange(16), 0, span * 2 - 1)
        return rows, clamped, torch.zeros(span.item() + 1), table[:-(-span)]

    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    table = torch.randn(16, 3)
    for rows in (3, 4, 5, 2, 6, 7, 8):
        x = torch.randn(rows, 3)
        assert_same(fn(x, table), compiled(x, table))
    assert len(backend.graphs) == 2


def test_numbers_where_tensors_are_expected() -> None:
    """longformer: `torch.div` of two sizes makes a tensor, which is a size."""

    def fn(x: torch.Tensor) -> Any:
        count = torch.div(x.size(1), 4, rounding_mode="trunc") - 1
        parts = x.new_zeros((x.size(0), count, 4)), x.narrow(1, 0, count), x[:, : 4 * count].view(-1, count, 4)
        more = torch.div(torch.tensor(x.size(1)), 4, rounding_mode="floor")
        return *parts, torch.zeros(more), torch.floor_divide(x.size(0), 2)

    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for columns in (12, 16, 18, 21):
        x = torch.randn(3, columns)
        assert_same(fn(x), compiled(x))
    assert len(backend.graphs) == 2

    def results(x: torch.Tensor) -> Any:
        n = x.size(0)
        numbers = torch.div(n, 0.5), torch.add(True, True), torch.mul(2, 1j), torch.add(n, 3, alpha=4)
        negative = torch.div(-n, 2, rounding_mode="trunc"), torch.div(-n, 2, rounding_mode="floor")
        return *numbers, *negative, torch.sub(1.5, n), torch.true_divide(n, 2), torch.zeros(5)[: negative[1]]

    whole(results, torch.randn(3, 4))
    with torch.device("meta"):
        whole(results, torch.randn(3, 4))


def test_a_size_in_a_tensor_that_is_written_to() -> None:
    def fn(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        span = torch.tensor(x.size(0))
        span.add_(1)
        return table[:span]

    compiled = argand.compile(fn, backend="eager")
    for rows in (3, 4, 5):
        x, table = torch.randn(rows, 3), torch.randn(16, 3)
        assert_same(fn(x, table), compiled(x, table))


def skips_layers(x: torch.Tensor, training: bool) -> torch.Tensor:
    for i in range(3):
        chance = random.uniform(0, 1)
        if training and chance < 0.5:
            continue
        x = x + i * 1.5
        random.random()
    return x


@pytest.mark.parametrize("training", [False, True])
def test_python_random_numbers_nobody_looks_at(training: bool) -> None:
    """musicgen: layers that are left out in training only; the generator goes on as in eager."""
    argand.reset()
    compiled = argand.compile(skips_layers, backend="eager", fullgraph=not training)
    for seed in range(4):
        outcomes = []
        for fn in (skips_layers, compiled):
            random.seed(seed)
            outcomes.append((fn(torch.ones(2), training), random.random()))
        assert_same(*outcomes)


def test_python_random_numbers_that_are_used() -> None:
    def fn(x: torch.Tensor) -> Any:
        drawn = random.random()
        return x + 1, drawn, type(drawn), isinstance(drawn, float), x * random.uniform(1, 2), round(drawn, 3)

    compiled = argand.compile(fn, backend="eager")
    for seed in range(3):
        outcomes = []
        for run in (fn, compiled):
            random.seed(seed)
            outcomes.append((run(torch.ones(2)), random.random()))
        assert_same(*outcomes)


def test_positions_that_are_tensors_under_vmap() -> None:
    """gemma3: attention masks look groups up by the 0-d positions that vmap hands out."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def fn(groups: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        def same(row: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return (groups[row, i] == groups[row, j]) & (i >= j)

        inner = torch.vmap(torch.vmap(same, (None, None, 0)), (None, 0, None))
        with TransformGetItemToIndex():
            return torch.vmap(inner, (0, None, None))(torch.arange(groups.shape[0]), at, at)

    whole(fn, torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]]), torch.arange(4))
