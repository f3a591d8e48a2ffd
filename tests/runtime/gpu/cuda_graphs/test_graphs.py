"""Calls that are recorded and replayed, on the CPU with a tape for a CUDA graph, against the same calls made plainly."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from argand.graph import compat
from argand.graph.operators.random_ops import random_ops
from argand.runtime.gpu.cuda_graphs import graphs, recording
from argand.runtime.gpu.cuda_graphs.graphs import MAX_MOVES, MAX_PLACES, MAX_RING, MAX_SIZES, Recorded, Roles
from argand.runtime.gpu.cuda_graphs.recording import MANY, SMALL
from helpers import collected
from runtime.gpu.tape_recorder import TapeRecorder


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    def call(args: list[Any]) -> tuple[Any, ...]:
        taken = list(args)
        args.clear()
        return tuple(function(*taken))

    return call


def made(function: Callable[..., Any], **facts: Any) -> tuple[Recorded, TapeRecorder]:
    recorder = TapeRecorder()
    return Recorded(boxed(function), recorder, name=facts.pop("name", "graph"), roles=Roles(**facts)), recorder


def test_runs_then_records_then_replays() -> None:
    run, recorder = made(lambda x, y: (x @ y + 1, (x * 2).sum()))
    for step in range(5):
        x, y = torch.randn(3, 4), torch.randn(4, 2)
        args = [x, y]
        one, two = run(args)
        assert args == []
        torch.testing.assert_close(one, x @ y + 1)
        torch.testing.assert_close(two, (x * 2).sum())
        assert (recorder.recorded, recorder.replayed) == (min(step, 1), step)


def test_results_that_the_program_holds_stay() -> None:
    """Also views of them, and results of other calls of the same graph."""
    run, recorder = made(lambda x: (x + 1, x.new_zeros(2, 3) + x.sum()))
    held = []
    for step in range(6):
        x = torch.full((4,), float(step))
        one, two = run([x])
        held.append((one[1:], two.t()))
    assert recorder.replayed == 5
    for step, (one, two) in enumerate(held):
        assert torch.equal(one, torch.full((3,), step + 1.0)) and torch.equal(two, torch.full((3, 2), step * 4.0))


def test_results_fed_back() -> None:
    run, _ = made(lambda x: (x * 2,))
    x = torch.ones(3)
    for _ in range(8):
        (x,) = run([x])
    assert torch.equal(x, torch.full((3,), 256.0))


def test_parameters_are_used_in_place_and_may_be_updated() -> None:
    weight = nn.Parameter(torch.ones(3))
    run, recorder = made(lambda w, x: (w * x,))
    with torch.no_grad():
        for step in range(5):
            weight.add_(1)
            (got,) = run([weight, torch.ones(3)])
            assert torch.equal(got, torch.full((3,), step + 2.0)) and not got.requires_grad
    assert recorder.recorded == 1


def test_a_parameter_in_another_place_is_recorded_again() -> None:
    weight = nn.Parameter(torch.ones(3))
    run, recorder = made(lambda w, x: (w * x,))
    places = [torch.full((3,), float(n)) for n in range(2)]
    with torch.no_grad():
        for step in range(8):
            weight.data = places[step % 2]
            (got,) = run([weight, torch.full((3,), 2.0)])
            assert torch.equal(got, torch.full((3,), (step % 2) * 2.0))
    assert recorder.recorded == 2 and recorder.replayed == 6 and not run.reason


def test_parameters_that_keep_moving_end_it() -> None:
    run, recorder = made(lambda w: (w + 1,), name="model__3_inference", lasting=frozenset({0}))
    places = [torch.full((3,), float(n)) for n in range(MAX_PLACES + 3)]
    with collected("fallback") as seen:
        for place in places:
            (got,) = run([place])
            assert torch.equal(got, place + 1)
    assert run.reason.startswith("parameters or tensors written to were in more than") and recorder.recorded == 0
    [event] = seen
    assert event.data["scope"] == "cudagraphs" and event.data["reason"] == run.reason
    assert event.text().startswith("no CUDA graph is recorded: model__3_inference: ")


def test_inputs_that_stay_are_used_in_place_until_they_move() -> None:
    buffer, run_of = torch.ones(1000), made(lambda b, x: (b + x,))
    run, recorder = run_of
    for step in range(4):
        buffer.add_(1)
        (got,) = run([buffer, torch.ones(1000)])
        assert torch.equal(got, torch.full((1000,), step + 3.0))
    [shape] = run._shapes.values()
    [entry] = shape.entries.values()
    assert 0 in entry.ring[0].fixed
    kept = [torch.full((1000,), float(n)) for n in range(5)]
    for other in kept:
        (got,) = run([other, torch.ones(1000)])
        assert torch.equal(got, other + 1)
    assert recorder.recorded <= 3  # once more for each input that moved
    assert recorder.replayed == 8


def test_what_the_call_writes_to_is_written_once_in_place() -> None:
    def update(state: torch.Tensor, x: torch.Tensor) -> Any:
        state.add_(x)
        return state, state * 2

    state, run_of = torch.zeros(4), made(update, written=frozenset({0}))
    run, recorder = run_of
    for step in range(5):
        same, double = run([state, torch.ones(4)])
        assert same is state
        assert torch.equal(state, torch.full((4,), step + 1.0)) and torch.equal(double, state * 2)
    assert recorder.recorded == 1 and recorder.replayed == 4


def test_a_new_tensor_written_to_in_each_call_ends_it() -> None:
    def update(state: torch.Tensor) -> Any:
        return (state.add_(1),)

    run, _ = made(update, written=frozenset({0}))
    states = [torch.full((4,), float(n)) for n in range(MAX_PLACES + 3)]
    for n, state in enumerate(states):
        (same,) = run([state])
        assert same is state and torch.equal(state, torch.full((4,), n + 1.0))
    assert "written to" in run.reason


def test_written_values_that_are_returned_need_no_place() -> None:
    """The wrapper copies them back: the call itself does not write."""
    run, recorder = made(lambda state: (state + 1,), written=frozenset({0}))
    for n in range(6):
        kept = [torch.full((4,), float(n)), torch.zeros(4)]
        assert torch.equal(run([kept[0]])[0], kept[0] + 1)
    assert not run.reason and recorder.replayed == 5


def test_a_failing_call_is_recorded_no_more_and_computes() -> None:
    run, recorder = made(lambda x: (x * x.sum().item(),), name="model__0_inference")
    with collected("fallback") as seen:
        for n in range(4):
            x = torch.full((2,), float(n))
            assert torch.equal(run([x])[0], x * x.sum())
    [event] = seen
    assert run.reason == "recording failed: CUDA error: operation not permitted when stream is capturing"
    assert event.data["reason"] == run.reason and recorder.recorded == 0


def test_an_interrupt_while_recording_reaches_the_program_and_costs_nothing() -> None:
    run, recorder = made(lambda x: (x + 1,))
    run([torch.zeros(2)])
    recorder.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run([torch.zeros(2)])
    recorder.fail = None
    assert not recorder.active and not run.reason
    for n in range(3):
        assert torch.equal(run([torch.full((2,), float(n))])[0], torch.full((2,), n + 1.0))
    assert recorder.recorded == 1 and recorder.replayed == 3


def test_calls_while_somebody_records_are_plain() -> None:
    run, recorder = made(lambda x: (x + 1,))
    recorder.foreign = True
    for _ in range(3):
        assert torch.equal(run([torch.zeros(2)])[0], torch.ones(2))
    assert recorder.recorded == 0


def test_a_call_in_the_middle_of_a_replay_is_plain() -> None:
    recorder = TapeRecorder()
    run = Recorded(boxed(lambda x: (x + 1,)), recorder)
    for _ in range(3):
        run([torch.zeros(2)])
    before = recorder.replayed
    recorder.active = True
    assert torch.equal(run([torch.full((2,), 4.0)])[0], torch.full((2,), 5.0))
    recorder.active = False
    assert recorder.replayed == before


def test_each_thread_prepares_before_it_records() -> None:
    run, recorder = made(lambda w, x: (w + x,), varying=True)

    def call() -> None:
        assert torch.equal(run([torch.ones(2), torch.ones(2)])[0], torch.full((2,), 2.0))

    call()
    for count in (0, 1):
        thread = threading.Thread(target=lambda: [call() for _ in range(count + 1)])
        thread.start()
        thread.join()
        assert recorder.recorded == count


def test_threads_at_once() -> None:
    weight = nn.Parameter(torch.randn(16, 16))
    run, _ = made(lambda w, x: (x @ w,))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for step in range(30):
            x = torch.randn(4, 16, generator=generator)
            with torch.no_grad():
                if not torch.allclose(run([weight, x])[0], x @ weight):
                    wrong.append(step)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not run.reason


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_never_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    run, recorder = made(lambda x: (x + 1,))
    for _ in range(3):
        run([torch.zeros(2)])
    before, pid = recorder.replayed, os.getpid()
    monkeypatch.setattr(graphs.os, "getpid", lambda: pid + 1)
    assert torch.equal(run([torch.zeros(2)])[0], torch.ones(2)) and recorder.replayed == before


def test_sizes_are_recorded_each_and_not_without_end() -> None:
    run, recorder = made(lambda n, x: (x * n, n + 1, None), varying=True)
    for n in (2, 3, 2, 3, 2):
        x = torch.randn(n)
        product, number, nothing = run([n, x])
        assert torch.equal(product, x * n) and number == n + 1 and nothing is None
    assert recorder.recorded == 2
    for n in range(4, 4 + 2 * MAX_SIZES):
        x = torch.randn(n)
        assert torch.equal(run([n, x])[0], x * n)
    assert "different sizes" in run.reason


def test_numbers_are_told_apart() -> None:
    run, _ = made(lambda f, x: (x * f,), varying=True)
    x = torch.ones(2)
    for f in (0.0, -0.0, 0.0, -0.0, 1.0, True, 0.0, -0.0):
        got = run([f, x])[0]
        assert torch.equal(got.signbit(), (x * f).signbit()) and torch.equal(got, x * f)


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.t(),
    lambda x: x[::2, 1:],
    lambda x: x[:1].expand(5, -1),
    lambda x: x.as_strided((2, 2), (1, 1)),
    lambda x: x.as_strided((2, 2), (0, 3)),
    lambda x: x[:0],
    lambda x: x.reshape(2, 2, 3, 2).to(memory_format=torch.channels_last),
    lambda x: x[0, 0],
    lambda x: x.unsqueeze(1),
]


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_layouts_of_inputs_and_results(layout: int) -> None:
    """What is copied shows the same elements in the same strides."""
    run, recorder = made(lambda x: (x + 1, LAYOUTS[layout](x.new_zeros(4, 6) + x.sum())))
    for step in range(4):
        whole = torch.randn(4, 6)
        x = LAYOUTS[layout](whole)
        one, two = run([x])
        want = LAYOUTS[layout](torch.zeros(4, 6) + x.sum())
        assert torch.equal(one, x + 1) and torch.equal(two, want) and two.stride() == want.stride()
        assert recorder.replayed == step


def test_a_result_twice_is_one_tensor() -> None:
    def twice(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y

    run, _ = made(twice)
    for _ in range(3):
        one, two = run([torch.zeros(2)])
        assert one is two


def test_under_inference_mode_and_outside() -> None:
    run, recorder = made(lambda x: (x + 1,))
    for step in range(6):
        with torch.inference_mode(step % 2 == 0):
            (got,) = run([torch.full((2,), float(step))])
            assert torch.equal(got, torch.full((2,), step + 1.0))
    assert recorder.replayed == 5


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: (x.to_sparse(),), "layout torch.sparse_coo"),
        (lambda x: (torch.complex(x, x).conj(),), "conjugate"),
        (lambda x: ((x, x),), "a result is of type tuple"),
        (lambda x: (x.clone().requires_grad_(),), "requires grad"),
    ],
    ids=["sparse", "conjugate", "tuple", "grad"],
)
def test_results_that_cannot_be_handed_out(function: Callable[..., Any], reason: str) -> None:
    run, _ = made(function)
    for _ in range(3):
        run([torch.ones(2)])
    assert reason in run.reason


def test_inputs_that_move_one_after_the_other_are_copied_in_the_end() -> None:
    run, recorder = made(lambda *xs: (sum(xs),))
    xs = [torch.full((3,), float(n)) for n in range(20)]
    for moved in range(len(xs)):
        xs[moved] = xs[moved].clone()
        assert torch.equal(run(list(xs))[0], sum(xs))
    assert recorder.recorded <= MAX_MOVES + 2 and recorder.replayed == 19 and not run.reason


def test_layers_that_share_a_graph_are_recorded_each() -> None:
    """A frame that a model's layers call: one compiled call, parameters in as many places as there are layers."""
    weights = [nn.Parameter(torch.full((3,), float(n))) for n in range(12)]
    run, recorder = made(lambda w, x: (w * x + 1,))
    kept = [torch.full((3,), float(n)) for n in range(60)]
    with torch.no_grad():
        for step in range(4):
            for number, weight in enumerate(weights):
                x = kept[(step * 12 + number * (1 if step < 2 else 5)) % 60]
                assert torch.equal(run([weight, x])[0], weight * x + 1)
    assert not run.reason and recorder.recorded >= 12 and recorder.replayed >= 36


