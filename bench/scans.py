"""Loops over time steps written in Python: milliseconds of eager, argand and torch.compile, interleaved.

    python bench/scans.py [PROGRAM ...] [--train] [--steps 64] [--threads 2] [--seconds 5] [--without-torch]
                           [--json OUT]

Prints for each program the least step of each system, the ratios to eager's, and the first call in seconds. With
--train a step is forward, mean square, and backward; the largest difference of a gradient from eager's is printed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import argand


class SelectiveScan(nn.Module):
    """A block as Mamba's: the state decays by factors that depend on the input."""

    def __init__(self, product: str, width: int = 64, states: int = 16, rank: int = 4) -> None:
        super().__init__()
        self.product, self.states, self.rank = product, states, rank
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.select = nn.Linear(width, rank + 2 * states, bias=False)
        self.pace = nn.Linear(rank, width)
        self.decay = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, gate = self.enter(x).chunk(2, -1)
        u = F.silu(u)
        pace, b, c = self.select(u).split([self.rank, self.states, self.states], -1)
        pace = F.softplus(self.pace(pace))
        kept = torch.exp(pace.unsqueeze(-1) * -torch.exp(self.decay))
        added = pace.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        state, results = x.new_zeros(x.shape[0], x.shape[2], self.states), []
        for step in range(x.shape[1]):
            state = kept[:, step] * state + added[:, step]
            if self.product == "einsum":
                results.append(torch.einsum("bdn,bn->bd", state, c[:, step]))
            else:
                results.append((state * c[:, step].unsqueeze(1)).sum(-1))
        return x + self.leave((torch.stack(results, 1) + u * self.skip) * F.silu(gate))


class Cell(nn.Module):
    """A loop over a recurrent cell of torch's."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        results = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            results.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(results, 1)


class WrittenLstm(nn.Module):
    """An LSTM in formulas, its input multiplied for all steps at once."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inputs, self.hidden = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs(x)
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        results = []
        for step in range(x.shape[1]):
            i, f, g, o = (inputs[:, step] + self.hidden(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            results.append(h)
        return torch.stack(results, 1)


class MovingAverage(nn.Module):
    """An exponential moving average with a learned rate for each channel."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rate, self.mix = nn.Parameter(torch.zeros(width)), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(x)
        rate, average = torch.sigmoid(self.rate), x[:, 0]
        results = [average]
        for step in range(1, x.shape[1]):
            average = torch.lerp(average, x[:, step], rate)
            results.append(average)
        return torch.stack(results, 1)


PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    "selective scan": lambda: nn.Sequential(SelectiveScan("sum"), SelectiveScan("sum")),
    "selective scan, einsum": lambda: nn.Sequential(SelectiveScan("einsum"), SelectiveScan("einsum")),
    "LSTMCell": lambda: Cell(nn.LSTMCell(64, 64)),
    "GRUCell": lambda: Cell(nn.GRUCell(64, 64)),
    "written LSTM": WrittenLstm,
    "moving average": MovingAverage,
}


def step_of(model: nn.Module, run: Callable[..., torch.Tensor], x: torch.Tensor, train: bool) -> None:
    """One call, or forward and backward."""
    if train:
        model.zero_grad(set_to_none=True)
        run(x).square().mean().backward()
    else:
        with torch.no_grad():
            run(x)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first call and the least step of each system."""
    torch.manual_seed(0)
    model, x = PROGRAMS[name](), torch.randn(4, options.steps, 64)
    systems: dict[str, Callable[..., Any]] = {"eager": model, "argand": argand.compile(model)}
    if not options.without_torch:
        systems["torch.compile"] = torch.compile(model)
    first, gradients = {}, {}
    for system, run in systems.items():
        start = time.perf_counter()
        step_of(model, run, x, options.train)
        first[system] = time.perf_counter() - start
        gradients[system] = [p.grad for p in model.parameters() if p.grad is not None]
    steps = dict.fromkeys(systems, float("inf"))
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        for system, run in systems.items():
            start = time.perf_counter()
            step_of(model, run, x, options.train)
            steps[system] = min(steps[system], time.perf_counter() - start)
    pairs = zip(gradients["eager"], gradients["argand"])
    worst = max((float((a - b).abs().max() / a.abs().max()) for a, b in pairs), default=0.0)
    return {"program": name, "first_s": first, "step_s": steps, "gradient_difference": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = []
    for name in options.programs or list(PROGRAMS):
        found.append(measure(name, options))
        steps, first = found[-1]["step_s"], found[-1]["first_s"]
        cells = [f"{s} {1e3 * t:.2f} ms ({steps['eager'] / t:.2f}x, first {first[s]:.1f} s)" for s, t in steps.items()]
        print(f"{name:24s} " + "  ".join(cells) + f"  gradients {found[-1]['gradient_difference']:.0e}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
