"""A graph raises: torch's modes are what they are where eager raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.capture.metadata import mode_programs

import argand
import sweeps


@pytest.mark.parametrize(("backend", "first"), [("eager", 0), ("eager", 20000), ("aot_eager", 5050)])
def test_random_programs(backend: str, first: int) -> None:
    for seed in (
        *range(first, first + sweeps.part(40, 8)),
        *((27, 54, 81, 184, 498, 40375, 41128) if first == 0 else ()),
    ):
        source = mode_programs.program(seed)
        found = mode_programs.difference(source, backend)
        assert found is None, f"seed {seed}\n{source[len(mode_programs.HEAD) :]}\n{found}"


def left_before(x: torch.Tensor, row: int) -> torch.Tensor:
    with torch.no_grad():
        argand.graph_break()
    return x.index_select(0, torch.tensor([row]))


def set_for_good(x: torch.Tensor, row: int) -> torch.Tensor:
    x = torch.nn.functional.dropout(x)
    torch.set_grad_enabled(False)
    y = x.index_select(0, torch.tensor([row]))
    torch.set_grad_enabled(True)
    return y


def at_work_when_made(x: torch.Tensor, row: int) -> torch.Tensor:
    with torch.autograd.set_detect_anomaly(True):
        return x.index_select(0, torch.tensor([row]))


@pytest.mark.parametrize("f", [left_before, set_for_good, at_work_when_made])
def test_modes_after_an_error(f: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    compiled = argand.compile(f, backend="eager")
    for row in (0, 9, 1, 9):
        states = []
        for run in (f, compiled):
            torch.manual_seed(row)
            try:
                run(torch.ones(3, 4), row)
                raised = False
            except IndexError:
                raised = True
            states.append((raised, torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.rand(()).item()))
            torch.set_grad_enabled(True)
            torch.autograd.set_detect_anomaly(False)
        assert states[0] == states[1]


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inference_tensors_that_autograd_would_keep(backend: str, used: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, str]:
        with torch.inference_mode():
            y = x.sin()
        try:
            z = y @ w
        except RuntimeError as error:
            return x, str(error)
        return (z if used else x), ""

    x, w = torch.ones(2, 2), torch.ones(2, 2)
    compiled = argand.compile(f, backend=backend)
    assert compiled(x, w)[1] == f(x, w)[1] == ""
    w.requires_grad_()
    assert compiled(x, w)[1] == f(x, w)[1] != ""


def test_a_trace_that_is_given_up_in_inference_mode() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, row: int) -> torch.Tensor:
        x = (x * w).index_select(0, torch.tensor([0, row]))
        with torch.inference_mode():
            torch.set_default_dtype(torch.float64)
        return x

    compiled = argand.compile(f, backend="aot_eager")
    w = torch.ones(3, 4, requires_grad=True)
    try:
        for row in (1, 2, 0):
            torch.set_default_dtype(torch.float32)
            got = compiled(torch.ones(3, 4), w, row)
            torch.set_default_dtype(torch.float32)
            assert torch.equal(got, f(torch.ones(3, 4), w, row))
    finally:
        torch.set_default_dtype(torch.float32)
