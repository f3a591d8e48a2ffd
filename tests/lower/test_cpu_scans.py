"""Cumulative sums, products and sums of exponentials as loops on the CPU, fused with what is around them."""

import pytest
import torch

import argand
import sweeps

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


def both(x, dim):
    return torch.cumsum(x, dim), torch.cumprod(x, dim)


def compiled(function, *args, dynamic=False):
    """What argand's kernels make of it; no kernel of eager's runs."""
    argand.reset()
    found = []
    remove = argand.events.bus.subscribe(lambda event: found.append(event.data), ("fallback",))
    try:
        made = argand.compile(function, fullgraph=True, dynamic=dynamic)(*args)
    finally:
        remove()
    assert not found, found
    return made


@pytest.mark.parametrize(("dtype", "dim"), sweeps.diagonal([*FLOATS, *INTEGERS], [0, 1, 2, -1]))
def test_sums_and_products(dim, dtype):
    x = (torch.randn(3, 19, 37) * 9).to(dtype)
    number = [*FLOATS, *INTEGERS].index(dtype)
    layouts = x, x.transpose(0, 2), x[:, ::2, 1:]
    for x in layouts if sweeps.WHOLE else (layouts[number % 3], layouts[(number + 1) % 3]):
        for made, want in zip(compiled(both, x, dim), both(x, dim), strict=True):
            assert made.dtype is want.dtype and made.stride() == want.stride()
            if dtype in FLOATS[2:]:
                torch.testing.assert_close(made, want, rtol=0.05, atol=1.0, equal_nan=True)
            else:
                assert torch.equal(made.nan_to_num(7), want.nan_to_num(7))  # to the last bit


@pytest.mark.parametrize("dim", [0, 1])
def test_numbers_that_are_none(dim):
    x = torch.randn(21, 23)
    for position, value in enumerate((NAN, INF, -INF, INF, 0.0)):
        x[position::7, position::5] = value
    for function in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
        torch.testing.assert_close(compiled(function, x, dim), function(x, dim), equal_nan=True)
    x = torch.full((5, 4), -INF)
    assert torch.equal(compiled(torch.logcumsumexp, x, dim), x)


@pytest.mark.parametrize("size", [(), (0,), (1,), (5, 0), (0, 5), (7, 1), (1, 300), (300,)])
def test_small_sizes(size):
    x = torch.randn(size)
    for function in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
        for dim in range(max(x.dim(), 1)):
            argand.reset()
            torch.testing.assert_close(argand.compile(function)(x, dim), function(x, dim))


def test_what_stands_around():
    def rows(x):
        y = torch.cumsum(x.softmax(-1), -1)
        return (y.exp() - y[:, :1]) * y.amax(-1, keepdim=True), y.sum(0)

    def columns(x):
        y = torch.cumsum((x * 2).relu(), 0)
        return torch.cumprod(y.tanh(), 0) + x, torch.logcumsumexp(y, 1).mean(1)

    def positions(x):
        mask = x > 0
        return torch.cumsum(mask, 1) * mask, torch.cumsum(mask.flip(0), 0, dtype=torch.float32).flip(0)

    for function in (rows, columns, positions):
        for size in ((9, 40), (64, 33), (3, 500)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(function, x), function(x))


def test_sizes_that_vary():
    def function(x):
        return torch.cumsum(x.sin(), -1) + torch.logcumsumexp(x, 0)

    argand.reset()
    dynamic = argand.compile(function, dynamic=True)
    for size in ((5, 7), (64, 65), (3, 200), (1, 17)):
        x = torch.randn(size)
        torch.testing.assert_close(dynamic(x), function(x))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_gradients(name):
    def loss(x):
        made = getattr(torch, name)(x.tanh(), 1)
        return ((made if isinstance(made, torch.Tensor) else made.values) ** 2).sum()

    x = torch.randn(6, 17, requires_grad=True)
    argand.reset()
    (made,) = torch.autograd.grad(argand.compile(loss)(x), x)
    torch.testing.assert_close(made, *torch.autograd.grad(loss(x), x))


@pytest.mark.parametrize(("dtype", "dim"), sweeps.diagonal([*FLOATS, *INTEGERS[:-1]], [0, 1, 2, -1]))
def test_running_extrema_and_their_places(dim, dtype):
    x = (torch.randn(3, 19, 37) * 3).to(dtype)
    x[:, 3::4] = x[:, 2:18:4]  # of equal ones the last is named
    if dtype in FLOATS:
        for position, value in enumerate((NAN, INF, -INF, INF, -0.0)):
            x.view(-1)[position * 7 :: 211] = value
    layouts = x, x.transpose(0, 2), x[:, ::2, 1:], x[:1].expand(4, 19, 37)
    functions = (torch.cummax, torch.cummin)[:: 1 if dtype in FLOATS else -1]
    for x, function in sweeps.chessboard(layouts, functions):
        made, want = compiled(function, x, dim), function(x, dim)
        for one, two in zip(made, want):
            assert one.dtype is two.dtype and one.stride() == two.stride()
            assert torch.equal(one.nan_to_num(7), two.nan_to_num(7))


@pytest.mark.parametrize("size", [(), (0,), (1,), (5, 0), (0, 5), (7, 1), (1, 300), (300,)])
def test_small_running_extrema(size):
    x = torch.randn(size)
    for dim in range(max(x.dim(), 1)):
        argand.reset()
        for one, two in zip(argand.compile(torch.cummax)(x, dim), torch.cummax(x, dim)):
            assert torch.equal(one, two) and one.dtype is two.dtype


def test_running_extrema_between_other_loops():
    def function(x):
        top, where = torch.cummax(x.sin(), 1)
        low = torch.cummin(top * x, 0)
        return top.exp() - x, where.float().mean(1), low.values + low.indices

    for size in ((9, 40), (64, 33), (3, 500)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(function, x), function(x))
        torch.testing.assert_close(compiled(function, x, dynamic=True), function(x))
