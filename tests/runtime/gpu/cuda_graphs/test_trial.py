"""Recording without being asked: where it is measured to gain time, and nowhere else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.resource_sharer import DupFd
from typing import Any

import pytest
import torch
from torch import nn

from argand.runtime.gpu.cuda_graphs import trial
from argand.runtime.gpu.cuda_graphs.graphs import Recorded, Roles
from argand.runtime.gpu.cuda_graphs.recording import Recording, Results
from argand.runtime.gpu.cuda_graphs.trial import PAUSE, ROUNDS, SAMPLES, Trial, other_threads
from helpers import collected
from runtime.gpu import tape_recorder
from runtime.gpu.tape_recorder import TapeRecorder


@dataclass
class Clock:
    """Time that passes when somebody says so."""

    seconds: float = 0.0

    def perf_counter(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def only_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests before may have left some running."""
    others = frozenset(threading.enumerate()) - {threading.current_thread(), threading.main_thread()}
    every = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in every() if thread not in others])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(trial, "time", made)
    monkeypatch.setattr(tape_recorder, "time", made)
    return made


def made(clock: Clock, function: Callable[..., Any], slow: float = 0.0, **roles: Any) -> tuple[Recorded, TapeRecorder]:
    """A call that takes the host `slow` seconds; its replay takes it none."""
    recorder = TapeRecorder()

    def call(args: list[Any]) -> tuple[Any, ...]:
        taken = list(args)
        args.clear()
        clock.seconds += slow
        return tuple(function(*taken))

    return Recorded(call, recorder, roles=Roles(**roles), asked=False), recorder


def calls(run: Recorded, count: int) -> None:
    for step in range(count):
        x = torch.full((3,), float(step))
        assert torch.equal(run([x])[0], x + 1)


def test_a_call_that_keeps_the_host_busy_is_recorded(clock: Clock) -> None:
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.01)
    with collected("fallback") as seen:
        calls(run, 12)
    assert recorder.recorded == 1 and recorder.replayed == 12 - 1 - SAMPLES and not run.reason and not seen
    assert run._trial is None  # decided


def test_short_calls_are_left_alone(clock: Clock) -> None:
    run, recorder = made(clock, lambda x: (x + 1,))
    with collected("fallback", "cudagraphs") as seen:
        calls(run, 8)
    assert recorder.recorded == 0 and "microseconds only" in run.reason
    [event] = seen  # no fallback, as nobody asked
    assert event.name == "cudagraphs" and event.data["outcome"] == "skipped" and event.data["reason"] == run.reason


def test_a_gpu_that_is_busy_longer_than_the_host_gains_nothing(clock: Clock) -> None:
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.001)
    recorder.behind = 0.005
    calls(run, 1 + ROUNDS * SAMPLES + (ROUNDS - 1) * PAUSE)
    assert not run.reason
    calls(run, 3)
    assert recorder.recorded == 0 and run.reason.startswith("the GPU takes 5.00 ms for a call, the host 1.00 ms")


def test_a_gpu_that_was_busy_with_something_else(clock: Clock) -> None:
    """One fast sample of several is enough, and there is a second chance."""
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002)
    recorder.behind = 0.005
    calls(run, 1 + SAMPLES)
    recorder.behind, clock.seconds = 0.0, 10.0
    calls(run, PAUSE + SAMPLES + 4)
    assert recorder.recorded == 1 and not run.reason


def test_a_gpu_that_waits_for_the_host_between_calls(clock: Clock) -> None:
    """It takes longer for this call than the host, and has nothing to do before: the program gains by a faster host."""
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002)
    recorder.behind = 0.003
    before = 1 + 2 * SAMPLES + PAUSE
    calls(run, before + 8)
    assert recorder.recorded == 1 and recorder.replayed == 8 and not run.reason
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002)
    recorder.behind, recorder.late = 0.003, True
    calls(run, 1 + ROUNDS * SAMPLES + (ROUNDS - 1) * PAUSE + 3)
    assert recorder.recorded == 0 and run.reason.startswith("the GPU takes 3.00 ms for a call, the host 2.00 ms")


def test_replays_that_gain_nothing_end(clock: Clock) -> None:
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002)
    calls(run, 1 + SAMPLES)
    recorder.behind = 0.003
    calls(run, 8)
    assert recorder.replayed == SAMPLES and run.reason.startswith("a replay takes 3.00 ms, a call 2.00 ms")


