"""Records what a device is given to do as a CUDA graph.

A recording is made by the driver alone, in memory that torch sets apart for the thread that records. Neither torch's
generators nor its graphs take part, so that a recording that fails leaves nothing behind: whatever happens, the stream
stops recording and the thread's memory comes from where it came from before. Only kernels that draw random numbers
themselves need torch's graphs: they are recorded with a copy of the generator in its place.

Graphs of a device share memory for temporaries, so that they must run one after the other: `lock` for threads, events
for streams. What is to outlast a replay lies in a room that no graph had used before: temporaries of an earlier graph,
which its replays write to, are free memory for a later one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from argand import garbage_collection
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass
from argand.runtime.environment import UNCACHED
from argand.runtime.gpu.device import arena
from argand.runtime.gpu.device.driver import Driver, driver

_OF_THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile is their own affair
_DEFAULT_STREAM = 0
MOST_MEMORY = 0.25  # of the GPU's, for recordings that nobody asked for


def unfit_memory() -> str:
    """Why nothing can be recorded, whatever it is; empty if it can: each tensor would ask the driver for its memory,
    which it does not give while a stream is recorded."""
    setting = next((name for name in UNCACHED if name in os.environ), "")
    return f"{setting} is set, so that torch keeps no memory" if setting else ""


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

    def room(self, *, lasting: bool, apart: bool = False) -> Any:
        """Memory for a recording.

        Arguments:
            lasting: no other recording's replays write to what the recording leaves in it; else any may.
            apart: no recording is made in it but those for which it is given.
        """

    def unowned(self, tensor: torch.Tensor, room: Any) -> torch.Tensor:
        """The bytes of a tensor's storage, which is in `room`: when the storage dies they are free for what is recorded
        there, and stay memory of the room, which lives as long as this."""

    def record(self, run: Callable[[], Any], room: Any, *, draws: bool = False) -> tuple[Callable[[], None], Any]:
        """A function that does on the current stream what `run` did, and what `run` returned.

        Nothing that `run` queues is done while it is recorded. Its results are undefined before the first replay;
        their memory is of `room`, and lives as long as the function or they do.

        Arguments:
            draws: kernels draw from torch's generator; those of replays go on where it is.
        """

    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, work on the current stream comes after that of earlier turns, on whichever stream."""

    def placing(self, room: Any) -> contextlib.AbstractContextManager[None]:
        """Inside, tensors are made that are used in turns only: when they die, only such get their memory."""

    def mark(self) -> Any:
        """An event with a time (`torch.cuda.Event`) on the current stream."""

    def crowded(self) -> str:
        """Why recordings that nobody asked for would take too much memory; empty if they do not."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Room:
    """A pool of memory. It lives as long as a recording in it.

    Arguments:
        pool: torch's.
        bytes: that it has taken from the GPU.
    """

    pool: Any
    bytes: int = 0


class _Bytes:
    """The memory of a storage, as other libraries' arrays show theirs: it keeps the room, and not the storage."""

    def __init__(self, storage: torch.UntypedStorage, room: _Room) -> None:
        self.room = room
        place = (storage.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (storage.nbytes(),), "typestr": "|u1", "data": place, "version": 2}


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
        self._stream: Any = None
        self._newest: weakref.ref[_Room] | None = None
        self._rooms: weakref.WeakSet[_Room] = weakref.WeakSet()  # of recordings
        self._broken: list[Any] = []
        self._workspaces: _Room | None = None
        self._prepared: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._turn: _Turn | None = None

    def capturing(self) -> bool:
        """Whether the current stream of the current device is recorded."""
        return bool(torch.cuda.is_current_stream_capturing())

    def room(self, *, lasting: bool, apart: bool = False) -> _Room:
        """See `Recorder`. Others share the newest one: its lasting tensors stay allocated."""
        room = None if lasting or apart or self._newest is None else self._newest()
        if apart:
            torch.cuda.empty_cache()  # what calls that were not recorded have left: it would be there twice
        if room is None:
            with torch.cuda.device(self._index):
                room = _Room(torch.cuda.MemPool())
            if not apart:
                self._newest = weakref.ref(room)
        return room

    def unowned(self, tensor: torch.Tensor, room: _Room) -> torch.Tensor:
        """See `Recorder`."""
        return torch.as_tensor(_Bytes(tensor.untyped_storage(), room), device=tensor.device)

    def record(self, run: Callable[[], Any], room: _Room, *, draws: bool = False) -> tuple[Callable[[], None], Any]:
        """See `Recorder`.

        Raises:
            GpuError, RuntimeError: something was done that CUDA graphs cannot hold.
        """
        self._prepare_libraries()
        # Temporaries of calls that were not recorded: what is recorded has its own in the room.
        arena.clear(self._index)
        # Finalizers of garbage may queue work, or free what may not be freed while recording: they wait.
        with self.placing(room), garbage_collection.paused():
            before = torch.cuda.memory_reserved(self._index)
            if draws:
                replay, results = self._drawing(run, room)
            else:
                graph, results = _capture(driver(), self._side().cuda_stream, run)
                replay = _executable(driver(), self._index, graph, room)
            room.bytes += max(torch.cuda.memory_reserved(self._index) - before, 0)
        self._rooms.add(room)
        return replay, results

    def _drawing(self, run: Callable[[], Any], room: _Room) -> tuple[Callable[[], None], Any]:
        """By torch's graph, which leaves generators and allocators recording when it fails."""
        generator, handle = torch.cuda.default_generators[self._index], torch.cuda.graph_pool_handle()
        real, own, graph = generator.graphsafe_get_state(), generator.clone_state(), torch.cuda.CUDAGraph()
        try:
            generator.graphsafe_set_state(own)
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                results = run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the error at hand says what is wrong
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            self._broken.append(graph)  # torch's allocator of pinned memory asks it for ever
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._index, handle)
            raise
        finally:
            generator.graphsafe_set_state(real)

        def replay(room: _Room = room) -> None:
            own.set_state(generator.get_state())
            graph.replay()
            generator.set_offset(own.get_offset())

        return replay, results

    def _side(self) -> Any:
        """The stream that is recorded. It runs nothing by itself."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._index)
        return self._stream

    def _prepare_libraries(self) -> None:
        """Products keep a workspace for each thread and stream: not in a room, which may be given back.

        While the program has one thread, nobody is about to use those that there are. They are given back then, and all
        recordings, which replay one after the other, use the same memory.
        """
        thread = threading.current_thread()
        alone = sum(not isinstance(each, threading._DummyThread) for each in threading.enumerate()) <= 1
        if alone:
            torch._C._cuda_clearCublasWorkspaces()
        elif thread in self._prepared:
            return
        if self._workspaces is None:
            with torch.cuda.device(self._index):
                self._workspaces = _Room(torch.cuda.MemPool())
        with self.placing(self._workspaces):
            torch.cuda.current_blas_handle()
        self._prepared.add(thread)

    @contextlib.contextmanager
    def placing(self, room: _Room) -> Iterator[None]:
        """See `Recorder`."""
        device, stream = torch.cuda.device(self._index), torch.cuda.stream(self._side())
        with device, stream, torch.cuda.use_mem_pool(room.pool, self._index):
            yield

    def mark(self) -> Any:
        """See `Recorder`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._index))
        return event

    def crowded(self) -> str:
        """See `Recorder`. Memory of a room is nobody else's until its last recording is gone."""
        used = sum(room.bytes for room in self._rooms)
        most = int(torch.cuda.get_device_properties(self._index).total_memory * MOST_MEMORY)
        return f"recordings take more than {most >> 20} MB of the GPU's memory" if used > most else ""

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


def _executable(cuda: Driver, index: int, graph: ctypes.c_void_p, room: _Room) -> Callable[[], None]:
    """A function that queues the graph on the current stream, and keeps its memory."""
    what, executable, context = "making a CUDA graph", ctypes.c_void_p(), ctypes.c_void_p(cuda.context(index))
    try:
        cuda.call(what, "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    finally:
        cuda.library.cuGraphDestroy(graph)
    library, stream_of, popped = cuda.library, torch._C._cuda_getCurrentRawStream, ctypes.c_void_p()
    push, pop, launch = library.cuCtxPushCurrent_v2, library.cuCtxPopCurrent_v2, library.cuGraphLaunch

    def replay(room: _Room = room) -> None:
        push(context)  # the default stream is the current context's
        try:
            code = launch(executable, ctypes.c_void_p(stream_of(index)))
        finally:
            pop(ctypes.byref(popped))
        if code:
            cuda.fail(code, "replaying a CUDA graph")

    weakref.finalize(replay, library.cuGraphExecDestroy, executable).atexit = False
    return replay


@functools.cache
def recorder_of(index: int) -> CudaRecorder:
    """The one of a GPU."""
    return CudaRecorder(index)