def test_too_little_memory_for_results_leaves_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for results is made before anything is written: the call can be made again."""

    def update(state: torch.Tensor) -> Any:
        state.add_(1)
        return state, state * 2

    state, run_of = torch.zeros(4), made(update, written=frozenset({0}))
    run, recorder = run_of
    for _ in range(3):
        run([state])

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(recording.torch, "empty_strided", refuse)
        run([state])
    assert torch.equal(state, torch.full((4,), 3.0)) and not recorder.active
    assert torch.equal(run([state])[1], torch.full((4,), 8.0))


def kept_by_forward() -> tuple[Recorded, Recorded, TapeRecorder]:
    """A forward that keeps a value for its backward, and this."""
    recorder = TapeRecorder()
    forward = Recorded(boxed(lambda w, x: (w * x, w + x)), recorder, roles=Roles(kept=frozenset({1})))
    backward = Recorded(boxed(lambda kept, grad: (kept * grad,)), recorder, roles=Roles(taken=frozenset({0})))
    return forward, backward, recorder


def test_a_forward_and_its_backward() -> None:
    """What the backward reads stays in the forward's memory, and is not copied."""
    forward, backward, recorder = kept_by_forward()
    weight, steps, alive = nn.Parameter(torch.full((3,), 2.0)), 6, []
    with torch.no_grad():
        for step in range(steps):
            x, grad = torch.full((3,), float(step)), torch.full((3,), step + 1.0)
            alive += [x, grad]  # so that none is where an earlier one was
            result, kept = forward([weight, x])
            assert torch.equal(kept, weight + x)
            (got,) = backward([kept, grad])
            assert torch.equal(result, weight * x) and torch.equal(got, (weight + x) * grad)
            del kept
    assert recorder.recorded == 2 and recorder.replayed == 2 * (steps - 1)
    assert not forward.reason and not backward.reason


