"""Compiled functions whose graphs are recorded: with a tape on the CPU, from argand.compile down, against eager."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

import argand
from argand.backends import cudagraphs, native
from argand.backends.cudagraphs import why_not, with_cuda_graphs
from argand.backends.native import RECORDED_MODES, wants_cuda_graphs
from argand.config import config
from argand.graph.program import AtenProgram, InputSpec, OutputSpec, TensorSpec
from helpers import assert_same, collected
from runtime.gpu.tape_recorder import TapeRecorder


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    with config.patch({"triton.cudagraphs": True}):
        yield


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> TapeRecorder:
    """What graphs of the CPU are recorded by. They run eager's kernels, which a tape can hold."""
    argand.reset()
    recorder = TapeRecorder()
    recorded = functools.partial(with_cuda_graphs, recorder=lambda index: recorder, kind="cpu")
    monkeypatch.setattr(cudagraphs, "with_cuda_graphs", recorded)
    monkeypatch.setattr(native, "build", native._eager_kernels)
    return recorder


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return argand.compile(function, mode="reduce-overhead", **options)


def reasons(seen: list[Any]) -> list[str]:
    return [event.data["reason"] for event in seen if event.data.get("scope") == "cudagraphs"]


def test_a_model_is_recorded_once(tape: TapeRecorder) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    fast = compiled(model)
    with torch.no_grad():
        for step in range(5):
            x = torch.randn(3, 8)
            assert_same(model(x), fast(x))
            model[0].weight.mul_(1.5)
            assert tape.replayed == step
    assert tape.recorded == 1


def test_identical_layers_keep_their_parameters_apart(tape: TapeRecorder) -> None:
    """Compiled once, recorded each: what is shared between equal programs is the plain call."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x)) + x

    blocks = [Block().eval() for _ in range(3)]
    fast = [compiled(block) for block in blocks]
    with torch.no_grad():
        for _ in range(6):
            want = got = torch.randn(2, 4)
            for block, run in zip(blocks, fast):
                want, got = block(want), run(got)
            assert_same(want, got)
    assert tape.replayed >= 9


def test_modes_do_not_share(tape: TapeRecorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    plain, fast, x = argand.compile(f), compiled(f), torch.randn(5)
    for _ in range(4):
        assert_same(f(x), plain(x))
    assert tape.recorded == 0
    for _ in range(4):
        assert_same(f(x), fast(x))
    assert tape.recorded == 1


def test_state_written_in_place(tape: TapeRecorder) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum()

    fast, one, two = compiled(step), torch.ones(4), torch.ones(4)
    for n in range(6):
        x = torch.full((4,), float(n))
        assert_same(step(one, x), fast(two, x))
        assert_same(one, two)
        assert two._version > 0
    assert tape.replayed == 5


def test_views_and_inputs_as_results(tape: TapeRecorder) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        return x, x[1:], y, y.t(), y[0]

    fast = compiled(f)
    held = []
    for n in range(5):
        x = torch.full((2, 3), float(n))
        want, got = f(x), fast(x)
        assert got[0] is x
        held.append((want, got))
    for want, got in held:
        assert_same(want, got)
        got[2].add_(1)
        assert torch.equal(got[3], got[2].t()) and torch.equal(got[4], got[2][0])


def test_sizes_that_vary(tape: TapeRecorder) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * x.shape[0], x.sum()

    fast = compiled(f, dynamic=True)
    for n in (3, 4, 3, 4, 5, 3, 4, 5):
        x = torch.randn(n, 2)
        assert_same(f(x), fast(x))
    assert 1 <= tape.recorded <= 3 and tape.replayed >= 3


def test_random_numbers_go_on(tape: TapeRecorder) -> None:
    fast = compiled(lambda x: torch.rand_like(x) + x)
    seen = [fast(torch.zeros(4)) for _ in range(5)]
    assert len({tuple(each.tolist()) for each in seen}) == 5


def test_training_is_not_recorded(tape: TapeRecorder) -> None:
    model = nn.Linear(4, 2)
    with collected("fallback") as seen:
        for _ in range(3):
            compiled(model)(torch.ones(3, 4)).sum().backward()
    assert set(reasons(seen)) == {"training"} and tape.recorded == 0


def aten_program(target: Any, *args: Any, kind: Any = "inference", device: str = "cuda:0") -> AtenProgram:
    """A program of one call on a tensor."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(target, (x, *args))
    for node in (x, y):
        node.meta.update(val=torch.empty(2, device="meta"), device=torch.device(device))
    graph.output((y,))
    spec = InputSpec("x", "arg", 0, TensorSpec((2,), (1,), 0, torch.float32, torch.device(device)))
    return AtenProgram(graph, [spec], [OutputSpec("value", 0)], [], {}, None, num_args=1, kind=kind)


