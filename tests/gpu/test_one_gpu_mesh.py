"""A mesh of one GPU: what its processes draw together, in captured code, is eager's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, _random

import argand
from argand import events
from distributed.calls.drawn_together import PROGRAMS, run

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not dist.is_nccl_available(), reason="needs a GPU, and NCCL"
)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: Any) -> Iterator[Any]:
    store: Path = tmp_path_factory.mktemp("world") / "store"
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cuda", (1,))
        _random.manual_seed(0, mesh)
        yield mesh
    finally:
        _random._rng_tracker = None
        dist.destroy_process_group()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_mesh_draws(mesh: Any, name: str, backend: str) -> None:
    """Numbers, gradients, and what is drawn behind them; one graph."""
    for placement in (Shard(0), Replicate()):
        ours = run(argand.compile(PROGRAMS[name], backend=backend, fullgraph=True), mesh, placement)
        eager = run(PROGRAMS[name], mesh, placement)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, eager, strict=True)), placement


def test_dropout_under_autocast(mesh: Any) -> None:
    def cast(x: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.nn.functional.dropout(x @ x.t(), 0.5).float()

    ours, eager = run(argand.compile(cast), mesh, Shard(0)), run(cast, mesh, Shard(0))
    assert all(torch.allclose(a, b, rtol=0.02, atol=0.1) for a, b in zip(ours, eager, strict=True))


def test_the_first_draw_breaks_the_graph(mesh: Any) -> None:
    """It makes the processes' generators alike, which is communication; later ones are captured."""
    compiled, seen = argand.compile(PROGRAMS["dropout"], backend="eager"), []
    stop = events.bus.subscribe(seen.append, ("graph_breaks",))
    _random._rng_tracker = None
    eager = run(PROGRAMS["dropout"], mesh, Shard(0))
    _random._rng_tracker = None
    ours = run(compiled, mesh, Shard(0))
    stop()
    assert seen and all(torch.equal(a, b) for a, b in zip(ours, eager, strict=True))