def test_a_forward_that_keeps_a_parameter_as_it_is() -> None:
    recorder, weight = TapeRecorder(), nn.Parameter(torch.full((3,), 2.0))
    forward = Recorded(boxed(lambda w, x: (w * x, w)), recorder, roles=Roles(kept=frozenset({1})))
    backward = Recorded(boxed(lambda kept, grad: (kept * grad,)), recorder, roles=Roles(taken=frozenset({0})))
    with torch.no_grad():
        for step in range(6):
            x = torch.full((3,), float(step))
            result, kept = forward([weight, x])
            assert torch.equal(result, weight * x) and torch.equal(backward([kept, x])[0], weight * x)
            weight.add_(1)
    assert recorder.recorded == 2 and recorder.replayed == 5 + 5


def test_forwards_before_the_backward_of_the_first() -> None:
    """A recording whose kept values wait for a backward is left alone: another one is used, then none."""
    forward, backward, recorder = kept_by_forward()
    weight = nn.Parameter(torch.full((3,), 2.0))
    with torch.no_grad():
        for count in (1, 1, 2, 3, MAX_RING + 3, 2, 1, MAX_RING + 3):
            waiting = []
            for step in range(count):
                x = torch.full((3,), step + 0.5)
                waiting.append((x, *forward([weight, x])))
            order = waiting if count % 2 else waiting[::-1]
            for x, result, kept in order:
                (got,) = backward([kept, x])
                assert torch.equal(result, weight * x) and torch.equal(got, (weight + x) * x)
            del waiting, order, kept
    assert recorder.recorded == 2 * MAX_RING and not forward.reason and not backward.reason


