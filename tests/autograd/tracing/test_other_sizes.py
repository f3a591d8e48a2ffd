"""Programs for many sizes are right at sizes that were not traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.autograd.tracing import other_sizes

import argand
import sweeps


def _of(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """What differs at other sizes."""
    told: Counter[str] = Counter()
    with torch.no_grad():
        argand.compile(function, dynamic=True, backend=other_sizes.Comparing(told, "function"))(*args)
    assert told["graphs"]
    return Counter({text: count for text, count in told.items() if text not in other_sizes.FIGURES})


def test_operators() -> None:
    told = other_sizes.compare((), every=9, gradients=False, ops=8 if sweeps.WHOLE else 90)
    assert told["sizes"] > (50 if sweeps.WHOLE else 25)
    assert not set(told) - set(other_sizes.FIGURES)


def test_no_difference_of_two_sizes_is_that_of_two_others() -> None:
    x, weight, bias = torch.randn(2, 4, 6, 6), torch.randn(8, 1, 3, 3), torch.randn(8)
    assert not _of(lambda x, w, b: torch.conv2d(x, w, b, groups=x.size(1)), x, weight, bias)
    assert not _of(lambda x, n: x.unfold(0, n, 1), torch.randn(9), 2)


def test_how_many_steps_fit_is_no_constant_by_chance() -> None:
    assert not _of(lambda x, w, s: torch.conv2d(x, w, stride=s), torch.randn(1, 4, 5, 5), torch.randn(1, 4, 2, 3), 2)
    assert not _of(lambda x, k: F.max_pool2d(x, (k, 2), ceil_mode=True), torch.randn(2, 2, 3, 6), 3)
    assert not _of(lambda x, w: torch.conv2d(x, w, stride=9), torch.randn(1, 2, 12, 12), torch.randn(2, 2, 3, 3))


def test_numbers_that_decide_a_layout_are_constants() -> None:
    assert not _of(lambda x, k: torch.rot90(x, k, (1, 2)) + 1, torch.randn(4, 4, 4), 2)


def test_amounts_of_padding_that_are_negative() -> None:
    assert not _of(lambda x, a, b, c, d: F.pad(x, (a, b, c, d)), torch.randn(3, 1, 9, 9), -2, -1, -2, -2)


def test_cross_takes_the_first_dimension_of_three() -> None:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cross(x, y)

    assert not _of(product, torch.randn(5, 3, 5), torch.randn(5, 3, 5))
    compiled = argand.compile(product, dynamic=True, backend="aot_eager")
    for first in (5, 4, 3):
        x, y = torch.randn(first, 3, 5), torch.randn(first, 3, 5)
        assert torch.equal(compiled(x, y), product(x, y))


def test_a_division_that_was_exact_by_chance_is_guarded_where_the_size_is_asked() -> None:
    weight = torch.randn(1, 1, 3, 3)

    def halves(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.conv2d(x, weight, stride=2, padding=1)
        return x * x.shape[-1]

    compiled = argand.compile(halves, dynamic=True, backend="aot_eager")
    for size in (64, 48, 96, 33, 128, 65):
        x = torch.randn(1, 1, size, size)
        torch.testing.assert_close(compiled(x), halves(x))
