"""What captured code makes and deletes again, and what it deletes that was there before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
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


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("kind", [threading.local, Holder])
def test_an_attribute_deleted_twice(kind: type[Any], emptied: bool) -> None:
    """For the words of the error, the real object lost what it still had."""

    def fn(x: torch.Tensor, holder: Any) -> torch.Tensor:
        y = x + 1
        if emptied:
            vars(holder).pop("scale")
        else:
            del holder.scale
        holder.other = 3
        del holder.scale
        return y

    holder = kind()
    holder.scale = 1
    with pytest.raises(AttributeError, match="has no attribute 'scale'"):
        argand.compile(fn, backend="eager")(torch.ones(2), holder)
    assert vars(holder) == {"other": 3}