def test_a_result_of_a_forward_that_is_held_needs_no_further_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """`loss = model(x)` in a loop: all that a forward keeps would be there twice."""
    monkeypatch.setattr(recording, "SMALL", 0)
    monkeypatch.setattr(graphs, "SMALL", 0)
    forward, backward, recorder = kept_by_forward()
    weight, held = nn.Parameter(torch.full((3,), 2.0)), []
    with torch.no_grad():
        for step in range(8):
            x = torch.full((3,), float(step))
            result, kept = forward([weight, x])
            held.append((result, weight * x))
            backward([kept, x])
            del kept
            for got, want in held:
                assert torch.equal(got, want)
    assert recorder.recorded == 2


def test_a_kept_value_is_alive_through_whatever_shares_its_memory() -> None:
    forward, _, recorder = kept_by_forward()
    weight, x = nn.Parameter(torch.full((3,), 2.0)), torch.ones(3)
    holders: list[Callable[[torch.Tensor], Any]] = [
        lambda kept: kept[1:],
        lambda kept: kept.detach(),
        lambda kept: kept.untyped_storage(),
        lambda kept: kept.numpy(),
        lambda kept: torch.utils.dlpack.to_dlpack(kept),
        lambda kept: (torch.ones(3, requires_grad=True) * kept).grad_fn,
    ]
    with torch.no_grad():
        forward([weight, x])
        forward([weight, x])
    for hold in holders:
        with torch.no_grad():
            _, kept = forward([weight, x])
        place = kept.data_ptr()
        held = hold(kept)
        del kept
        with torch.no_grad():
            _, other = forward([weight, x])
        assert other.data_ptr() != place
        del held, other


