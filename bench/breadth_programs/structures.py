"""Recommendation, graphs, point clouds, simulation, implicit functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between."""
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(widths):
        layers += [nn.Linear(ins, outs), act()]
    return nn.Sequential(*layers[:-1])


class Recommendation(nn.Module):
    """Embeddings of categories, products of all pairs, MLPs, as in DLRM."""

    def __init__(self, tables: int = 26, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10000, width) for _ in range(tables))
        self.bottom, pairs = mlp(13, 128, 64, width), (tables + 1) * tables // 2
        self.top = mlp(pairs + width, 256, 128, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        parts = torch.stack([x, *(table(ids) for table, ids in zip(self.tables, sparse.unbind(1)))], 1)
        products = parts @ parts.transpose(1, 2)
        found: torch.Tensor = self.top(torch.cat((x, products[:, self.pairs[0], self.pairs[1]]), 1))
        return found


class Messages(nn.Module):
    """Messages along edges, added up at nodes."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.messages = nn.ModuleList(mlp(2 * width + 8, 128, width, act=nn.SiLU) for _ in range(layers))
        self.updates = nn.ModuleList(mlp(2 * width, 128, width, act=nn.SiLU) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        into, out = edges
        for message, update, norm in zip(self.messages, self.updates, self.norms):
            sent = message(torch.cat((x[into], x[out], lengths), 1))
            got = torch.zeros_like(x).index_add(0, out, sent)
            x = norm(x + update(torch.cat((x, got), 1)))
        return x


class Points(nn.Module):
    """A point cloud: shared MLPs, the largest of each feature, as in PointNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1))
        self.second = nn.Sequential(nn.BatchNorm1d(256), nn.ReLU(), nn.Conv1d(256, 512, 1))
        self.head = mlp(512, 256, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.cat((y, y.amax(2, keepdim=True).expand_as(y)), 1)
        found: torch.Tensor = self.head(self.second(y).amax(2))
        return found


class Bodies(nn.Module):
    """Bodies that attract each other, ten steps of leapfrog; masses are learned."""

    def __init__(self, count: int = 192) -> None:
        super().__init__()
        self.masses = nn.Parameter(torch.rand(count))

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        apart = x[None] - x[:, None]
        squares = (apart**2).sum(-1) + 1e-2
        return (apart * (self.masses * squares**-1.5)[..., None]).sum(1)

    def forward(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        force = self.forces(x)
        for _ in range(10):
            v = v + 0.005 * force
            x = x + 0.01 * v
            force = self.forces(x)
            v = v + 0.005 * force
        return x


class Waves(nn.Module):
    """The wave equation on a grid with learned speeds, by finite differences."""

    def __init__(self, size: int = 256) -> None:
        super().__init__()
        self.speed = nn.Parameter(torch.rand(size, size) * 0.5)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        before = u
        for _ in range(20):
            p = F.pad(u[:, None], (1, 1, 1, 1), mode="circular")[:, 0]
            bend = p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * u
            u, before = 2 * u - before + self.speed * bend, u
        return u


class Implicit(nn.Module):
    """A field of Fourier features through a sine network, as in NeRF and SIREN."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(10))
        self.layers = nn.ModuleList(nn.Linear(ins, 256) for ins in (60, 256, 256, 256))
        self.out = nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x[..., None] * self.frequencies).flatten(1)
        y = torch.cat((y.sin(), y.cos()), 1)
        for layer in self.layers:
            y = torch.sin(3.0 * layer(y))
        colour, density = self.out(y).split((3, 1), 1)
        return torch.cat((colour.sigmoid(), F.softplus(density)), 1)


def _graph() -> tuple[torch.Tensor, ...]:
    return torch.randn(500, 64), torch.randint(500, (2, 4000)), torch.rand(4000, 8)


PROGRAMS: dict[str, Callable[[], Made]] = {
    "recommendation": lambda: (
        Recommendation().eval(),
        (torch.rand(256, 13), torch.randint(10000, (256, 26))),
    ),
    "messages on a graph": lambda: (Messages().eval(), _graph()),
    "point cloud": lambda: (Points().eval(), (torch.randn(8, 3, 1024),)),
    "bodies": lambda: (Bodies().eval(), (torch.randn(192, 3), torch.randn(192, 3))),
    "waves": lambda: (Waves().eval(), (torch.randn(2, 256, 256),)),
    "implicit field": lambda: (Implicit().eval(), (torch.randn(4096, 3),)),
}
