"""Compiled functions whose graphs are recorded: with a tape on the CPU, from argand.compile down, against eager."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

import argand
import warm
from argand import events
from argand.api import MODES
from argand.backends import cudagraphs, native
from argand.backends.cudagraphs import why_not, with_cuda_graphs
from argand.backends.native import wants_cuda_graphs
from argand.backends.programs import generation
from argand.config import config
from argand.graph.nodes.program import AtenProgram, InputSpec, OutputSpec, TensorSpec
from argand.graph.operators.random_ops import random_ops
from argand.runtime.gpu.cuda_graphs import recording, trial
from argand.runtime.gpu.cuda_graphs.graphs import Recorded
from helpers import as_torchs, assert_same, collected
from runtime.gpu.tape_recorder import TapeRecorder


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    """What graphs of the CPU are recorded by. They run eager's kernels, which a tape can hold; none is too small."""
    argand.reset()
    recorder = TapeRecorder()
    recorded = functools.partial(with_cuda_graphs, recorder=lambda index: recorder, kind="cpu")
    monkeypatch.setattr(cudagraphs, "with_cuda_graphs", recorded)
    monkeypatch.setattr(generation, "build", lambda program, **_: generation.eager_kernels(program))
    with argand.config.patch(tell_slower=False):
        yield recorder


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


def test_counters_say_what_was_recorded_and_what_not(tape: TapeRecorder) -> None:
    before = argand.counters().get("cuda_graphs", {})
    fast = compiled(lambda x: x.sin() + 1)
    for _ in range(3):
        fast(torch.ones(3))
    with_cuda_graphs(aten_program(aten.nonzero.default), lambda args: ())
    after = argand.counters()["cuda_graphs"]
    assert after["recorded"] == before.get("recorded", 0) + 1 and after["skipped"] == before.get("skipped", 0) + 1


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


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def train(model: nn.Module, call: Callable[..., Any], steps: int, accumulate: int = 1, to_none: bool = True) -> Any:
    """Losses and parameters over steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(0), []
    for step in range(steps):
        for _ in range(accumulate):
            loss = call(torch.randn(5, 8, generator=generator)).pow(2).mean()
            loss.backward()
            losses.append(loss.detach().clone())
        if step % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_what_is_copied_and_what_used_in_place(tape: TapeRecorder) -> None:
    """Parameters, what the forward kept, and what was saved of parameters are never copied."""
    model = mlp()
    fast = compiled(model)
    seen: list[events.Event] = []
    remove = events.bus.subscribe(seen.append, ["cudagraphs"])
    for _ in range(4):
        fast(torch.randn(5, 8)).sum().backward()
    remove()
    forward, backward = [event.text() for event in seen if "is recorded" in event.text()]
    assert "1 inputs are copied, 6 used in place" in forward and "kept for the backward" in forward
    assert "2 inputs are copied" in backward, backward  # the batch, and the gradient that comes in


@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zeros"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_training(tape: TapeRecorder, accumulate: int, to_none: bool) -> None:
    one, two = mlp(), mlp()
    want = train(one, one, 6, accumulate, to_none)
    assert_same(want, train(two, compiled(two), 6, accumulate, to_none))
    # Forward and backward once each, in the second step; again if something moved.
    assert tape.recorded <= 4 and tape.replayed == 2 * (6 * accumulate) - 2


def test_gradients_that_are_held(tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients may lie in a recording: what the program holds is not written to."""
    monkeypatch.setattr(recording, "SMALL", 0)
    one, two = mlp(), mlp()
    fast, held = compiled(two), []
    for step in range(12):
        x = torch.randn(5, 8)
        for model, call in ((one, one), (two, fast)):
            model.zero_grad()
            call(x).sum().backward()
        held.append([(p.grad, q.grad) for p, q in zip(one.parameters(), two.parameters())])
        if step % 4 == 3:
            del held[1:]
        for pairs in held:
            for want, got in pairs:
                assert_same(want, got)
    assert tape.replayed > 10


def test_many_forwards_before_their_backwards(tape: TapeRecorder) -> None:
    one, two = mlp(), mlp()
    fast = compiled(two)
    for count in (1, 1, 1, 2, 3, 7, 2, 1):
        xs = [torch.randn(5, 8) for _ in range(count)]
        for model, call in ((one, one), (two, fast)):
            model.zero_grad()
            losses = [call(x).pow(2).sum() for x in xs]
            for loss in losses[::-1]:
                loss.backward()
        assert_same([p.grad for p in one.parameters()], [p.grad for p in two.parameters()])
    assert tape.replayed > 15