def test_large_results_are_lent_while_nobody_holds_the_earlier_ones() -> None:
    """No copy, and never a value that changes while it is held."""
    size = SMALL // 4 + 1
    run, recorder = made(lambda x: (x.expand(size) + 1,))
    places = set()
    held: list[tuple[float, torch.Tensor]] = []
    out = None
    for step in range(40):
        value = float(step)
        (out,) = run([torch.full((1,), value)])
        assert out[0] == out[-1] == value + 1
        places.add(out.data_ptr())
        if step in (7, 9, 11, 13, 15, 20):
            held.append((value, out[3:]))
        assert all(torch.equal(one, torch.full_like(one, number + 1)) for number, one in held)
        out.add_(1)  # the program's own from now on
        if step in (7, 9, 11, 13, 15, 20):
            held[-1][1].sub_(1)
    assert recorder.recorded == MAX_RING and not run.reason


def test_a_lent_result_that_is_resized_ends_its_recording() -> None:
    size = SMALL // 4 + 1
    run, recorder = made(lambda x: (x.expand(size) + 1,))
    for step in range(8):
        (out,) = run([torch.full((1,), float(step))])
        assert out[-1] == step + 1
        out.untyped_storage().resize_(0)
        del out
    assert not run.reason and recorder.recorded >= 3


def test_many_results_of_several_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied by few calls, each in its own layout."""

    def many(x: torch.Tensor) -> Any:
        kinds = (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64)
        whole = [(x + number).to(kinds[number % 5]) for number in range(MANY + 7)]
        return (
            *whole,
            whole[0].t() + 0,
            whole[1].expand(2, 3, 4)[:, 1:],
            whole[2][:, ::2],
            whole[3][:0],
            whole[4][:, :1] + 0,
        )

    calls: list[int] = []
    clone = compat.foreach_clone
    monkeypatch.setattr(compat, "foreach_clone", lambda tensors: calls.append(len(tensors)) or clone(tensors))
    run, recorder = made(many)
    held = []
    for step in range(4):
        x = torch.full((3, 4), float(step))
        held.append((run([x]), many(x)))
    for got, want in held:
        for one, two in zip(got, want):
            assert torch.equal(one, two) and one.stride() == two.stride() and one.dtype == two.dtype
    assert recorder.replayed == 3 and len(calls) == 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool])
def test_copies_by_few_calls_are_exact(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch has no call that copies."""
    monkeypatch.delattr(torch, "_foreach_clone", raising=False)
    values = torch.tensor([0.0, -0.0, 1.5, -3.0, 1e-40, float("inf"), float("-inf"), float("nan")]).to(dtype)
    whole = [values, values.reshape(2, 4).t(), values[:0]]
    for one, two in zip(compat.foreach_clone(whole), whole):
        assert one.stride() == two.stride() and one.data_ptr() != two.data_ptr() or not two.numel()
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating_point:
            assert torch.equal(one.signbit()[two == two], two.signbit()[two == two])


def test_seeds_are_drawn_before_each_replay() -> None:
    """As many from torch's generator as the call itself draws, with the same values."""
    seed = random_ops().seed

    def draw(x: torch.Tensor) -> Any:
        one, two = seed(device=x.device), seed(device=x.device)
        return x + 0, one, two

    run, recorder = made(draw)
    torch.manual_seed(3)
    want = [tuple(int(each) for each in draw(torch.ones(2))[1:]) for _ in range(5)]
    torch.manual_seed(3)
    got = [tuple(int(each) for each in run([torch.ones(2)])[1:]) for _ in range(5)]
    assert got == want and recorder.replayed == 4
