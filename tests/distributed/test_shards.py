"""FSDP2, tensor parallelism and pipeline stages in compiled code: whatever breaks the graph, the results are eager's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.shard_programs"
PARALLEL = "tests.distributed.parallel_programs"
TOLERANCE = {"eager": 1e-6, "aot_eager": 1e-6, "native": 1e-4}


def wrong(answers: list[dict[str, object]], *names: str) -> list[str]:
    """Where gradients, parameters or optimizer states of a rank are not eager's."""
    found = []
    for rank, answer in enumerate(answers):
        for name in names:
            ways = answer[name]
            assert isinstance(ways, Mapping)
            found += [
                f"rank {rank}: {name} {way}: {e}" for way, e in ways.items() if not e <= TOLERANCE[way.split()[-1]]
            ]
    return found


@pytest.mark.distributed
def test_shards_parallel_layers_and_pipeline_stages() -> None:
    """One start for all. A pipeline's stage is one graph for all microbatches and steps, which the programs assert."""
    names = ["fsdp", "fsdp_recorded", "tensor_parallel", "fsdp_steps", "tensor_parallel_steps", "stages"]
    assert not wrong(run_ranks(PROGRAMS, names), *names)


@pytest.mark.distributed
def test_uses_of_shards() -> None:
    """On meta first, experts that get no gradient, modules that are compiled before they are sharded, state dicts."""
    assert not wrong(run_ranks("tests.distributed.shard_uses", ["uses"]), "uses")


@pytest.mark.distributed
def test_where_graphs_of_shards_break() -> None:
    """At the hooks of a module, and where what they give reaches it; what torch does inside is none of argand's."""
    for answer in run_ranks(PROGRAMS, ["breaks"]):
        found = answer["breaks"]
        assert isinstance(found, Mapping)
        assert len(found["fsdp"]) <= 4 and not found["tensor_parallel"], found
        assert {reason.split()[0] for reason in found["fsdp"]} <= {"AG0105", "AG0089", "AG0038"}


@pytest.mark.distributed
def test_shards_of_parallel_layers() -> None:
    assert not wrong(run_ranks(PROGRAMS, ["both"], ranks=4), "both")


@pytest.mark.distributed
def test_modules_of_parallel_layers_are_one_graph() -> None:
    """The programs compile them with `fullgraph=True`; operations on DTensors, with their layouts, are eager's."""
    answers = run_ranks(PARALLEL, ["whole", "operations", "views", "differentiated_apart", "nodes"])
    assert not wrong(answers, "whole", "views", "differentiated_apart")
    for answer in answers:
        assert answer["nodes"] == 1
        found = answer["operations"]
        assert isinstance(found, Mapping)
        assert not found["wrong"], found["wrong"]
        assert found["breaks"] == {"broken": ["AG0023"], "distributed": ["AG0105"]}


@pytest.mark.distributed
def test_a_second_start_loads_graphs_with_parallel_layers(tmp_path: Path) -> None:
    """Each rank what it stored; on a mesh of another name, of which nothing is stored, they are captured."""

    def started(mesh: str) -> list[list[str]]:
        kept = {"ARGAND_CACHE_DIR": str(tmp_path), "ARGAND_PROGRAM_CACHE": "1", "ARGAND_VERIFY_IR": "0"}
        answers = run_ranks(PARALLEL, ["stored"], MESH_NAME=mesh, **kept)
        for answer in answers:
            found = answer["stored"]
            assert isinstance(found, dict) and found["difference"] < 1e-4
        return [[one for one in answer["stored"]["seen"] if one != "mismatch"] for answer in answers]  # type: ignore

    assert started("parts") == [["stored", "stored"]] * 2
    assert started("parts") == [["hit", "hit"]] * 2
    assert started("others") == [["stored", "stored"]] * 2


@pytest.mark.distributed
def test_blocks_of_shards_of_parallel_layers_are_one_graph_each() -> None:
    assert not wrong(run_ranks(PARALLEL, ["sharded_blocks"], ranks=4), "sharded_blocks")


@pytest.mark.distributed
def test_training_under_the_older_sharding_ends_where_eager_does() -> None:
    answers = run_ranks("tests.distributed.worlds.flat_shard_programs", ["flat_shards"])
    assert all(worst < 1e-4 for answer in answers for worst in answer["flat_shards"].values()), answers  # type: ignore
