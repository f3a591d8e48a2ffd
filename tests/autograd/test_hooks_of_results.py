"""Graphs with several results of which a backward reaches some: hooks of the others are not called, as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

Call = Callable[..., Any]

OPERATIONS: list[Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = [
    lambda a, b: (a * b,),
    lambda a, b: (a.sin() + b,),
    lambda a, b: ((a @ b).tanh(),),
    lambda a, b: torch.var_mean(a * b, dim=1, keepdim=True),  # two results of one node
    lambda a, b: torch.aminmax(a - b, dim=0, keepdim=True),
    lambda a, b: (a.exp().sum(0, keepdim=True),),
    lambda a, b: (torch.sort(a, 1)[0] * b,),
]


def program(seed: int) -> Call:
    """A function of two matrices with several results, none of which is computed from another."""
    rng = random.Random(seed)
    chosen = [(rng.choice(OPERATIONS), rng.random() < 0.5) for _ in range(rng.randint(2, 4))]
    constant = rng.random() < 0.3

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        trunk = (x * w).sigmoid()
        results: list[torch.Tensor] = []
        for operation, swapped in chosen:
            results += operation(w, trunk) if swapped else operation(trunk, w)
        if constant:
            results.insert(1, trunk.detach() * 2)
        return tuple(results)

    return function


def hooked(kind: str, results: dict[int, torch.Tensor], calls: list[Any]) -> Callable[[], None]:
    """Puts hooks of a kind on all results; what it returns notes what they left behind."""
    for place, result in results.items():

        def note(grad: torch.Tensor | None, place: int = place) -> torch.Tensor | None:
            calls.append((place, None if grad is None else grad.clone()))
            return grad * 2 if kind == "changing" and grad is not None else None

        if kind in ("hook", "changing"):
            result.register_hook(note)
        elif kind == "retained":
            result.retain_grad()
        elif kind == "node":
            result.grad_fn.register_prehook(lambda grads, place=place: calls.append((place, len(grads) > 0)))
    if kind == "several":
        torch.autograd.graph.register_multi_grad_hook(
            list(results.values()), lambda grads: calls.append([None if g is None else g.clone() for g in grads])
        )
    return lambda: calls.extend(sorted((p, r.grad) for p, r in results.items()) if kind == "retained" else ())


def outcome(function: Call, seed: int, kind: str) -> list[Any]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2))
    calls: list[Any] = []
    results = dict(enumerate(function(x, w)))
    results = {place: result for place, result in results.items() if result.requires_grad}
    finish = hooked(kind, results, calls)
    used = rng.sample(sorted(results), rng.randint(1, len(results)))
    for round in range(2):
        calls.append(("round", round))
        torch.autograd.backward([results[place].sum() for place in used], retain_graph=round == 0)
    finish()
    unused = [place for place in results if place not in used]
    if unused and kind == "hook":  # what a gradient does not come to has none
        again = function(x, w)
        loss = torch.stack([again[place].sum() for place in used]).sum()
        calls.append(torch.autograd.grad(loss, [again[place] for place in unused], allow_unused=True))
        with pytest.raises(RuntimeError, match="not have been used"):
            again = function(x, w)
            torch.autograd.grad(again[used[0]].sum(), [again[unused[0]]])
    return [sorted(map(str, calls)) if kind == "node" else calls, x.grad, w.grad]


@pytest.mark.parametrize("kind", ["hook", "changing", "retained", "node", "several"])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_as_eager(kind: str, backend: str) -> None:
    for seed in range(12 if backend == "aot_eager" else 3):
        argand.reset()
        function = program(seed)
        want = outcome(function, seed, kind)
        got = outcome(argand.compile(function, backend=backend, fullgraph=True), seed, kind)
        torch.testing.assert_close(_flat(got), _flat(want), rtol=1e-4, atol=1e-5, msg=lambda m, s=seed: f"{s}: {m}")


def _flat(value: Any) -> list[Any]:
    """Tensors of nested tuples, and the text of all else, so that None and numbers are compared too."""
    if isinstance(value, list | tuple):
        return [one for item in value for one in _flat(item)]
    return [value if isinstance(value, torch.Tensor) else torch.tensor(list(str(value).encode()))]


def test_a_hook_that_wants_a_tensor() -> None:
    """Pyro warns of gradients that are not finite, by hooks on each log density."""

    def densities(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * x).sum(), x.exp().sum()

    x = torch.ones(3, requires_grad=True)
    one, two = argand.compile(densities)(x)
    two.register_hook(lambda g: g * torch.isfinite(g))
    one.backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_gradcheck_of_several_results() -> None:
    compiled = argand.compile(lambda x, w: (x.sin() * w, (x * w).exp().sum(0), *torch.var_mean(w, dim=0)))
    given = [torch.randn(2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(compiled, given) and torch.autograd.gradgradcheck(compiled, given)


def test_nodes_where_torch_has_no_operation_that_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argand.graph.compat.node_adder", lambda: None)
    for kind in ("hook", "retained"):
        function = program(5)
        want = outcome(function, 5, kind)
        got = outcome(argand.compile(function, backend="aot_eager"), 5, kind)
        torch.testing.assert_close(_flat(got), _flat(want))
