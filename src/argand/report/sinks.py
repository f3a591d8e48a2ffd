"""Installs what the settings ask for: structured trace, chrome trace, metrics file; keeps this process's metrics.

`refresh` is called where compiling begins. Metrics and counters are always kept (they cost microseconds a compile); the
files are written when `config.trace_dir`, `config.chrome_trace` or `config.metrics_file` names a place.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argand import files
from argand._core.calls import locked
from argand.config import config
from argand.events import CompileId, Event, bus
from argand.locks import fork_safe_lock
from argand.report.metrics import HEARD, KEPT, Collector, CompilationMetrics, Counters
from argand.report.tracefile import process_rank, to_json


class ProcessMetrics:
    """The metrics of every compile of this process (the last KEPT), and its counters."""

    counts_only = True
    """It needs nothing of what is loaded instead of captured."""

    def __init__(self) -> None:
        self.finished: deque[CompilationMetrics] = deque(maxlen=KEPT)
        self.counters = Counters()
        self._collector = Collector(self._done)
        self.listeners: list[Callable[[CompilationMetrics], None]] = []

    def __call__(self, event: Event) -> None:
        self.counters(event)
        self._collector(event)

    def _done(self, finished: CompilationMetrics, compile_id: CompileId) -> None:
        self.finished.append(finished)
        for listener in self.listeners:
            listener(finished)

    def clear(self) -> None:
        """Forget everything."""
        self.finished.clear()
        self.counters.clear()


class MetricsFile:
    """Appends each compile's metrics to a file, one JSON object a line; several processes may share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dead = False

    def __call__(self, finished: CompilationMetrics) -> None:
        if self._dead:
            return
        line = to_json({**finished.as_dict(), "pid": os.getpid(), "rank": process_rank()}) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = files.open_append(self.path)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            self._dead = True
            warnings.warn(f"argand: no metrics in {self.path}: {error}", stacklevel=2)


class _Installed:
    """What is subscribed now, by setting."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.metrics = ProcessMetrics()
        self.listening = False
        self.places: dict[str, str] = {"trace_dir": "", "chrome_trace": "", "metrics_file": ""}
        self.removers: dict[str, Callable[[], None]] = {}

    def refresh(self) -> None:
        if not self.listening:
            self.listening = True
            bus.subscribe(self.metrics, HEARD)
        for setting, now in self.places.items():
            wanted = getattr(config, setting)
            if wanted != now:
                self._change(setting, wanted)

    @locked
    def _change(self, setting: str, wanted: str) -> None:
        remove = self.removers.pop(setting, None)
        if remove is not None:
            remove()
        self.places[setting] = wanted
        if wanted:
            self.removers[setting] = _INSTALL[setting](self, Path(wanted).expanduser())


def _install_trace(installed: _Installed, path: Path) -> Callable[[], None]:
    from argand.report.writer import TraceSink

    return _until(TraceSink(path))


def _install_chrome(installed: _Installed, path: Path) -> Callable[[], None]:
    from argand.report.chromium import ChromeTraceSink

    sink = ChromeTraceSink(path)
    atexit.register(sink.close)
    return _until(sink)


def _install_metrics(installed: _Installed, path: Path) -> Callable[[], None]:
    listener = MetricsFile(path)
    installed.metrics.listeners.append(listener)
    return lambda: installed.metrics.listeners.remove(listener)


def _until(sink: Any) -> Callable[[], None]:
    """Subscribe; returns what unsubscribes and closes."""
    remove = bus.subscribe(sink)

    def end() -> None:
        remove()
        sink.close()

    return end


_INSTALL: dict[str, Callable[[_Installed, Path], Callable[[], None]]] = {
    "trace_dir": _install_trace,
    "chrome_trace": _install_chrome,
    "metrics_file": _install_metrics,
}

_installed = _Installed()


def refresh() -> None:
    """Bring the sinks up to date with the settings."""
    _installed.refresh()


def metrics(*, clear: bool = False) -> list[CompilationMetrics]:
    """The metrics of this process's compiles, oldest first (the last 1024).

    Arguments:
        clear: forget them, and the counters, afterwards.
    """
    finished = list(_installed.metrics.finished)
    if clear:
        _installed.metrics.clear()
    return finished


def counters() -> dict[str, dict[str, int]]:
    """How often what happened in this process: `{"graph_breaks": {"print": 2}, "cache": {"hit": 5}, ...}`."""
    return _installed.metrics.counters.as_dict()
