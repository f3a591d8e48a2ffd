"""Compiled autograd on a GPU: eager's gradients, also where the forward ran on another stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.engine import backward_programs as programs
from tests.engine import checkpoint_programs as checkpoints
from tests.engine import double_backward_programs as differentiated
from torch import nn

import argand
import sweeps
from argand.engine.entries import Trial
from helpers import collected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


ALL = {**programs.COMPILED, **differentiated.DIFFERENTIATED, **checkpoints.CHECKPOINTS}


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)
    for module in (programs, checkpoints, differentiated):
        monkeypatch.setattr(module, "data", lambda: torch.randn(5, 8, device="cuda"))


def trained(name: str, backend: str | None) -> list[torch.Tensor]:
    """Parameters and gradients after each of four steps."""
    make, program = ALL[name]
    torch.manual_seed(0)
    model: nn.Module = make().cuda()
    seen: list[Any] = []
    for step in range(4):
        torch.manual_seed(step + 1)
        with argand.compiled_autograd(backend=backend) if backend else argand.config.patch(compiled_autograd=False):
            program(model, step)
        seen += [one.detach().clone() for p in model.parameters() for one in (p, p.grad) if one is not None]
    return seen


ON_CPU = {"gpt", "cnn", "strange_layouts"}
"""Programs that make tensors of their own there."""


@pytest.mark.parametrize(("backend", "name"), sweeps.chessboard(["eager", "native"], sorted(ALL.keys() - ON_CPU)))
def test_gradients_are_eagers(name: str, backend: str) -> None:
    want = trained(name, None)
    with collected("compiled_autograd_graph") as events:
        got = trained(name, backend)
    assert events
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("hooked", [False, True])
def test_a_forward_on_another_stream(hooked: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda()
    stream = torch.cuda.Stream()
    for _ in range(5):
        grads = []
        x = torch.randn(256, 512, device="cuda")
        for backend in (None, "eager"):
            model.zero_grad()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                h = model(x)
                if hooked:
                    h.register_hook(lambda grad: grad * 2)
                loss = h.square().mean()
            with argand.compiled_autograd(backend=backend) if backend else argand.config.patch(compiled_autograd=False):
                loss.backward()
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(grads[0], grads[1])
