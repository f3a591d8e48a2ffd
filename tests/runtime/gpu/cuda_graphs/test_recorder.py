"""How the driver is asked to record, with a driver that only notes what it is asked."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from argand.errors import GpuError
from argand.runtime.gpu.cuda_graphs import recorder
from argand.runtime.gpu.cuda_graphs.recorder import CudaRecorder, _capture, _executable, _Room, _Turn
from argand.runtime.gpu.device.driver import Driver


class Library:
    """A driver's library: functions that note their names and fail where they are told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.codes: dict[str, int] = {}
        self.capturing = 0
        self.made = 7

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args: Any) -> int:
            self.calls.append(name)
            code = self.codes.get(name, 0)
            if name == "cuStreamBeginCapture_v2" and not code:
                self.capturing = 1
            elif name == "cuStreamIsCapturing":
                args[1]._obj.value = self.capturing
            elif name == "cuStreamEndCapture":
                self.capturing = 0
                args[1]._obj.value = None if code else self.made
            elif name == "cuGraphInstantiateWithFlags":
                args[0]._obj.value = 8
            return code

        return function


class FakeDriver(Driver):
    def __init__(self) -> None:
        self.library: Any = Library()

    def context(self, index: int) -> int:
        return 5

    def text_of(self, code: int) -> str:
        return f"error {code}"


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def test_a_stream_stops_recording(driver: FakeDriver) -> None:
    graph, results = _capture(driver, 3, lambda: "results")
    assert results == "results" and graph.value == 7 and not driver.library.capturing
    assert "cuGraphDestroy" not in driver.library.calls


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("invalid", [False, True])
def test_whatever_happens_it_does(driver: FakeDriver, error: BaseException, invalid: bool) -> None:
    """The error is the program's, not the one that ending a broken recording gives."""

    def fail() -> None:
        raise error

    driver.library.codes["cuStreamEndCapture"] = 901 if invalid else 0
    with pytest.raises(type(error)):
        _capture(driver, 3, fail)
    assert not driver.library.capturing
    assert ("cuGraphDestroy" in driver.library.calls) != invalid


@pytest.mark.parametrize("name", ["cuStreamBeginCapture_v2", "cuStreamEndCapture"])
def test_a_driver_that_refuses_is_an_error(driver: FakeDriver, name: str) -> None:
    driver.library.codes[name] = 904
    with pytest.raises(GpuError, match="recording a CUDA graph.*error 904"):
        _capture(driver, 3, lambda: None)
    assert not driver.library.capturing


def test_a_recording_that_somebody_else_ended_is_an_error(driver: FakeDriver) -> None:
    def end() -> None:
        driver.library.capturing = 0

    with pytest.raises(GpuError):
        _capture(driver, 3, end)


def test_a_graph_is_launched_in_its_context_and_destroyed_with_its_function(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 11, raising=False)
    calls, room = driver.library.calls, _Room("pool")
    replay = _executable(driver, 0, ctypes.c_void_p(7), room)
    assert calls == ["cuGraphInstantiateWithFlags", "cuGraphDestroy"]
    del calls[:]
    replay()
    assert calls == ["cuCtxPushCurrent_v2", "cuGraphLaunch", "cuCtxPopCurrent_v2"]
    driver.library.codes["cuGraphLaunch"] = 700
    with pytest.raises(GpuError, match="replaying"):
        replay()
    assert calls[-1] == "cuCtxPopCurrent_v2"
    del replay
    gc.collect()
    assert calls[-1] == "cuGraphExecDestroy"


def test_a_graph_that_cannot_be_made_is_destroyed(driver: FakeDriver) -> None:
    driver.library.codes["cuGraphInstantiateWithFlags"] = 2
    with pytest.raises(GpuError, match="no memory left"):
        _executable(driver, 0, ctypes.c_void_p(7), _Room("pool"))
    assert driver.library.calls[-1] == "cuGraphDestroy"


class Streams:
    """Current streams, and events that note what they are recorded in and waited for by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.log: list[tuple[str, int]] = []
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.current, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream(self, self.current))
        monkeypatch.setattr(torch.cuda, "default_stream", lambda index: Stream(self, 0))
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self))


class Stream:
    def __init__(self, streams: Streams, handle: int) -> None:
        self.streams, self.handle = streams, handle

    def wait_event(self, event: Event) -> None:
        self.streams.log.append(("waits", self.handle))


class Event:
    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def record(self, stream: Stream) -> None:
        self.streams.log.append(("recorded", stream.handle))


def test_turns_on_the_default_stream_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    turn = _Turn(0)
    for _ in range(3):
        with turn:
            pass
    assert streams.log == []


def test_turns_on_several_streams_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    turn = _Turn(0)
    expected: list[tuple[str, int]] = []
    for before, now in ((0, 0), (0, 4), (4, 4), (4, 9), (9, 0), (0, 0), (0, 9)):
        streams.current = now
        with turn:
            pass
        if before == now == 0:
            continue
        expected += [("recorded", 0)] * (before == 0) + [("waits", now)] + [("recorded", now)] * (now != 0)
    assert streams.log == expected


def test_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lasts is alone when it is recorded; what does not shares the newest room that is in use. What is apart stays
    alone, and what the calls before it left in torch's cache is given back first."""
    given_back: list[bool] = []
    monkeypatch.setattr(recorder.torch.cuda, "empty_cache", lambda: given_back.append(True))
    monkeypatch.setattr(recorder.torch.cuda, "MemPool", lambda: object())
    monkeypatch.setattr(recorder.torch.cuda, "device", lambda index: torch.no_grad())
    made = CudaRecorder(0)
    one = made.room(lasting=False)
    assert made.room(lasting=False) is one
    two = made.room(lasting=True)
    assert two is not one and made.room(lasting=True) is not two
    three = made.room(lasting=True)
    assert made.room(lasting=False) is three and not given_back
    four = made.room(lasting=True, apart=True)
    assert four is not three and made.room(lasting=False) is three and given_back == [True]
    del three
    assert made.room(lasting=False) not in (one, two)
