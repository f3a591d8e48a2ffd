"""A fixed sample of `bench/op_db_eager.py`: operators of torch's own test database, captured, against eager."""

from __future__ import annotations

import warnings

import pytest
import torch

import argand
import op_db_eager as bench
import sweeps

_SHARDS = 8
_STRIDE = 5 if sweeps.WHOLE else 40


@pytest.mark.parametrize("shard", range(_SHARDS))
def test_a_fraction_of_the_operators(shard: int) -> None:
    differences: list[str] = []
    samples = one_graph = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in bench.chosen([], _STRIDE * _SHARDS, _STRIDE * shard):
            tally = bench.check_operator(op, limit=1)
            differences += [f"{tally.name}, {text}" for text in tally.differences]
            samples += tally.samples
            one_graph += tally.one_graph
    assert not differences
    assert one_graph >= samples / 3


# Found by op_db_eager.py.


def test_reflected_division_by_a_tensor_is_not_true_division() -> None:
    def f(x, y):
        return x.__rdiv__(y), torch.Tensor.__rsub__(x, y), 2 / x

    x, y = torch.rand(64) + 0.1, torch.rand(64)
    for want, got in zip(f(x, y), argand.compile(f, backend="eager", fullgraph=True)(x, y)):
        assert torch.equal(want, got)


def test_strides_that_only_the_running_program_knows_are_not_guessed() -> None:
    def f(x):
        u, s, v = torch.svd(x)
        y = u * 2
        return y, y.stride(), v.is_contiguous(), s.stride()

    for shape in ((3, 5), (5, 3), (2, 3, 5)):
        x = torch.randn(shape)
        assert argand.compile(f, backend="eager")(x)[1:] == f(x)[1:]
        argand.reset()


def test_strides_of_a_resized_out_argument() -> None:
    def f(x, y):
        out = torch.empty(0)
        torch.linalg.qr(x, out=(out, y))
        return out, out.stride(), y.stride()

    want = f(torch.eye(5), torch.empty(0))
    got = argand.compile(f, backend="eager")(torch.eye(5), torch.empty(0))
    assert want[1:] == got[1:] and torch.equal(want[0], got[0])
