"""mode="reduce-overhead" on a GPU, against eager."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.config import config
from argand.runtime.gpu.graphs import Recorded
from argand.runtime.gpu.recorder import recorder_of
from helpers import collected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    argand.reset()
    with config.patch({"triton.cudagraphs": True}):
        yield
    argand.reset()
    gc.collect()
    assert not torch.cuda.is_current_stream_capturing()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the graph for each replay."""
    seen: list[str] = []
    replay = Recorded._replay

    def counted(self: Recorded, recording: Any, args: list[Any]) -> Any:
        seen.append(self.name)
        return replay(self, recording, args)

    monkeypatch.setattr(Recorded, "_replay", counted)
    return seen


def compiled(function: Any, **options: Any) -> Any:
    return argand.compile(function, mode="reduce-overhead", **options)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Net(), Net(), Net()).cuda().eval().requires_grad_(False)


def test_a_model(model: nn.Module, replays: list[str]) -> None:
    fast = compiled(model)
    for _ in range(5):
        x = torch.randn(8, 64, device="cuda")
        close(fast(x), model(x))
    assert len(replays) == 4


def test_parameters_updated_in_place_and_replaced(model: Any, replays: list[str]) -> None:
    fast, x = compiled(model), torch.randn(8, 64, device="cuda")
    for step in range(8):
        model[0].first.weight.mul_(1.1)
        if step == 5:
            model[1].second.weight.data = torch.randn(64, 128, device="cuda")
        close(fast(x), model(x))
    assert len(replays) >= 5


def test_results_held_over_many_calls(model: nn.Module, replays: list[str]) -> None:
    fast, held = compiled(model), []
    for _ in range(20):
        x = torch.randn(8, 64, device="cuda")
        got = fast(x)
        held.append((got[1:].t(), model(x)[1:].t()))
        del got
    for got, want in held:
        close(got, want)
    assert len(replays) == 19


def test_results_fed_back_and_through_other_graphs(model: Any, replays: list[str]) -> None:
    """Graphs share memory: what one returns must stand while others run, in any order."""
    parts, x = [compiled(part) for part in model], torch.randn(8, 64, device="cuda")
    want = got = x
    held = []
    for step in range(12):
        for number in (0, 2, 1) if step % 2 else (2, 1, 0, 0):
            want, got = model[number](want) * 0.5, parts[number](got) * 0.5
            held.append((want, got))
    for one, two in held:
        close(two, one)
    assert len(replays) > 20


def test_state_written_in_place(replays: list[str]) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum(-1)

    fast, one, two = compiled(step), torch.ones(4, 8, device="cuda"), torch.ones(4, 8, device="cuda")
    for n in range(6):
        x = torch.full((4, 8), float(n), device="cuda")
        close(fast(two, x), step(one, x))
        close(two, one)
    assert len(replays) == 5


def test_sizes_that_vary(replays: list[str]) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.softmax(x, -1) * x.shape[0], x.sum(0)

    fast = compiled(f, dynamic=True)
    for n in (3, 4, 3, 4, 5, 3, 4, 5, *range(6, 20)):
        x = torch.randn(n, 33, device="cuda")
        close(fast(x), f(x))
    assert replays


def test_random_numbers_differ_and_repeat_by_seed(replays: list[str]) -> None:
    fast, x = compiled(lambda x: torch.rand_like(x) + torch.nn.functional.dropout(x)), torch.zeros(64, device="cuda")
    rows = []
    for _ in range(2):
        torch.manual_seed(1)
        rows.append(torch.stack([fast(x) for _ in range(6)]))
    assert len({tuple(row.tolist()) for row in rows[1]}) == 6
    close(rows[1][2:], rows[0][2:])  # the first two of all were a plain call and the recording
    assert replays


def test_a_failed_recording_leaves_the_process_as_it_was(replays: list[str]) -> None:
    """Random numbers, allocations and further recordings work; the call computes as before."""

    def call(args: list[Any]) -> tuple[Any, ...]:
        [x] = args
        args.clear()
        y = x + torch.rand_like(x) * 0
        return (y * float(y.sum().item()),)

    run = Recorded(call, recorder_of(0), name="failing")
    with collected("fallback") as seen:
        for _ in range(3):
            x = torch.ones(8, device="cuda")
            close(run([x])[0], x * 8)
    assert len(seen) == 1 and "recording failed" in run.reason
    assert torch.rand(4, device="cuda").shape == (4,)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    fast = compiled(lambda x: torch.rand_like(x) + x * 2)
    for _ in range(4):
        fast(torch.ones(8, device="cuda"))
    assert len(replays) == 3


def test_an_interrupt_while_recording(replays: list[str]) -> None:
    interrupt = [False]

    def call(args: list[Any]) -> tuple[Any, ...]:
        [x] = args
        args.clear()
        y = x + 1
        if interrupt[0]:
            raise KeyboardInterrupt
        return (y,)

    run, x = Recorded(call, recorder_of(0)), torch.ones(8, device="cuda")
    run([x])
    interrupt[0] = True
    with pytest.raises(KeyboardInterrupt):
        run([x])
    interrupt[0] = False
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    for n in range(3):
        close(run([torch.full((8,), float(n), device="cuda")])[0], torch.full((8,), n + 1.0, device="cuda"))
    assert len(replays) == 3


def test_streams(model: Any, replays: list[str]) -> None:
    """Replays on several streams do not run at the same time in the memory that they share."""
    parts = [compiled(part) for part in model]
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.randn(512, 64, device="cuda")
    want = [part(x) for part in model]
    torch.cuda.synchronize()
    found = []
    for step in range(30):
        number = step % 3
        with torch.cuda.stream(streams[(step // 2) % 3]):
            found.append((number, parts[number](x)))
    torch.cuda.synchronize()
    for number, got in found:
        close(got, want[number])
    assert len(replays) > 20


def test_threads(model: Any, replays: list[str]) -> None:
    fast, wrong = compiled(model), []
    x = torch.randn(8, 64, device="cuda")
    fast(x)

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                x = torch.randn(8, 64, device="cuda", generator=generator)
                if not torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-4):
                    wrong.append(seed)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and replays


def test_inside_the_programs_own_recording(model: nn.Module) -> None:
    fast, x = compiled(model), torch.randn(8, 64, device="cuda")
    for _ in range(3):
        fast(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = fast(x)
    x.copy_(torch.randn(8, 64, device="cuda"))
    graph.replay()
    close(got, model(x))


def test_memory_over_many_steps(model: nn.Module) -> None:
    fast = compiled(model)
    for _ in range(5):
        fast(torch.randn(8, 64, device="cuda"))
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        fast(torch.randn(8, 64, device="cuda"))
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: lambda x: x + torch.ones(8).to(x.device), "a tensor is on the CPU"),
        (lambda: nn.Linear(8, 8).cuda(), "training"),
    ],
    ids=["cpu", "training"],
)
def test_skipped_with_a_reason(make: Callable[[], Any], reason: str, replays: list[str]) -> None:
    function = make()
    with collected("fallback") as seen:
        fast, x = compiled(function), torch.randn(8, 8, device="cuda")
        for _ in range(3):
            close(fast(x), function(x))
    assert reason in {event.data["reason"] for event in seen if event.data.get("scope") == "cudagraphs"}
    assert not replays
