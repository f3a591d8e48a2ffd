"""Tensors that functions under transforms make themselves, of nothing: results and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import argand

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "jvp of a constant": lambda x: jvp(lambda a: torch.ones(3), (x,), (x,)),
    "jvp of integers": lambda x: jvp(lambda a: (a.sin(), torch.arange(3)), (x,), (x,)),
    "vjp of a constant": lambda x: vjp(lambda a: torch.ones(3), x)[1](x),
    "vmap of makers": lambda x: vmap(lambda a: (a * 2, torch.zeros(2), torch.arange(3), torch.full((2,), 1)))(x),
    "vmap of a list": lambda x: vmap(lambda a: torch.as_tensor([1.0, 2.0]) * a)(x),
    "jacobian beside a matrix": lambda x: jacrev(lambda a: a * torch.eye(3)[0] + torch.linspace(0, 1, 3))(x),
    "forward jacobian": lambda x: jacfwd(lambda a: (a * 2, torch.ones(2)))(x),
    "aux": lambda x: grad(lambda a: ((a * torch.ones(3)).sum(), torch.zeros(2)), has_aux=True)(x),
    "nested": lambda x: vmap(lambda a: grad(lambda b: (b * torch.ones(())).sum() ** 2)(a))(x),
}


def described(result: Any) -> list[Any]:
    return [
        (t.tolist(), t.dtype, t.device, t.stride(), t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in pytree.tree_leaves(result)
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    x = torch.arange(3.0) / 3
    compiled = argand.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    assert described(compiled(x)) == described(PROGRAMS[name](x))
    assert described(compiled(x + 1)) == described(PROGRAMS[name](x + 1))
