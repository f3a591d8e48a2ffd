"""Chrome trace events of compiling: spans and instants that chrome://tracing and https://ui.perfetto.dev show."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from argand import files
from argand._core.calls import locked
from argand.events import Event
from argand.report.tracefile import process_rank, to_json

INSTANTS = frozenset({"graph_breaks", "restart", "recompiles", "cache", "fallback", "frame_raised", "cache_size_limit"})
_PLAIN = (str, int, float, bool)


def chrome_event(event: Event) -> dict[str, Any] | None:
    """An event in the terms of Chrome's trace format; None for what has no place in it."""
    name = event.name
    if name in ("span_begin", "span_end"):
        phase = "B" if name == "span_begin" else "E"
    elif name in INSTANTS:
        phase = "i"
    else:
        return None
    arguments: dict[str, Any] = {}
    if event.compile_id is not None:
        arguments["compile_id"] = str(event.compile_id)
    for key, value in event.data.items():
        if key != "span" and isinstance(value, _PLAIN):
            arguments[key] = value
    rank = process_rank()
    in_chrome: dict[str, Any] = {
        "name": event.data["span"] if phase != "i" else name,
        "ts": event.time_ns / 1000,
        "args": arguments,
        "ph": phase,
        "cat": event.stage,
        "tid": threading.get_native_id(),
        "pid": os.getpid() if rank is None else rank,
    }
    if phase == "i":
        in_chrome["s"] = "t"
        if text := _headline(event):
            arguments["text"] = text
    return in_chrome


def _headline(event: Event) -> str:
    reason = event.data.get("reason")
    text = str(getattr(reason, "headline", "") or (reason if isinstance(reason, str) else ""))
    return text[:500]


class ChromeTraceSink:
    """Writes a Chrome trace: the "array" form, which readers accept while its closing bracket is still missing.

    Arguments:
        path: the file, overwritten; where another running process writes it (a fork's parent, another rank), this one
            writes `<stem>.<pid><suffix>` beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._pid = os.getpid()
        self._file = -1
        self._dead = False
        self.lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        in_chrome = chrome_event(event)
        if in_chrome is None or self._dead:
            return
        if self._pid != os.getpid():
            self._pid, self._file, self.lock = os.getpid(), -1, threading.Lock()
        self._write(b"\n" + to_json(in_chrome))

    @locked
    def _write(self, line: bytes) -> None:
        try:
            if self._file < 0:
                self._open()
            else:
                line = b"," + line
            os.write(self._file, line)
        except OSError as error:
            self._dead = True
            warnings.warn(f"argand: no chrome trace in {self.path}: {error}", stacklevel=2)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        own = self.path.with_name(f"{self.path.stem}.{os.getpid()}{self.path.suffix}")
        for path in (self.path, own):
            handle = files.open_append(path)
            if _locked(handle) or path is own:
                os.ftruncate(handle, 0)
                os.write(handle, b"[")
                self._file, self.path = handle, path
                return
            os.close(handle)

    @locked
    def close(self) -> None:
        """Close the array, which makes it strict JSON."""
        with contextlib.suppress(OSError):
            if self._file >= 0 and self._pid == os.getpid():
                os.write(self._file, b"\n]\n")
                os.close(self._file)
                self._file = -1
                self._dead = True


def _locked(handle: int) -> bool:
    """Whether this process is now the only one that writes the file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
