"""Operations that only have an effect stay in generated programs."""

from __future__ import annotations

import pytest
import torch

import argand


def test_native_keeps_assertions() -> None:
    """The scheduler dropped them: nothing reads what they return."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x < 100).all(), "too large")
        torch._assert_async((x > 0).all(), "too small")
        return x + 1

    compiled = argand.compile(fn, backend="native", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="too large"):
        compiled(torch.full((3,), 1000.0))
    with pytest.raises(RuntimeError, match="too small"):
        compiled(torch.full((3,), -1000.0))
