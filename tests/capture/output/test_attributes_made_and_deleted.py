"""What captured code makes and deletes again, and what it deletes that was there before."""

from __future__ import annotations

from typing import Any

import torch

import argand


class Holder:
    """An object from outside."""


HOLDER = Holder()


def test_an_attribute_set_and_deleted_in_one_frame() -> None:
    """As GradScaler hands its scale to a fused optimizer; there was none before, so none has to go."""
    holder: Any = HOLDER

    def fn(x: torch.Tensor) -> torch.Tensor:
        holder.scale = x
        y = holder.scale + 1
        del holder.scale
        return y

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert not hasattr(holder, "scale")
    holder.scale = 5
    compiled(torch.ones(2))
    assert not hasattr(holder, "scale")


def test_a_global_set_and_deleted_in_one_frame() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        global made_and_deleted
        made_and_deleted = x * 2
        y = made_and_deleted + 1
        del made_and_deleted
        return y

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert "made_and_deleted" not in globals()
