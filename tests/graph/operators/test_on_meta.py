"""Operators that make tensors by themselves: torch's, called by name, and fakes of custom operators."""

from __future__ import annotations

import pytest
import torch

import argand
from helpers import CountingBackend, assert_same

aten = torch.ops.aten


@torch.library.custom_op("argand_tests_on_meta::columns", mutates_args=())
def columns(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_strided(x.shape, (1, x.shape[0])).copy_(x * factor)


@columns.register_fake
def _(x, factor):
    return torch.empty_strided(x.shape, (1, x.shape[0]))  # of no device that is named


def made(x, n):
    filled = aten.full([2], n) + aten.zeros([2]) + aten.scalar_tensor.default(2.0, dtype=torch.float64)
    return filled, aten.arange(n), aten.ones.default([n], dtype=torch.int32), aten.eye(2) * x.sum()


def drawn(x, n):
    return aten.rand([2]) + x, aten.randint(9, [n]), torch.rand(2)


def asked(x, n):
    sizes = aten.size(x), aten.size.int(x, 0), aten.sym_size.int(x, dim=-1), aten.sym_size.default(x)
    return x * aten.numel(x), sizes, aten.stride(x), aten.sym_stride.int(x, 0), aten.dim(x), aten.is_complex(x)


@pytest.mark.parametrize("backend", [None, "native"])
@pytest.mark.parametrize("function", [made, drawn, asked])
def test_operators_by_name_are_one_graph_for_all_sizes(function, backend):
    counting = CountingBackend()
    compiled = argand.compile(function, backend=backend or counting, fullgraph=True)
    with argand.config.patch(fallback_random=True):
        for n in (2, 3, 4, 5):
            torch.manual_seed(n)
            want, state = function(torch.ones(n, 2), n), torch.get_rng_state()
            torch.manual_seed(n)
            assert_same(want, compiled(torch.ones(n, 2), n))
            assert torch.equal(torch.get_rng_state(), state)
    assert len(counting.graphs) == (0 if backend else 2)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_fakes_that_name_no_device(backend):
    def function(x):
        return columns(x + 1, 2.0), columns(x.T, 3.0).sum()

    compiled = argand.compile(function, backend=backend, fullgraph=True)
    for shape in ((2, 3), (4, 3)):
        x = torch.randn(shape)
        assert_same(function(x), compiled(x))
