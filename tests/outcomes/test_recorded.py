"""Outcomes whose graphs are recorded as CUDA graphs, and what of a GPU a later process must find again."""

from __future__ import annotations

import base64
import functools
import json
import marshal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand import events
from argand.backends import cudagraphs
from argand.outcomes.references import Describer, Unstorable
from argand.outcomes.resolver import Mismatch, Resolver
from argand.runtime import cache, environment, stored_modules
from argand.runtime.gpu.cuda_graphs import stored_recordings
from argand.runtime.gpu.cuda_graphs.graphs import Roles
from helpers import collected
from outcomes.processes import STORED, Program
from runtime.gpu.tape_recorder import Tape, TapeRecorder, tensors

MODEL = """
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    def forward(self, x):
        return self.second(F.gelu(self.first(x)))

TRAINED = False

def step(net, f, x):
    if not TRAINED:
        with torch.no_grad():
            return [f(x)]
    net.zero_grad()
    found = f(x)
    found.pow(2).sum().backward()
    return [found.detach(), net.first.weight.grad, net.second.bias.grad]

def check(compile):
    torch.manual_seed(0)
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    fast = compile(net, mode="reduce-overhead")
    for number in range(5):
        x = torch.randn(4, 6)
        for one, two in zip(step(net, fast, x), step(other, other, x)):
            torch.testing.assert_close(one, two)
"""


class Rerun(TapeRecorder):
    """A recorder whose replays call again what was recorded: kernels of argand's leave nothing on a tape."""

    def record(
        self, run: Callable[[], Any], room: list[Tape], *, draws: bool = False
    ) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        results = run()

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(tensors(results), tensors(run())):
                if old is not new:
                    old.copy_(new)

        return replay, results


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch(cache_dir=str(tmp_path / "cache"), **STORED):
        yield


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Rerun:
    """Of graphs of the CPU, in this process and in later ones."""
    made = Rerun()
    recorded = functools.partial(cudagraphs.with_cuda_graphs, recorder=lambda index: made, kind="cpu")
    monkeypatch.setattr(cudagraphs, "with_cuda_graphs", recorded)
    monkeypatch.setattr(stored_recordings, "recorder_of", lambda index: made)
    return made


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path, MODEL)


@pytest.mark.parametrize("trained", [False, True])
def test_later_processes_record_what_the_first_did(program: Program, recorder: Rerun, trained: bool) -> None:
    program.edit("TRAINED = False", f"TRAINED = {trained}")
    graphs = 2 if trained else 1
    assert program.run() == ["stored"], program.reasons
    assert recorder.recorded >= graphs and recorder.replayed > 0
    recorder.recorded = recorder.replayed = 0
    spans: list[str] = []
    remove = events.bus.subscribe(lambda event: spans.append(event.data["span"]), ("span_begin",))
    try:
        assert program.run() == ["hit"], program.reasons
    finally:
        remove()
    assert recorder.recorded >= graphs and recorder.replayed > 0
    assert spans.count("compile_graph") == graphs
    assert not {"trace_inference", "trace_joint", "passes", "schedule"} & {*spans}


def test_what_is_recorded_is_not_what_the_default_mode_runs(program: Program, recorder: Rerun) -> None:
    assert program.run() == ["stored"], program.reasons
    program.edit(', mode="reduce-overhead"', "")
    assert program.run() == ["stored"], program.reasons
    assert (recorder.recorded, recorder.replayed) == (1, 4)


def test_reasons_against_a_recording_are_said_again(
    program: Program, recorder: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudagraphs, "why_not", lambda *_: "nobody may")
    for cached in ("stored", "hit"):
        said: list[str] = []
        remove = events.bus.subscribe(lambda event, said=said: said.append(event.text()), ("fallback",))
        try:
            assert program.run() == [cached], program.reasons
        finally:
            remove()
        assert sum(text.endswith("nobody may") for text in said) == 1, said
    assert recorder.recorded == 0


