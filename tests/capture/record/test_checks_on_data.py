"""Checks on data whose other side only raises: one graph, and eager's exception when they do not hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from helpers import CountingBackend

GOOD = torch.tensor([1.0, -2.0, 3.0])
BAD = torch.tensor([1.0, float("nan"), 300.0])


def raises_value_error(x: torch.Tensor) -> torch.Tensor:
    if not (x < 100).all():
        raise ValueError(f"bad {x.sum():.1f}")
    return x + 1


def asserts(x: torch.Tensor) -> torch.Tensor:
    assert (x < 100).all(), "too large"
    return x * 2


def asserts_on_a_number(x: torch.Tensor) -> torch.Tensor:
    assert (x > 100).sum(), x.shape
    return x * 2


def checks_inside(x: torch.Tensor) -> torch.Tensor:
    return raises_value_error(x) * 2


def handles_it(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    log: list[Any] = []
    try:
        if torch.isnan(x).any():
            raise KeyError("nan")
        y = x + 1
    except KeyError as error:
        y = torch.zeros(2)
        log.append(str(error))
    finally:
        log.append(1)
    return y, log


def validates(x: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Normal(x, x.abs()).log_prob(x)


def counts(x: torch.Tensor) -> torch.Tensor:
    chosen = x[x > 0]
    if chosen.shape[0] > 3:
        raise RuntimeError("too many")
    return chosen.sum()


def chooses_what_to_raise(x: torch.Tensor) -> torch.Tensor:
    if torch.isnan(x).any():
        if x.dim() > 1:
            raise TypeError("dims")
        raise ValueError([str(size) for size in x.shape])
    return x.exp()


PROGRAMS = [
    raises_value_error, asserts, asserts_on_a_number, checks_inside, handles_it, validates, counts, chooses_what_to_raise,
]  # fmt: skip


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> str:
    torch.manual_seed(0)
    try:
        found = fn(x)
    except Exception as error:
        found = error
    return re.sub("0x[0-9a-f]+", "", f"{found!r} {torch.rand(1)}")  # pytest's assertions name objects


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_one_graph_and_the_exception_of_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for x in (GOOD, BAD, GOOD, torch.full((5,), 200.0), BAD, BAD, BAD, GOOD):
        assert outcome(compiled, x) == outcome(fn, x)


@pytest.mark.parametrize("fn", [raises_value_error, asserts, handles_it, validates], ids=lambda fn: fn.__name__)
def test_a_check_that_holds_does_not_end_the_graph(fn: Callable[..., Any]) -> None:
    backend = CountingBackend()
    argand.compile(fn, backend=backend)(GOOD)
    assert len(backend.graphs) == 1


def test_effects_before_a_failed_check_happen_once() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        y = torch.nn.functional.dropout(x, 0.5)
        if (x > 100).any():
            raise ValueError(str(torch.rand(1)))
        seen.append(-1)
        return y

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    for x in (GOOD, BAD, GOOD):
        want = outcome(fn, x)
        expected = list(seen)
        seen.clear()
        assert outcome(compiled, x) == want
        assert seen == expected
        seen.clear()


def test_a_check_behind_a_write_to_an_input_ends_the_graph() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if (x > 100).any():
            raise ValueError("large")
        return x * 2

    compiled = argand.compile(fn, backend="eager")
    for x in (GOOD, BAD):
        a, b = x.clone(), x.clone()
        assert outcome(compiled, a) == outcome(fn, b)
        assert torch.equal(a, b) or torch.isnan(a).any()


def test_a_side_that_may_return_is_no_check() -> None:
    """Which way is taken decides more than whether the program raises."""

    def fn(x: torch.Tensor, strict: bool) -> torch.Tensor:
        if (x > 100).any():
            if strict:
                raise ValueError("large")
            return x - 1
        return x + 1

    backend = CountingBackend()
    compiled = argand.compile(fn, backend=backend)
    assert torch.equal(compiled(GOOD, False), GOOD + 1)
    assert len(backend.graphs) > 1
    assert torch.equal(compiled(GOOD + 200, False), GOOD + 199)


def _factorised(a: torch.Tensor, tries: int = 3) -> torch.Tensor:
    factor, info = torch.linalg.cholesky_ex(a)
    if not torch.any(info):
        return factor * 2
    if torch.isnan(a).any():
        raise ValueError("not a number")
    for number in range(tries):
        jitter = 0.1 * 10.0**number
        a = a + jitter * torch.eye(a.shape[0])
        warnings.warn(f"not positive definite, added {jitter}", stacklevel=1)
        factor, info = torch.linalg.cholesky_ex(a)
        if not torch.any(info):
            return factor * 3
    raise ValueError("not positive definite")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_is_tried_again_with_a_warning_is_not_expected(backend: str) -> None:
    compiled = argand.compile(_factorised, backend=backend, fullgraph=True)
    good = torch.eye(2) * 4
    assert torch.equal(compiled(good), torch.eye(2) * 4)
    for bad in (torch.diag(torch.tensor([1.0, -0.05])), torch.diag(torch.tensor([1.0, -5.0]))):
        with pytest.warns(UserWarning, match="added"):
            want = _factorised(bad)
        with pytest.warns(UserWarning, match="added"):
            assert torch.equal(compiled(bad), want)
    for value, said in ((float("nan"), "not a number"), (-1e6, "not positive definite")):
        with pytest.raises(ValueError, match=said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(torch.full((2, 2), value))
    assert torch.equal(compiled(good), torch.eye(2) * 4)


TORCHS_CHECKS = {
    "check": lambda x: torch._check_tensor_all(x < 100),
    "check with": lambda x: torch._check_tensor_all_with(RuntimeError, x < 100),
    "another error": lambda x: torch._check_tensor_all_with(ValueError, x < 100),
    "message": lambda x: torch._check_tensor_all(x < 100, lambda: "too large"),
    "message that is no function": lambda x: torch._check_tensor_all(x < 100, "too large"),
    "named": lambda x: torch._check_tensor_all(cond=x < 100),
    "numbers": lambda x: torch._check_tensor_all(x),
    "no tensor": lambda x: torch._check_tensor_all(3),
}


@pytest.mark.parametrize("name", TORCHS_CHECKS)
def test_torchs_own_checks_of_tensors(name):
    def program(x: torch.Tensor) -> torch.Tensor:
        TORCHS_CHECKS[name](x)
        return x + 1

    compiled = argand.compile(program, backend="eager", fullgraph=name in ("check", "check with"))
    for x in (GOOD, BAD, GOOD):
        assert outcome(compiled, x) == outcome(program, x)
