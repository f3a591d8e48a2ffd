"""Backwards that are recorded in the memory of what their forwards kept, on the CPU with a tape for a CUDA graph.

The tape overwrites what a replay may overwrite: a backward what its forward kept, a forward what its backward left.
"""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from argand.runtime.gpu.cuda_graphs import graphs, recording, trial
from argand.runtime.gpu.cuda_graphs.graphs import MAX_RING, Recorded, Roles
from argand.runtime.gpu.cuda_graphs.recording import Recording, planned
from runtime.gpu.cuda_graphs.test_graphs import boxed
from runtime.gpu.tape_recorder import TapeRecorder


class Layer:
    """A forward that keeps a value for its backward, and this; both compared with what they compute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **roles: Any) -> None:
        monkeypatch.setattr(graphs, "MUCH_KEPT", 1)
        self.tape = TapeRecorder()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.forward = Recorded(boxed(lambda w, x: (w * x, w + x)), self.tape, roles=Roles(kept=frozenset({1})))
        self.backward = Recorded(
            boxed(lambda kept, grad: (kept * grad, kept.exp())), self.tape, roles=Roles(taken=frozenset({0}), **roles)
        )
        self.alive: list[torch.Tensor] = []

    def ahead(self, value: float) -> tuple[torch.Tensor, torch.Tensor]:
        """What the forward keeps, and what that should be."""
        x = torch.full((3,), value)
        self.alive.append(x)  # so that none is where an earlier one was
        with torch.no_grad():
            result, kept = self.forward([self.weight, x])
            assert torch.equal(result, self.weight * x) and torch.equal(kept, self.weight + x)
            return kept, self.weight + x

    def back(self, args: list[torch.Tensor], want: torch.Tensor) -> torch.Tensor:
        """The gradient for `args`, the only list of them."""
        grad = torch.full((3,), 0.5 + len(self.alive))
        self.alive.append(grad)
        args.append(grad)
        with torch.no_grad():
            got, other = self.backward(args)
        assert torch.equal(got, want * grad) and torch.equal(other, want.exp())
        return got

    def step(self, value: float) -> torch.Tensor:
        kept, want = self.ahead(value)
        args = [kept]
        del kept
        return self.back(args, want)

    @property
    def recordings(self) -> list[Recording]:
        """Of the backward."""
        return [r for shape in self.backward._shapes.values() for entry in shape.entries.values() for r in entry.ring]


def test_what_a_forward_kept_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(monkeypatch)
    for step in range(6):
        layer.step(float(step))
    assert layer.tape.recorded == 2 and layer.tape.replayed == 2 * 5
    assert [recording.uses_up for recording in layer.recordings] == [True]
    assert all(
        torch.isnan(run.view(torch.float32)).all() for _, run in layer.tape.given_up
    )  # the tape did overwrite it


def test_who_keeps_little_shares_memory_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(monkeypatch)
    monkeypatch.undo()
    for step in range(4):
        layer.step(float(step))
    assert [recording.uses_up for recording in layer.recordings] == [False] and layer.tape.recorded == 2


@pytest.mark.parametrize("first", [0, 1, 2], ids=["before", "while recording", "after"])
def test_a_backward_that_is_asked_for_twice(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `retain_graph=True`: what is held is not used up, by the call that records or later."""
    layer = Layer(monkeypatch)
    for step in range(8):
        if step < first:
            layer.step(float(step))
            continue
        kept, want = layer.ahead(float(step))
        layer.back([kept], want)
        layer.back([kept], want)
        args = [kept]
        del kept
        layer.back(args, want)
    assert not layer.backward.reason and not layer.forward.reason
    assert any(recording.uses_up for recording in layer.recordings) == (first > 1)


