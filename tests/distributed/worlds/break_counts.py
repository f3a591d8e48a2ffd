"""How often programs over DTensors break under torch.compile and under argand, on two processes:

python -m tests.distributed.worlds.break_counts
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import argand
from argand import events
from distributed.dtensor_topics import _topics
from distributed.parallel_programs import _programs
from distributed.ranks import run_ranks


def _run(function: Callable[..., Any], mesh: Any) -> str:
    """One call; the error, where there is one."""
    x = distribute_tensor(torch.ones(8, 6), mesh, [Shard(0)]).requires_grad_()
    w = nn.Parameter(distribute_tensor(torch.ones(6, 6), mesh, [Replicate()]))
    try:
        function(x, w)
    except Exception as error:
        return type(error).__name__
    return ""


def counts(rank: int) -> dict[str, list[object]]:
    """Of each program: the breaks and the error of torch.compile, and of argand; eager's error."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    logging.disable(logging.ERROR)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    meshes = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("shards", "parts"))
    told: dict[str, list[object]] = {}
    for name, program in (_topics(mesh, meshes) | _programs(mesh)).items():
        torch._dynamo.reset()
        counters.clear()
        theirs = _run(torch.compile(program, backend="aot_eager"), mesh)
        torch_breaks = sum(counters["graph_break"].values())
        argand.reset()
        seen: list[object] = []
        stop = events.bus.subscribe(seen.append, ("graph_breaks",))
        ours = _run(argand.compile(program, backend="aot_eager"), mesh)
        stop()
        ours_breaks = sum(event.name == "graph_breaks" for event in seen)  # type: ignore[attr-defined]
        told[name] = [torch_breaks, theirs, ours_breaks, ours, _run(program, mesh)]
    return told


def main() -> None:
    told, _ = (answer["counts"] for answer in run_ranks("tests.distributed.worlds.break_counts", ["counts"]))
    assert isinstance(told, dict)
    for name, (theirs, their_error, ours, our_error, eager) in told.items():
        more = "  MORE" if ours > theirs and not their_error else ""
        print(f"{name}: torch.compile {theirs} {their_error}, argand {ours} {our_error}, eager {eager}{more}")


if __name__ == "__main__":
    main()