def test_a_graph_that_is_kept_and_differentiated_again(tape: TapeRecorder) -> None:
    one, two = mlp(), mlp()
    fast = compiled(two)
    for _ in range(5):
        x, found = torch.randn(5, 8), []
        for model, call in ((one, one), (two, fast)):
            out = call(x)
            first = torch.autograd.grad(out.sum(), list(model.parameters()), retain_graph=True)
            second = torch.autograd.grad(out.pow(2).sum(), list(model.parameters()))
            found.append((first, second))
        assert_same(*found)
    assert tape.replayed > 8


def test_training_and_evaluation_in_turns(tape: TapeRecorder) -> None:
    one, two = mlp(), mlp()
    fast = compiled(two)
    for _ in range(5):
        x, found = torch.randn(5, 8), []
        for model, call in ((one, one), (two, fast)):
            model.zero_grad()
            waiting = call(x).sum()
            with torch.no_grad():
                between = call(x * 2)
            waiting.backward()
            found.append(([p.grad for p in model.parameters()], between))
        assert_same(*found)


def test_batch_norm_and_dropout(tape: TapeRecorder) -> None:
    """Statistics are written once a call; masks differ from call to call and are the same in the backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    other = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    other.load_state_dict(model.state_dict())
    fast, masks = compiled(model), []
    for step in range(6):
        x = torch.randn(16, 4).requires_grad_()
        got, want = fast(x), other(x)
        mask = got != 0
        masks.append(mask)
        assert_same(want * mask * 2, got)
        (gradient,) = torch.autograd.grad(got.pow(2).sum(), x)
        (expected,) = torch.autograd.grad((want * mask * 2).pow(2).sum(), x)
        torch.testing.assert_close(gradient, expected)
        assert_same(other[1].running_mean, model[1].running_mean)
        assert int(model[1].num_batches_tracked) == step + 1
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6 and tape.replayed >= 8


def test_saved_tensor_hooks_get_tensors_of_their_own(tape: TapeRecorder) -> None:
    """A hook may copy what is saved on a stream of its own, and drop it: such calls are not replayed."""
    model = mlp()
    fast = compiled(model)
    for _ in range(4):
        fast(torch.randn(5, 8)).sum().backward()
    before = tape.replayed
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(as_torchs(pack), lambda tensor: tensor):
        loss = fast(torch.randn(5, 8)).sum()
    assert packed and tape.replayed == before
    loss.backward()


def test_a_compiled_optimizer_step(tape: TapeRecorder) -> None:
    one, two = mlp(), mlp()
    for p, q in zip(one.parameters(), two.parameters()):
        p.grad, q.grad = torch.zeros_like(p), torch.zeros_like(q)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (one, two))
    step = compiled(second.step)
    for number in range(6):
        for p, q in zip(one.parameters(), two.parameters()):
            p.grad.fill_(number + 1.0)
            q.grad.fill_(number + 1.0)
        first.step()
        step()
        assert_same(list(one.parameters()), list(two.parameters()))
    assert tape.replayed >= 2


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
    "program, draws",
    [
        (aten_program(aten.sin.default), False),
        (aten_program(aten.bernoulli.default), True),
        (aten_program(aten._scaled_dot_product_flash_attention.default, None, None), False),
        (aten_program(aten._scaled_dot_product_flash_attention.default, None, None, 0.0, True), False),
        (aten_program(aten._scaled_dot_product_flash_attention.default, None, None, 0.1, True), True),
        (aten_program(aten._scaled_dot_product_efficient_attention_backward.default, *[None] * 8, 0.1), True),
        (aten_program(random_ops().uniform, [2]), False),
    ],
)
def test_who_draws_random_numbers(program: AtenProgram, draws: bool) -> None:
    """Seeds are drawn before a replay, and a kernel may have a generator without using it."""
    found = with_cuda_graphs(program, lambda args: (), recorder=lambda index: TapeRecorder())
    assert isinstance(found, Recorded) and found.roles.draws == draws


@pytest.mark.parametrize("dtype, reason", [(torch.int64, ""), (torch.bool, "depends on data"), (torch.uint8, "data")])
@pytest.mark.parametrize("put", [False, True])
def test_lookups_by_position_are_recorded_and_by_mask_not(put: bool, dtype: torch.dtype, reason: str) -> None:
    program = aten_program(aten.sin.default)
    x, y = list(program.graph.nodes)[:2]
    with program.graph.inserting_after(x):
        index = program.graph.placeholder("index")
    index.meta.update(val=torch.empty(2, device="meta", dtype=dtype), device=torch.device("cuda:0"))
    y.target, y.args = (aten.index_put.default, (x, [index], x)) if put else (aten.index.Tensor, (x, [None, index]))
    assert reason in why_not(program, CUDA) and bool(reason) == bool(why_not(program, CUDA))


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
        (aten_program(aten.sin.default, kind="forward"), CUDA, ""),
        (aten_program(aten.sin.default, kind="backward"), CUDA, ""),
        (aten_program(aten.sin.default), [*CUDA, torch.device("cpu")], "a tensor is on the CPU"),
        (aten_program(aten.sin.default), [*CUDA, torch.device("cuda:1")], "several devices"),
        (aten_program(aten.sin.default), [], "nothing on a device"),
    ],
    ids=lambda value: value.replace(" ", "_") or "none" if isinstance(value, str) else "",
)
def test_reasons(program: AtenProgram, devices: list[torch.device], reason: str) -> None:
    assert reason in why_not(program, devices) and bool(reason) == bool(why_not(program, devices))


def test_where_nobody_asked_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        return ()

    def made(asked: bool) -> Any:
        return with_cuda_graphs(program, call, recorder=lambda index: TapeRecorder(), asked=asked)

    program = aten_program(aten.sin.default)

    def recorded() -> tuple[bool, bool]:
        return isinstance(made(asked=True), Recorded), isinstance(made(asked=False), Recorded)

    assert recorded() == (True, False)  # one operation only
    monkeypatch.setattr(cudagraphs, "FEWEST_NODES", 1)
    assert recorded() == (True, True)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert recorded() == (True, False)


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_where_torch_keeps_no_memory_nothing_is_recorded(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks whether the variable is there, not what it is."""

    def call(args: list[Any]) -> tuple[Any, ...]:
        return ()

    monkeypatch.setattr(cudagraphs, "FEWEST_NODES", 1)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", value)
    for asked in (True, False):
        with collected("cudagraphs") as seen:
            found = with_cuda_graphs(aten_program(aten.sin.default), call, lambda index: TapeRecorder(), asked=asked)
        assert not isinstance(found, Recorded) and found([]) == ()
        assert [event.data["outcome"] for event in seen] == ["skipped"]
        assert seen[0].data["reason"] == "PYTORCH_NO_CUDA_MEMORY_CACHING is set, so that torch keeps no memory"


