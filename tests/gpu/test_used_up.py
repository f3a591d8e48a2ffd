"""Training by CUDA graphs whose backwards use up what their forwards kept, on a GPU, against eager."""

from __future__ import annotations

import gc

import pytest
import torch
from graph_models import close, compiled
from torch import nn

import argand
from argand.config import config

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("recorded"),
]


def test_recorded_training_takes_no_more_memory_than_what_runs_as_it_is() -> None:
    """Gradients and temporaries of the backward get the memory of what it has read of the forward."""
    torch.manual_seed(0)
    taken = []
    for graphs in (False, True):
        with config.patch({"triton.cudagraphs": graphs}):
            layers = [layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.GELU())]
            model = nn.Sequential(*layers).cuda()
            fast, x = argand.compile(model), torch.randn(16384, 1024, device="cuda")
            for step in range(4):
                if step == 3:
                    gc.collect()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                model.zero_grad(set_to_none=True)
                fast(x).sum().backward()
            taken.append(torch.cuda.max_memory_reserved())
            del model, fast, x, layers
        argand.reset()
        gc.collect()
        torch.cuda.empty_cache()
    plain, recorded = taken
    assert recorded < 1.15 * plain + (64 << 20), taken  # 1.6 GB of activations, 50 MB of gradients; a workspace


def test_backwards_that_are_asked_for_twice(model: nn.Module, replays: list[int], kept: bool) -> None:
    model.requires_grad_(True)
    fast, parameters = compiled(model), list(model.parameters())
    for step in range(10):
        x, grads = torch.randn(8, 64, device="cuda"), []
        for call in (model, fast):
            loss = call(x).pow(2).sum()
            again = step in (3, 4, 7)
            grads.append([torch.autograd.grad(loss, parameters, retain_graph=again)])
            if again:
                grads[-1].append(torch.autograd.grad(loss, parameters))
        close(grads[1], grads[0])
    assert len(replays) > 10
