"""Parts of rows that several loops compute: one kernel writes each row as a whole where rows are short."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import argand
from helpers import collected


def kernels_of(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> int:
    """How many kernels compute what eager does."""
    argand.reset()
    with collected("schedule") as events:
        made = argand.compile(function, fullgraph=True, dynamic=False)(*args)
    want = function(*args)
    assert torch.equal(made, want)
    assert made.stride() == want.stride()
    return sum(event.data["kernels"] for event in events)


x = torch.randn(64, 31, 45)
image = torch.randn(4, 16, 40, 40)
JOINED = {
    "mirrored": (lambda x: F.pad(x, (3, 5), "reflect"), x),
    "one element at an end": (lambda x: F.pad(x, (1, 0), "replicate"), x),
    "two dimensions": (lambda x: F.pad(x, (2, 1, 3, 4), "reflect"), image),
    "bfloat16": (lambda x: F.pad(x, (2, 1, 3, 4), "replicate"), image.bfloat16()),
    "columns": (lambda x: torch.cat([x * 2, x[..., 3:7].relu(), x[..., :20] + 1], -1), x),
    "a dimension inside": (lambda x: torch.cat([x * 2, x[:, :3] + 1], 1), torch.randn(300, 9, 30)),
    "channels innermost": (
        lambda x: torch.cat([x * 3, x[:, :5] - 1], 1),
        image.to(memory_format=torch.channels_last),
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_short_rows_are_written_as_a_whole(name: str) -> None:
    assert kernels_of(*JOINED[name]) == 1


APART = {
    "long rows": (lambda x: torch.cat([x * 2, x + 1], 1), torch.randn(8, 40000)),
    "one row": (lambda x: torch.cat([x * 2, x + 1], 0), torch.randn(500, 80)),
}


@pytest.mark.parametrize("name", APART)
def test_long_rows_are_written_part_by_part(name: str) -> None:
    assert kernels_of(*APART[name]) == 2


def test_parts_that_are_written_over() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x * 2, x[..., 3:7].relu()], -1)
        y[..., 40:47] = x[..., :7] + 1
        return y

    kernels_of(function, x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_lie_as_eagers(layout: torch.memory_format, mode: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.pad(x, (2, 1, 3, 4), mode)
        weights = torch.arange(y.numel()).sin().view(y.shape).to(memory_format=layout)
        [grad] = torch.autograd.grad(y, x, weights)
        return grad

    leaf = image.to(memory_format=layout, copy=True).requires_grad_()
    argand.reset()
    made, want = argand.compile(function)(leaf), function(leaf)
    torch.testing.assert_close(made, want)
    assert made.stride() == want.stride()
