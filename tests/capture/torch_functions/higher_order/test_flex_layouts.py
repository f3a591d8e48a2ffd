"""Strides of what flex_attention makes: any order of dimensions, gaps, sides of one, shared keys; gradients too."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch._higher_order_ops.flex_attention import _permute_strides

import flex_layouts
import sweeps
from argand.graph.operators import flex
from sweeps import WHOLE

COUNT = 40 if WHOLE else 8


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_strides_as_torch_computes_them() -> None:
    rng = random.Random(0)
    for _ in range(4000):
        size = rng.choices((1, 1, 2, 3), k=4)
        stride = tuple(rng.choices((0, 1, 2, 4, 8), k=4))
        want = _permute_strides(torch.empty(size, device="meta"), stride).stride()
        assert flex.strides_like(size, stride) == want, (size, stride)
        assert flex.laid_out(torch.empty(size, device="meta"), stride).stride() == want, (size, stride)


@pytest.mark.parametrize(("backend", "seed"), sweeps.chessboard(["eager", "aot_eager", "native"], range(COUNT)))
def test_results(seed: int, backend: str) -> None:
    flex_layouts.compare(flex_layouts.given(seed, (1, 2, 8)), False, backend)


@pytest.mark.parametrize(("backend", "seed"), sweeps.chessboard(["eager", "aot_eager", "native"], range(COUNT)))
def test_gradients(seed: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flex_layouts.allow_gradients(monkeypatch)
    flex_layouts.compare(flex_layouts.given(seed, (1, 2, 8)), True, backend)