aten = torch.ops.aten
LIBRARY = torch.library.Library("argand_test_graphs", "DEF")
LIBRARY.define("counted(Tensor x) -> Tensor")
CUDA = [torch.device("cuda:0")]


@pytest.mark.parametrize(
    "program, devices, reason",
    [
        (aten_program(aten.sin.default), CUDA, ""),
        (aten_program(aten.bernoulli.default), CUDA, ""),
        (aten_program(aten.bernoulli.p, 0.5, torch.Generator()), CUDA, "a generator of the program's own"),
        (aten_program(torch.ops.argand_test_graphs.counted.default), CUDA, "besides computing is unknown"),
        (aten_program(aten.nonzero.default), CUDA, "depends on data"),
        (aten_program(aten._local_scalar_dense.default), CUDA, "depends on data"),
        (aten_program(aten.unique_dim.default, 0), CUDA, "depends on data"),
        (aten_program(torch.sin), CUDA, "is no operator"),
        (aten_program(aten.sin.default, kind="forward"), CUDA, "training"),
        (aten_program(aten.sin.default, kind="backward"), CUDA, "training"),
        (aten_program(aten.sin.default), [*CUDA, torch.device("cpu")], "a tensor is on the CPU"),
        (aten_program(aten.sin.default), [*CUDA, torch.device("cuda:1")], "several devices"),
        (aten_program(aten.sin.default), [], "nothing on a device"),
    ],
    ids=lambda value: value.replace(" ", "_") or "none" if isinstance(value, str) else "",
)
def test_reasons(program: AtenProgram, devices: list[torch.device], reason: str) -> None:
    assert reason in why_not(program, devices) and bool(reason) == bool(why_not(program, devices))


def test_a_graph_with_a_reason_runs_as_it_is_and_says_so() -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        return ()

    argand.set_logs(cudagraphs=True)
    with collected("fallback") as seen:
        assert with_cuda_graphs(aten_program(aten.nonzero.default), call) is call
    argand.set_logs(cudagraphs=False)
    assert len(reasons(seen)) == 1 and "depends on data" in reasons(seen)[0]


def test_the_beginning_of_a_step_is_no_graph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        argand.mark_step_begin()
        return x + 1

    argand.reset()
    argand.mark_step_begin()
    assert torch.equal(argand.compile(f, fullgraph=True, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))


def test_graphs_of_the_cpu_are_left_alone() -> None:
    argand.reset()
    with collected("fallback") as seen:
        fast = compiled(lambda x: torch.softmax(x, -1))
        for _ in range(3):
            fast(torch.ones(3))
    assert reasons(seen) == []


def test_who_asks_for_them() -> None:
    assert [mode for mode in argand.api.MODES if wants_cuda_graphs(mode)] == list(RECORDED_MODES)
    with config.patch({"triton.cudagraphs": False}):
        assert not any(map(wants_cuda_graphs, argand.api.MODES))


def test_who_does_not_ask_imports_nothing() -> None:
    code = (
        "import sys, torch, argand\n"
        "argand.compile(lambda x: torch.softmax(x * 2 + 1, -1))(torch.randn(8, 8))\n"
        "print([m for m in sys.modules if m.startswith('argand.runtime.gpu.') or m == 'argand.backends.cudagraphs'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
