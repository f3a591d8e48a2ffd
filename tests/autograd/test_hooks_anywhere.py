"""Random programs with hooks on inputs, on what these are made of and on results; backwards from any of the results.

`python tests/autograd/test_hooks_anywhere.py 0 200 aot_eager` prints which of the seeds differ (`cuda` behind it: there).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

Call = Callable[..., Any]
Tensor = torch.Tensor
DEVICE = "cpu"


class _Zeros(torch.autograd.Function):
    """Has a gradient for what no gradient came to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


MAKERS: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: x * 1.5, _Zeros.apply, lambda x: x.t().sin()]
OPERATIONS: list[Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = [
    lambda a, b: (a * b,),
    lambda a, b: (a.sin() + b,),
    lambda a, b: (a.tanh(),),
    lambda a, b: (a - b.detach(),),
    lambda a, b: ((a @ b).tanh(),),
    lambda a, b: torch.var_mean(a * b, dim=1, keepdim=True),
    lambda a, b: (torch.sort(a, 1)[0] * b,),
    lambda a, b: (a.t() + b,),
    lambda a, b: (torch.where(a > 0, a, b),),
]


def program(rng: random.Random, inputs: int) -> Call:
    """A function of matrices whose results are any of what it computes."""
    steps = [(rng.choice(OPERATIONS), rng.random(), rng.random()) for _ in range(rng.randint(2, 7))]
    kept = [rng.random() < 0.5 for _ in range(30)]

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        values = list(given)
        results: list[Tensor] = []
        for operation, one, two in steps:
            made = operation(values[int(one * len(values))], values[int(two * len(values))])
            if kept[len(values)]:  # eager calls hooks of one result with None where another of its operation is used
                results += made
            values += [value.expand(3, 3) if value.shape != (3, 3) else value for value in made]
        return (*results, values[-1].sum())

    return function


class Watch:
    """Notes what hooks see."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}

    def put(self, tensor: Tensor, name: str, kind: str) -> None:
        seen = self.seen.setdefault(name, [])

        def note(grad: Tensor | None) -> Tensor | None:
            seen.append(None if grad is None else grad.clone())
            return grad.clamp(-0.3, 0.4) if kind == "changing" and grad is not None else None

        if kind in ("hook", "changing"):
            tensor.register_hook(note)
        elif kind == "retained":
            tensor.retain_grad()
        elif kind == "accumulated" and tensor.is_leaf:
            tensor.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
        elif kind == "node" and tensor.grad_fn is not None:
            tensor.grad_fn.register_hook(lambda inputs, outputs: seen.append(any(one is not None for one in outputs)))


def outcome(function: Call, seed: int, inputs: int) -> list[Any]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(3, 3, generator=generator).to(DEVICE) for _ in range(inputs)]
    leaves = [one.requires_grad_(rng.random() < 0.85) for one in made]
    watch = Watch()
    given = [rng.choice(MAKERS)(leaf) for leaf in leaves]
    kinds = ["hook", "changing", "retained", "accumulated", "node", "", ""]
    for place, (leaf, one) in enumerate(zip(leaves, given)):
        if leaf.requires_grad:
            watch.put(leaf, f"leaf {place}", rng.choice(kinds[:-1]))
        if one is not leaf and one.requires_grad:
            watch.put(one, f"input {place}", rng.choice(kinds))
    found: list[Any] = []
    for round in range(2):
        results = [result for result in function(*given) if result.requires_grad]
        if not results:
            return []
        for place, result in enumerate(results):
            watch.put(result, f"result {round} {place}", rng.choice(kinds))
        used = rng.sample(results, rng.randint(1, len(results)))
        way = rng.choice(["sum", "tuple", "grad", "one by one"])
        if way == "sum":
            torch.stack([(result * 0.7).sum() for result in used]).sum().backward(retain_graph=True)
        elif way == "tuple":
            torch.autograd.backward(used, [torch.full_like(result, 0.9) for result in used], retain_graph=True)
        elif way == "one by one":
            for result in used:
                result.square().sum().backward(retain_graph=True)
        else:
            sources = [*[one for one in (*given, *leaves) if one.requires_grad], *results]
            wanted = rng.sample(sources, rng.randint(1, min(3, len(sources))))
            total = torch.stack([result.sin().sum() for result in used]).sum()
            found.append(torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=True))
        found.append([result.grad if result.retains_grad else None for result in results])
    return [found, sorted(watch.seen.items()), [leaf.grad for leaf in leaves]]


def compare(seed: int, backend: str) -> None:
    rng = random.Random(seed)
    inputs = rng.randint(1, 4)
    function = program(rng, inputs)
    torch.manual_seed(seed)
    want = outcome(function, seed, inputs)
    argand.reset()
    got = outcome(argand.compile(function, backend=backend), seed, inputs)
    torch.testing.assert_close(flat(got), flat(want), rtol=1e-4, atol=1e-5, msg=lambda m: f"{seed}: {m}\n{got}\n{want}")


def flat(value: Any) -> list[Any]:
    """Tensors of nested containers, and the text of all else, so that None and numbers are compared too."""
    if isinstance(value, list | tuple):
        return [torch.tensor([len(value)]), *[one for item in value for one in flat(item)]]
    return [value if isinstance(value, Tensor) else torch.tensor(list(str(value).encode()))]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_as_eager(backend: str) -> None:
    for seed in range(25 if backend == "aot_eager" else 4):
        compare(seed, backend)


if __name__ == "__main__":
    import sys

    DEVICE = sys.argv[4] if len(sys.argv) > 4 else DEVICE
    for at in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            compare(at, sys.argv[3])
        except Exception as error:
            print(at, type(error).__name__, str(error)[:1500], flush=True)
