"""Operations that raise because of what tensors hold raise in compiled code too: unread, read in part, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps
from argand import events
from argand.graph.operators import data_checks

aten = torch.ops.aten
BACKENDS = ("eager", "aot_eager", "native")
BAD = torch.tensor([0, 1, 100])
Program = Callable[[torch.Tensor], Any]

UNREAD: dict[str, Callable[[torch.Tensor], Any]] = {
    "index": lambda x: x[BAD],
    "index of a column": lambda x: x.view(2, 2)[:, BAD],
    "gather": lambda x: x.gather(0, BAD),
    "index_select": lambda x: x.index_select(0, BAD),
    "take": lambda x: torch.take(x, BAD),
    "embedding": lambda x: F.embedding(BAD, x[:, None]),
    "embedding_bag": lambda x: F.embedding_bag(BAD[None], x[:, None]),
    "scatter": lambda x: x.clone().scatter_(0, BAD, 1.0),
    "scatter_add": lambda x: x.scatter_add(0, BAD, torch.ones(3)),
    "scatter_reduce": lambda x: x.scatter_reduce(0, BAD, torch.ones(3), "amax"),
    "index_put": lambda x: x.clone().index_put_((BAD,), torch.ones(3)),
    "index_add": lambda x: x.index_add(0, BAD, torch.ones(3)),
    "index_copy": lambda x: x.index_copy(0, BAD, torch.ones(3)),
    "index_fill": lambda x: x.index_fill(0, BAD, 1.0),
    "put": lambda x: x.clone().put_(BAD, torch.ones(3)),
    "masked_scatter": lambda x: x.masked_scatter(x > -9, torch.ones(1)),
    "nll_loss": lambda x: F.nll_loss(x.view(2, 2), BAD[1:]),
    "cross_entropy": lambda x: F.cross_entropy(x.view(2, 2), BAD[1:]),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x.view(2, 2), BAD[1:]),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x + 5, x),
    "integer division": lambda x: x.long() // (x.long() * 0),
    "integer remainder": lambda x: x.long() % (x.long() * 0),
    "svd of NaN": lambda x: torch.linalg.svd(x.view(2, 2) * float("nan")),
    "svdvals of NaN": lambda x: torch.linalg.svdvals(x.view(2, 2) * float("nan")),
    "lstsq": lambda x: torch.linalg.lstsq(x.view(2, 2) * float("nan"), x.view(2, 2)),
    "eig of NaN": lambda x: torch.linalg.eig(x.view(2, 2) * float("nan")),
    "max_unpool2d": lambda x: F.max_unpool2d(x.view(1, 1, 2, 2), BAD.new_full((1, 1, 2, 2), 99), 2),
    "what follows is not read either": lambda x: x[BAD].sin().sum(),
}
"""Nobody reads their results."""

IN_PART: dict[str, Program] = {
    "a view of the beginning": lambda x: x[BAD][:2],
    "computed from the beginning": lambda x: x[BAD][:2] * 2,
    "one element": lambda x: x[BAD].cos()[0] + 1,
    "nothing of it": lambda x: x[BAD][:0].sum(),
    "its size alone": lambda x: torch.zeros_like(x[BAD]) + 1,
    "its dtype alone": lambda x: x[BAD].new_ones(3),
    "cut off by a negative pad": lambda x: F.pad(x[BAD], (-1, -1)),
    "part of a concatenation": lambda x: torch.cat([x[BAD], x])[3:],
    "chosen by where": lambda x: torch.where(BAD < 9, x[BAD], 0.0),
    "under a triangle": lambda x: x[BAD].expand(3, 3).tril()[:, :1].tril(-1),
    "filled over": lambda x: x[BAD].fill_(2.0),
    "copied over": lambda x: x[BAD].copy_(x[:3]),
    "rows of an embedding": lambda x: F.embedding(BAD, x[:, None])[:2].sum(),
    "scattered, then cut": lambda x: x.scatter(0, BAD, 1.0)[:1],
    "added, then cut": lambda x: x.index_add(0, BAD, torch.ones(3))[:1] * 2,
}
"""Something of their results is read, not all of it."""


def outcome(fn: Program, x: torch.Tensor) -> str:
    try:
        fn(x)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__
    return "no error"


def compare(program: Program, backend: str, **options: Any) -> None:
    compiled = argand.compile(program, backend=backend, **options)
    for requires_grad in (False, True):
        x = torch.arange(4.0).requires_grad_(requires_grad)
        wanted = outcome(program, x)
        assert wanted != "no error"
        assert outcome(compiled, x) == wanted


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(UNREAD, BACKENDS))
def test_unread(name: str, backend: str) -> None:
    one = UNREAD[name]
    compare(lambda x: (one(x), x * 2)[1], backend)


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(IN_PART, BACKENDS))
def test_read_in_part(name: str, backend: str) -> None:
    compare(IN_PART[name], backend)


@pytest.mark.parametrize("name", ["index", "nll_loss", "scatter", "embedding"])
def test_unread_with_symbolic_sizes(name: str) -> None:
    one = UNREAD[name]
    compare(lambda x: (one(x), x * 2)[1], "native", dynamic=True)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_only_the_backward_reads_raises_in_the_forward(backend: str) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x[BAD])
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0].sum()

    def program(x: torch.Tensor) -> Any:
        return Scaled.apply(x).sum()

    x = torch.arange(4.0, requires_grad=True)
    assert outcome(program, x) == outcome(argand.compile(program, backend=backend), x) == "IndexError"


@pytest.mark.parametrize("backend", BACKENDS)
def test_good_data_passes(backend: str) -> None:
    index = torch.tensor([0, 3, 1])

    def program(x: torch.Tensor) -> Any:
        x[index], x.gather(0, index), F.embedding(index, x[:, None]), x.scatter(0, index, 1.0)
        F.nll_loss(x.view(2, 2), index[::2] % 2)
        return x[index][:2] * 2, x[index].sum()

    x = torch.arange(4.0)
    torch.testing.assert_close(argand.compile(program, backend=backend)(x), program(x))


def code_of(program: Program, x: torch.Tensor) -> str:
    found: list[str] = []
    remove = events.bus.subscribe(lambda event: found.append(event.text()), ["kernel_code"])
    try:
        argand.compile(program, backend="native")(x)
    finally:
        remove()
    return "".join(found)


def test_positions_that_are_known_cost_nothing() -> None:
    """Of an arange no position is out of bounds: nothing is left of a read that nobody needs."""
    x = torch.arange(4.0)
    known = code_of(lambda x: (x[torch.arange(3)], x * 2)[1], x)
    unknown = code_of(lambda x: (x[BAD - BAD], x * 2)[1], x)
    assert "check_ind" in unknown and "check_ind" not in known


def test_a_read_of_everything_is_checked_where_it_is_read() -> None:
    """One kernel, as before: the loops that check are the reader's."""
    index = torch.tensor([0, 3, 1])
    code = code_of(lambda x: F.embedding(index, x[:, None]) * 2 + 1, torch.arange(4.0))
    assert code.count('extern "C"') == 1


def test_the_table() -> None:
    assert not data_checks.may_raise(aten.add.Tensor, (torch.ones(1), torch.ones(1)))
    assert not data_checks.may_raise(aten.floor_divide.default, (torch.ones(3), torch.ones(3)))
    assert not data_checks.may_raise(aten.floor_divide.default, (torch.arange(3), 2))
    assert data_checks.may_raise(aten.floor_divide.default, (torch.arange(3), torch.arange(3)))
    assert data_checks.may_raise(aten.floor_divide.default, (torch.arange(3), 0))
    assert data_checks.may_raise(aten.scatter_.value, (torch.ones(3), 0, torch.arange(3), 1.0))
