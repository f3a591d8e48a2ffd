"""Random uses of torch.distributed by two processes: what eager ends with, argand does. `run_worlds.py` says how."""

from __future__ import annotations

import pytest

import sweeps
import warm
from distributed.ranks import ROOT, environment, run_ranks


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "first", "count"), [("ddp", 1000, 10), ("fsdp", 1000, 8), ("tp", 1000, 6), ("pipeline", 1000, 4)]
)
def test_random_worlds(kind: str, first: int, count: int) -> None:
    module = "tests.distributed.worlds.run_worlds"
    command = ["-m", module, kind, "--first", str(first), "--count", str(sweeps.part(count, 4))]
    done = warm.run(command, env=environment(), cwd=ROOT, timeout=600, imported="ranks")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [2, 4])
def test_uses_of_shards_layers_and_replicas(ranks: int) -> None:
    """Policies, accumulation, clipping, states between steps, hooks, frozen and shared parameters, losses in parts."""
    for answer in run_ranks("tests.distributed.worlds.training_uses", ["sample"], ranks):
        assert not answer["sample"], answer["sample"]


@pytest.mark.distributed
def test_operators_on_dtensors() -> None:
    """Some of op_db, on tensors of drawn placements: results, layouts, gradients."""
    command = [
        "-m",
        "tests.distributed.worlds.dtensor_ops",
        "--every",
        "10" if sweeps.WHOLE else "300",
        "--samples",
        "1",
    ]
    done = warm.run(command, env=environment(), cwd=ROOT, timeout=600, imported="ranks")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
