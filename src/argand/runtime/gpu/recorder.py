"""Records what a device is given to do as a CUDA graph.

A recording is made by the driver alone, in memory that torch sets apart for the thread that records. Neither torch's
generators nor its graphs take part, so that a recording that fails leaves nothing behind: whatever happens, the stream
stops recording and the thread's memory comes from where it came from before.

Graphs of a device share one pool of memory for temporaries, so that they must run one after the other: `lock` for
threads, events for streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from argand.locks import fork_safe_lock
from argand.runtime.gpu.driver import Driver, driver

_OF_THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile is their own affair
_DEFAULT_STREAM = 0
MOST_MEMORY = 0.25  # of the GPU's, for recordings that nobody asked for


class Recorder(Protocol):
    """What `graphs.Recorded` needs of a device.

    Arguments:
        lock: held while a call is recorded or replayed; re-entrant.
        active: the thread that holds `lock` is in such a call.
        lent: recordings, by the addresses of results that they leave where they are for backwards.
        parameters: those that calls got, by their addresses: backwards get what was saved of them.
    """

    lock: Any
    active: bool
    lent: weakref.WeakValueDictionary[int, Any]
    parameters: weakref.WeakValueDictionary[int, torch.Tensor]

    def capturing(self) -> bool:
        """Whether what the current stream is given is being recorded, by anybody."""

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """A function that does on the current stream what `run` did, and what `run` returned.

        Nothing that `run` queues is done while it is recorded. Its results are undefined before the first replay;
        their memory is the recording's, and lives as long as the function or they do.
        """

    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, work on the current stream comes after that of earlier turns, on whichever stream."""

    def placing(self) -> contextlib.AbstractContextManager[None]:
        """Inside, tensors are made that are used in turns only: when they die, only such get their memory."""

    def mark(self) -> Any:
        """An event with a time (`torch.cuda.Event`) on the current stream."""

    def crowded(self) -> str:
        """Why recordings that nobody asked for would take too much memory; empty if they do not."""


class CudaRecorder:
    """A GPU's.

    Arguments:
        index: of the GPU.
    """

    def __init__(self, index: int) -> None:
        self.lock = fork_safe_lock()
        self.active = False
        self.lent: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.parameters: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._index = index
        self._pool: Any = None
        self._stream: Any = None
        self._turn: _Turn | None = None
        self._bytes = 0  # of the pool
        self._graphs: weakref.WeakSet[Callable[[], None]] = weakref.WeakSet()

    def capturing(self) -> bool:
        """Whether the current stream of the current device is recorded."""
        return bool(torch.cuda.is_current_stream_capturing())

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See `Recorder`.

        Raises:
            GpuError, RuntimeError: something was done that CUDA graphs cannot hold.
        """
        with self.placing(), _without_collections():
            torch.cuda.synchronize(self._index)
            before = torch.cuda.memory_reserved(self._index)
            graph, results = _capture(driver(), self._stream.cuda_stream, run)
            replay = _executable(driver(), self._index, graph)
            self._bytes += max(torch.cuda.memory_reserved(self._index) - before, 0)
        self._graphs.add(replay)
        return replay, results

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """See `Recorder`: memory of the side stream, which runs nothing by itself, from a pool of its own."""
        with torch.cuda.device(self._index):
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._index)
            if self._pool is None or not self._graphs:  # nothing needs the old one, whose memory is free then
                self._pool, self._bytes = torch.cuda.MemPool(), 0
            with torch.cuda.stream(self._stream), torch.cuda.use_mem_pool(self._pool, self._index):
                yield

    def mark(self) -> Any:
        """See `Recorder`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._index))
        return event

    def crowded(self) -> str:
        """See `Recorder`. Memory of the pool is nobody else's until the last recording is gone."""
        most = int(torch.cuda.get_device_properties(self._index).total_memory * MOST_MEMORY)
        return f"recordings take more than {most >> 20} MB of the GPU's memory" if self._bytes > most else ""

    def turn(self) -> _Turn:
        """See `Recorder`."""
        if self._turn is None:
            self._turn = _Turn(self._index)
        return self._turn


class _Turn:
    """Lets replays wait for each other. On the default stream alone, which most programs use, nothing is to be done.

    Arguments:
        index: of the GPU.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._stream_of = torch._C._cuda_getCurrentRawStream
        self._last = _DEFAULT_STREAM
        self._event: Any = None

    def __enter__(self) -> None:
        stream = self._stream_of(self._index)
        if stream == self._last == _DEFAULT_STREAM:
            return
        if self._event is None:
            self._event = torch.cuda.Event()
        if self._last == _DEFAULT_STREAM:  # what replays in other streams end with, their event tells
            self._event.record(torch.cuda.default_stream(self._index))
        torch.cuda.current_stream(self._index).wait_event(self._event)

    def __exit__(self, *error: object) -> None:
        self._last = self._stream_of(self._index)
        if self._last != _DEFAULT_STREAM:
            self._event.record(torch.cuda.current_stream(self._index))


def _capture(cuda: Driver, stream: int, run: Callable[[], Any]) -> tuple[ctypes.c_void_p, Any]:
    """The driver's graph of what `run` gives to a stream, and what it returned. The stream never stays recording."""
    what, handle, graph = "recording a CUDA graph", ctypes.c_void_p(stream), ctypes.c_void_p()
    done = False
    try:
        cuda.call(what, "cuStreamBeginCapture_v2", handle, _OF_THIS_THREAD)
        results = run()
        done = True
    finally:
        state = ctypes.c_int()
        cuda.library.cuStreamIsCapturing(handle, ctypes.byref(state))
        code = cuda.library.cuStreamEndCapture(handle, ctypes.byref(graph)) if state.value else 0
        if not done and graph.value:  # else what is wrong is said by the error at hand, not by the end that it caused
            cuda.library.cuGraphDestroy(graph)
    if code or not graph.value:
        cuda.fail(code, what)
    return graph, results


def _executable(cuda: Driver, index: int, graph: ctypes.c_void_p) -> Callable[[], None]:
    """A function that queues the graph on the current stream."""
    what, made, context = "making a CUDA graph", ctypes.c_void_p(), ctypes.c_void_p(cuda.context(index))
    try:
        cuda.call(what, "cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
    finally:
        cuda.library.cuGraphDestroy(graph)
    library, stream_of, popped = cuda.library, torch._C._cuda_getCurrentRawStream, ctypes.c_void_p()
    push, pop, launch = library.cuCtxPushCurrent_v2, library.cuCtxPopCurrent_v2, library.cuGraphLaunch

    def replay() -> None:
        push(context)  # the default stream is the current context's
        try:
            code = launch(made, ctypes.c_void_p(stream_of(index)))
        finally:
            pop(ctypes.byref(popped))
        if code:
            cuda.fail(code, "replaying a CUDA graph")

    weakref.finalize(replay, library.cuGraphExecDestroy, made).atexit = False
    return replay


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Finalizers of garbage may queue work, or free what may not be freed while recording: they wait."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def recorder_of(index: int) -> CudaRecorder:
    """The one of a GPU."""
    return CudaRecorder(index)
