"""Arenas of GPUs, with streams that a test says: who may use which memory, and when."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from argand.runtime.arena import MAX_LAYOUTS, arena_pool
from argand.runtime.gpu.device import arena
from argand.runtime.gpu.device.arena import CudaStreams, DeviceArenas


class Streams:
    """Streams of a device that is the CPU."""

    def __init__(self, most: int = 1 << 20) -> None:
        self.current: int | None = 7
        self.most = most

    def lasting(self) -> int | None:
        return self.current

    def most_held(self) -> int:
        return self.most


def layout(made: Any) -> tuple[torch.Tensor, ...]:
    return (made.tensor(0, (4,), (1,), torch.float32), made.tensor(512, (2, 3), (1, 2), torch.int64))


def sized(made: Any, n: int) -> tuple[torch.Tensor, ...]:
    return (made.tensor(0, (n,), (1,), torch.float32),)


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def pool(streams: Streams) -> DeviceArenas:
    return DeviceArenas("cpu", streams)


def test_one_arena_serves_call_after_call_and_its_tensors_are_made_once(pool: DeviceArenas) -> None:
    one = pool.take(1024, layout)
    views = one.views[layout]
    assert views[0].data_ptr() == one.storage.data_ptr() and views[1].data_ptr() == one.storage.data_ptr() + 512
    assert views[1].stride() == (1, 2) and views[1].dtype is torch.int64
    pool.give(one)
    two = pool.take(700, layout)
    assert two is one and two.views[layout] is views


def test_calls_that_overlap_and_other_streams_have_their_own(pool: DeviceArenas, streams: Streams) -> None:
    one, two = pool.take(64, layout_of_nothing), pool.take(64, layout_of_nothing)
    assert one is not two
    pool.give(one)
    streams.current = 8
    other = pool.take(64, layout_of_nothing)
    assert other is not one and other.stream == 8
    pool.give(other)
    streams.current = 7
    assert pool.take(64, layout_of_nothing) is one


def layout_of_nothing(made: Any) -> tuple[torch.Tensor, ...]:
    return ()


def test_an_arena_goes_back_to_the_stream_that_it_was_taken_on(pool: DeviceArenas, streams: Streams) -> None:
    one = pool.take(64, layout_of_nothing)
    streams.current = 8
    pool.give(one)
    assert pool.take(64, layout_of_nothing) is not one


def test_what_is_recorded_shares_memory_with_nobody(pool: DeviceArenas, streams: Streams) -> None:
    one = pool.take(64, layout_of_nothing)
    pool.give(one)
    streams.current = None
    recorded = pool.take(64, layout_of_nothing)
    assert recorded is not one and recorded.stream is None
    pool.give(recorded)
    assert pool.take(64, layout_of_nothing) is not recorded
    streams.current = 7
    assert pool.take(64, layout_of_nothing) is one


def test_a_larger_one_replaces_it_and_a_huge_one_is_not_kept(pool: DeviceArenas, streams: Streams) -> None:
    pool.give(pool.take(64, layout_of_nothing))
    large = pool.take(4096, layout_of_nothing)
    assert large.nbytes == 4096
    pool.give(large)
    assert pool.take(64, layout_of_nothing) is large
    streams.most = 4000
    pool.give(large)
    assert pool.take(64, layout_of_nothing) is not large


def test_sizes_have_views_of_their_own_but_not_for_ever(pool: DeviceArenas) -> None:
    asked = []

    def nbytes(n: int) -> int:
        asked.append(n)
        return 4 * max(n, 1000)

    first = pool.take_sized((sized, 3), nbytes)
    assert first.views[sized, 3][0].shape == (3,) and asked == [3]
    pool.give(first)
    for n in range(1, MAX_LAYOUTS + 5):
        made = pool.take_sized((sized, n), nbytes)
        assert made is first and made.views[sized, n][0].shape == (n,)
        pool.give(made)
    assert len(first.views) <= MAX_LAYOUTS
    assert pool.take_sized((sized, 5000), nbytes).nbytes == 20000


def test_clear_frees_what_no_call_uses(pool: DeviceArenas) -> None:
    one = pool.take(64, layout_of_nothing)
    pool.give(one)
    pool.clear()
    assert pool.take(64, layout_of_nothing) is not one


def test_threads_never_share_one(pool: DeviceArenas) -> None:
    seen: list[int] = []
    trouble: list[int] = []

    def work() -> None:
        for _ in range(300):
            made = pool.take(64, layout_of_nothing)
            if id(made) in seen:
                trouble.append(id(made))
            seen.append(id(made))
            seen.remove(id(made))
            pool.give(made)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble


def test_tensors_made_in_inference_mode_are_written_to_outside_of_it(pool: DeviceArenas) -> None:
    a = torch.ones(4)
    with torch.inference_mode():
        first = pool.take(1024, layout)
        torch.add(a, a, out=first.views[layout][0])
    assert not first.views[layout][0].is_inference()
    torch.add(a, a, out=first.views[layout][0])
    with torch.inference_mode():
        host = arena_pool.take(1024, layout)
    torch.add(a, a, out=host.views[layout][0])


class _Stream:
    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id


def test_which_streams_last(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, ids, asked = [0], {0: 0, 0x5555: 35, 0x7777: 0x7777}, []
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: raw[0], raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: raw[0] < 0)

    def current(index: int) -> _Stream:
        asked.append(raw[0])
        return _Stream(ids[raw[0]])

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    streams = CudaStreams(1)
    for handle, lasts in ((0, True), (0x5555, True), (0x7777, False), (0x5555, True), (0x7777, False)):
        raw[0] = handle
        assert streams.lasting() == (handle if lasts else None)
    assert asked == [0x5555, 0x7777]
    streams._kinds[-1] = True
    raw[0] = -1
    assert streams.lasting() is None


def test_a_gpu_has_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    arena._pools.cache_clear()
    try:
        assert arena.device_arenas("cuda:1") is arena.device_arenas("cuda") is not arena.device_arenas("cuda:0")
        arena.clear()
    finally:
        arena._pools.cache_clear()
