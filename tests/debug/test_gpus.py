"""What tools ask of GPUs; here without one."""

from __future__ import annotations

import pytest
import torch

import warm
from argand.debug import gpus
from argand.debug.minify.checks import Surroundings


def test_asking_sets_nothing_up() -> None:
    """A process that only asks can still be forked, and its children can use a GPU."""
    code = (
        "import torch; asked = []; torch.cuda.is_available = lambda: asked.append(1) or False\n"
        "from argand.debug import gpus\n"
        "from argand.debug.trial.isolation import can_fork\n"
        "assert not gpus.in_use() and can_fork() and gpus.generators()[1] == [] and not asked\n"
        "with gpus.kept_generators(): torch.rand(1)\n"
        "gpus.synchronize(); assert not asked and not torch.cuda.is_initialized()"
    )
    warm.run(["-c", code], check=True)


def test_what_is_drawn_inside_is_not_seen_outside() -> None:
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    with gpus.kept_generators():
        torch.manual_seed(9)
        torch.rand(2)
    assert torch.equal(torch.rand(3), want)


def test_generators_of_gpus_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[object] = []
    monkeypatch.setattr(gpus, "in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["one", "two"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put.append)
    with gpus.kept_generators():
        assert not put
    assert put == [["one", "two"]]


def test_autocast_of_each_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.autocast() == {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert gpus.autocast() == {"cpu": torch.bfloat16}
        with gpus.autocast_as({}):
            assert gpus.autocast() == {}
        assert gpus.autocast() == {"cpu": torch.bfloat16}
    torch.set_autocast_enabled("cuda", True)  # torch.autocast refuses to where there is no GPU
    try:
        before = torch.get_autocast_dtype("cuda")
        here = Surroundings.now()
        assert (here.autocast, here.gpu_autocast) == (None, before)
    finally:
        torch.set_autocast_enabled("cuda", False)
    asked: list[tuple[str, torch.dtype]] = []
    made = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, dtype: asked.append((kind, dtype)) or made("cpu", enabled=False)
    )
    with here.restored():
        assert asked == [("cuda", before)]


def test_the_device_that_is_kept_busy() -> None:
    class OnGpu:
        device = torch.device("cuda", 1)

    x = torch.ones(2)
    assert gpus.device_of([x, x]) == gpus.device_of([]) == torch.device("cpu")
    assert gpus.device_of([x, OnGpu()]) == OnGpu.device  # type: ignore[list-item]


def test_times_and_bandwidth_of_the_cpu() -> None:
    cpu, ran = torch.device("cpu"), []
    assert 0 <= gpus.seconds_of(lambda: ran.append(1), cpu) < 1 and ran == [1]
    assert 1e8 < gpus.copy_bandwidth(cpu) < 1e13
