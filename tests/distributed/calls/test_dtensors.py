"""DTensors that are written to, or whose memory another tensor has: errors, gradients and views are eager's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.worlds.write_programs"


@pytest.mark.distributed
def test_writes_between_forward_and_backward() -> None:
    """Random programs, and each place that can be written to; two processes, whose parts are not the whole."""
    for answer in run_ranks(PROGRAMS, ["noticed", "own_gradients", "writes"]):
        told, gradients, random = answer["noticed"], answer["own_gradients"], answer["writes"]
        assert isinstance(told, Mapping) and isinstance(gradients, Mapping) and isinstance(random, Mapping)
        for name, outcomes in told.items():
            assert len(set(outcomes)) == 1, (name, outcomes)
        assert sum(outcomes[0].startswith("one of the variables") for outcomes in told.values()) >= 3
        for name, after in gradients.items():
            assert after == gradients[f"{name.split()[0]} "], (name, after)
        assert not random["wrong"], random["wrong"]
        assert random["refused"]


@pytest.mark.distributed
def test_writes_to_tensors_on_a_mesh_of_one() -> None:
    """Where nothing is sent, what `redistribute` gives may have the memory of what it is given."""
    (answer,) = run_ranks(PROGRAMS, ["writes"], ranks=1)
    random = answer["writes"]
    assert isinstance(random, Mapping) and not random["wrong"] and random["refused"], random


@pytest.mark.distributed
def test_what_programs_do_with_dtensors() -> None:
    """Each is one graph, with eager's results, layouts and gradients."""
    for answer in run_ranks("tests.distributed.dtensor_topics", ["topics"]):
        assert not answer["topics"], answer["topics"]


@pytest.mark.distributed
def test_hooks_on_dtensors_and_meshes_made_anew() -> None:
    """Hooks and autograd functions are part of the graph, unless they ask how a gradient is laid out; code is compiled
    once for equal meshes, anew where their process groups are others."""
    for answer in run_ranks(
        "tests.distributed.calls.dtensor_hooks", ["hooks", "uneven", "meshes", "made_anew", "refused"]
    ):
        assert not answer["hooks"], answer["hooks"]
        assert not answer["uneven"], answer["uneven"]
        assert answer["meshes"] == [1, 3]
        assert answer["made_anew"] == 1
        said = answer["refused"]
        assert isinstance(said, list) and len(said) == 4 and len(set(said)) == 1 and "_ToTorchTensor" in said[0], said


@pytest.mark.distributed
def test_compiled_steps_of_optimizers() -> None:
    """Parameters and states are eager's; a step is one graph."""
    for answer in run_ranks("tests.distributed.calls.dtensor_steps", ["steps"]):
        assert not answer["steps"], answer["steps"]


@pytest.mark.distributed
def test_what_a_mesh_draws_together() -> None:
    """Each process draws its part of it, from where eager's begins (on GPUs: `tests/gpu/test_one_gpu_mesh.py`)."""
    for answer in run_ranks("tests.distributed.calls.drawn_together", ["draws"]):
        assert not answer["draws"], answer["draws"]
