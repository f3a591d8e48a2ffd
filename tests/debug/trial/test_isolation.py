"""A function in a forked child, within limits."""

from __future__ import annotations

import os

import pytest
import torch

from argand.debug.trial.fingerprint import fingerprint
from argand.debug.trial.isolation import run_isolated


def test_memory_is_a_failure_like_any_other() -> None:
    outcome = run_isolated(lambda: torch.zeros(1 << 32), memory_limit=1 << 30)
    assert outcome.kind == "memory", outcome
    assert fingerprint(outcome).matches(fingerprint(run_isolated(lambda: bytearray(4 << 30), memory_limit=1 << 30)))


def test_attempt_costs_little() -> None:
    """A warm child, not a torch import (which takes more than a second of a processor's time)."""

    def cost() -> float:
        before = os.times()
        run_isolated(lambda: None)
        after = os.times()
        return sum(after[:4]) - sum(before[:4])  # of this process and of the child, whatever else the machine does

    assert min(cost() for _ in range(6)) < 0.7


def test_parallel_kernels_and_backward_work_in_the_child() -> None:
    """OpenMP's threads do not survive a fork: what runs there must not wait for them."""
    x = torch.randn(600, 600, requires_grad=True)
    (x @ x).exp().sum().backward()
    outcome = run_isolated(lambda: float(torch.autograd.grad((x @ x).sum(), x)[0].sum()), time_limit=60)
    assert outcome.kind == "passed", outcome
    assert outcome.value == pytest.approx(float(torch.autograd.grad((x @ x).sum(), x)[0].sum()), rel=1e-3)
