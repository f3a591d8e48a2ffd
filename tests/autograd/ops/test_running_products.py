"""Gradients of products and cumulative ones are eager's, whatever is among the factors, and take a few operations."""

import itertools

import pytest
import torch

import argand


def along_rows(x):
    return torch.cumprod(x, 1)


def method(x):
    return x.cumprod(dim=0).sin()


def of_another_dtype(x):
    return torch.cumprod(x, -1, dtype=torch.float64)


def product(x):
    return torch.prod(x, 1)


def product_kept(x):
    return x.prod(dim=0, keepdim=True).sin()


def product_of_all(x):
    return x.prod() * x[:1].prod() * x[3:].prod(dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", [along_rows, method, of_another_dtype, product, product_kept, product_of_all])
def test_gradients(function, dtype):
    x = torch.randn(4, 6).to(dtype)
    x[0, 2] = x[1, 1] = x[1, 3] = x[2, 0] = 0
    x.requires_grad_()
    compiled = argand.compile(function)
    want, got = function(x), compiled(x)
    cotangent = torch.randn_like(want)
    gradients = [torch.autograd.grad(y, x, cotangent, create_graph=True)[0] for y in (want, got)]
    torch.testing.assert_close(gradients[1], gradients[0])
    twice = [torch.autograd.grad(gradient.square().sum(), x)[0] for gradient in gradients]
    torch.testing.assert_close(twice[1], twice[0])


NAN = float("nan")
ENDS = torch.tensor(list(itertools.product((0.0, -0.0, NAN, float("inf"), -2.0, 3e38, 1e-38), repeat=3)))


def running(x):
    return torch.cat([x.cumprod(1), x[:, :1].cumprod(1)], 1)


@pytest.mark.parametrize("function", [running, product, torch.prod])
def test_gradients_of_zeros_beside_infinities(function):
    """Where no factor is zero, eager's are quotients, of products that are infinite or zero too."""
    compiled = argand.compile(function)
    without = ENDS[(ENDS != 0).all(1)][torch.arange(len(ENDS)) % 125]
    for x in ENDS[::3] if function is torch.prod else (ENDS, without):
        x = x.clone().requires_grad_()
        want, got = function(x), compiled(x)
        cotangent = torch.linspace(0.5, 2, want.numel()).view_as(want)
        gradients = [torch.autograd.grad(y, x, cotangent)[0] for y in (want, got)]
        torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


@pytest.mark.parametrize("x", [(0, 0, NAN, 2), (0, 2j, NAN, 1), (3 + 1j, 2j, 1e38, 1e38), (1 + 2j, 3, 1j, 2)])
def test_gradients_of_complex_products(x):
    x = torch.tensor(x, dtype=torch.complex64, requires_grad=True)

    def products(x):
        return x.prod() + x.view(2, 2).prod(1).sum()

    gradients = [torch.autograd.grad(f(x), x, torch.tensor(1 + 2j))[0] for f in (products, argand.compile(products))]
    torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


def test_gradients_of_gradients_in_one_function():
    def step(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(along_rows(x).square().sum(), x, create_graph=True)
        return gradient.detach(), *torch.autograd.grad(gradient.square().sum(), x)

    x = torch.randn(3, 5, dtype=torch.float64)
    x[0, 2] = x[0, 3] = x[1, 0] = 0
    torch.testing.assert_close(argand.compile(step, fullgraph=True)(x), step(x))


def test_operations_do_not_depend_on_the_length(tmp_path):
    counts = []
    remove = argand.events.bus.subscribe(lambda event: counts.append(event.text().count("# ")), ("output_code",))
    try:
        for length in (6, 90):
            x = torch.randn(3, length, requires_grad=True)
            with argand.config.patch(cache_dir=str(tmp_path)):
                argand.compile(along_rows, dynamic=False)(x).sum().backward()
    finally:
        remove()
    assert len(counts) == 4 and max(counts) < 80, counts  # a forward and a backward each
