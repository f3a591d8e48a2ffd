"""The text of a captured graph: what `print_readable` gives, without what that imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx

import argand
import warm
from argand.capture.facts.compat import CapturedGraph
from argand.config import config
from argand.graph.nodes.module_text import lazy_forward, module_text
from helpers import collected

LAYER = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))


def layers(x: torch.Tensor) -> torch.Tensor:
    return LAYER(x).relu()


def several(input: torch.Tensor, n: float) -> Any:
    top, index = input.max(-1)
    return top * n, index.to(torch.int32), input[1:, None]


def subgraph(x: torch.Tensor) -> torch.Tensor:
    def body(a: torch.Tensor) -> torch.Tensor:
        return a.sin() * 2

    return torch.utils.checkpoint.checkpoint(body, x * 2, use_reentrant=False)


def effect(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.cat([x, x.bool().float()])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [layers, several, subgraph, effect])
def test_as_print_readable(function: Callable[..., Any], dynamic: bool) -> None:
    argand.reset()
    args = (torch.randn(3, 4), 2.5) if function is several else (torch.randn(3, 4),)
    with collected("graph") as seen:
        argand.compile(function, backend="eager", dynamic=dynamic)(*args)
    assert seen
    for event in seen:
        graph = event.data["graph"]
        theirs = graph.print_readable(print_output=False)
        assert module_text(graph).split() == theirs.split()
        assert module_text(graph).rstrip().split("\n") == theirs.rstrip().split("\n")


def test_a_trace_does_not_import_sympy(tmp_path: Any) -> None:
    """print_readable imports DTensor, which imports sympy: seconds, in the first compile that was traced."""
    code = (
        "import sys, torch, argand\n"
        f"argand.config.trace_dir = {str(tmp_path)!r}\n"
        "argand.compile(lambda x: x + 1, backend='eager')(torch.ones(3))\n"
        "print('sympy' in sys.modules, 'torch.distributed.tensor' in sys.modules)"
    )
    done = warm.run(["-c", code], check=True)
    assert done.stdout.split() == ["False", "False"]
    assert list(tmp_path.glob("*.log"))


def test_a_lazy_forward_writes_its_code_when_it_is_called() -> None:
    captured: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: object) -> object:
        captured.append(gm)
        return lazy_forward(gm)

    x = torch.linspace(-1, 1, 5)
    compiled = argand.compile(lambda x: x.sin() + 1, backend=backend)
    assert torch.equal(compiled(x), x.sin() + 1)
    (gm,) = captured
    before = gm.forward
    assert torch.equal(compiled(x * 2), (x * 2).sin() + 1)
    assert gm.forward == before
    native = argand.compile(lambda x: x.cos() + 1)
    with config.patch(verify_ir=False):
        watched = []
        recompile = CapturedGraph.recompile
        with mock.patch.object(CapturedGraph, "recompile", lambda gm: (watched.append(gm), recompile(gm))[1]):
            assert torch.allclose(native(x), x.cos() + 1)
    assert all("forward" not in vars(type(gm)) for gm in watched)  # nobody asked for Python code
