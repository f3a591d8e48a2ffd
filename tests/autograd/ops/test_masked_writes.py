"""Values written where a mask is true, and their gradients: whatever their size, no count of the mask is asked for."""

import pytest
import torch

import argand
from argand.events import bus

mask = torch.tensor([True, False, True, True, False])
places = torch.tensor([[True, False, True], [False, False, True], [True, False, False], [False] * 3, [True] * 3])
every = slice(None)


def put(y, at, v):
    y = y + 1
    y[at] = v
    return y


PROGRAMS = {
    "a value for each place": (places, (5, 3), (7,)),
    "one for all": (places, (5, 3), (1,)),
    "a number for all": (places, (5, 3), ()),
    "a row for each place": (mask, (5, 3), (3, 3)),
    "a row for all": (mask, (5, 3), (3,)),
    "a row of one": (mask, (5, 3), (1, 3)),
    "one in each row": (mask, (5, 3), (3, 1)),
    "columns": ((every, mask), (4, 5), (4, 3)),
    "columns of one": ((every, mask), (4, 5), (4, 1)),
    "in the middle": ((every, places), (2, 5, 3, 4), (2, 7, 4)),
    "in the middle, for all": ((every, places), (2, 5, 3, 4), (7, 4)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_of_values_at_a_mask(name, backend):
    at, size, given = PROGRAMS[name]

    def function(x, v):
        return (put(x * 2, at, v.sin()) * torch.arange(x.numel()).view(x.shape)).exp().log1p()

    same(function, torch.randn(size) / 50, torch.randn(given) / 50, backend=backend)


def same(function, *args, backend="native"):
    """The same results and gradients in one graph, which no part of runs as eager's as a whole."""
    sides, heard = [], []
    remove = bus.subscribe(heard.append, ("fallback",))
    for run in (function, argand.compile(function, fullgraph=True, backend=backend)):
        leaves = [arg.detach().clone().requires_grad_() for arg in args]
        result = run(*leaves)
        sides.append([result, *torch.autograd.grad(result.sum(), leaves, allow_unused=True)])
    remove()
    assert not heard
    for want, answer in zip(*sides):
        torch.testing.assert_close(answer, want, equal_nan=True)
        assert answer.stride() == want.stride()


def test_values_that_are_added_at_a_mask():
    same(lambda x, v: x.index_put((places,), v, accumulate=True).exp(), torch.randn(5, 3), torch.randn(7))


def test_writes_in_place_to_a_whole_and_to_a_view():
    def function(x, v, w):
        y = x * 2
        y[places] = v
        y[1:][places[1:]] = w
        y[:, 0][mask] = v[:3] * w
        y[mask] = 3.0
        return y * x

    same(function, torch.randn(5, 3), torch.randn(7), torch.randn(()))


def test_a_mask_that_is_computed_and_not_a_number_elsewhere():
    x = torch.randn(6, 4)
    x[0, 0], x[1, 1] = float("nan"), float("inf")

    def function(x, v):
        y = x.clone()
        y[y > 0] = v
        y[y != y] = v * 2
        return y

    same(function, x, torch.randn(()))


def test_as_many_values_as_places_or_an_error():
    def function(x, v):
        y = x * 2
        y[places] = v
        return y

    compiled = argand.compile(function)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(torch.randn(5, 3), torch.randn(6, requires_grad=True))
    same(function, torch.randn(5, 3), torch.randn(7))


def test_reads_at_a_mask_that_are_no_gradients_break_the_graph():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, v):
            return x.index_put((places,), v)

        @staticmethod
        def backward(ctx, grad):
            return grad, grad[places] * 2

    def function(x, v):
        return Doubled.apply(x * 2, v)

    x, v = torch.randn(5, 3, requires_grad=True), torch.randn(7, requires_grad=True)
    for run in (function, argand.compile(function)):
        grads = torch.autograd.grad(run(x, v).sum(), (x, v))
        assert torch.equal(grads[1], torch.full((7,), 2.0))
