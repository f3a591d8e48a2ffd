"""Kernels of several stages over rows shorter than a vector: lanes run across the rows, which are kept for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import argand
from argand import events

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "softmax": lambda x, r: x.softmax(-1) * 2,
    "gated": lambda x, r: (x.softmax(-1) * r.sigmoid()[:, None]).sum(-1),
    "masked": lambda x, r: torch.where(x > 0, x.exp() / x.exp().sum(-1, keepdim=True), r[:, None]),
    "order": lambda x, r: (x.exp() - x.exp().amax(-1, keepdim=True)).cumsum(-1),
    "largest": lambda x, r: (x.tanh().argmax(-1), x.tanh() - r.exp()[:, None]),
    "picked": lambda x, r: x.softmax(-1).gather(1, (r > 0).long()[:, None]) + x.logsumexp(-1, keepdim=True),
    "middle": lambda x, r: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-3),
}
SIZES = [(4099, 3), (16384, 2), (2053, 7), (8197, 12), (4096, 16), (3001, 33)]


def kernels_of(function: Callable[..., object], *args: torch.Tensor) -> tuple[object, str]:
    """What the compiled function gives, and the text of its kernels."""
    texts: list[str] = []
    remove = events.bus.subscribe(lambda event: texts.append(event.text()), ["kernel_code"])
    try:
        return argand.compile(function, backend="native")(*args), "\n".join(texts)
    finally:
        remove()


@pytest.mark.parametrize(("place", "name"), list(enumerate(PROGRAMS)))
def test_short_rows(place: int, name: str) -> None:
    dtypes = itertools.cycle([torch.float32, torch.float64, torch.bfloat16])
    for turn, (size, dtype) in enumerate(zip(SIZES[place % 2 :: 2], dtypes)):
        if dtype is torch.bfloat16 and name in ("order", "largest"):  # eager rounds in between
            continue
        x, r = (torch.randn(shape).to(dtype) for shape in (size, size[:1]))
        x[0, 0] = (float("inf"), float("nan"), 30.0)[(turn + place) % 3]
        function = PROGRAMS[name]
        result, _ = kernels_of(function, x, r)
        wide = function(x.double(), r.double())
        close = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
        for got, want in zip(*[each if isinstance(each, tuple) else (each,) for each in (result, wide)]):
            torch.testing.assert_close(got.to(want.dtype), want, rtol=close, atol=close, equal_nan=True)


def test_lanes_run_across_the_rows() -> None:
    text = kernels_of(PROGRAMS["softmax"], torch.randn(8192, 3), torch.randn(8192))[1]
    assert text.count('extern "C" void') == 1 and "store_tail(buf" not in text.split("if (")[0]


def test_functions_of_one_number_a_row_have_a_kernel_of_their_own() -> None:
    r = torch.randn(8192)
    for columns, kernels in ((20, 2), (2000, 1)):
        text = kernels_of(lambda x, r: x * r.exp()[:, None], torch.randn(8192, columns), r)[1]
        assert text.count('extern "C" void') == kernels
