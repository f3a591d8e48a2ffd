"""Random shards of parallel layers, on a mesh of two dimensions: 4 ranks."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from distributed.worlds import tp_worlds
from distributed.worlds.world_models import DEVICE

POLICIES = {
    "": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def drawn(chance: random.Random) -> dict[str, Any]:
    world = tp_worlds.drawn(chance)
    world["policy"] = "bf16" if chance.random() < 0.2 else ""
    world["reshard"] = chance.choice([True, True, False, None])
    return world


class Training(tp_worlds.Training):
    def finish(self, mesh: DeviceMesh) -> None:
        shards = self.mesh["shards"]
        options = {"mp_policy": POLICIES[self.world["policy"]], "reshard_after_forward": self.world["reshard"]}
        for block in [*self.model.blocks, self.model]:
            fully_shard(block, mesh=shards, **options)

    def __init__(self, rank: int, world: dict[str, Any], backend: str, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        super().__init__(rank, world, backend, mesh["parts"])

    def batch(self, step: int, length: int = 8) -> torch.Tensor:
        return super().batch(step + 1000 * (self.rank // 2), length)  # what is parallel computes on the same data


def train(rank: int, world: dict[str, Any], backend: str) -> list[Any]:
    mesh = init_device_mesh(DEVICE, (dist.get_world_size() // 2, 2), mesh_dim_names=("shards", "parts"))
    return Training(rank, world, backend, mesh).run()
