"""The event bus: stages emit, sinks (log, debug directory, trace, metrics, progress) subscribe.

Emitting costs one attribute read and one truth test when nobody listens. Payloads may be callables, evaluated only
when a sink wants them, so that building a text for nobody costs nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CompileId:
    """`[frame/recompile]`, with `_attempt` when capture restarted: printed as in the trace report."""

    frame: int
    recompile: int
    attempt: int = 0

    def __str__(self) -> str:
        tail = f"_{self.attempt}" if self.attempt else ""
        return f"{self.frame}/{self.recompile}{tail}"


@dataclass(slots=True)
class Event:
    """One thing that a stage did or made.

    Arguments:
        name: artifact or event name ("graph", "guards", "output_code", "fallback", "span_begin", "span_end", ...).
        stage: the emitting stage ("capture", "autograd", ...).
        data: small structured fields, JSON-able.
        payload: the artifact's text or object, or a callable that makes it.
    """

    name: str
    stage: str
    compile_id: CompileId | None
    time_ns: int
    data: dict[str, Any] = field(default_factory=dict)
    payload: Any = None

    def text(self) -> str:
        """The payload as text."""
        made = self.payload() if callable(self.payload) else self.payload
        return "" if made is None else str(made)


Sink = Callable[[Event], None]
SpanPath = tuple[str, ...]


class EventBus:
    """Delivers events to sinks, in the emitting thread. A sink that raises is dropped, with one warning.

    The time of every span is kept, listened to or not: `times` maps the names of a span and those around it, outermost
    first, to the seconds of each occurrence.
    """

    def __init__(self) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self.times: dict[SpanPath, list[float]] = {}
        self._lock = threading.Lock()
        self._path: contextvars.ContextVar[SpanPath] = contextvars.ContextVar("span_path", default=())
        self._compile_id: contextvars.ContextVar[CompileId | None] = contextvars.ContextVar("compile_id", default=None)

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Add a sink; returns the function that removes it."""
        with self._lock:
            self.sinks = (*self.sinks, sink)
        return lambda: self.unsubscribe(sink)

    def unsubscribe(self, sink: Sink) -> None:
        with self._lock:
            self.sinks = tuple(s for s in self.sinks if s is not sink)

    def emit(self, name: str, stage: str, payload: Any = None, /, **data: Any) -> None:
        if not self.sinks:
            return
        event = Event(name, stage, self._compile_id.get(), time.time_ns(), data, payload)
        for sink in self.sinks:
            try:
                sink(event)
            except Exception as error:
                self.unsubscribe(sink)
                import warnings

                warnings.warn(f"argand: event sink {sink!r} raised {error!r} and was removed", stacklevel=2)

    @property
    def compile_id(self) -> CompileId | None:
        return self._compile_id.get()

    @contextlib.contextmanager
    def compiling(self, compile_id: CompileId) -> Iterator[None]:
        """Every event emitted inside carries `compile_id`."""
        token = self._compile_id.set(compile_id)
        try:
            yield
        finally:
            self._compile_id.reset(token)

    @contextlib.contextmanager
    def span(self, name: str, stage: str, /, **data: Any) -> Iterator[None]:
        """Emit "span_begin" and "span_end" around a piece of work; the end carries `seconds` and `ok`."""
        path = (*self._path.get(), name)
        token = self._path.set(path)
        seconds = self.times.get(path)
        if seconds is None:  # entered before the work, so that a stage comes before what it is made of
            seconds = self.times.setdefault(path, [])
        if self.sinks:
            self.emit("span_begin", stage, None, span=name, **data)
        ok = False
        start = time.perf_counter()
        try:
            yield
            ok = True
        finally:
            taken = time.perf_counter() - start
            seconds.append(taken)
            self._path.reset(token)
            if self.sinks:
                self.emit("span_end", stage, None, span=name, seconds=taken, ok=ok, **data)


bus = EventBus()
emit = bus.emit
span = bus.span
