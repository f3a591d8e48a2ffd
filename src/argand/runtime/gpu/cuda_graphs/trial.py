"""Whether a call that nobody asked to record is worth recording: measured, on the program's own calls.

A recording saves the host's time. Where the GPU is busy for longer than the host needs to feed it nothing is gained,
nor where a call is short. What the host needs is not that of one call alone: between calls the program does other
things, such as the rest of a training step. So a GPU that has nothing left to do when a call begins waits for the host,
though it may take longer for this call than the host does. The program is not to notice: no call waits for the GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from argand.runtime.gpu.cuda_graphs.recorder import Recorder

SAMPLES = 3  # calls of each way that are timed, the fastest of which counts: others may use the GPU, too
ROUNDS = 3  # of samples before a call is given up for a GPU that is busy
PAUSE = 8  # calls between them
SHORTEST = 100e-6  # seconds of the host; a replay with its checks and copies takes some ten microseconds
GAIN = 0.9  # of the time that the GPU takes for a call, the least that the host takes
LATE = 2.0  # times the host's time that the GPU takes for a call, though it had waited for the host before, and is busy
MOST_RESULTS = 256 << 20  # bytes of results, which a recording keeps a second time
# Threads that never wait for a whole GPU: of data loaders, progress bars and notebooks, torch.compile's, and argand's.
_QUIET_NAMES = ("argand-", "QueueFeederThread", "InductorSubproc", "subproc_worker_timer")
_QUIET_TARGETS = ("(_pin_memory_loop)",)
_QUIET_MODULES = frozenset({"multiprocessing.resource_sharer"})
_QUIET_PACKAGES = frozenset({"tqdm", "ipykernel", "IPython"})

T = TypeVar("T")


class Trial:
    """Times calls, then replays.

    Arguments:
        recorder: of the device.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls = _Samples(recorder)
        self._replays = _Samples(recorder)
        self._rounds = 1
        self._pause = 0

    def call(self, run: Callable[[], T]) -> T:
        """What `run` returns: a call as it is."""
        if self._pause:
            self._pause -= 1
            return run()
        return self._calls.timed(run)

    def replay(self, run: Callable[[], T]) -> T:
        """What `run` returns: a replay."""
        return self._replays.timed(run)

    def why_not(self) -> str | None:
        """Why calls are not to be recorded; empty if they are, None while that is not known."""
        times = self._calls.times()
        if times is None:
            return None
        host, device = times
        if host < SHORTEST:
            return f"a call takes the host {host * 1e6:.0f} microseconds only"
        if device * GAIN > host and not (self._awaited() and device <= LATE * host):
            if self._rounds < ROUNDS:
                self._calls, self._rounds, self._pause = _Samples(self._recorder), self._rounds + 1, PAUSE
                return None
            return f"the GPU takes {device * 1e3:.2f} ms for a call, the host {host * 1e3:.2f} ms"
        return other_threads()

    def _awaited(self) -> bool:
        """Whether the device had nothing left to do when calls began. In the first calls of a program it never has: a
        device that is always behind falls back further with each call, and has done so by the second round."""
        return self._rounds > 1 and self._calls.awaited()

    def verdict(self) -> str | None:
        """Why replays are to end; empty if they gain time, None while that is not known."""
        times, before = self._replays.times(), self._calls.times()
        if times is None or before is None:
            return None
        if self._awaited() and times[1] - before[1] <= before[0] - times[0]:
            return ""  # what the GPU takes longer, for copies of results, is less than what it waited for the host
        now, then = max(times), max(before)
        # As long takes a replay where the GPU is busy just so long: the host still is free sooner for what comes next.
        return "" if now <= then else f"a replay takes {now * 1e3:.2f} ms, a call {then * 1e3:.2f} ms"


class _Samples:
    """Times of the host and the device, in seconds."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._taken: list[tuple[float, Any, Any]] = []
        self._awaited = 0

    def timed(self, run: Callable[[], T]) -> T:
        if len(self._taken) >= SAMPLES:
            return run()
        begin = self._recorder.mark()
        start = time.perf_counter()
        results = run()
        seconds = time.perf_counter() - start
        self._awaited += bool(begin.query())
        self._taken.append((seconds, begin, self._recorder.mark()))
        return results

    def awaited(self) -> bool:
        """Whether the device had come to each call before the host was through with it."""
        return self._awaited == len(self._taken)

    def times(self) -> tuple[float, float] | None:
        """The least; None while calls or the device are to come."""
        if len(self._taken) < SAMPLES or not self._taken[-1][2].query():
            return None
        device = min(begin.elapsed_time(end) * 1e-3 for _, begin, end in self._taken)
        return min(seconds for seconds, *_ in self._taken), device


def other_threads() -> str:
    """Why it is not safe to record now; empty if it is.

    While a stream is recorded no thread may wait for the whole device: its call would fail, and the recording too.
    """
    current = threading.current_thread()
    for thread in threading.enumerate():
        if thread is current or isinstance(thread, threading._DummyThread):
            continue  # (threads that Python did not start are those that run backwards)
        if thread.name.startswith(_QUIET_NAMES) or thread.name.endswith(_QUIET_TARGETS):
            continue
        if getattr(getattr(thread, "_target", None), "__module__", "") in _QUIET_MODULES:
            continue  # hands files to other processes
        if type(thread).__module__.partition(".")[0] in _QUIET_PACKAGES:
            continue
        if thread is threading.main_thread() and isinstance(current, threading._DummyThread):
            continue  # it waits for this backward
        return f"the thread {thread.name} may wait for the GPU meanwhile"
    return ""