def test_forwards_before_the_backward_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(monkeypatch)
    for count in (1, 1, 2, 3, MAX_RING + 2, 1, 2):
        waiting = [layer.ahead(step + 0.25) for step in range(count)]
        while waiting:
            kept, want = waiting.pop(0 if count % 2 else -1)
            args = [kept]
            del kept
            layer.back(args, want)
    assert not layer.backward.reason and not layer.forward.reason


def test_gradients_that_the_program_holds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie where the forward is about to write: it is recorded again, and its backward elsewhere."""
    monkeypatch.setattr(recording, "SMALL", 0)
    monkeypatch.setattr(graphs, "SMALL", 0)
    layer, held = Layer(monkeypatch), []
    for step in range(3 * MAX_RING):
        got = layer.step(float(step))
        if step % 3:
            held.append((got[1:], got.clone()[1:]))
        del got
        assert all(torch.equal(one, two) for one, two in held)
        if step == 2 * MAX_RING:
            held.clear()
    assert not layer.backward.reason and not layer.forward.reason


def test_gradients_that_are_dropped_behind_the_next_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `zero_grad` between forward and backward: each is recorded once more, and what is kept is there once."""
    monkeypatch.setattr(recording, "SMALL", 0)
    monkeypatch.setattr(graphs, "SMALL", 0)
    layer, held = Layer(monkeypatch), list[torch.Tensor]()
    for step in range(10):
        kept, want = layer.ahead(float(step))
        held.clear()
        args = [kept]
        del kept
        held.append(layer.back(args, want))
    assert layer.tape.recorded == 4 and layer.tape.replayed == 2 * 9
    assert sum(len(entry.ring) for shape in layer.forward._shapes.values() for entry in shape.entries.values()) == 1
    assert [recording.uses_up for recording in layer.recordings] == [False]


def test_a_backward_that_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gets is intact, and the forward's recording, whose memory was given up, is made anew."""
    layer = Layer(monkeypatch)
    layer.step(1.0)
    kept, want = layer.ahead(2.0)
    layer.tape.fail = RuntimeError("no")
    args = [kept]
    del kept
    layer.back(args, want)
    layer.tape.fail = None
    assert layer.backward.reason == "recording failed: no"
    for step in range(4):
        layer.step(float(step))
    assert layer.tape.recorded == 2  # the forward twice
    assert not layer.forward.reason


def test_an_interrupt_while_a_backward_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(monkeypatch)
    layer.step(1.0)
    kept, want = layer.ahead(2.0)
    layer.tape.fail = KeyboardInterrupt()
    args = [kept]
    del kept
    with pytest.raises(KeyboardInterrupt):
        layer.back(args, want)
    layer.tape.fail = None
    for step in range(4):
        layer.step(float(step))
    assert not layer.backward.reason and [each.uses_up for each in layer.recordings] == [True]


def test_a_gradient_that_moves_has_both_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, grad = Layer(monkeypatch), torch.full((3,), 3.0)
    for step in range(12):
        if step in (4, 8):
            grad = grad.clone()
            layer.alive.append(grad)
        kept, want = layer.ahead(float(step))
        args = [kept, grad]
        del kept
        with torch.no_grad():
            got, _ = layer.backward(args)
        assert torch.equal(got, want * grad)
    assert not layer.backward.reason and all(each.uses_up for each in layer.recordings)


