"""Whether a call's result is its argument, a view of it or a copy may depend on numbers and sizes that vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

PROGRAMS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "dropout": lambda x, p: torch.nn.functional.dropout(x, p) + torch.zeros(1),
    "dropout of channels": lambda x, p: torch.nn.functional.dropout1d(x, p) + torch.zeros(1),
    "alpha dropout": lambda x, p: torch.alpha_dropout(x, p, True) + torch.zeros(1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_dropout_of_nothing_is_no_other(name: str, dynamic: bool | None) -> None:
    """With 0 it gives back what it was given, with 1 zeros."""
    program = PROGRAMS[name]
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    for order in ((0.5, 0.0, 1.0), (1.0, 0.5, 0.0, 1.0)):
        compiled = argand.compile(program, backend="eager", dynamic=dynamic)
        for p in order:
            result = compiled(x, p)
            assert p == 0.5 or torch.equal(result, program(x, p)), p


VIEWS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "contiguous": lambda x, k: x[:, :k].contiguous(),
    "reshape": lambda x, k: x[:, :k].reshape(-1),
    "flatten": lambda x, k: x.narrow(1, 0, k).flatten(),
    "transposed": lambda x, k: x.t()[:k].contiguous(),
    "by strides": lambda x, k: x.as_strided((2, 2), (k, 1)).contiguous(),
    "flattened by strides": lambda x, k: x.as_strided((2, 2), (k, 1)).reshape(-1),
    "windows": lambda x, k: x.unfold(1, k - 1, 1) * 1,
    "crossing strides": lambda x, k: x.as_strided((2, 3), (3, k)) * 2,
    "repeated": lambda x, k: x.expand(k % 3 + 1, 3, 4),
    "repeated copies": lambda x, k: (x * 2).expand(k % 3 + 1, 3, 4),
    "the least of two": lambda x, k: x[:, :k].diagonal(),
    "steps": lambda x, k: x.view(-1)[: 12 // k * k].view(-1, k).t().reshape(-1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_copies_are_copies_at_every_size(backend: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, k: int) -> list[torch.Tensor]:
        return [view(x, k) for view in VIEWS.values()]

    x = torch.arange(12.0).reshape(3, 4)
    compiled = argand.compile(program, backend=backend, dynamic=dynamic)
    for k in (4, 3, 2, 4, 3):
        for result, expected in zip(compiled(x, k), program(x, k), strict=True):
            assert_alike(result, expected, x)


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_by_itself(name: str) -> None:
    """Whether a part is the whole is asked only where the answer counts."""
    compiled = argand.compile(VIEWS[name], backend="eager")
    x = torch.arange(12.0).reshape(3, 4)
    for k in (2, 3, 4, 2, 4):
        assert_alike(compiled(x, k), VIEWS[name](x, k), x)


def assert_alike(result: torch.Tensor, expected: torch.Tensor, x: torch.Tensor) -> None:
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()
    shared = [t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in (result, expected)]
    assert shared[0] == shared[1]
    assert (result is x) == (expected is x)
