"""Captured graphs that a process runs once more, having loaded them: for second derivatives, and for hooks that are to
see what eager saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import argand
from argand.graph.nodes.module_text import settled
from argand.outcomes.resolver import Late, run_graph
from outcomes.processes import SQUARE, STORED, Program, asking

TWICE = (
    """
import functools
import torch
from torch._higher_order_ops import scan
from torch.utils.checkpoint import checkpoint
"""
    + SQUARE
    + """
class Once(Square):
    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]

def custom(net, x):
    return Square.apply(net(x)) + Once.apply(x.detach().requires_grad_())[:, :2]

def checkpointed(net, x):
    return checkpoint(lambda x: net(x).sin(), x, use_reentrant=False)

def mapped(net, x):
    return torch.vmap(lambda row: (net(row) ** 3).sum())(x)

def looped(net, x):
    return torch.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x.abs()))[1].sum() * net(x).sin()

def rows(net, x):
    carry, out = scan(lambda h, row: ((h + row).tanh(), h * row), torch.zeros(3), x.repeat(20, 1))
    return net(carry + out.sum(0)).sin()

WHAT = "custom"

def main(compile):
    torch.manual_seed(0)
    net, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    call = functools.partial(compile(globals()[WHAT]), net)
    grad, = torch.autograd.grad(call(x).sum(), net.weight, create_graph=True)
    (grad * grad).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        call(x).sum().backward()
    return net.weight.grad

def check(compile):
    torch.testing.assert_close(main(compile), main(lambda fn: fn))
"""
)


@pytest.mark.parametrize("kind", ["custom", "checkpointed", "mapped", "looped", "rows"])
def test_a_loaded_graph_runs_again(tmp_path: Path, kind: str) -> None:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(tmp_path, TWICE)
        assert "bypass" not in program.run(asking(kind)), program.reasons
        assert "hit" in program.run(asking(kind)), program.reasons


WRITES = """
import torch

LOG = []

def step(cache, x, at):
    try:
        cache.copy_(cache * 2 + 1)
        return (x.sin() * x)[at]
    finally:
        LOG.append(float(cache[0]))

def main(compile):
    call, cache, x, told = compile(step), torch.ones(100), torch.ones(5, requires_grad=True), []
    LOG.clear()
    for at in (1, 9, 2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            try:
                told.append(call(cache, x, torch.tensor([at])))
            except IndexError:
                told.append(None)
    return told, cache, list(LOG)

def check(compile):
    torch.testing.assert_close(main(compile), main(lambda fn: fn))
"""


def test_a_loaded_graph_puts_back_what_it_wrote(tmp_path: Path) -> None:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(tmp_path, WRITES)
        program.run()
        assert "hit" in program.run(), program.reasons


def test_a_loaded_graph_that_is_settled_is_called_itself() -> None:
    late = Late((), {})
    late.graph = torch.fx.symbolic_trace(torch.nn.Identity())
    assert settled(run_graph(late)) == late.graph.forward
    undone = run_graph(late, [0])
    assert settled(undone) is undone