@pytest.mark.parametrize("verdict, recorded", [(None, 2), ("", 2), ("the GPU is busy", 1)])
def test_a_backward_does_not_wait_for_times(
    verdict: str | None, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the default mode a forward that was found to gain by a recording keeps what it keeps until its backward is
    recorded, too."""
    layer = Layer(monkeypatch)
    monkeypatch.setattr(trial.Trial, "why_not", lambda self: "" if self is layer.forward._trial else verdict)
    for each in (layer.forward, layer.backward):
        each._asked, each._trial = False, trial.Trial(layer.tape)
    for step in range(4):
        layer.step(float(step))
    assert layer.tape.recorded == recorded
    assert [recording.uses_up for recording in layer.recordings] == [True] * (recorded - 1)


@pytest.mark.parametrize("seed", range(6))
def test_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards, backwards once or twice, gradients and kept values held: none changes, all are right."""
    monkeypatch.setattr(recording, "SMALL", 0)
    monkeypatch.setattr(graphs, "SMALL", 0)
    layer, choose = Layer(monkeypatch), random.Random(seed)
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(120):
        what = choose.choice(("ahead", "ahead", "back", "back", "back", "twice", "drop"))
        if what == "ahead" and len(waiting) < 3:
            waiting.append(layer.ahead(float(step % 7)))
        elif what == "twice" and waiting:
            kept, want = choose.choice(waiting)
            layer.back([kept], want)
            del kept
        elif what == "back" and waiting:
            kept, want = waiting.pop(choose.randrange(len(waiting)))
            args = [kept]
            del kept
            got = layer.back(args, want)
            if choose.random() < 0.3:
                held.append((got, got.clone()))
            del got
        elif what == "drop":
            del held[: choose.randrange(len(held) + 1)]
        assert all(torch.equal(one, two) for one, two in (*held, *waiting))
    assert not layer.backward.reason and not layer.forward.reason and layer.tape.replayed > 20


@pytest.mark.parametrize("role", ["draws", "seeded"])
def test_who_draws_uses_nothing_up(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is written before the replay, and might lie where what the forward kept has yet to be read."""
    layer = Layer(monkeypatch, **{role: True})
    for step in range(4):
        layer.step(float(step))
    assert [recording.uses_up for recording in layer.recordings] == [False]


def test_what_is_given_up_is_held_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator gets it as soon as the backward, while it is recorded, has read it for the last time."""
    whole = torch.arange(6.0)
    outputs = [whole, whole[2:], torch.zeros(0), torch.ones(2)]
    results = planned(outputs, [], [], frozenset(range(4)), lend=False)
    made = Recording(lambda: None, (), [], [], [], results, room=object())
    places, starts = [each.data_ptr() for each in outputs], [each.storage_offset() for each in outputs]
    copies = {whole.untyped_storage().data_ptr(): whole.clone(), outputs[3].data_ptr(): outputs[3].clone()}
    numbers = [made.kept_at(each) for each in outputs]
    del whole, outputs
    given = made.give_up(lambda tensor: copies[tensor.untyped_storage().data_ptr()].view(torch.uint8))
    assert numbers == [0, 1, 2, 3] and [each.data_ptr() for each in given] == places
    references = [weakref.ref(given[number]) for number in (0, 1, 3)]
    del given, results
    gc.collect()
    assert all(reference() is None for reference in references)
    kept = [made.kept(number) for number in range(4)]
    assert [each.storage_offset() for each in kept] == starts
    assert torch.equal(kept[0], torch.arange(6.0)) and torch.equal(kept[1], torch.arange(2.0, 6.0))
    assert torch.equal(kept[3], torch.ones(2)) and not made.unheld() and made.room is None
    del kept
    assert made.unheld() and made.free()


@pytest.mark.parametrize("roles, calls", [(Roles(taken=frozenset({0})), 3), (Roles(), 1)], ids=["backward", "other"])
def test_calls_that_run_as_they_are_hold_nothing(roles: Roles, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given up dies as a call uses it up, in the calls before one is recorded, too."""
    monkeypatch.setattr(graphs, "MUCH_KEPT", 1)
    dead: list[bool] = []

    def call(args: list[Any]) -> tuple[Any, ...]:
        kept, grad = args
        args.clear()
        made, reference = kept * grad, weakref.ref(kept)
        del kept
        dead.append(reference() is None)
        return (made,)

    run = Recorded(call, TapeRecorder(), roles=roles)
    with torch.no_grad():
        for step in range(calls):
            args = [torch.full((3,), float(step)), torch.ones(3)]
            assert torch.equal(run(args)[0], torch.full((3,), float(step)))
    assert dead == [True] * calls
