"""Reductions against eager."""

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

import argand

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


def sample(dtype, *shape):
    torch.manual_seed(3)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype):
    x = sample(dtype, 4, 5, 6)
    for dims in (0, -1, (0, 2), (0, 1, 2)):
        check(lambda a: a.sum(dims), x, loops_only=True)
        check(lambda a: a.sum(dims, keepdim=True), x, loops_only=True)
    check(torch.sum, x, loops_only=True)
    check(torch.prod, x[:2, :2, 0], loops_only=True)
    check(lambda a: a.prod(1), x[:, :3], loops_only=True)
    check(lambda a: a.sum(1, dtype=torch.float64), x, loops_only=True)
    check(lambda a: a.any(1), x, loops_only=True)
    check(lambda a: a.all(1), x, loops_only=True)
    check(torch.any, x, loops_only=True)
    check(torch.all, x, loops_only=True)
    check(torch.count_nonzero, x, loops_only=True)


def _takes_bools(total):
    try:
        return bool(total(torch.tensor([1.0]), 0, dtype=torch.bool))
    except NotImplementedError:  # nansum, up to torch 2.12
        return False


TOTALS_AS_BOOLS = tuple(filter(_takes_bools, (torch.sum, torch.prod, torch.nansum)))


def test_totals_as_bools():
    """Of the compiled kernels: 8-bit numbers would be added up, 2 of which are no bool."""

    def totals(*given):
        rows = [(x, dim) for x in given for dim in (-1, 0)]
        return [total(x, dim, dtype=torch.bool) for total in TOTALS_AS_BOOLS for x, dim in rows]

    inputs = [sample(dtype, 5, 19) % 3 for dtype in (torch.int64, torch.int32, torch.uint8)]
    inputs += [sample(torch.bool, 5, 19), sample(torch.float32, 5, 19).clamp(0)]
    results = argand.compile(totals, backend="native", fullgraph=True)(*inputs)
    assert all(torch.equal(got, want) for got, want in zip(results, totals(*inputs)))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool])
def test_extrema(dtype):
    x = sample(dtype, 4, 5, 6)
    for dim in (0, 1, -1):
        check(lambda a: a.amax(dim), x, loops_only=True, exact=True)
        check(lambda a: a.amin(dim, keepdim=True), x, loops_only=True, exact=True)
        check(lambda a: tuple(a.max(dim)), x, loops_only=True, exact=True)
        check(lambda a: a.argmin(dim), x, loops_only=True, exact=True)
    check(lambda a: (a.max(), a.min(), a.argmax(), a.argmin()), x, loops_only=True, exact=True)
    check(lambda a: tuple(torch.aminmax(a, dim=1)), x, loops_only=True, exact=True)


def test_argmax_counts_in_logical_order():
    x = torch.randn(6, 7).t()
    check(lambda a: a.argmax(), x, loops_only=True, exact=True)
    check(lambda a: a.argmax(0), torch.ones(4, 3), loops_only=True, exact=True)  # ties: the first


def test_nan_in_extrema():
    x = torch.tensor([[1.0, math.nan, 3.0], [5.0, math.nan, math.nan], [-math.inf, 2.0, math.inf]])
    check(lambda a: (a.amax(1), a.amin(1), a.argmax(1), a.argmin(1)), x, loops_only=True)
    check(lambda a: tuple(a.max(0)), x, loops_only=True)
    check(lambda a: (torch.nansum(a), a.isnan().any(0)), x, loops_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_moments(dtype):
    x = sample(dtype, 4, 5, 16) + 3
    for dims in (-1, (0, 2), None):
        check(lambda a: a.mean(dims), x, loops_only=True)
        check(lambda a: a.var(dims), x, loops_only=True)
        check(lambda a: a.std(dims, keepdim=True), x, loops_only=True)
        check(lambda a: torch.var(a, dims, correction=0), x, loops_only=True)
        check(lambda a: torch.var_mean(a, dims, correction=0, keepdim=True), x, loops_only=True)
    check(lambda a: a.var(-1), x[..., :1], loops_only=True)  # one element: nan


def test_moments_far_from_zero():
    """Two passes lose nothing to cancellation."""
    x = torch.randn(3, 2000) + 1e4
    check(lambda a: (a.var(1), a.std(1)), x, loops_only=True)


def test_norms():
    x = torch.randn(4, 5, 6)
    for order in (2, 1, 3, 0, math.inf, -math.inf):
        check(lambda a: torch.linalg.vector_norm(a, order, dim=1), x, loops_only=True)
    check(lambda a: a.norm(), x, loops_only=True)
    check(lambda a: F.normalize(a, dim=-1), x, loops_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_softmax(dtype):
    x = sample(dtype, 3, 4, 9) * 4
    for dim in (-1, 0, 1):
        check(lambda a: F.softmax(a, dim), x, loops_only=True, passes=True)
        check(lambda a: F.log_softmax(a, dim), x, loops_only=True, passes=True)
        check(lambda a: torch.logsumexp(a, dim), x, loops_only=True, passes=True)
    check(lambda a: F.softmax(a, 0), x[0, 0, 0], loops_only=True, passes=True)
    check(lambda a: F.softmax(a.masked_fill(a > 0, -math.inf), -1), x, loops_only=True, passes=True)


def test_softmax_gives_fusible_nodes():
    """One nest per pass over the rows, all with the same outer loops, and the exponentials stored once."""
    run = check(lambda a: F.softmax(a * 0.5, -1), torch.randn(8, 128), loops_only=True, passes=True)
    assert [[str(s) for s in node.body.sizes] for node in run.loops] == [["8"], ["8", "128"], ["8"], ["8", "128"]]
    kinds = [s.op for node in run.loops for s in node.body.statements]
    assert kinds.count("exp") == 1 and kinds.count("reduction") == 2


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty(shape):
    x = torch.ones(shape)
    check(lambda a: (a.sum(), a.sum(0), a.sum(-1), a.prod(-1), a.any(-1), a.all(-1), a.mean(-1)), x, loops_only=True)
    check(lambda a: (a.sum(0) + 1, a.var(-1)), x, loops_only=True)


def test_scalars_and_ones():
    x = torch.tensor(2.5)
    check(lambda a: (a.sum(), a.amax(), a.mean(), a.argmax(), a.softmax(0)), x, loops_only=True, passes=True)
    y = torch.randn(3, 1, 4)
    check(lambda a: (a.sum(1), a.amax(1, keepdim=True), a.argmax(1), tuple(a.max(1)), a.var(1, correction=0)), y)


def test_layouts():
    x = torch.randn(2, 3, 4, 5)
    for layout in (x.to(memory_format=torch.channels_last), x.permute(3, 0, 2, 1), x[:, :, ::2], x.expand(2, 3, 4, 5)):
        check(lambda a: (a.sum(1), a.mean((2, 3), keepdim=True), a.amax((0, 1))), layout, loops_only=True)


def test_cross_products():
    torch.manual_seed(4)
    x, y = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    check(lambda a, b: torch.linalg.cross(a, b, dim=1) * 2, x, y, loops_only=True, passes=True)
    check(lambda a, b: torch.cross(a, b, dim=-2), x.double(), y.double(), loops_only=True, passes=True)
    check(lambda a, b: torch.linalg.cross(a, b), torch.randn(1, 3), torch.randn(6, 3), loops_only=True, passes=True)
    check(
        lambda a, b: torch.linalg.cross(a, b), x.mT.contiguous().mT.transpose(1, 2), y.mT, loops_only=True, passes=True
    )
    check(lambda a, b: torch.linalg.cross(a.int(), b.int(), dim=1), x, y, passes=True)