def test_a_graph_with_a_reason_runs_as_it_is_and_says_so() -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        return tuple(args)

    argand.set_logs(cudagraphs=True)
    with collected("fallback") as seen:
        made = with_cuda_graphs(aten_program(aten.nonzero.default), call)
        assert not isinstance(made, Recorded) and made([1]) == (1,)
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
    with config.patch({"triton.cudagraphs": None}):
        found = {mode: wants_cuda_graphs(mode) for mode in MODES}
    assert found == {
        "default": "auto",
        "reduce-overhead": "yes",
        "max-autotune": "yes",
        "max-autotune-no-cudagraphs": "no",
    }
    for setting, answer in ((True, "yes"), (False, "no")):
        with config.patch({"triton.cudagraphs": setting}):
            assert {wants_cuda_graphs(mode) for mode in MODES} == {answer}


@pytest.mark.parametrize("setting", ["cpp.enable_kernel_profile", "check_numerics"])
def test_nothing_is_recorded_where_kernels_are_looked_at_one_by_one(setting: str) -> None:
    with config.patch({setting: True, "triton.cudagraphs": True}):
        assert {wants_cuda_graphs(mode) for mode in MODES} == {"no"}


def test_the_default_mode_records_what_gains_by_it(tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "in_host_memory", lambda program: False)
    monkeypatch.setattr(trial, "SHORTEST", 0.0)
    monkeypatch.setattr(trial, "GAIN", 1e9)  # the tape takes longer than the calls
    monkeypatch.setattr(trial._Samples, "times", lambda self: (1.0, 1e-9) if len(self._taken) == 3 else None)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(8)])
    other = copy.deepcopy(model)
    fast, small = argand.compile(model), argand.compile(lambda x: x.sin() + 1)
    for _ in range(12):
        x, found = torch.randn(5, 8), []
        small(x)
        for each, call in ((other, other), (model, fast)):
            each.zero_grad()
            loss = call(x).sum()
            loss.backward()
            found.append((loss.detach(), [p.grad.clone() for p in each.parameters()]))
        assert_same(*found)
    # From the fifth call on.
    assert tape.recorded == 2 and tape.replayed == 2 * (12 - 4)


def test_who_does_not_ask_imports_nothing() -> None:
    code = (
        "import sys, torch, argand\n"
        "argand.compile(lambda x: torch.softmax(x * 2 + 1, -1))(torch.randn(8, 8))\n"
        "print([m for m in sys.modules if m.startswith('argand.runtime.gpu.') or m == 'argand.backends.cudagraphs'])"
    )
    done = warm.run(["-c", code], check=True)
    assert done.stdout.strip() == "[]"
