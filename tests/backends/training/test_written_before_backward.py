"""Programs that write to tensors without a gradient between a compiled forward and its backward, as queues and averages do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand


@pytest.fixture(params=["aot_eager", "native"])
def backend(request: Any) -> str:
    return str(request.param)


def break_inside_no_grad(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    q = (w * x).sin()
    with torch.no_grad():
        argand.graph_break()
        k = x.tanh()
    return (q * k).sum()


def data_replaced_under_no_grad(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    q = (w * x).sin()
    with torch.no_grad():
        x.data = x * 2
    return (q * x).sum()


def data_replaced(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    q = (w * x).sin()
    x.data = x.data * 2
    return q.sum()


def clone_before_a_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = (w.sin() * x.clone()).sum()
    argand.graph_break()
    x[:2] = 0.5
    return y * 2


def half_before_a_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = (w.sin() * x.view(2, 2).split(1)[0].mul(0.5).sum()).sum()
    argand.graph_break()
    x.mul_(3)
    return y * 2


PROGRAMS: list[Callable[..., torch.Tensor]] = [
    break_inside_no_grad,
    data_replaced_under_no_grad,
    data_replaced,
    clone_before_a_write,
    half_before_a_write,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_of_what_was_read_before(program: Callable[..., torch.Tensor], backend: str) -> None:
    made = []
    compiled = argand.compile(program, backend=backend)
    for run in (program, compiled, program, compiled):
        torch.manual_seed(len(made) // 2)
        w, x = torch.randn(4, requires_grad=True), torch.randn(4)
        run(w, x).backward()
        made.append((w.grad, x))
    torch.testing.assert_close(made[1], made[0])
    torch.testing.assert_close(made[3], made[2])


class Contrast(nn.Module):
    """Contrastive learning with a queue and an averaged copy of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.average = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, 8), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor) -> None:
        start = int(self.place)
        self.queue[:, start : start + len(keys)] = keys.T
        self.place[0] = (start + len(keys)) % 8

    @torch.no_grad()
    def follow(self) -> None:
        for own, other in zip(self.average.parameters(), self.encoder.parameters()):
            own.data = own.data * 0.9 + other.data * 0.1

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q = F.normalize(self.encoder(x), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.average(y), dim=1)
        same = torch.einsum("nc,nc->n", q, k)[:, None]
        others = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        self.enqueue(k)
        return F.cross_entropy(torch.cat([same, others], 1) * 5, torch.zeros(len(x), dtype=torch.long))


def test_a_queue_and_an_averaged_encoder(backend: str) -> None:
    histories = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Contrast()
        run = argand.compile(model, backend=backend) if compiled else model
        optimizer = torch.optim.SGD(model.encoder.parameters(), 0.1)
        history = []
        for _ in range(4):
            loss = run(torch.randn(2, 6), torch.randn(2, 6))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
        histories.append([*history, *model.state_dict().values()])
    torch.testing.assert_close(histories[1], histories[0], rtol=1e-4, atol=1e-5)
