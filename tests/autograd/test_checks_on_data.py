"""Checks that an operation makes of its data: they raise in compiled graphs as they do in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

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


VALUES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    name: (program, tuple(map(torch.tensor, valid)), tuple(map(torch.tensor, wrong)))
    for name, (program, valid, wrong) in {
        "one_hot": (lambda i: F.one_hot(i, 3) + 1, ([0, 1],), ([0, 3],)),
        "one_hot of negative classes": (lambda i: F.one_hot(i, 3) + 1, ([0, 1],), ([0, -3],)),
        "one_hot that nobody reads": (lambda i: (F.one_hot(i, 3), i + 1)[1], ([0, 1],), ([0, -3],)),
        "bernoulli": (lambda p: torch.bernoulli(p) + 1, ([0.0, 1.0],), ([2.0, 1.0],)),
        "bernoulli of nan": (lambda p: torch.bernoulli(p) + 1, ([0.0, 1.0],), ([float("nan"), 1.0],)),
        "normal": (lambda p: torch.normal(0.0, p), ([0.0, 1.0],), ([-1.0, 1.0],)),
        "multinomial": (lambda p: torch.multinomial(p, 1), ([0.0, 1.0],), ([-1.0, 1.0],)),
        "quantile": (lambda x, q: torch.quantile(x, q) + 1, ([1.0, 2.0], 0.5), ([1.0, 2.0], 1.5)),
        "gather": (lambda x, i: x.gather(0, i) * 2, ([1.0, 2.0], [0]), ([1.0, 2.0], [2])),
        "gather of negative positions": (lambda x, i: x.gather(0, i) * 2, ([1.0, 2.0], [0]), ([1.0, 2.0], [-1])),
        "index": (lambda x, i: x[i] * 2, ([1.0, 2.0], [-2]), ([1.0, 2.0], [-3])),
        "index_add": (lambda x, i: x.index_add(0, i, x[:1]) * 2, ([1.0, 2.0], [1]), ([1.0, 2.0], [2])),
        "scatter": (lambda x, i: x.scatter(0, i, 1.0) * 2, ([1.0, 2.0], [1]), ([1.0, 2.0], [2])),
        "take": (lambda x, i: x.take(i) * 2, ([1.0, 2.0], [1]), ([1.0, 2.0], [2])),
        "embedding": (lambda i, w: F.embedding(i, w) * 2, ([1], [[1.0], [2.0]]), ([2], [[1.0], [2.0]])),
        "nll_loss": (lambda x, i: F.nll_loss(x, i) * 2, ([[1.0, 2.0]], [1]), ([[1.0, 2.0]], [2])),
        "probabilities": (F.binary_cross_entropy, ([0.0, 1.0], [0.5, 0.5]), ([0.5, 1.5], [0.5, 0.5])),
        "probabilities of targets": (F.binary_cross_entropy, ([0.0, 1.0], [0.5, 0.5]), ([0.5, 0.5], [0.5, -0.5])),
        "rows repeated": (
            lambda x, n: x.repeat_interleave(n, output_size=3) * 2, ([1.0, 2.0], [1, 2]), ([1.0, 2.0], [1, 1])
        ),
        "integers by zero": (lambda a, b: a // b + 1, ([4], [2]), ([4], [0])),
        "remainders by zero": (lambda a, b: a % b + 1, ([4], [2]), ([4], [0])),
        "masked_scatter": (
            lambda x, m: x.masked_scatter(m, x[:1]), ([1.0, 2.0], [True, False]), ([1.0, 2.0], [True, True])
        ),
    }.items()
}  # fmt: skip


def _message(fn: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> str:
    torch.manual_seed(0)
    try:
        fn(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "no error"


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_values_that_eager_refuses_after_values_that_it_takes(backend: str, dynamic: bool | None) -> None:
    for name, (program, valid, wrong) in VALUES.items():
        compiled = argand.compile(program, backend=backend, dynamic=dynamic)
        assert _message(compiled, valid) == "no error", name
        expected = _message(program, wrong)
        assert expected != "no error", name
        assert _message(compiled, wrong) == expected, name
        assert _message(compiled, valid) == "no error", name


def test_valid_data_passes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x) @ torch.linalg.inv(x) + torch.linalg.solve(x, x)

    x = torch.eye(3) * 2 + 0.1
    assert torch.allclose(argand.compile(program, fullgraph=True)(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_classes_of_a_transposed_tensor_lie_row_by_row(backend: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x.abs().long(), 10)

    compiled = argand.compile(program, backend=backend, dynamic=dynamic)
    for rows in (3, 4, 5):
        x = torch.arange(float(rows * 2)).reshape(2, rows).t() % 9
        got, want = compiled(x), program(x)
        assert torch.equal(got, want) and got.stride() == want.stride()
