"""Indirect reads, ops that move elements, and tensors made from nothing."""

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check, graph_of, run_lowered

import argand

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def sample(dtype, *shape):
    torch.manual_seed(5)
    return torch.randn(shape).mul(9).to(dtype) if dtype is not torch.bool else torch.rand(shape) > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_indirect_reads(dtype):
    x = sample(dtype, 5, 6, 7)
    i, j = torch.tensor([[0, 4, -1], [2, -5, 3]]), torch.tensor([5, 0, -6])
    check(lambda a, p: a[p], x, i, loops_only=True)
    check(lambda a, p: a[:, p], x, j, loops_only=True)
    check(lambda a, p, q: a[p, q], x, i, j, loops_only=True)
    check(lambda a, p, q: a[p, :, q], x, i, j, loops_only=True)
    check(lambda a, p, q: a[:, q, p.abs()], x, i.int(), j, loops_only=True)
    check(lambda a, p: a.index_select(1, p), x, j.abs() % 6, loops_only=True, passes=True)
    check(lambda a, p: torch.gather(a, 1, p), x, torch.randint(0, 6, (4, 3, 7)), loops_only=True)
    check(lambda a, p: torch.take_along_dim(a, p, 2), x, torch.randint(0, 7, (5, 6, 2)))
    check(lambda a, p: (a.to(torch.float32).exp() * 2)[p], x, i, loops_only=True)


def test_embedding():
    weight, index = torch.randn(10, 4), torch.randint(0, 10, (3, 5))
    run = check(lambda w, i: F.embedding(i, w) * 2 + 1, weight, index, loops_only=True)
    assert len(run.loops) == 1
    check(lambda w, i: F.embedding(i, w), weight, index[:0], loops_only=True)


@pytest.mark.parametrize("parts", [3, 6])
def test_embeddings_that_are_joined_are_looked_up_where_they_go(parts):
    weight, index = torch.randn(10, 4), torch.randint(0, 10, (3, parts))
    run = check(lambda w, i: torch.stack([F.embedding(each, w) for each in i.unbind(1)], 1), weight, index)
    assert len(run.loops) == parts
    run = check(lambda w, i: torch.cat([F.embedding(each, w) for each in i.unbind(1)], 1).t(), weight, index)
    assert len(run.loops) == parts


@pytest.mark.parametrize("parts", [2, 6])
def test_positions_that_nobody_reads_are_checked(parts):
    """Of a cat, and of a part that eager skips."""

    def some(w, i):
        return torch.cat([F.embedding(each, w) for each in i.unbind(1)], 1)[:, :3] * 2

    def skipped(w, i):
        empty = w.new_empty(0)
        return torch.cat([empty, empty, empty, empty, F.embedding(i[:, -1], w)], 1)[:, :3] * 2

    for function in (some, skipped):
        index = torch.zeros(3, parts, dtype=torch.int64)
        check(function, torch.randn(10, 4), index)
        index[2, -1] = 10
        gm, tensors = graph_of(function, (torch.randn(10, 4), index), {})
        with pytest.raises(IndexError):
            run_lowered(gm, tensors)


REDUCED = {
    "part of sums": lambda w, i: F.embedding(i, w).sum(1)[:1],
    "sums that nobody reads": lambda w, i: (F.embedding(i, w).sum(1), w * 2)[1],
    "extremes": lambda w, i: w[i].amax((0, 2))[:1] + w[i].amin(),
    "means of means": lambda w, i: w[i].mean(2).mean(0)[1:2],
    "two readers": lambda w, i: (lambda x: (x.mean(1)[:1], x[:1, :1].sum(0)))(F.embedding(i, w)),
}


@pytest.mark.parametrize("columns", [4, 1])
@pytest.mark.parametrize("function", REDUCED.values(), ids=REDUCED)
def test_what_a_reduction_looks_up_is_checked(function, columns):
    """Of one column too, where a sum is no loop."""
    weight, index = torch.randn(10, 3), torch.randint(0, 10, (5, columns))
    check(function, weight, index)
    check(function, weight, index[:, :0] if function is REDUCED["part of sums"] else index)
    index[4, -1] = 10
    gm, tensors = graph_of(function, (weight, index), {})
    with pytest.raises(IndexError):
        run_lowered(gm, tensors)


