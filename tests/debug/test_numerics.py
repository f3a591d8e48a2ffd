"""The numerics checker, and what else keeps a program's numbers and errors in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import argand
from argand.codegen.cpp import overrides
from argand.debug.numerics import CheckedGraph, NumericsError
from debug.minify_helpers import run_script
from helpers import assert_same, collected


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch):
    """The nodes whose values were compared."""
    seen: list[str] = []
    check = CheckedGraph._check

    def counted(self, kernel, name, ref, buffer):
        seen.append(name)
        check(self, kernel, name, ref, buffer)

    monkeypatch.setattr(CheckedGraph, "_check", counted)
    with argand.config.patch(check_numerics=True):
        yield seen


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) @ w
    z = -torch.softmax(y, -1)
    return (z + y).sum(0)


def test_right_kernels_pass(checks: list[str]) -> None:
    x, w = torch.randn(8, 6), torch.randn(6, 5)
    assert_same(program(x, w), argand.compile(program)(x, w))
    assert len(checks) >= 2


def test_first_wrong_kernel_is_named(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "neg", lambda x: f"decltype({x})(2 * {x})")
    with pytest.raises(NumericsError) as info:
        argand.compile(program)(torch.randn(8, 6), torch.randn(6, 5))
    text = str(info.value)
    assert "cpp_fused" in info.value.kernel and info.value.kernel in text
    assert __file__ in text and info.value.where[0].filename == __file__
    assert "wrong" in text and "sin" not in info.value.node


def test_backward_is_checked(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 6, requires_grad=True)
    w = torch.randn(6, 5, requires_grad=True)
    argand.compile(program)(x, w).sum().backward()
    before = len(checks)
    assert x.grad is not None
    argand.reset()
    monkeypatch.setattr(overrides, "cos", lambda x: f"sin({x})")
    with pytest.raises(NumericsError, match="cos"):
        argand.compile(program)(x, w).sum().backward()
    assert before > 2


def test_sizes_that_vary(checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = argand.compile(program, dynamic=True)
    for n in (5, 7):
        assert_same(program(torch.ones(n, 6), torch.ones(6, n)), compiled(torch.ones(n, 6), torch.ones(6, n)))
    assert len(checks) >= 4


def test_random_numbers_are_eagers(checks: list[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 2, 0.5) + torch.rand(4)

    torch.manual_seed(3)
    want = f(torch.ones(4))
    torch.manual_seed(3)
    assert_same(want, argand.compile(f)(torch.ones(4)))
    assert checks


def test_nothing_is_checked_without_the_setting() -> None:
    with collected("fallback"):
        compiled = argand.compile(program)
        compiled(torch.randn(8, 6), torch.randn(6, 5))
    with argand.config.patch(check_numerics=False):
        assert compiled(torch.randn(8, 6), torch.randn(6, 5)) is not None


def test_fallback_random_draws_eagers_numbers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x)

    x = torch.ones(50)
    torch.manual_seed(7)
    want = f(x)
    with argand.config.patch(fallback_random=True):
        torch.manual_seed(7)
        assert_same(want, argand.compile(f)(x))


def test_suppressed_errors_are_summed_up_at_exit(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import argand, torch
        argand.config.suppress_errors = True

        def broken(gm, inputs):
            raise RuntimeError("no backend today")

        @argand.compile(backend=broken)
        def f(x):
            return x + 1

        @argand.compile(backend=broken)
        def g(x):
            return x + 2

        f(torch.ones(2)), g(torch.ones(2)), f(torch.ones(2))
        print("done")
        """,
        PYTHONWARNINGS="ignore",
    )
    assert done.stdout == "done\n" and done.returncode == 0
    assert done.stderr.count("2 functions run eagerly") == 1
    assert done.stderr.index("f (") < done.stderr.index("g (") and "no backend today" in done.stderr
