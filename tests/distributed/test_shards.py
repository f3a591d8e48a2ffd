"""FSDP2 and tensor parallelism in compiled code: whatever breaks the graph, the results are eager's."""

from __future__ import annotations

import pytest

from distributed.ranks import run_ranks

TOLERANCE = {"eager": 1e-6, "aot_eager": 1e-6, "native": 1e-4}


@pytest.mark.distributed
def test_what_is_computed_is_what_eager_computes() -> None:
    wrong = []
    for rank, answers in enumerate(run_ranks("tests.distributed.shard_programs", ["fsdp", "tensor_parallel"])):
        for name, found in answers.items():
            wrong += [
                f"rank {rank}: {name} {way}: {e}" for way, e in found.items() if not e <= TOLERANCE[way.split()[1]]
            ]
    assert not wrong, "\n".join(wrong)
