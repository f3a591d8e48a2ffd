"""Functions under vmap that write to what they are given: the batch gets the values, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils import _pytree as pytree

import argand

T = torch.Tensor

torch.manual_seed(0)
MODELS = [nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)) for _ in range(3)]
PARAMETERS, BUFFERS = stack_module_state(MODELS)  # type: ignore[arg-type]
BASE = copy.deepcopy(MODELS[0])


def of_one(parameters: Any, buffers: Any, x: T) -> T:
    result: T = functional_call(BASE, (parameters, buffers), (x,))
    return result


def unseen(a: T, b: T) -> T:
    with torch.no_grad():
        a.add_(b)
    return a * b


def item(a: T, b: T) -> T:
    a[0] = b[1]
    return a.sum()


def mapped(function: Callable[..., Any], later: bool = True, **options: Any) -> Callable[[T, T], Any]:
    def program(x: T, w: T) -> Any:
        y, z = x * 1, w * 1
        results = vmap(function, **options)(y, z)
        if later:
            y.mul_(2)  # what is a view of it changes
        return results, y, z

    return program


def ensemble(x: T, w: T) -> Any:
    buffers = {name: b.clone() for name, b in BUFFERS.items()}
    parameters = {name: p.detach() * w.mean() for name, p in PARAMETERS.items()}
    return vmap(of_one, in_dims=(0, 0, None))(parameters, buffers, x), buffers


PROGRAMS: dict[str, Callable[[T, T], Any]] = {
    "one": mapped(lambda a, b: a.add_(b) * 1),
    "a part": mapped(lambda a, b: a[1:].mul_(b[:-1]).sum()),
    "both": mapped(lambda a, b: (a.add_(b).sum(), b.mul_(2).sin())),
    "of another dimension": mapped(lambda a, b: a.add_(b.sum()) * 1, in_dims=(1, None), out_dims=(1,)),
    "returned": mapped(lambda a, b: {"a": a.add_(b), "b": b}, out_dims={"a": 1, "b": 0}),
    "unseen by autograd": mapped(unseen, later=False),
    "in chunks": mapped(lambda a, b: a.add_(b) * 1, chunk_size=2),
    "an item": mapped(item),
    "nested": lambda x, w: (y := x * 1, vmap(vmap(lambda a: a.add_(1) * 1))(y)),
    "running statistics": ensemble,
}

ELSEWHERE: dict[str, Callable[[T, T], Any]] = {
    "a view returned": mapped(lambda a, b: a.add_(b)[1:]),
    "not mapped": mapped(lambda a, b: a.add_(b) * 1, in_dims=(None, 0)),
    "one twice": lambda x, w: (y := x * 1, vmap(lambda a, b: a.add_(b) * 1)(y, y)),
    "a leaf": lambda x, w: (vmap(lambda a, b: a.add_(b) * 1)(x, w), x),
    "of outside": lambda x, w: (y := x * 1, vmap(lambda a: y.add_(1)[0] * a)(w)),
}


def outcome(program: Callable[[T, T], Any], grad: bool) -> Any:
    x, w = (torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).requires_grad_(grad) for n in (1, 2))
    try:
        results = pytree.tree_leaves(program(x, w))
        if grad:
            sum((t.sin() * (n + 1)).sum() for n, t in enumerate(results) if t.requires_grad).backward()
    except Exception as error:
        return type(error), str(error)
    return [t.detach() for t in results], [t.requires_grad for t in results], x.grad, w.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str, grad: bool) -> None:
    compiled = argand.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled, grad), outcome(PROGRAMS[name], grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["running statistics", "returned"])
def test_native(name: str) -> None:
    compiled = argand.compile(PROGRAMS[name], fullgraph=True)
    torch.testing.assert_close(outcome(compiled, True), outcome(PROGRAMS[name], True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere(name: str, grad: bool) -> None:
    got, want = (outcome(f, grad) for f in (argand.compile(ELSEWHERE[name], backend="eager"), ELSEWHERE[name]))
    if isinstance(want[0], type):
        assert got == want
    else:
        torch.testing.assert_close(got, want)
