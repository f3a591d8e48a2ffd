"""Uses of `fully_shard` beside the usual one, each trained by eager and by argand: `uses(rank)` tells the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import argand

WIDTH, STEPS = 12, 3


class Block(nn.Module):
    """Has buffers that are no floating-point numbers, one of which it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.arange(WIDTH) % 3 == 0, persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + torch.where(self.mask, self.up(self.norm(x)).tanh(), x * 0.5)

    def reset_parameters(self) -> None:
        """What `to_empty` left undone."""
        self.mask.copy_(torch.arange(WIDTH) % 3 == 0)
        self.calls.zero_()


class Experts(nn.Module):
    """One of two blocks computes: no gradient comes to the other's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor, *, which: int, more: dict[str, Any]) -> dict[str, Any]:
        y = self.features(x + more["by"], which)
        return {"y": self.head(y), "of": [y.mean(), ("text", None)]}

    def features(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.blocks[1 + which](self.blocks[0](x))


class Twice(Experts):
    """A module that is called twice, once within a checkpoint."""

    def forward(self, x: torch.Tensor, *, which: int, more: dict[str, Any]) -> dict[str, Any]:
        once = checkpoint(self.blocks[0], x, use_reentrant=False)
        return {"y": self.head(once + self.blocks[1](self.blocks[0](x.flip(0))) + self.blocks[2](x))}


def _own(value: Any) -> Any:
    return (value.to_local() if isinstance(value, DTensor) else value).detach().clone()


def _trained(rank: int, use: str, made: type[Experts], compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Losses, gradients, parameters, buffers and states after some steps."""
    argand.reset()
    torch.manual_seed(0)
    with torch.device("meta" if use == "meta" else "cpu"):
        model = made()
    blocks = model.blocks
    for number, block in enumerate(blocks if "block" in use else ()):
        if use == "forwards of blocks":
            block.forward = compiled(block.forward)
        elif use == "blocks before":
            blocks[number] = compiled(block)
    parts: Iterable[nn.Module] = [[blocks[0], blocks[1]], blocks[2]] if use == "groups" else blocks  # type: ignore
    for part in [*parts, model]:
        fully_shard(part)
    for number, block in enumerate(blocks if use == "blocks behind" else ()):
        blocks[number] = compiled(block)
    assert all(isinstance(getattr(block, "_orig_mod", block), (FSDPModule, Block)) for block in blocks)
    if use == "meta":
        model.to_empty(device="cpu")
        torch.manual_seed(0)
        for module in model.modules():
            getattr(module, "reset_parameters", int)()
    call: Any = compiled(model) if use in ("whole", "meta", "groups") else model
    if use == "features":
        register_fsdp_forward_method(model, "features")
        features = compiled(model.features)
        call = lambda x, which, more: {"y": features(x, which)}  # noqa: E731
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=0.003, eps=0.01), []
    for step in range(STEPS):
        x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = call(x, which=step % 2, more={"by": x * 0.1})["y"].square().mean()
        loss.backward()
        seen += [loss, nn.utils.clip_grad_norm_(model.parameters(), 0.05)]
        seen += [p.grad for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    whole = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=whole)
    of_optimizer = get_optimizer_state_dict(model, optimizer, options=whole)["state"]
    seen += [*model.parameters(), *model.buffers(), *(value for _, value in sorted(state.items()))]
    seen += [value for _, held in sorted(of_optimizer.items()) for value in held.values()]  # type: ignore
    return [_own(value) for value in seen]


USES: tuple[tuple[str, type[Experts], str], ...] = (
    ("whole", Experts, "aot_eager"),
    ("whole", Twice, "aot_eager"),
    ("meta", Experts, "eager"),
    ("forwards of blocks", Experts, "native"),
    ("blocks before", Experts, "aot_eager"),
    ("blocks behind", Experts, "eager"),
    ("blocks before", Twice, "eager"),
    ("groups", Twice, "eager"),
    ("features", Experts, "aot_eager"),
)


def uses(rank: int) -> dict[str, float]:
    """The largest difference of each use."""
    found = {}
    for use, made, backend in USES:
        eager = _trained(rank, use, made, lambda one: one)
        ours = _trained(rank, use, made, lambda one: argand.compile(one, backend=backend))  # noqa: B023
        assert [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in eager], use
        errors = [
            float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-3))
            for a, b in zip(ours, eager)
            if a.numel()
        ]
        found[f"{made.__name__} {use} {backend}"] = max(errors)
    return found
