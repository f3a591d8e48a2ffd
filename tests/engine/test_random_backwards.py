"""Random graphs of operations, some compiled, some with hooks: each backward gives eager's gradients, bit for bit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand.engine.entries import Trial
from helpers import assert_same, collected

Tensors = list[torch.Tensor]


def _pick(draw: random.Random, known: Tensors) -> torch.Tensor:
    return known[draw.randrange(len(known))]


class Scaled(torch.autograd.Function):
    """Of the program's own, with an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x, y)
        return factor * x * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return None, ctx.factor * grad * y, ctx.factor * grad * x if ctx.needs_input_grad[2] else None


class Halves(torch.autograd.Function):
    """Two results."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x[:2].clone(), x[2:].clone()

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat([first * 2, second])


def _written(x: torch.Tensor) -> torch.Tensor:
    made = x * 1.5
    made[1] = 0.5
    made[:, 2].mul_(2)
    return made


_ONE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.sin,
    torch.sigmoid,
    lambda x: x * 2,
    lambda x: x.t(),
    lambda x: x.softmax(1),
    lambda x: x.cumsum(0),
    lambda x: x[[2, 0, 1, 0]],
    lambda x: x.flip(0) + x[0],
    lambda x: x.relu().detach() * x,
    lambda x: torch.nn.functional.layer_norm(x, (4,)),
    lambda x: x.unbind(0)[1].expand(4, 4),
    lambda x: x.split(2)[0].repeat(2, 1),
    lambda x: x.view(2, 8).max(1, keepdim=True).values.expand(2, 8).reshape(4, 4),
    lambda x: x.masked_fill(torch.eye(4, dtype=torch.bool), 0.5),
    lambda x: x.double().mean(0).float() * torch.ones(4, 4),
    lambda x: x.mul(3).add_(1),
    lambda x: torch.where(x > 0, x, x.exp()),
    lambda x: torch.nn.functional.pad(x, (1, 0))[:, :4],
    lambda x: x.as_strided((4, 4), (1, 4)),
    _written,
    lambda x: Scaled.apply(3.0, x, torch.ones(4, 4)),
    lambda x: torch.cat(Halves.apply(x)),
    lambda x: Halves.apply(x)[1].repeat(2, 1),
]
_TWO: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    torch.add,
    torch.mul,
    torch.mm,
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: torch.stack([x, y]).sum(0),
    lambda x, y: x / (y.square() + 1),
    lambda x, y: torch.addmm(x, y, x.t(), beta=0.5),
    lambda x, y: Scaled.apply(0.5, x, y),
]


class Log:
    """Which hooks were called, in order, with what, and which leaves had gradients then."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.leaves: Tensors = []
        self.handles: list[Any] = []
        self.retaining: Tensors = []
        self.results: Tensors = []

    def note(self, name: str, *grads: Any) -> None:
        there = [leaf.grad is not None for leaf in self.leaves]
        tensors = [None if one is None else one.detach().clone() for one in grads]
        self.seen.append((name, tensors, there))

    def hook(self, kind: int, name: str, tensor: torch.Tensor) -> None:
        """Put a hook of some kind on a tensor."""
        node: Any = tensor.grad_fn

        def changing(grad: Any) -> Any:
            self.note(f"{name} tensor", grad)
            return None if kind == 0 or grad is None else grad.mul_(0.5) if kind == 1 else grad * 0.5

        def before(grads: Any) -> Any:
            self.note(f"{name} before", *grads)
            return tuple(None if one is None else one + 1 for one in grads)

        def after(made: Any, grads: Any) -> Any:
            self.note(f"{name} after", *made, *grads)
            return tuple(None if one is None else one * 2 for one in made)

        if kind == 5 and node is not None:
            tensor.retain_grad()
            self.retaining.append(tensor)
        elif kind <= 2:
            self.handles.append(tensor.register_hook(changing))
        elif node is None:
            self.handles.append(tensor.register_post_accumulate_grad_hook(lambda leaf: self.note(name, leaf.grad)))
        elif kind == 3:
            self.handles.append(node.register_prehook(before))
        else:
            self.handles.append(node.register_hook(after))


