"""Puts this folder's helper modules in reach (behind bench/, which has modules of the same names); fixtures of recordings."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.config import config
from argand.runtime.gpu.cuda_graphs.recording import Recording

sys.path.append(os.path.dirname(__file__))


@pytest.fixture
def recorded() -> Iterator[None]:
    """Every graph is recorded; nothing is left of other tests."""
    argand.reset()
    with config.patch({"triton.cudagraphs": True}):
        yield
    argand.reset()
    gc.collect()
    assert not torch.cuda.is_current_stream_capturing()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs were given in each replay."""
    seen: list[int] = []
    run = Recording.run

    def counted(self: Recording, given: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(len(given))
        return run(self, given, *args, **kwargs)

    monkeypatch.setattr(Recording, "run", counted)
    return seen


@pytest.fixture(params=[False, True], ids=["little kept", "much kept"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether backwards are recorded in the memory of what their forwards kept, as where these keep much."""
    if request.param:
        monkeypatch.setattr("argand.runtime.gpu.cuda_graphs.graphs.MUCH_KEPT", 1)
    return bool(request.param)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    from graph_models import Net

    return nn.Sequential(Net(), Net(), Net()).cuda().eval().requires_grad_(False)
