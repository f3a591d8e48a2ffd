"""Python floats that change from call to call, in the places where kernels usually have constants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand

PROGRAMS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": lambda x, v: x + v * 2,
    "alpha": lambda x, v: torch.add(x, x.sin(), alpha=v),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "elu": lambda x, v: F.elu(x, v),
    "softplus": lambda x, v: F.softplus(x, v, 3 * v),
    "hardtanh": lambda x, v: F.hardtanh(x, -v, v),
    "clamp": lambda x, v: x.clamp(-v, 1 - v),
    "threshold": lambda x, v: F.threshold(x, v, 1 + v),
    "layer_norm": lambda x, v: F.layer_norm(x, x.shape[1:], eps=v),
    "rms_norm": lambda x, v: F.rms_norm(x, x.shape[1:], eps=v),
    "batch_norm": lambda x, v: F.batch_norm(x, None, None, torch.ones(5), torch.ones(5), True, v, v),
    "pow": lambda x, v: x.abs() ** v,
    "full": lambda x, v: x + torch.full((5,), v),
    "huber": lambda x, v: F.huber_loss(x, x.cos(), delta=v, reduction="none"),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v).sum(0),
    "lerp": lambda x, v: torch.lerp(x, x.sin(), v),
    "nan_to_num": lambda x, v: (x / 0).nan_to_num(v, 1 + v, -v),
    "normalize": lambda x, v: F.normalize(x, dim=1, eps=v),
    "linspace": lambda x, v: x + torch.linspace(v, 2 * v, 5),
    "quotient": lambda x, v: x // v + x % v,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_that_varies(name: str) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    compiled = argand.compile(program, backend="native")
    for value in (0.25, 0.5, 0.75, 1.5):
        torch.testing.assert_close(compiled(x, value), program(x, value), rtol=1e-5, atol=1e-6)


def test_a_batch_norm_that_averages_all_batches() -> None:
    """Without a momentum it is a Python float that each call computes from a counter."""
    layers = [nn.BatchNorm1d(4, momentum=None) for _ in range(2)]
    compiled = argand.compile(layers[1], backend="native")
    for number in range(5):
        x = torch.randn(3, 4)
        for layer in layers:
            layer.train(number % 2 == 0)
        torch.testing.assert_close(compiled(x), layers[0](x))
    torch.testing.assert_close(layers[1].state_dict(), layers[0].state_dict())
