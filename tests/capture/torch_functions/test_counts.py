"""`torch.bincount` with `minlength` is in the graph as long as no value is larger."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.helpers import CountingBackend

import argand

INPUTS = [
    torch.tensor([0, 1, 1, 3]), torch.tensor([3, 3, 3, 3]), torch.tensor([2, 9, 0, 1]), torch.tensor([0, -1, 2, 2]),
]  # fmt: skip


def _outcome(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> object:
    try:
        return f(x).tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_as_eager(backend: str, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x, minlength=4) + x.bincount(minlength=5)[:4] * 2

    compiled = argand.compile(f, backend=backend)
    for x in (*INPUTS, INPUTS[0][:0], INPUTS[0]):
        assert _outcome(compiled, x.to(dtype)) == _outcome(f, x.to(dtype))


def test_in_one_graph() -> None:
    backend = CountingBackend()

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x * 2, minlength=8).reshape(2, 4)

    compiled = argand.compile(f, backend=backend)
    assert torch.equal(compiled(INPUTS[0]), f(INPUTS[0]))
    assert len(backend.graphs) == 1
