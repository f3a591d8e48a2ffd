"""Recurrent networks and scans."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Tagger(nn.Module):
    """A bidirectional LSTM that tags words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(5000, 128), nn.Linear(512, 20)
        self.recurrent = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tags(self.recurrent(self.words(ids))[0])
        return found


class Series(nn.Module):
    """A GRU over a series, its last state through an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(32, 128, 2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.recurrent(x)[0][:, -1])
        return found


class Cell(nn.Module):
    """An LSTM whose loop over time steps is Python's."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width = width
        self.into, self.again = nn.Linear(64, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], self.width)
        states = []
        for step in self.into(x).unbind(1):
            i, f, g, o = (step + self.again(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)


class Selective(nn.Module):
    """Blocks of a selective scan, its loop over time steps in Python."""

    def __init__(self, width: int = 128, state: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.into = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.select = nn.ModuleList(nn.Linear(width, width + 2 * state) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.decay = nn.Parameter(torch.rand(layers, width, state))
        self.state = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for into, select, out, decay in zip(self.into, self.select, self.out, self.decay):
            y, gate = into(x).chunk(2, -1)
            y = F.silu(y)
            delta, enter, leave = select(y).split((y.shape[-1], self.state, self.state), -1)
            delta = F.softplus(delta)
            kept = torch.exp(-delta.unsqueeze(-1) * decay)
            held, steps = y.new_zeros(y.shape[0], y.shape[-1], self.state), []
            for t in range(y.shape[1]):
                held = kept[:, t] * held + (delta[:, t] * y[:, t]).unsqueeze(-1) * enter[:, t].unsqueeze(1)
                steps.append((held * leave[:, t].unsqueeze(1)).sum(-1))
            x = x + out(torch.stack(steps, 1) * F.silu(gate))
        return x


class Causal(nn.Module):
    """Dilated causal convolutions with gates, as in WaveNet."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**n) for n in range(layers))
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.into(x), torch.zeros((), device=x.device)
        for number, (gate, mix) in enumerate(zip(self.gates, self.mixes)):
            a, b = gate(F.pad(x, (2**number, 0))).chunk(2, 1)
            y = mix(a.tanh() * b.sigmoid())
            x, total = x + y, total + y
        found: torch.Tensor = self.out(F.relu(total))
        return found


PROGRAMS: dict[str, Callable[[], Made]] = {
    "LSTM tagger": lambda: (Tagger().eval(), (torch.randint(5000, (8, 64)),)),
    "GRU of a series": lambda: (Series().eval(), (torch.randn(16, 64, 32),)),
    "LSTM in a loop": lambda: (Cell().eval(), (torch.randn(16, 48, 64),)),
    "selective scan": lambda: (Selective().eval(), (torch.randn(4, 64, 128),)),
    "dilated convolutions": lambda: (Causal().eval(), (torch.randn(2, 1, 2048),)),
}
