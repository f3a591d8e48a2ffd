"""Which target a device gets, and whole programs through the GPU's: in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import argand
import warm
from argand.backends import native, targets
from argand.backends.programs import generation
from argand.backends.programs.graph_key import graph_key
from argand.backends.targets import target_of, without_target
from argand.errors import GpuError
from argand.graph.nodes.program import AtenProgram
from argand.ir.target import cpu, gpu
from argand.runtime.gpu.device import target as gpu_target
from argand.runtime.gpu.operators import blas
from helpers import collected

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parent / "interpreted_programs.py"
META, CPU, GPU = torch.device("meta"), torch.device("cpu"), torch.device("cuda", 1)


def test_the_cpu_is_a_target_with_torchs_threads() -> None:
    assert target_of(CPU) == cpu(torch.get_num_threads())
    assert target_of(META) is None and without_target([CPU, META]) == {"meta"}


def test_the_setting_gives_cpu_tensors_the_target_of_a_gpu() -> None:
    with argand.config.patch({"triton.on_cpu": True}):
        assert target_of(CPU) == replace(gpu(132), times_layouts=False, activated_products=False)
    assert not gpu(132).host_memory and cpu(1).host_memory


class Properties:
    multi_processor_count = 114
    shared_memory_per_block_optin = 99 << 10


def test_a_gpu_is_a_target_where_kernels_can_be_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_properties", targets._properties.__wrapped__)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    monkeypatch.setattr(gpu_target, "gpu_problem", lambda device: None)
    expected = gpu(114, 99 << 10, direct_products=blas.available())  # CUDA's library may be installed without a GPU
    assert target_of(GPU) == expected and without_target([GPU, META]) == set()
    monkeypatch.setattr(gpu_target, "gpu_problem", lambda device: "triton is not installed.")
    assert target_of(GPU) is None and without_target([GPU]) == {"cuda"}


def test_who_has_a_gpu_that_cannot_be_used_is_told_why_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph on a GPU that lacks something runs as it is."""
    native.reset()
    monkeypatch.setattr(gpu_target, "gpu_problem", lambda device: "triton is not installed.")
    monkeypatch.setattr(native, "devices_of", lambda gm, inputs: {"cuda"})
    compiled = argand.compile(lambda x: x + 1)
    with collected("fallback") as seen, pytest.warns(UserWarning, match="cuda: triton is not installed") as warned:
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
        assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert len([each for each in warned if "triton" in str(each.message)]) == 1
    assert seen[0].data["reason"] == "no code is generated for tensors on cuda: triton is not installed."
    native.reset()


def test_graphs_of_different_targets_are_different() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta.update(val=torch.empty(3, device="meta"), device=CPU)
    graph.output([x])
    program = AtenProgram(graph, [], [], [], {}, None)
    one = graph_key(program)
    with argand.config.patch({"triton.on_cpu": True}):
        two = graph_key(program)
    assert one != two and graph_key(program) == one


def test_kernels_are_printed_for_the_target_without_running_them() -> None:
    """What a graph becomes on a GPU can be looked at anywhere."""
    seen: list[Any] = []

    def keep(text: str, *_: Any, **__: Any) -> Any:
        seen.append(text)
        raise RuntimeError("not loaded")

    with argand.config.patch({"triton.on_cpu": True}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "load_module", keep)
        with collected("kernel_code") as events, pytest.raises(Exception, match="not loaded"):
            argand.compile(lambda x: torch.softmax(x, -1) @ x)(torch.randn(64, 64))
    (text,) = seen
    assert "load_triton_kernels(triton_source, triton_kernels, 'cpu')" in text and "load_kernels(kernel" not in text
    assert "@triton.jit" in events[0].text() and "load_kernels(kernel_source" not in text


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_programs_compute_what_eager_computes() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = warm.run([PROGRAM], env=environment, imported="interpreter")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "graphs agree" in done.stdout


def refused(*_: Any, **__: Any) -> Any:
    raise GpuError("kernel triton_fused_add_0 needs too much shared memory")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_whose_kernels_are_refused_is_the_programs_own(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    monkeypatch.setattr(generation, "load_module", refused)
    x, y = torch.randn(5, 3), torch.randn(5, 3, requires_grad=True)
    compiled = argand.compile(lambda a: (a * 2).sin().sum(), dynamic=dynamic)
    quiet = argand.config.patch({"verify_ir": False})
    with quiet, collected("fallback") as seen, pytest.warns(UserWarning, match="too much shared memory") as warned:
        assert torch.equal(compiled(x), (x * 2).sin().sum())
        result = compiled(y)
        assert torch.equal(compiled(x), (x * 2).sin().sum())
    assert len([each for each in warned if "shared memory" in str(each.message)]) == 1
    assert "CompiledFunction" not in type(result.grad_fn).__name__
    assert any("too much shared memory" in event.data["reason"] for event in seen)
    result.backward()
    assert y.grad is not None and torch.allclose(y.grad, (y * 2).cos().detach() * 2)
    native.reset()
