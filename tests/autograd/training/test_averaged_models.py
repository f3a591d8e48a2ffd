"""Steps that keep an average of the parameters beside them, by `AveragedModel`: which counts its updates in a tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import argand
from helpers import assert_same, texts_of

AVERAGES: dict[str, Callable[[nn.Module], AveragedModel]] = {
    "stochastic": AveragedModel,
    "exponential": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "own, with buffers": lambda model: AveragedModel(model, avg_fn=_mixed, use_buffers=True),
}


def _mixed(average: torch.Tensor, new: torch.Tensor, count: Any) -> torch.Tensor:
    return average + (new - average) / (count + 1)


def trained(average: str, backend: str | None, breaks: list[Any]) -> list[Any]:
    """What is there behind each step; the count begins anew before the fifth. `breaks` gets the number of each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    averaged, optimizer = AVERAGES[average](model), torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = SWALR(optimizer, swa_lr=0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        return loss

    run = argand.compile(step, backend=backend) if backend else step
    seen = []
    with texts_of("graph_breaks") as told:
        for at in range(8):
            if at == 4:
                averaged.n_averaged.zero_()
            before = len(told)
            loss = run(torch.randn(4, 6))
            breaks.append(len(told) - before)
            scheduler.step()
            seen.append(copy.deepcopy([loss.detach(), averaged.state_dict(), model.state_dict()]))
    return seen


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_averages_are_eagers(average: str, backend: str) -> None:
    breaks: list[int] = []
    assert_same(trained(average, None, []), trained(average, backend, breaks), exact=backend == "eager")
    assert sum(breaks[1:4] + breaks[5:]) == 0  # only the first of a count writes before it asks again
