"""Gradients of cumulative products are eager's, zeros among the factors or not, and take a few operations."""

import pytest
import torch

import argand


def along_rows(x):
    return torch.cumprod(x, 1)


def method(x):
    return x.cumprod(dim=0).sin()


def of_another_dtype(x):
    return torch.cumprod(x, -1, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", [along_rows, method, of_another_dtype])
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
