"""DistributedDataParallel under compiled autograd: gradients are reduced in the recorded graph, bit for bit as in eager."""

from __future__ import annotations

import pytest
import torch

from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.recorded_programs"
TOLERANCE = {"eager": 0.0, "aot_eager": 0.0, "native": 1e-4}


def check(names: list[str], ranks: int = 2, *, sent: bool = True, **env: str) -> None:
    """Compare with eager.

    Arguments:
        sent: whether graphs send gradients themselves.
    """
    for rank, answers in enumerate(run_ranks(PROGRAMS, names, ranks, **env)):
        for name, found in answers.items():
            for backend, one in found.items():
                assert one["error"] <= TOLERANCE[backend], (rank, name, backend, one["error"])
                if one["told"]:
                    assert any(one["reductions"]) == sent, (rank, name, one["told"])


@pytest.mark.distributed
def test_models_train_as_in_eager() -> None:
    check(["gpt", "cnn", "types_and_layouts", "compiled_forward", "default_buckets"])


@pytest.mark.distributed
def test_options_of_ddp() -> None:
    check(
        ["no_sync", "accumulated", "static_graph", "several_backwards", "unused", "unused_accumulated", "bucket_views"]
    )
    check(["accumulated_around_code", "checkpoints", "penalties"])


@pytest.mark.distributed
def test_ranks_whose_engine_runs_call_the_same_collectives() -> None:
    check(["one_rank_records", "one_rank_compiles", "engines_turns", "two_modules"])


@pytest.mark.distributed
def test_what_the_reducer_sends() -> None:
    check(["joined", "joined_by_some", "compressed"], sent=False)


@pytest.mark.distributed
def test_a_hook_of_the_programs_gets_buckets_while_the_backward_goes_on() -> None:
    for answers in run_ranks(PROGRAMS, ["parts"]):
        found = answers["parts"]["order"]
        assert found == ["part", "bucket"] * (len(found) // 2) and len(found) >= 6


@pytest.mark.distributed
def test_four_ranks() -> None:
    """Sums of four depend on where in a bucket a value lies."""
    check(["cnn", "accumulated", "unused", "two_modules", "one_rank_records"], ranks=4)


@pytest.mark.distributed
def test_buckets_are_sent_early_and_waited_for_late() -> None:
    for answers in run_ranks(PROGRAMS, ["order"]):
        found = answers["order"]
        assert len(found["starts"]) == len(found["waits"]) > 5
        assert found["starts"][0] < found["count"] / 3 and found["waits"][0] > found["starts"][-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_gpus() -> None:
    """A rank a GPU, with NCCL, where there are two; else one rank, whose reductions are its own gradients."""
    ranks = min(torch.cuda.device_count(), 2)
    env = {"RANKS_DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    check(["gpt", "cnn", "no_sync", "accumulated_around_code", "static_graph"], ranks, **env)
    check(["unused", "bucket_views", "checkpoints", "penalties", "two_modules"], ranks, **env)
    check(["compressed"], ranks, sent=False, **env)