def test_a_process_that_can_record_nothing_stores_what_others_record(
    program: Program, recorder: Rerun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(stored_recordings, "unfit_memory", lambda: "torch keeps no memory")
        assert program.run() == ["stored"], program.reasons
        assert program.run() == ["hit"], program.reasons
        assert recorder.recorded == 0
    assert program.run() == ["hit"], program.reasons
    assert (recorder.recorded, recorder.replayed) == (1, 4)


def test_roles_outlive_the_process() -> None:
    roles = Roles(
        frozenset({1, 4}), frozenset({2}), frozenset(), frozenset({0, 3}), varying=True, draws=True, seeded=True
    )
    assert Roles.of(roles.described()) == roles
    assert Roles.of(Roles().described()) == Roles()


def test_calls_know_where_their_programs_are() -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        return tuple(args)

    def recorded(of: Callable[..., Any]) -> Callable[..., Any]:
        return stored_recordings.recorded(
            of, lambda index: TapeRecorder(), 0, name="graph", kind="forward", asked=True, roles=Roles(draws=True)
        )

    assert stored_modules.kept_as(call) is None
    assert stored_modules.kept_as(recorded(call)) is None
    stored = stored_modules.marked(lambda args: tuple(args), "key", "forward")
    assert stored_modules.kept_as(stored) == ("key", ())
    found = stored_modules.kept_as(recorded(stored))
    assert found == ("key", ("forward", True, "", 0, (), (), (), (), False, True, False))


# ---------------------------------------------------------------------- which GPU


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of this machine's GPUs, which are in use."""
    names = ["one kind", "one kind"]
    environment._gpu.cache_clear()
    monkeypatch.setattr(environment, "_gpu", lambda index: f"cuda:{index} {names[index]}")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    return names


def _described(value: object) -> Describer:
    describer = Describer((lambda: None).__code__, {}, {})
    assert describer.row(value) == 0
    return describer


@pytest.mark.parametrize("name", ["cuda:0", "cuda:1", "cuda"])
def test_devices_are_gpus_of_the_same_kind(gpus: list[str], name: str) -> None:
    device = torch.device(name)
    rows = _described(device).rows
    assert Resolver(rows, {}, None).object(0) == device  # type: ignore[arg-type]
    gpus[device.index or 0] = "another kind"
    with pytest.raises(Mismatch, match="another GPU"):
        Resolver(rows, {}, None).object(0)  # type: ignore[arg-type]


def test_devices_that_are_gone(gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _described(torch.device("cuda:1")).rows
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with pytest.raises(Mismatch, match="another GPU"):
        Resolver(rows, {}, None).object(0)  # type: ignore[arg-type]
    with pytest.raises(Unstorable, match="tensors on"):
        _described(torch.device("cuda:1"))
    with pytest.raises(Unstorable, match="tensors on"):
        _described(torch.device("mps"))
    assert _described(torch.device("cpu")).rows


def test_the_current_gpu_is_part_of_the_key(gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    known = [environment.current_gpu()]
    gpus[0] = "another kind"
    known.append(environment.current_gpu())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    known.append(environment.current_gpu())
    gpus.append("one kind")
    known.append(environment.current_gpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    known.append(environment.current_gpu())
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    known.append(environment.current_gpu())
    assert len(set(known)) == len(known)


def test_programs_are_for_the_gpu_of_the_same_name_and_kind(gpus: list[str]) -> None:
    text, gpu = "def call(args):\n    return tuple(args)\n", {"cuda:1": "cuda:1 one kind"}
    code = base64.b64encode(marshal.dumps(compile(text, "stored", "exec"))).decode()
    content = {"text": text, "code": code, "events": [], "constants": {}, "gpus": gpu, "guessed": False}
    cache.keep("a" * 40, json.dumps(content).encode(), cache.PROGRAM)
    assert stored_modules.load("a" * 40, "inference") is not None
    gpus[1] = "another kind"
    with collected("cache") as seen:
        assert stored_modules.load("a" * 40, "inference") is None
    assert any("another GPU" in event.text() for event in seen)
