"""Why there may be no kernels on a device, in one sentence each."""

from __future__ import annotations

import pytest
import torch

import warm
from argand.runtime.gpu.device import target


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as torch is asked."""
    target._problem.cache_clear()
    target._target.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0) if index else (6, 1))
    monkeypatch.setattr(target, "triton_version", lambda: "3.9.0+17")
    monkeypatch.setattr(target, "LIBCUDA", "libm.so.6")
    monkeypatch.setattr(torch.version, "hip", None)
    yield monkeypatch
    target._problem.cache_clear()
    target._target.cache_clear()


def test_no_problem(gpu) -> None:
    assert target.gpu_problem("cuda") is None and target.gpu_problem("cuda:1") is None
    assert target.gpu_target("cuda:1") == target.GpuTarget("cuda", 90, 32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda gpu: gpu.setattr(target, "triton_version", lambda: ""), "triton, which compiles GPU kernels, is not"),
        (lambda gpu: gpu.setattr(target, "triton_version", lambda: "3.1.0"), "triton 3.1.0 is too old"),
        (lambda gpu: gpu.setattr(torch.cuda, "current_device", lambda: 0), "compute capability 6.1"),
        (lambda gpu: gpu.setattr(target, "LIBCUDA", "libnothing.so.1"), "driver's library cannot be loaded"),
        (lambda gpu: gpu.setattr(torch.cuda, "is_available", lambda: False), "torch sees no GPU"),
    ],
)
def test_problems(gpu, change, text) -> None:
    change(gpu)
    said = target.gpu_problem("cuda")
    assert said is not None and text in said
    assert said.endswith(".") and "\n" not in said


def test_devices_that_no_target_knows(gpu) -> None:
    for device in ("mps", "xpu", "meta", "cpu"):
        assert repr(device) in (target.gpu_problem(device) or "")


def test_amd(gpu) -> None:
    class Properties:
        gcnArchName, warp_size = "gfx942:sramecc+:xnack-", 64

    gpu.setattr(torch.version, "hip", "6.4")
    gpu.setattr(torch.cuda, "get_device_properties", lambda index: Properties, raising=False)
    gpu.setattr(target, "LIBCUDA", "libnothing.so.1")
    assert target.gpu_problem("cuda:0") is None
    assert target.gpu_target("cuda:0") == target.GpuTarget("hip", "gfx942", 64)


def test_nothing_imports_triton() -> None:
    code = (
        "import sys; from argand.runtime.gpu.device import target; from argand.runtime.gpu.kernels import load; target.gpu_problem('cuda'); target.triton_version();"
        "assert 'triton' not in sys.modules"
    )
    warm.run(["-c", code], check=True)
