"""Loops over time steps with products of the state: kernels and products run once a step, and compute what eager does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import argand
import sweeps
from argand.backends.programs import rolling
from argand.passes.rolling import windows
from helpers import texts_of

STEPS, BATCH, WIDTH = 14, 3, 6


@pytest.fixture(autouse=True)
def short_loops(monkeypatch):
    """Loops of fewer rounds are compiled sooner."""
    monkeypatch.setattr(windows, "LEAST_WITH_PRODUCTS", 6)


@pytest.fixture
def loops():
    """What is said of loops."""
    with texts_of("loop") as texts:
        yield texts


class Cell(nn.Module):
    """A cell over time steps."""

    def __init__(self, steps, *modules):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.steps = steps
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return self.steps(self, x)


def plain(cell, x):
    h, outs = x.new_zeros(x.shape[0], WIDTH), []
    for t in range(x.shape[1]):
        h = torch.tanh(cell.parts[0](x[:, t]) + h @ cell.weight + cell.bias)
        outs.append(h)
    return torch.stack(outs, 1)


def cells(cell, x):
    h, outs = x.new_zeros(x.shape[0], WIDTH), []
    for x_t in x.unbind(1):
        h = cell.parts[0](x_t, h)
        outs.append(h)
    return torch.stack(outs), h


def long_short(cell, x):
    h = c = x.new_zeros(x.shape[0], WIDTH)
    outs = []
    for t in reversed(range(x.shape[1])):
        h, c = cell.parts[0](x[:, t], (h, c))
        outs.append(h)
    return torch.stack(outs[::-1], 1), (h, c)


def two_layers(cell, x):
    states, outs = [x.new_zeros(x.shape[0], WIDTH)] * 2, []
    for t in range(x.shape[1]):
        below = x[:, t]
        for layer, part in enumerate(cell.parts):
            below = states[layer] = part(below, states[layer])
        outs.append(below)
    return torch.stack(outs, 1), states


def masked(cell, x):
    h, outs = x.new_ones(x.shape[0], WIDTH), []
    lengths = torch.arange(x.shape[0]) + 3
    for t in range(x.shape[1]):
        new = torch.tanh(torch.cat([x[:, t], h], 1) @ torch.cat([cell.weight, cell.weight.t()]))
        h = torch.where((t < lengths).unsqueeze(1), new, h)
        outs.append(h)
    return torch.stack(outs, 1)


def attends(cell, x):
    h, outs = x.new_zeros(x.shape[0], WIDTH), []
    for t in range(x.shape[1]):
        scores = torch.bmm(x, cell.parts[1](h).unsqueeze(2)).squeeze(2)
        context = torch.bmm(F.softmax(scores, -1).unsqueeze(1), x).squeeze(1)
        h = cell.parts[0](torch.cat([x[:, t], context], 1), h)
        outs.append(h)
    return torch.stack(outs, 1)


def no_inputs(cell, x):
    h = x[:, 0]
    for _ in range(20):
        h = F.relu(torch.addmm(cell.bias, h, cell.weight)) - 0.5 * h
    return h


def every_second(cell, x):
    h, kept = x.sum(1), []
    for t in range(1, x.shape[1], 2):
        h = torch.tanh(x[:, t - 1] @ cell.weight - h @ cell.weight.t() + x[:, t] * 0.5)
        kept.append(h.unsqueeze(1))
    return torch.cat(kept, 1), h.mean()


def pieces(cell, x):
    h, outs = x.new_zeros(x.shape[0], 1, WIDTH), []
    for t in range(x.shape[1]):
        h = torch.sigmoid(x[:, t : t + 1] + h @ cell.weight)
        outs.append(h)
    return torch.cat(outs, 1)


def inner_loop(cell, x):
    h, outs = x.new_zeros(x.shape[0], WIDTH), []
    for t in range(x.shape[1]):
        for _ in range(3):
            h = torch.tanh(h @ cell.weight + x[:, t])
        outs.append(h)
    return torch.stack(outs, 1)


def power(cell, x):
    matrix = cell.weight
    for _ in range(9):
        matrix = matrix @ matrix / 4 + cell.weight @ matrix
    return matrix + x.sum()


CELLS = {
    plain: lambda: [nn.Linear(WIDTH, WIDTH)],
    cells: lambda: [nn.GRUCell(WIDTH, WIDTH)],
    long_short: lambda: [nn.LSTMCell(WIDTH, WIDTH)],
    two_layers: lambda: [nn.RNNCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)],
    masked: list,
    attends: lambda: [nn.GRUCell(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)],
    no_inputs: list,
    every_second: list,
    pieces: list,
    inner_loop: list,
    power: list,
}


def cell_of(steps, dtype=torch.float32):
    torch.manual_seed(0)
    cell = Cell(steps, *CELLS[steps]())
    return cell.to(dtype), torch.randn(BATCH, STEPS, WIDTH, dtype=dtype)


def check(cell, x):
    compiled = argand.compile(cell, fullgraph=True)
    with torch.no_grad(), argand.config.patch(verify_ir=True):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), cell(x))
    argand.reset()


@pytest.mark.parametrize(
    ("steps", "dtype"),
    sweeps.chessboard(CELLS, [torch.float32, torch.float64]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_loops_are_eagers(steps, dtype, loops):
    check(*cell_of(steps, dtype))
    assert loops or steps is masked  # whose rounds compare with numbers of their own


@pytest.mark.parametrize(
    ("steps", "reads"),
    sweeps.chessboard(CELLS, [True, False]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_gradients_are_eagers(steps, reads, loops):
    cell, x = cell_of(steps, torch.float64)
    x.requires_grad_(reads)
    compiled = argand.compile(cell, fullgraph=True)
    wanted = [each for each in (x, *cell.parameters()) if each.requires_grad]
    for _ in range(2):
        results = [pytree.tree_leaves(run(x)) for run in (compiled, cell)]
        torch.testing.assert_close(*results)
        sums = [sum((each * each).sum() for each in result) for result in results]
        torch.testing.assert_close(*(torch.autograd.grad(each, wanted, allow_unused=True) for each in sums))
    assert len(loops) >= ROLLED.get(steps, 0)


ROLLED = {plain: 2, long_short: 2, no_inputs: 2, inner_loop: 1}  # loops at least, forward and backward


def test_weights_gradients_are_one_product_after_the_loop(loops):
    cell, x = cell_of(plain)
    with texts_of("output_code") as texts:
        argand.compile(cell)(x).sum().backward()
    assert len(loops) == 2 and max(text.count("mm(") for text in texts) <= 10


@pytest.mark.parametrize(("width", "batch"), sweeps.chessboard([1, 17, 40, 64], [1, 2, 13]))
def test_sizes_that_fill_no_panel(width, batch, loops):
    weight, other = torch.randn(width, width, dtype=torch.float64) / width, torch.randn(batch, width).double()

    def step(x, h):
        for t in range(x.shape[0]):
            h = torch.relu(torch.addmm(x[t], h, weight)) - h @ weight.t() / 2
        return h

    x = torch.randn(10, batch, width, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(step, dynamic=False)(x, other), step(x, other))
    assert len(loops) == 1


def test_products_of_slices_are_one_before_the_loop():
    with texts_of("output_code") as texts:
        check(*cell_of(plain))
    assert texts and max(text.count("mm(") for text in texts) <= 2


def test_autocast_is_eagers():
    cell, x = cell_of(cells)
    compiled = argand.compile(cell)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), cell(x), rtol=2e-2, atol=2e-2)


def test_numbers_that_are_none():
    cell, x = cell_of(cells)
    x[1, 4, 2], x[2, 7, 1] = float("nan"), float("inf")
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(cell)(x), cell(x), equal_nan=True)


def test_a_later_process_finds_the_loop(tmp_path, loops):
    cell, x = cell_of(cells)
    with argand.config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        first = argand.compile(cell)(x)
        argand.reset()
        second = argand.compile(cell)(x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("searched", [True, False])
def test_rounds_are_kept_as_one_tensor_for_a_loop_of_the_backward(searched, monkeypatch):
    cell, x = cell_of(plain)
    if not searched:
        monkeypatch.setattr(rolling, "_rolled", lambda *_: False)
    with texts_of("aot_forward_graph") as graphs:
        argand.compile(cell)(x).sum().backward()
    assert graphs[0].count("aten.stack.default") == 1 + searched  # the program itself has one
