"""Bags of embeddings that all hold equally many are rows that are added; others stay the library's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pass_helpers import traced

import argand
from argand.passes import run_passes

TABLE = torch.randn(50, 8)
IDS = torch.randint(50, (6, 5))


def left(function, *args):
    made = run_passes(traced(function, *args))
    return sum("_embedding_bag" in str(node.target) for node in made.graph.nodes)


@pytest.mark.parametrize(
    "kwargs, whole",
    [
        ({"mode": "sum"}, 0),
        ({"mode": "mean"}, 0),
        ({"mode": "max"}, 0),
        ({"mode": "max", "padding_idx": 3}, 1),
        ({"mode": "mean", "padding_idx": 3}, 0),
        ({"mode": "sum", "per_sample_weights": torch.rand(6, 5)}, 0),
        ({"mode": "mean", "scale_grad_by_freq": True}, 1),
    ],
)
def test_bags_of_a_matrix(kwargs, whole):
    def bags(table, ids):
        return F.embedding_bag(ids, table, **kwargs)

    assert left(bags, TABLE, IDS) == whole


def test_many_sums_alone_are_the_librarys():
    def bags(table, ids):
        return F.embedding_bag(ids, table, mode="sum")

    many = torch.zeros(2**12, 16, dtype=torch.int64)
    assert left(bags, TABLE, many) == 1 and left(bags, TABLE.double(), many) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_what_counts_as_nothing_and_weights(padding, dtype):
    """NaN in a row that counts as nothing is not seen, and is larger than nothing but where it comes first."""

    def bags(table, ids, weights):
        parts = [F.embedding_bag(ids, table, mode=mode, padding_idx=padding) for mode in ("sum", "mean")]
        return [*parts, F.embedding_bag(ids, table, mode="sum", padding_idx=padding, per_sample_weights=weights)]

    def largest(table, ids):
        return F.embedding_bag(ids, table, mode="max", padding_idx=padding)

    table, weights = TABLE[:12].to(dtype, copy=True), torch.randn(6, 5, dtype=dtype)
    table[3], table[11, ::2] = float("nan"), float("inf")
    ids = IDS % 11
    ids[0], ids[1, 1], ids[2, 0] = 3, 3, 3
    leaves = [table.requires_grad_(), weights.requires_grad_()]
    want, got = bags(*leaves[:1], ids, weights), argand.compile(bags, fullgraph=True)(*leaves[:1], ids, weights)
    gradients = [torch.autograd.grad([part.cos().sum() for part in parts], leaves) for parts in (want, got)]
    torch.testing.assert_close((*got, *gradients[1]), (*want, *gradients[0]), equal_nan=True)
    with torch.no_grad():
        compiled = argand.compile(largest, fullgraph=True)
        torch.testing.assert_close(compiled(table, ids), largest(table, ids), equal_nan=True)


@pytest.mark.parametrize("begins", [[0, 5, 10, 15, 20, 25], [0, 1, 10, 15, 20, 25]])
def test_bags_that_may_hold_more_or_fewer_stay(begins):
    def bags(table, ids, begins):
        return F.embedding_bag(ids.flatten(), table, begins, mode="sum")

    assert left(bags, TABLE, IDS, torch.tensor(begins)) == 1


def test_bags_whose_other_results_are_read_stay():
    def bags(table, ids):
        return torch.embedding_bag(table, ids.flatten(), torch.arange(0, 30, 5), mode=1)[2]

    assert left(bags, TABLE, IDS) == 1


@pytest.mark.parametrize("count", [5, 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_are_eagers(mode, count):
    each = torch.randint(50, (6, count))

    def step(table, ids):
        made = F.embedding_bag(ids, table, mode=mode)
        return torch.autograd.grad((made**2).sum(), table)[0], made

    def forward(table, ids):
        return F.embedding_bag(ids, table, mode=mode)

    table = TABLE.clone().requires_grad_()
    for found, want in zip(argand.compile(step)(table, each), step(table, each)):
        torch.testing.assert_close(found, want)
    compiled = argand.compile(forward)
    (grad,) = torch.autograd.grad((compiled(table, each) ** 2).sum(), table)
    torch.testing.assert_close(grad, step(table, each)[0])
    with pytest.raises((IndexError, RuntimeError)):
        compiled(table, each + 50)
