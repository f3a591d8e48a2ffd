"""Reads and writes at places of a flattened tensor, unpooling, membership, distances: loops with eager's results."""

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps
from argand.events import bus

NAN, INF = float("nan"), float("inf")


def same(function, *args, gradients=False, **options):
    """Eager's results, dtypes and strides (and gradients) by loops alone."""
    argand.reset()
    heard = []
    remove = bus.subscribe(heard.append, ("fallback",))
    sides = []
    for run in (function, argand.compile(function, fullgraph=True, **options)):
        leaves = [arg.detach().requires_grad_(gradients and arg.is_floating_point()) for arg in args]
        result = run(*leaves)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if gradients:
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            results += torch.autograd.grad(sum((each * each.detach().cos()).sum() for each in results), wanted)
        sides.append(results)
    remove()
    assert not [event.data for event in heard]
    for want, made in zip(*sides):
        assert made.dtype is want.dtype and made.stride() == want.stride() and made.shape == want.shape
        torch.testing.assert_close(made, want, equal_nan=True)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "a part": lambda x: torch.cat([x, x, x])[x.shape[0] : 2 * x.shape[0]],
    "repeated": lambda x: x[:1].expand(x.shape),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize(("layout", "dtype"), sweeps.chessboard(list(LAYOUTS), DTYPES))
def test_take_and_put(layout, dtype):
    x = LAYOUTS[layout]((torch.randn(4, 6) * 9).to(dtype))
    index = torch.tensor([[3, -1, 23], [-24, 0, 3]])
    source = (torch.randn(3, 2) * 9).to(dtype).t()

    def function(x, index, source):
        put = x.put(index, source)
        return x.take(index), put, x.put(index % 3, source, accumulate=dtype is not torch.bool)

    same(function, x, index, source)
    if dtype is torch.float32:
        same(function, x, index, source, gradients=True)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_unpooling(layout):
    def images(x):
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(values.exp(), places, 2), F.max_unpool2d(values, places, 2, output_size=(9, 7))

    def volumes(x):
        values, places = F.max_pool3d(x, 2, return_indices=True)
        return F.max_unpool3d(values, places, 2).sin()

    def signals(x):
        values, places = F.max_pool1d(x, 3, 2, return_indices=True)
        return F.max_unpool1d(values, places, 3, 2)

    for function, size in (
        (images, (2, 3, 8, 6)),
        (images, (3, 8, 6)),
        (volumes, (2, 2, 4, 6, 4)),
        (signals, (2, 3, 9)),
    ):
        same(function, LAYOUTS[layout](torch.randn(size)), gradients=True)
    same(images, torch.randn(2, 3, 8, 6).contiguous(memory_format=torch.channels_last), gradients=True)


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_membership(count, dtype):
    x, values = (torch.randn(5, 7) * 9).to(dtype), (torch.randn(count) * 9).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[:3], values[:1] = torch.tensor([NAN, INF, -INF]), INF

    def function(x, values):
        parts = x, x.t(), x[0, 0], x[:, ::2]
        return [torch.isin(part, values, invert=invert) for part in parts for invert in (False, True)]

    argand.reset()
    for want, made in zip(function(x, values), argand.compile(function, fullgraph=True)(x, values)):
        assert torch.equal(want, made) and want.stride() == made.stride()


def test_distances_norms_and_powers():
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    y[0, 0], x[1, 1] = INF, 0.0

    def function(x, y):
        return [
            torch.dist(x, y), torch.dist(x, y[0], 1), torch.dist(x, x.t()[:4, :1], float("inf")), x.renorm(2, 0, 1.5),
            x.renorm(1, -1, 0.5), torch.ldexp(x, torch.tensor([1, -2, 30, 0, 5, 2])), torch.sinc(y), torch.sinc(x),
        ]  # fmt: skip

    same(function, x, y)
    same(function, x.t().contiguous().t(), y.double().float())
    same(lambda x: x.renorm(2, 0, 1.0).sin() + torch.sinc(x), torch.randn(3, 5), gradients=True)


def test_extrema_of_bools_and_their_places():
    x = torch.rand(5, 9) < 0.3
    x[2] = False
    for dim in (0, 1):
        for given in (x, x.t(), ~x[:, 3:4].expand(5, 9)):
            same(lambda x, dim=dim: (*x.max(dim), *x.min(dim, keepdim=True)), given)


def test_places_outside_raise():
    for function, args in (
        (lambda x, i: x.take(i), (torch.randn(3, 4), torch.tensor([12]))),
        (lambda x, i: x.put(i, x[0, :1]), (torch.randn(3, 4), torch.tensor([-13]))),
        (lambda x, i: F.max_unpool2d(x, i, 2), (torch.randn(1, 1, 1, 1), torch.tensor([[[[4]]]]))),
    ):
        raised = []
        for run in (function, argand.compile(function)):
            with pytest.raises((IndexError, RuntimeError)) as error:
                run(*args)
            raised.append((type(error.value), str(error.value).splitlines()[0]))
        assert raised[0] == raised[1]
