"""mode="reduce-overhead" on a GPU, against eager."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_models import Net, close, compiled
from torch import nn

import argand
from argand.config import config
from argand.runtime.gpu.cuda_graphs.graphs import Recorded, Roles
from argand.runtime.gpu.cuda_graphs.recorder import recorder_of
from argand.runtime.gpu.cuda_graphs.recording import SMALL
from helpers import collected

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("recorded"),
]


def test_a_model(model: nn.Module, replays: list[int]) -> None:
    fast = compiled(model)
    for _ in range(5):
        x = torch.randn(8, 64, device="cuda")
        close(fast(x), model(x))
    assert len(replays) == 4


def test_parameters_updated_in_place_and_replaced(model: Any, replays: list[int]) -> None:
    fast, x = compiled(model), torch.randn(8, 64, device="cuda")
    for step in range(8):
        model[0].first.weight.mul_(1.1)
        if step == 5:
            model[1].second.weight.data = torch.randn(64, 128, device="cuda")
        close(fast(x), model(x))
    assert len(replays) >= 5


def test_results_held_over_many_calls(model: nn.Module, replays: list[int]) -> None:
    fast, held = compiled(model), []
    for _ in range(20):
        x = torch.randn(8, 64, device="cuda")
        got = fast(x)
        held.append((got[1:].t(), model(x)[1:].t()))
        del got
    for got, want in held:
        close(got, want)
    assert len(replays) == 19


def test_results_fed_back_and_through_other_graphs(model: Any, replays: list[int]) -> None:
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


def test_state_written_in_place(replays: list[int]) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum(-1)

    fast, one, two = compiled(step), torch.ones(4, 8, device="cuda"), torch.ones(4, 8, device="cuda")
    for n in range(6):
        x = torch.full((4, 8), float(n), device="cuda")
        close(fast(two, x), step(one, x))
        close(two, one)
    assert len(replays) == 5


def test_sizes_that_vary(replays: list[int]) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.softmax(x, -1) * x.shape[0], x.sum(0)

    fast = compiled(f, dynamic=True)
    for n in (3, 4, 3, 4, 5, 3, 4, 5, *range(6, 20)):
        x = torch.randn(n, 33, device="cuda")
        close(fast(x), f(x))
    assert replays


def test_random_numbers_differ_and_repeat_by_seed(replays: list[int]) -> None:
    fast, x = compiled(lambda x: torch.rand_like(x) + torch.nn.functional.dropout(x)), torch.zeros(64, device="cuda")
    rows = []
    for _ in range(2):
        torch.manual_seed(1)
        rows.append(torch.stack([fast(x) for _ in range(6)]))
    assert len({tuple(row.tolist()) for row in rows[1]}) == 6
    close(rows[1][2:], rows[0][2:])  # the first two of all were a plain call and the recording
    assert replays


def _waits(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum().item())


def _draws_and_waits(x: torch.Tensor) -> torch.Tensor:
    return (x + torch.rand_like(x) * 0) * float(x.sum().item())


def _draws(x: torch.Tensor) -> torch.Tensor:
    return (x + torch.rand_like(x) * 0) * 8


def _synchronizes(x: torch.Tensor) -> torch.Tensor:
    y = x * 8
    torch.cuda.synchronize()
    return y


def _copies_from_the_cpu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.full((8,), 8.0).to(x.device)


def _uses_the_default_stream(x: torch.Tensor) -> torch.Tensor:
    with torch.cuda.stream(torch.cuda.default_stream()):
        return x * 8


def _leaves_a_stream(x: torch.Tensor) -> torch.Tensor:
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = x * 8
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().wait_stream(other)
    return y


def _raises_while_recorded(x: torch.Tensor) -> torch.Tensor:
    y = x * 8
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not now")
    return y


def _needs_too_much(x: torch.Tensor) -> torch.Tensor:
    y = x * 8
    if torch.cuda.is_current_stream_capturing():
        torch.empty(1 << 42, device=x.device)
    return y


@pytest.mark.parametrize(
    "function",
    [
        _waits, _draws_and_waits, _draws, _synchronizes, _copies_from_the_cpu, _uses_the_default_stream,
        _leaves_a_stream, _raises_while_recorded, _needs_too_much,
    ],
)  # fmt: skip
def test_a_failed_recording_leaves_the_process_as_it_was(function: Any, replays: list[int]) -> None:
    """Random numbers, allocations, streams and further recordings work; the call computes as before."""

    def call(args: list[Any]) -> tuple[Any, ...]:
        [x] = args
        args.clear()
        return (function(x),)

    run = Recorded(call, recorder_of(0), name="failing")
    with collected("fallback") as seen:
        for _ in range(3):
            x = torch.ones(8, device="cuda")
            close(run([x])[0], x * 8)
    assert len(seen) == 1 and "recording failed" in run.reason
    torch.cuda.manual_seed(3)
    assert torch.rand(4, device="cuda").shape == (4,) and not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()
    fast = compiled(lambda x: torch.rand_like(x) + x * 2)
    for _ in range(4):
        fast(torch.ones(8, device="cuda"))
    graph = torch.cuda.CUDAGraph()  # and the program's own
    with torch.cuda.graph(graph):
        torch.rand(4, device="cuda")
    graph.replay()
    assert len(replays) == 3


def test_an_interrupt_while_recording(replays: list[int]) -> None:
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


def test_streams(model: Any, replays: list[int]) -> None:
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


def test_threads(model: Any, replays: list[int]) -> None:
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
    ],
    ids=["cpu"],
)
def test_skipped_with_a_reason(make: Callable[[], Any], reason: str, replays: list[int]) -> None:
    function = make()
    with collected("fallback") as seen:
        fast, x = compiled(function), torch.randn(8, 8, device="cuda")
        for _ in range(3):
            close(fast(x), function(x))
    assert reason in {event.data["reason"] for event in seen if event.data.get("scope") == "cudagraphs"}
    assert not replays


def train(model: nn.Module, call: Any, steps: int, amp: bool, accumulate: int) -> Any:
    """Losses and parameters over steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(enabled=amp)
    generator, losses = torch.Generator("cuda").manual_seed(0), []
    for step in range(steps):
        for _ in range(accumulate):
            x = torch.randn(16, 64, device="cuda", generator=generator)
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = call(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=step % 3 != 2)
    return [float(loss) for loss in losses], [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_training(model: nn.Module, amp: bool, accumulate: int, replays: list[int], kept: bool) -> None:
    model.requires_grad_(True).train()
    other = copy.deepcopy(model)
    want, parameters = train(other, other, 9, amp, accumulate)
    got, trained = train(model, compiled(model), 9, amp, accumulate)
    tolerance = 2e-2 if amp else 1e-3
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(trained, parameters, rtol=tolerance, atol=tolerance)
    assert len(replays) >= 2 * (9 * accumulate) - 8


def test_training_in_the_default_mode(replays: list[int], kept: bool) -> None:
    """Many small layers keep the host busy: both graphs are recorded soon, and gradients that are held stay."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Net() for _ in range(12)]).cuda()
    other = copy.deepcopy(model)
    x = torch.randn(16, 64, device="cuda")
    held = []
    with config.patch({"triton.cudagraphs": None}), collected("cudagraphs") as seen:
        fast = argand.compile(model)
        for step in range(30):
            for each, call in ((other, other), (model, fast)):
                each.zero_grad(set_to_none=True)
                call(x * step).pow(2).mean().backward()
            got, want = ([p.grad for p in each.parameters()] for each in (model, other))
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
            held.append((got[0], want[0]))
    for one, two in held:
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
    said = [event.text() for event in seen]
    assert [event.data["outcome"] for event in seen] == ["recorded"] * 2, said
    assert len(replays) >= 2 * (30 - 18), said


def test_many_forwards_before_their_backwards(model: nn.Module, replays: list[int], kept: bool) -> None:
    model.requires_grad_(True)
    fast, parameters = compiled(model), list(model.parameters())
    for count in (1, 1, 1, 2, 3, 6, 2):
        xs = [torch.randn(8, 64, device="cuda") for _ in range(count)]
        grads = []
        for call in (model, fast):
            losses = [call(x).pow(2).sum() for x in xs]
            grads.append([torch.autograd.grad(loss, parameters) for loss in losses[::-1]])
        close(grads[1], grads[0])
    assert len(replays) > 12


def test_dropout(replays: list[int], kept: bool) -> None:
    """Masks differ from call to call, are the same in the backward, and repeat by seed."""
    fast = compiled(lambda x: torch.nn.functional.dropout(x, 0.5) * 3)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        masks = []
        for _ in range(6):
            x = torch.ones(512, device="cuda", requires_grad=True)
            out = fast(x)
            out.sum().backward()
            close(x.grad, out.detach())
            masks.append(out.detach())
        assert len({tuple(mask.tolist()) for mask in masks}) == 6
        runs.append(torch.stack(masks))
    close(runs[1], runs[0])
    assert len(replays) > 12


def test_kernels_that_draw_themselves(replays: list[int]) -> None:
    """Attention with dropout: the numbers are eager's for the same seed, call by call, and the backward's masks too."""

    def attention(q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5) * 2

    fast, runs = compiled(attention), []
    for call in (attention, fast):
        torch.manual_seed(9)
        found = []
        for _ in range(6):
            q = torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            out = call(q)
            out.float().pow(2).sum().backward()
            found += [out.detach(), q.grad, torch.rand(4, device="cuda")]
        runs.append(found)
    for want, got in zip(*runs):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert len(replays) >= 8 and not torch.equal(runs[1][0], runs[1][3])


def test_a_failed_recording_of_what_draws(replays: list[int]) -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        [x] = args
        args.clear()
        return (x + torch.rand_like(x) * float((x.sum() * 0).item()),)

    for _ in range(3):
        run = Recorded(call, recorder_of(0), roles=Roles(draws=True))
        for _ in range(4):
            x = torch.ones(8, device="cuda")
            close(run([x])[0], x)
        assert "recording failed" in run.reason
        torch.cuda.manual_seed(3)
        torch.rand(4, device="cuda")
        assert float(torch.ones(1 << 20).pin_memory().cuda().sum()) == 1 << 20
    fine, before = Recorded(lambda args: (torch.rand_like(args.pop()),), recorder_of(0), roles=Roles(draws=True)), []
    for _ in range(5):
        before.append(fine([torch.ones(8, device="cuda")])[0])
    torch.cuda.manual_seed(4)
    one, two = fine([torch.ones(8, device="cuda")])[0], torch.rand(8, device="cuda")
    torch.cuda.manual_seed(4)
    close(torch.rand(8, device="cuda"), one)
    close(torch.rand(8, device="cuda"), two)
    assert len({tuple(each.tolist()) for each in before}) == 5 and len(replays) == 5


def test_large_results_are_lent_and_never_overwritten(replays: list[int]) -> None:
    fast = compiled(lambda x: x.expand(SMALL, 4) + 1)
    held: list[Any] = []
    out = None
    for step in range(30):
        x = torch.full((4,), float(step), device="cuda")
        out = fast(x)
        if step in (5, 6, 9, 12, 15, 18):
            held.append((step, out[7:]))
        for number, rows in held:
            assert rows.min() == rows.max() == number + 1
    assert len(replays) > 15


def test_beside_a_thread_of_the_program(model: nn.Module, replays: list[int]) -> None:
    """What another thread does while a call is recorded neither fails nor ends up in the recording."""
    wrong: list[str] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                y = torch.rand(64, device="cuda") + torch.ones(64).pin_memory().to("cuda", non_blocking=True)
                if not 64 <= float(y.sum()) <= 128:
                    wrong.append("value")
        except Exception as error:
            wrong.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        argand.reset()
        fast = compiled(model)
        for _ in range(4):
            x = torch.randn(8, 64, device="cuda")
            close(fast(x), model(x))
    stop.set()
    thread.join()
    assert not wrong and replays


def test_temporaries_of_calls_before_the_recording_are_freed() -> None:
    def products(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x) @ x @ x).sum()

    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)  # 134 MB; two products live at a time
    compiled = argand.compile(products, mode="reduce-overhead")
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        compiled(x)
    assert torch.cuda.memory_allocated() - before < 2 * x.nbytes + (160 << 20)  # and libraries' workspaces


def test_memory_of_training(model: nn.Module, kept: bool) -> None:
    model.requires_grad_(True)
    fast = compiled(model)
    seen = []
    for _ in range(60):
        for parameter in model.parameters():
            parameter.grad = None
        fast(torch.randn(512, 64, device="cuda")).pow(2).sum().backward()
        seen.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert seen[-1] == seen[10]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("small", [0, SMALL])
def test_models_in_any_order(
    seed: int, small: int, monkeypatch: pytest.MonkeyPatch, replays: list[int], kept: bool
) -> None:
    """Inference, forwards and backwards of several models, results and gradients held: none changes, all are eager's."""
    monkeypatch.setattr("argand.runtime.gpu.cuda_graphs.recording.SMALL", small)
    monkeypatch.setattr("argand.runtime.gpu.cuda_graphs.graphs.SMALL", small)
    torch.manual_seed(seed)
    choose = random.Random(seed)
    models = [nn.Sequential(*[Net() for _ in range(count)]).cuda() for count in (1, 2, 3)]
    fast = [compiled(copy.deepcopy(each)) for each in models]
    twins = [each._orig_mod if hasattr(each, "_orig_mod") else each for each in fast]
    waiting: list[Any] = []
    held: list[tuple[torch.Tensor, torch.Tensor]] = []  # a tensor and what it was
    for step in range(150):
        number = choose.randrange(3)
        x = torch.randn(choose.choice((8, 8, 8, 16)), 64, device="cuda")
        what = choose.choice(("infer", "infer", "forward", "backward", "backward", "write", "drop"))
        if what == "infer":
            with torch.no_grad():
                got, want = fast[number](x), models[number](x)
            close(got, want)
            held.append((got, got.clone()))
        elif what == "forward" and len(waiting) < 6:
            waiting.append((number, fast[number](x), models[number](x), step))
        elif what == "backward" and waiting:
            number, got, want, _ = waiting.pop(choose.randrange(len(waiting)))
            close(got.detach(), want.detach())
            one = torch.autograd.grad(got.pow(2).sum(), list(twins[number].parameters()))
            two = torch.autograd.grad(want.pow(2).sum(), list(models[number].parameters()))
            for a, b in zip(one, two):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
            held += [(gradient, gradient.clone()) for gradient in one[:2]]
        elif what == "write" and not any(each[0] == number for each in waiting):
            with torch.no_grad():
                for model in (models[number], twins[number]):
                    next(model.parameters()).mul_(0.99)
        elif what == "drop":
            del held[: choose.randrange(len(held) + 1)]
        for tensor, before in held:
            assert torch.equal(tensor, before)
    assert len(replays) > 30


def test_memory_is_given_back(model: nn.Module) -> None:
    """Recordings that are gone leave no memory behind but the workspaces of libraries."""

    def reserved() -> int:
        argand.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    model.requires_grad_(True)
    sizes = []
    for _ in range(3):
        fast = compiled(model)
        for _ in range(4):
            fast(torch.randn(1 << 16, 64, device="cuda")).pow(2).sum().backward()
        model.zero_grad()
        del fast
        sizes.append(reserved())
    assert sizes[2] == sizes[1] <= sizes[0] + (8 << 20)