def test_sums_look_up_what_they_add():
    run = check(
        lambda w, i: F.embedding(i, w).sum(1), torch.randn(10, 4), torch.randint(0, 10, (3, 5)), loops_only=True
    )
    assert len(run.loops) == 1


@pytest.mark.parametrize("function", [lambda w, i: F.embedding(i, w), lambda w, i: w[i], lambda w, i: w.gather(0, i)])
def test_out_of_range_raises(function):
    gm, tensors = graph_of(function, (torch.randn(4, 3), torch.tensor([[0, 1, 4]])), {})
    with pytest.raises(IndexError):
        run_lowered(gm, tensors)


def test_known_positions_are_not_indirect():
    """Indexing with a range is affine, as a slice is."""
    run = check(lambda a: a[torch.arange(2, 6)] + a[:, None].squeeze(1)[torch.arange(4)], torch.randn(8, 3))
    assert not any(s.op == "indirect" for node in run.loops for s in node.body.statements)


def test_boolean_mask_stays_in_aten():
    x = torch.randn(4, 3)
    check(lambda a: a.masked_fill(a > 0, 0.0) + torch.where(a > 0, a, 0.0), x, loops_only=True, passes=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cat(dtype):
    x, y, z = sample(dtype, 2, 3, 4), sample(dtype, 2, 1, 4), sample(dtype, 2, 5, 4)
    check(lambda *a: torch.cat(a, 1), x, y, z, loops_only=True, exact=True)
    check(lambda a, b: torch.cat([a, b.expand(2, 3, 4)], -1), x, y, loops_only=True, exact=True)
    check(lambda a: torch.cat([a] * 6, 2), x, loops_only=True, exact=True)
    check(lambda a: torch.stack([a, a.flip(0), a], 1), x, loops_only=True, exact=True, passes=True)
    check(lambda a: torch.cat([a, torch.zeros(0, dtype=a.dtype)], 1), x, exact=True)
    check(lambda a: torch.cat([a[:, :0], a[:, :0]], 1), x, exact=True)
    check(lambda a: torch.cat([a.float(), a.double()], 1) + 1, x, loops_only=True)


def test_cat_inside_consumers():
    """The halves of a rotary embedding are separate loops over registers: no buffer, no test of position."""

    def rotary(x, c, s):
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * c + half * s

    x, c, s = torch.randn(2, 3, 8), torch.randn(3, 8), torch.randn(3, 8)
    run = check(rotary, x, c, s, loops_only=True)
    assert len(run.loops) == 2 and len({name for node in run.loops for name in (*node.outputs, *node.mutates)}) == 1
    assert not any(statement.op == "masked" for node in run.loops for statement in node.body.statements)
    check(lambda a, b, d: rotary(a, b, d).transpose(0, 1).reshape(3, 16) * 2, x, c, s, loops_only=True)
    check(lambda a, b, d: rotary(a, b, d).sum(-1), x, c, s, loops_only=True)
    check(lambda a: torch.cat([a, a * 2], 0) + torch.cat([a * 3, a], 0), x, loops_only=True)
    check(lambda a: torch.cat([a, a * 2], 0) + torch.cat([a[:1], a, a[:1]], 0), x, loops_only=True)
    check(lambda a: torch.cat([a, a * 2], -1).permute(2, 0, 1).unsqueeze(1) + 1, x, loops_only=True)
    check(lambda a: torch.cat([a, a * 2], -1).softmax(-1), x, loops_only=True, passes=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_and_moves(dtype):
    x = sample(dtype, 3, 4, 5)
    value = True if dtype is torch.bool else 2
    check(lambda a: F.pad(a, (1, 2)), x, loops_only=True, exact=True)
    check(lambda a: F.pad(a, (1, 2, 0, 3), value=value), x, loops_only=True, exact=True)
    check(lambda a: F.pad(a, (-1, 2, 0, -2)), x, loops_only=True, exact=True)
    check(lambda a: a.flip(0, 2), x, loops_only=True, exact=True)
    check(lambda a: a.roll((1, -2), (0, 2)), x, loops_only=True, exact=True)
    check(lambda a: a.repeat(2, 1, 3), x, loops_only=True, exact=True, passes=True)
    check(lambda a: a[0].tril(1), x, loops_only=True, exact=True)
    check(lambda a: a.triu(-1), x, loops_only=True, exact=True)
    for times in range(-1, 4):
        check(lambda a: a.rot90(times, (0, 2)), x, loops_only=True, exact=True)


def test_writes_into_views():
    x = torch.randn(4, 6)

    def assign(*where):
        def function(a, b):
            result = a.clone()
            result[where] = b
            return result

        return function

    check(assign(slice(None), slice(1, 5, 2)), x, torch.randn(4, 2), loops_only=True)
    check(assign(1), x, torch.randn(6), loops_only=True)
    check(assign(slice(1, 3)), x, torch.tensor(7.0), loops_only=True)
    check(assign(-1, slice(2, None)), x, torch.randn(4), loops_only=True)
    check(lambda a, b: torch.slice_scatter(a, b, 1, 2, 5), x, torch.randn(4, 3), loops_only=True)
    check(lambda a, b: torch.slice_scatter(a, b, 1, -3), x, torch.randn(4, 3), loops_only=True)
    check(lambda a, b: torch.select_scatter(a, b, 0, -2), x, torch.randn(6), loops_only=True)
    check(lambda a, b: torch.diagonal_scatter(a, b, 1), x, torch.randn(4), loops_only=True)
    check(lambda a, b: torch.diagonal_scatter(a, b, -1), x, torch.randn(3), loops_only=True)
    check(lambda a, b: a.index_put((torch.tensor([0, 2]),), b), x, torch.randn(2, 6))
    check(lambda a, b: a.scatter(1, torch.tensor([[0], [1], [2], [3]]), b), x, torch.randn(4, 1))


def test_upsample_nearest():
    x = torch.randn(2, 3, 4, 5)
    check(lambda a: F.interpolate(a, scale_factor=2), x, loops_only=True, exact=True)
    check(lambda a: F.interpolate(a, size=(8, 15)), x.to(memory_format=torch.channels_last), loops_only=True)
    check(lambda a: F.interpolate(a, size=(6, 7)), x, loops_only=True, exact=True)
    check(lambda a: F.interpolate(a[0], scale_factor=3) + 1, x, loops_only=True)


def test_creation():
    x = torch.randn(3, 4)
    check(lambda a: a + torch.arange(4), x, loops_only=True)
    check(lambda a: a + torch.arange(1, 9, 2, dtype=torch.float32), x, loops_only=True)
    check(lambda a: a + torch.arange(0, 1, 0.25), x, loops_only=True)
    check(lambda a: a + torch.full((3, 1), 2.5), x, loops_only=True)
    check(lambda a: torch.full_like(a, 3) * torch.ones_like(a) + torch.zeros(4), x, loops_only=True, passes=True)
    check(lambda a: a @ torch.eye(4), x)
    check(lambda a: a + torch.eye(3, 4), x, loops_only=True)
    check(lambda a: a.new_full((2, 2), 7), x, loops_only=True, passes=True)
    check(lambda a: a + torch.ones(4, 3).t(), x, loops_only=True, passes=True)
    check(lambda a: torch.zeros(2, 3, dtype=torch.bool) | a[:2, :3].bool(), x, loops_only=True, passes=True)


def test_looked_up_rows_side_by_side_where_sizes_vary():
    """Whether a reader reads all that was looked up is asked of results whose sizes are expressions."""

    def f(x, at):
        return torch.cat([x[at], x[at] * 2], -1).sin()

    compiled = argand.compile(f, backend="native", dynamic=True, fullgraph=True)
    for rows in (5, 9):
        x, at = sample(torch.float32, rows, 4), torch.arange(rows).flip(0)
        torch.testing.assert_close(compiled(x, at), f(x, at))
