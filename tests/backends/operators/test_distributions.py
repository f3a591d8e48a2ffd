"""Distributions whose numbers compiled code draws itself: how they lie, their bounds, dtypes, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
from argand.events import bus

COUNT = 40_000


def native(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = argand.compile(fn, backend="native", fullgraph=True, **options)
    return compiled


def by_loops(fn: Callable[..., Any], *args: Any) -> Any:
    """What a compiled function gives that calls no kernel of eager's which draws."""
    heard: list[Any] = []
    remove = bus.subscribe(heard.append, ("fallback",))
    try:
        drawn = native(fn)(*args)
    finally:
        remove()
    assert not [event.data for event in heard if event.data["reason"] == "no lowering"]
    return drawn


def farthest(drawn: torch.Tensor, accumulated: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The statistic of Kolmogorov and Smirnov times the root of the count: 99.99 % lie below 2.3."""
    ordered = drawn.double().flatten().sort()[0]
    share = accumulated(ordered)
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float(torch.maximum((share - steps[:-1]).abs(), (share - steps[1:]).abs()).max()) * math.sqrt(len(ordered))


def normal(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "exponential": (lambda x: x.clone().exponential_(2.0), lambda v: 1 - (-2 * v).exp()),
    "cauchy": (lambda x: x.clone().cauchy_(1.0, 2.0), lambda v: ((v - 1) / 2).atan() / math.pi + 0.5),
    "log_normal": (lambda x: x.clone().log_normal_(0.5, 0.25), lambda v: normal((v.log() - 0.5) / 0.25)),
    "normal_": (lambda x: x.clone().normal_(1.0, 3.0), lambda v: normal((v - 1) / 3)),
    "normal of tensors": (lambda x: torch.normal(x, x + 2), lambda v: normal((v - 1) / 3)),
    "normal of a tensor": (lambda x: torch.normal(x, 2.0), lambda v: normal((v - 1) / 2)),
    "normal of deviations": (lambda x: torch.normal(1.0, x * 2), lambda v: normal((v - 1) / 2)),
    "gumbel": (
        lambda x: torch.distributions.Gumbel(x, 2.0).sample(),
        lambda v: (-(-(v - 1) / 2).exp()).exp(),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_lie_as_the_distribution_says(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    every = by_loops(lambda x: [draw(x) for draw, _ in CONTINUOUS.values()], torch.ones(COUNT, dtype=dtype))
    for name, drawn in zip(CONTINUOUS, every):
        assert drawn.dtype is dtype, name
        assert farthest(drawn, CONTINUOUS[name][1]) < 2.3, name


def test_exponential_numbers_are_never_zero() -> None:
    torch.manual_seed(0)
    drawn = by_loops(lambda x: x.clone().exponential_(), torch.empty(1 << 22))
    assert 0 < float(drawn.min()) < 1e-5 and float(drawn.max()) < math.inf


def test_geometric_numbers() -> None:
    torch.manual_seed(0)
    drawn = by_loops(lambda x: x.clone().geometric_(0.3), torch.ones(COUNT))
    assert float(drawn.min()) == 1 and torch.equal(drawn, drawn.round())
    for value in range(1, 6):
        want = 0.3 * 0.7 ** (value - 1)
        assert abs(float((drawn == value).float().mean()) - want) < 4 * math.sqrt(want / COUNT)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.float32])
def test_whole_numbers_are_equally_likely(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.randint(-3, 7, (COUNT,), dtype=dtype),
            torch.randint_like(x, -3, 7),
            x.clone().random_(-3, 7),
            torch.randint(10, (COUNT,), dtype=dtype) - 3,
            x.clone().random_(10) - 3,
        ]

    for drawn in by_loops(draw, torch.zeros(COUNT, dtype=dtype)):
        assert drawn.dtype is dtype
        counts = torch.bincount(drawn.long() + 3)
        assert len(counts) == 10
        assert float(((counts - COUNT / 10) ** 2 / (COUNT / 10)).sum()) < 34  # 9 degrees: 99.99 % lie below


def test_large_ranges_and_ones_that_no_formula_is_for() -> None:
    torch.manual_seed(0)
    big = by_loops(lambda: torch.randint(-(1 << 31), 1 << 31, (COUNT,)) * 1)
    assert int(big.min()) < -(1 << 31) + (1 << 20) and int(big.max()) >= (1 << 31) - (1 << 20)
    assert farthest(big, lambda v: (v + (1 << 31)) / 2**32) < 2.3
    wide = native(lambda: torch.randint(-(1 << 60), 1 << 60, (1000,)) * 1)()
    assert int(wide.abs().max()) > 1 << 58


def test_ranges_that_vary_with_sizes() -> None:
    fn = native(lambda x: torch.randint(0, x.shape[0], (x.shape[0] * 100,)) + 0, dynamic=True)
    for size in (5, 9, 12):
        drawn = fn(torch.zeros(size))
        assert drawn.unique().tolist() == list(range(size))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    unit, like, bell = by_loops(
        lambda x: (torch.rand(COUNT, dtype=dtype), torch.rand_like(x), torch.randn_like(x)),
        torch.zeros(COUNT, dtype=dtype),
    )
    for drawn in (unit, like):
        assert drawn.dtype is dtype and 0 <= float(drawn.min()) and float(drawn.max()) < 1
        assert abs(float(drawn.float().mean()) - 0.5) < 1e-2
        assert len(drawn.unique()) == (256 if dtype is torch.bfloat16 else 2048)
    assert bell.dtype is dtype and abs(float(bell.float().std()) - 1) < 2e-2


def test_multinomial_draws() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.1, 0.0, 0.5, 0.4])

    def draw(p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = p.expand(COUNT, 4)
        return rows.multinomial(1), rows.multinomial(1, True), rows.multinomial(3), p.multinomial(2)

    one, again, three, row = by_loops(draw, weights)
    for drawn in (one, again):
        assert drawn.shape == (COUNT, 1) and drawn.dtype is torch.int64
        share = torch.bincount(drawn.flatten(), minlength=4) / COUNT
        assert float((share - weights).abs().max()) < 0.01 and share[1] == 0
    assert three.shape == (COUNT, 3) and int((three == 1).sum()) == 0
    assert bool((three.sort()[0] == torch.tensor([0, 2, 3])).all())
    first = torch.bincount(three[:, 0], minlength=4) / COUNT
    assert float((first - weights).abs().max()) < 0.01
    assert row.shape == (2,) and row[0] != row[1]


def test_multinomial_refuses_what_eager_refuses() -> None:
    fn = native(lambda p: p.multinomial(1) + 0)
    for bad in ([-1.0, 2.0], [math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]):
        messages = []
        for run in (lambda p: p.multinomial(1) + 0, fn):
            with pytest.raises(RuntimeError) as raised:
                run(torch.tensor(bad))
            messages.append(str(raised.value).splitlines()[0])
        assert messages[0] == messages[1]
    with pytest.raises(RuntimeError, match="std >= 0"):
        native(lambda m, s: torch.normal(m, s) + 0)(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]))


@pytest.mark.parametrize("draw", ["exponential_", "geometric_", "cauchy_", "log_normal_", "normal_"])
def test_parameters_that_eager_refuses(draw: str) -> None:
    parameters = {"exponential_": (-1.0,), "geometric_": (1.5,)}.get(draw, (0.0, -1.0))
    for run in (eager := lambda x: getattr(x.clone(), draw)(*parameters), argand.compile(eager)):
        with pytest.raises(RuntimeError):
            run(torch.ones(3))


def test_gumbel_softmax_trains() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (F.gumbel_softmax(x, tau=0.5, hard=True) * torch.arange(10.0)).sum()

    torch.manual_seed(0)
    x = torch.randn(64, 10, requires_grad=True)
    value = by_loops(loss, x)
    (grad,) = torch.autograd.grad(value, x)
    assert bool(grad.isfinite().all()) and float(grad.abs().sum()) > 0


def test_odd_layouts_and_sizes() -> None:
    def draw(x: torch.Tensor, empty: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.normal(x, 1.0), torch.randint_like(x, 5), torch.rand_like(x), empty.clone().exponential_(),
            number.clone().exponential_(), torch.normal(number.expand(3, 4), x[:3, :1] * 0 + 1), torch.randint(3, ()),
        )  # fmt: skip

    args = torch.rand(6, 8).t()[::2].t(), torch.empty(0, 3), torch.ones(())
    for want, drawn in zip(draw(*args), native(draw)(*args)):
        assert (drawn.shape, drawn.stride(), drawn.dtype) == (want.shape, want.stride(), want.dtype)