@pytest.mark.parametrize(("slower", "reason"), [(0.0045, ""), (0.006, "a replay takes 6.00 ms, a call 3.00 ms")])
def test_replays_that_take_the_gpu_longer_but_free_the_host(clock: Clock, slower: float, reason: str) -> None:
    """The GPU waits for the host between calls: it may take longer, by what the host takes less."""
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002)
    recorder.behind = 0.003
    calls(run, 1 + 2 * SAMPLES + PAUSE)
    recorder.behind = slower
    calls(run, 8)
    assert recorder.replayed == (SAMPLES if reason else 8) and run.reason.startswith(reason)


def test_a_backward_is_timed_before_its_forward_is_recorded(clock: Clock) -> None:
    """Else a model would take twice as many steps until all of it is recorded."""
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.002, taken=frozenset({0}))
    held = torch.zeros(3)
    for _ in range(1 + SAMPLES):
        assert torch.equal(run([held])[0], held + 1)
    forward = Recording(lambda: None, (), [], [], [], Results())
    recorder.lent[held.data_ptr()] = forward  # where a recorded forward leaves it
    for _ in range(3):
        assert torch.equal(run([held])[0], held + 1)
    assert recorder.recorded == 1 and recorder.replayed == 3


def test_nothing_is_recorded_beside_threads_that_may_wait_for_the_gpu(clock: Clock) -> None:
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.001)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loader")
    thread.start()
    calls(run, 8)
    stop.set()
    thread.join()
    assert recorder.recorded == 0 and "the thread loader may wait" in run.reason


@pytest.mark.parametrize(
    "name", ["Thread-3 (_pin_memory_loop)", "QueueFeederThread", "argand-import-triton", "TMonitor", "InductorSubproc"]
)
def test_threads_that_never_wait_are_no_hindrance(name: str) -> None:
    kind = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor" if name == "TMonitor" else "threading"})
    stop = threading.Event()
    thread = kind(target=stop.wait, name=name)
    thread.start()
    assert other_threads() == ""
    stop.set()
    thread.join()


def test_files_shared_with_other_processes_are_no_hindrance() -> None:
    """What `multiprocessing` starts once tensors are sent."""
    read, write = os.pipe()
    resource_sharer.stop()  # of tests before
    with open(read), open(write):
        DupFd(read)
        assert any(thread.name.endswith("(_serve)") for thread in threading.enumerate())
        assert other_threads() == ""
        resource_sharer.stop()


def test_memory_for_recordings_that_nobody_asked_for_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.001)
    recorder.crowd = "recordings take more than 9 MB of the GPU's memory"
    calls(run, 8)
    assert recorder.replayed == 0 and run.reason == recorder.crowd
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.001)
    monkeypatch.setattr("argand.runtime.gpu.cuda_graphs.graphs.MOST_RESULTS", 8)
    calls(run, 8)
    assert recorder.replayed == 0 and "which it would keep twice" in run.reason


def test_results_are_never_lent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may use them on a stream of its own after it dropped them."""
    monkeypatch.setattr("argand.runtime.gpu.cuda_graphs.recording.SMALL", 0)
    run, recorder = made(clock, lambda x: (x + 1,), slow=0.005)
    calls(run, 1 + SAMPLES)
    for step in range(6):
        (out,) = run([torch.full((3,), float(step))])
        [entry] = [entry for shape in run._shapes.values() for entry in shape.entries.values()]
        assert out.data_ptr() not in [each.data_ptr() for each in entry.ring[0]._large]
    assert recorder.recorded == 1


def test_a_trial_waits_for_the_device() -> None:
    recorder = TapeRecorder()
    tried = Trial(recorder)
    for _ in range(SAMPLES):
        assert tried.why_not() is None and tried.call(lambda: 5) == 5
    marks = [sample[2] for sample in tried._calls._taken]
    marks[-1].query = lambda: False
    assert tried.why_not() is None
    marks[-1].query = lambda: True
    assert "microseconds only" in str(tried.why_not())


def test_parameters_that_moved_are_tried_once_only(clock: Clock) -> None:
    weight = nn.Parameter(torch.ones(3))
    run, recorder = made(clock, lambda w, x: (w * x,), slow=0.005)
    with torch.no_grad():
        for step in range(14):
            if step == 9:
                weight.data = torch.full((3,), 2.0)
            x = torch.full((3,), float(step))
            assert torch.equal(run([weight, x])[0], weight * x)
    assert recorder.recorded == 2 and not run.reason


def test_constants() -> None:
    assert 0 < trial.GAIN < 1 and trial.SAMPLES % 2
