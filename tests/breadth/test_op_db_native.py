"""A fixed share of `bench/op_db.py`: operators of torch's own test database under backend "native", with gradients."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch.testing._internal import common_methods_invocations

import argand
import op_db as bench
import sweeps

pytestmark = pytest.mark.slow

_SHARDS = sweeps.part(16, 16)
_STRIDE = 5 if sweeps.WHOLE else 80
_SAMPLES = 4  # of an operator and dtype, in one graph


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), argand.config.patch(fallback_random=True):
        warnings.simplefilter("ignore")
        yield


def differences(arguments: list[str]) -> tuple[list[str], int, int]:
    """What differs, how many samples are equal and how many gradients were compared."""
    options = bench.options_of(arguments)
    found: list[str] = []
    equal = gradients = 0
    for op in bench.chosen(options):
        for dtype in bench.dtypes_of(op, options.dtype):
            for sample in bench.work(op, dtype, "argand", options):
                if sample.outcome in bench.BAD:
                    found.append(f"{bench.full_name(op)} {dtype}: {sample.outcome}, {sample.detail}")
                equal += sample.outcome == "equal"
                gradients += sample.gradients
    return found, equal, gradients


@pytest.mark.parametrize("shard", range(_SHARDS))
def test_a_fraction_of_the_operators(shard: int, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", bench.unseeded)
    found, equal, gradients = differences(
        [
            "--direct", f"--batch={_SAMPLES}", f"--samples={_SAMPLES}", f"--every={_STRIDE}",
            f"--shard={shard}/{_SHARDS}",
        ]
    )  # fmt: skip
    assert not found
    assert equal > 10 and gradients > 5


@pytest.mark.parametrize("offset", (3, 31))
def test_captured(offset: int, quiet: None) -> None:
    """As users call them: through argand.compile."""
    found, equal, _ = differences(
        ["--samples=1", f"--every={60 if sweeps.WHOLE else 120}", f"--offset={offset}", "--dtype=float32"]
    )
    assert not found and equal > (5 if sweeps.WHOLE else 2)


def test_a_difference_is_found() -> None:
    """The comparison itself: values, dtypes, strides and gradients that differ are told."""

    def twisted(op, args, kwargs):  # type: ignore[no-untyped-def]
        return op(*args, **kwargs) * 1.001

    def sound(op, args, kwargs):  # type: ignore[no-untyped-def]
        return op(*args, **kwargs)

    def laid_out(op, args, kwargs):  # type: ignore[no-untyped-def]
        return op(*args, **kwargs).t().contiguous().t()

    def wrong_gradient(op, args, kwargs):  # type: ignore[no-untyped-def]
        made = op(*args, **kwargs)
        return made * 2 - made.detach()

    def failing(op, args, kwargs):  # type: ignore[no-untyped-def]
        raise RuntimeError("no")

    op = next(op for op in bench.operators() if op.name == "tanh")
    x = torch.randn(3, 4, requires_grad=True)
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=True)))
    sample.input = x
    outcomes = [
        bench.check_sample(call, op.op, sample, True, True)
        for call in (sound, twisted, laid_out, wrong_gradient, failing)
    ]
    assert [made.outcome for made in outcomes] == ["equal", "difference", "difference", "difference", "error"]
    assert "values" in outcomes[1].detail and "strides" in outcomes[2].detail and "gradient" in outcomes[3].detail


def test_a_crash_and_an_endless_loop_are_failures_of_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(op, dtype, system, options, start=0):  # type: ignore[no-untyped-def]
        for position in range(start, 4):
            if position == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if position == 2:
                time.sleep(60)
            yield bench.Sample("equal")

    monkeypatch.setattr(bench, "work", work)
    op = next(op for op in bench.operators() if op.name == "tanh")
    tally = bench.check_operator(op, torch.float32, "argand", bench.options_of(["--time-limit=3"]))
    assert [sample.outcome for sample in tally.samples] == ["equal", "crash", "timeout", "equal"]
