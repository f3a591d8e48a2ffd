"""Records what a device is given to do as a CUDA graph.

Graphs of a device share one pool of memory for temporaries, so that they must run one after the other: `lock` for
threads, an event for streams.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from argand.graph import compat
from argand.locks import fork_safe_lock


class Recorder(Protocol):
    """What `graphs.Recorded` needs of a device.

    Arguments:
        lock: held while a call is recorded or replayed; re-entrant.
        active: the thread that holds `lock` is in such a call.
    """

    lock: Any
    active: bool

    def capturing(self) -> bool:
        """Whether what the current stream is given is being recorded, by anybody."""

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """A function that does on the current stream what `run` did, and what `run` returned.

        Nothing that `run` queues is done while it is recorded. Its results are undefined before the first replay;
        their memory is the recording's, and lives as long as the function or they do.
        """

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Inside, work on the current stream comes after that of earlier turns, on whichever stream."""

    def placing(self) -> contextlib.AbstractContextManager[None]:
        """Inside, tensors are made that are used in turns only: when they die, only such get their memory."""


class CudaRecorder:
    """A GPU's.

    Arguments:
        index: of the GPU.
    """

    def __init__(self, index: int) -> None:
        self.lock = fork_safe_lock()
        self.active = False
        self._index = index
        self._pool: Any = None
        self._stream: Any = None
        self._anchor: Any = None
        self._event: Any = None

    def capturing(self) -> bool:
        """Whether the current stream of the current device is recorded."""
        return bool(torch.cuda.is_current_stream_capturing())

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See `Recorder`.

        Raises:
            RuntimeError: something was done that CUDA graphs cannot hold.
        """
        with torch.cuda.device(self._index):
            self._prepare()
            if self._anchor is None:
                # The pool dies with the last graph in it, and cannot be used again: one graph stays.
                self._anchor = self._record(lambda: torch.empty(1, device=f"cuda:{self._index}").zero_())
            graph, results = self._record(run)
        return graph.replay, results

    def _prepare(self) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._index)
            self._pool = torch.cuda.graph_pool_handle()
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(self._index))

    def _record(self, run: Callable[[], Any]) -> tuple[Any, Any]:
        """Record on the side stream; leaves it, whatever happens."""
        torch.cuda.synchronize(self._index)
        graph: Any = torch.cuda.CUDAGraph()
        with _without_collections(), torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = run()
            except BaseException:
                # What is wrong is said by the error at hand, not by what ending a broken recording raises.
                with contextlib.suppress(RuntimeError):
                    self._end(graph)
                self._recover()
                raise
            self._end(graph)
        return graph, results

    def _end(self, graph: Any) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            compat.end_allocating_to_pool(self._index, self._pool)
            raise

    def _recover(self) -> None:
        """After a recording that could not be ended torch's generator still counts for it: a whole one ends that."""
        graph: Any = torch.cuda.CUDAGraph()
        with contextlib.suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(self._index)):
            graph.capture_begin(capture_error_mode="thread_local")
            torch.empty(1, device=f"cuda:{self._index}").zero_()
            graph.capture_end()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """See `Recorder`."""
        stream = torch.cuda.current_stream(self._index)
        stream.wait_event(self._event)
        try:
            yield
        finally:
            self._event.record(stream)

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """See `Recorder`: memory of the side stream, which runs nothing by itself."""
        with torch.cuda.device(self._index):
            self._prepare()
            with torch.cuda.stream(self._stream):
                yield


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
