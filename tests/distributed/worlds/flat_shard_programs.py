"""Training under the older `FullyShardedDataParallel`, which flattens parameters: what a rank answers is how far argand is
from eager."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import argand
from distributed.ddp_programs import difference

WAYS = ("outer eager", "inner native", "step native")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(torch.relu(self.a(self.norm(x))))


def train(rank: int, way: str, strategy: Any, original: bool, checkpointed: bool) -> list[torch.Tensor]:
    """Losses, and this rank's parts of the parameters.

    Arguments:
        way: what is compiled (blocks, the sharded model, or a step around it), and the backend; "" for eager.
        original: parameters are shown as the modules' own.
    """
    argand.reset()
    how, backend = way.split() if way else ("", "")
    compiled = (lambda f: argand.compile(f, backend=backend)) if way else (lambda f: f)
    torch.manual_seed(0)
    blocks = [Block() for _ in range(2)]
    model = nn.Sequential(*[compiled(block) if how == "inner" else block for block in blocks], nn.Linear(16, 4))
    sharded = FSDP(
        model, device_id=torch.device("cpu"), sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=original,
    )  # fmt: skip
    if checkpointed:
        make = functools.partial(wrapper.checkpoint_wrapper, checkpoint_impl=wrapper.CheckpointImpl.NO_REENTRANT)
        wrapper.apply_activation_checkpointing(
            sharded, checkpoint_wrapper_fn=make, check_fn=lambda m: isinstance(m, Block)
        )
    call = compiled(sharded) if how == "outer" else sharded
    loss_of = compiled(lambda x: call(x).square().mean()) if how == "step" else lambda x: call(x).square().mean()
    optimizer = torch.optim.Adam(sharded.parameters(), lr=0.01)
    losses = []
    for step in range(3):
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        losses.append(loss_of(x))
        losses[-1].backward()
        optimizer.step()
    return [one.detach().clone() for one in (*losses, *sharded.parameters()) if one.numel()]


def flat_shards(rank: int) -> dict[str, float]:
    """The worst difference of each kind of sharding."""
    worlds = [
        ("FULL_SHARD", True, False),
        ("FULL_SHARD", False, True),
        ("SHARD_GRAD_OP", True, True),
    ]
    answers = {}
    for name, original, checkpointed in worlds:
        options = (getattr(ShardingStrategy, name), original, checkpointed)
        eager = train(rank, "", *options)
        answers[name + str(checkpointed)] = max(difference(train(rank, way, *options), eager) for way in WAYS)
    return answers
