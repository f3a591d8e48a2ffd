"""Checks that an operation makes of its data: they raise in compiled graphs as they do in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cholesky": lambda x: torch.linalg.cholesky(-x),
    "cholesky of constants": lambda x: torch.linalg.cholesky(-torch.eye(2)) + x,
    "cholesky that nobody reads": lambda x: (torch.linalg.cholesky(-x), x * 2)[1],
    "inv": lambda x: torch.linalg.inv(x * 0),
    "inverse": lambda x: torch.inverse(x * 0).sum(),
    "solve": lambda x: torch.linalg.solve(x * 0, x),
    "matrix_power": lambda x: torch.matrix_power(x * 0, -1),
    "tensorinv": lambda x: torch.linalg.tensorinv(x * 0, ind=1),
    "lu_factor": lambda x: torch.linalg.lu_factor(x * 0)[0],
    "ldl_factor": lambda x: torch.linalg.ldl_factor(x * 0)[0],
    "checked on request": lambda x: torch.linalg.inv_ex(x * 0, check_errors=True)[0],
    "checked on request, unread": lambda x: (torch.linalg.cholesky_ex(-x, check_errors=True), x * 2)[1],
    "assertion": lambda x: (torch._assert_async((x > 5).all()), x * 2)[1],
}


def _outcome(fn: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str:
    try:
        fn(x)
    except RuntimeError as error:
        return type(error).__name__
    return "no error"


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_raises_as_eager_does(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = argand.compile(program, backend=backend)
    for requires_grad in (False, True):
        x = torch.eye(2, requires_grad=requires_grad)
        expected = _outcome(program, x)
        assert expected != "no error"
        assert _outcome(compiled, x) == expected


def test_valid_data_passes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x) @ torch.linalg.inv(x) + torch.linalg.solve(x, x)

    x = torch.eye(3) * 2 + 0.1
    assert torch.allclose(argand.compile(program, fullgraph=True)(x), program(x))