def program(seed: int) -> Callable[[Tensors, int, Log], None]:
    """A training step on leaves, the same graph in each step but for what the step's number decides."""
    draw = random.Random(seed)
    steps = [(draw.randrange(3), draw.randrange(100), draw.randrange(100)) for _ in range(draw.randint(2, 9))]
    hooked = {draw.randrange(len(steps)): draw.randrange(5) for _ in range(draw.choice([0, 0, 1, 1, 3]))}
    on_leaves = {draw.randrange(3): draw.randrange(5) for _ in range(draw.choice([0, 0, 1, 3]))}
    varied = draw.random() < 0.3
    retain = draw.random() < 0.2
    compiled = draw.random() < 0.5
    asked = draw.choice(["all", "all", "some", "leaves", "results"])
    retained = {draw.randrange(len(steps)): 5 for _ in range(draw.choice([0, 0, 1, 2]))}
    hooked = {**retained, **hooked}

    def forward(leaves: Tensors, round: int, log: Log) -> torch.Tensor:
        known = list(leaves)
        for at, (kind, first, second) in enumerate(steps):
            x, y = known[first % len(known)], known[second % len(known)]
            if kind:
                made = _TWO[(first * second + kind) % len(_TWO)](x, y)
            else:
                made = _ONE[(first + second + (round if varied else 0)) % len(_ONE)](x)
            if at in hooked and made.requires_grad:
                log.hook(hooked[at], f"{at}", made)
            known.append(made)
            if made.requires_grad:
                log.results.append(made)
        return known[-1].sum() + known[-2].mean()

    def backward(loss: torch.Tensor, leaves: Tensors, log: Log, keep: bool) -> None:
        if asked == "all":
            loss.backward(retain_graph=keep)
        elif asked == "some":
            loss.backward(retain_graph=keep, inputs=leaves[1:])
        else:
            wanted = leaves[:2] if asked == "leaves" else [*log.results[-3:], leaves[2]]
            found = torch.autograd.grad(loss, wanted, retain_graph=keep, allow_unused=True)
            log.note("given back", *found)
        for one in log.retaining:
            log.note("retained", one.grad)

    def step(leaves: Tensors, round: int, log: Log) -> None:
        run: Any = argand.compile(forward, backend="eager") if compiled and not hooked else forward
        for at, kind in on_leaves.items():
            log.hook(kind, f"leaf {at}", leaves[at])
        try:
            loss = run(leaves, round % 2, log)
            for keep in (True, False) if retain else (False,):
                if loss.requires_grad:
                    backward(loss, leaves, log, keep)
        finally:
            for handle in log.handles:
                handle.remove()

    return step


def gradients(step: Callable[[Tensors, int, Log], None], ours: bool) -> list[Any]:
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    seen: list[Any] = []
    for round in range(5):
        log = Log()
        log.leaves = leaves
        with argand.compiled_autograd(backend="eager") if ours else contextlib.nullcontext():
            try:
                step(leaves, round, log)
            except RuntimeError as error:
                return [*seen, log.seen, str(error)]
        grads = [None if leaf.grad is None else (leaf.grad.clone(), leaf.grad.stride()) for leaf in leaves]
        seen.append((grads, log.seen))
        if round % 2:
            leaves[0].grad = None
    return seen


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)


@pytest.mark.parametrize(
    "seeds", [range(start, start + 25) for start in range(0, 200, 25 if sweeps.WHOLE else 50)], ids=str
)
def test_random_backwards(seeds: range) -> None:
    recorded = 0
    for seed in seeds:
        step = program(seed)
        want = gradients(step, False)
        with collected("compiled_autograd_graph") as events:
            got = gradients(step, True)
        recorded += bool(events)
        assert_same(want, got, exact=True)
    assert recorded > len(seeds) // 4
