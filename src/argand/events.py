"""The event bus: stages emit, sinks (log, debug directory, trace, metrics, progress) subscribe.

Emitting costs one attribute read and one truth test when nobody listens. Payloads may be callables, evaluated only
when a sink wants them, so that building a text for nobody costs nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass
from argand.threads import bound


@dataclass(frozen=True, slots=True)
class CompileId:
    """`[frame/recompile]`, with `_attempt` when capture restarted: printed as in the trace report.

    Arguments:
        frame: None, like `recompile`, of a backward that is recorded, not compiled yet.
        autograd: number of a graph of compiled autograd, whose ids are `[!autograd/frame/recompile]`.
    """

    frame: int | None
    recompile: int | None
    attempt: int = 0
    autograd: int | None = None

    def __str__(self) -> str:
        head = "" if self.autograd is None else f"!{self.autograd}/"
        tail = f"_{self.attempt}" if self.attempt else ""
        frame, recompile = ("-" if part is None else part for part in (self.frame, self.recompile))
        return f"{head}{frame}/{recompile}{tail}"


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
        payload = self.payload() if callable(self.payload) else self.payload
        return "" if payload is None else str(payload)


Sink = Callable[[Event], None]
SpanPath = tuple[str, ...]


def _nothing() -> None:
    """What `EventBus.prepare` does where nobody set it."""


class EventBus:
    """Delivers events to sinks, in the emitting thread. A sink that raises is dropped, with one warning.

    The time of every span is kept, listened to or not: `times` maps the names of a span and those around it, outermost
    first, to the seconds of each occurrence.
    """

    def __init__(self) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self.named: dict[str, tuple[Sink, ...]] = {}
        self.prepare: Callable[[], None] = _nothing
        """Called where compiling begins: installs the sinks that the settings ask for (argand/__init__.py sets it)."""
        self.times: dict[SpanPath, list[float]] = {}
        self._counts: dict[str, Iterator[int]] = {}
        self._subscribed: list[tuple[Sink, tuple[str, ...]]] = []
        self._path: contextvars.ContextVar[SpanPath] = contextvars.ContextVar("span_path", default=())
        self._compile_id: contextvars.ContextVar[CompileId | None] = contextvars.ContextVar("compile_id", default=None)

    def subscribe(self, sink: Sink, names: Iterable[str] = ()) -> Callable[[], None]:
        """Add a sink; returns the function that removes it.

        Arguments:
            names: only events of these names. The sink then is no reason to make any other, and gets the detailed
                events too that `detail` emits.
        """
        self._subscribed.append((sink, tuple(names)))
        self._sort()
        return lambda: self.unsubscribe(sink)

    def unsubscribe(self, sink: Sink) -> None:
        for entry in [entry for entry in self._subscribed if entry[0] is sink]:
            with contextlib.suppress(ValueError):  # another thread was faster
                self._subscribed.remove(entry)
        self._sort()

    def mute(self) -> Callable[[], None]:
        """Deliver nothing, and install no sinks; returns the function that ends it."""
        heard = self.sinks, self.named, self.prepare
        self.sinks, self.named, self.prepare = (), {}, _nothing

        def unmute() -> None:
            self.sinks, self.named, self.prepare = heard

        return unmute

    def _sort(self) -> None:
        """Bring `sinks` and `named` up to date. No lock, which an exception from outside (Ctrl-C) could leave held."""
        while True:
            now = list(self._subscribed)
            self.sinks = tuple(sink for sink, names in now if not names)
            named: dict[str, tuple[Sink, ...]] = {}
            for sink, names in now:
                for name in names:
                    named[name] = (*named.get(name, ()), sink)
            self.named = named
            if now == self._subscribed:
                return

    def number(self, kind: str) -> int:
        """A running number for a thing of this kind: 0, 1, 2, ... in this process."""
        return next(self._counts.setdefault(kind, itertools.count()))

    @property
    def listening(self) -> bool:
        """Whether anybody listens to anything."""
        return bool(self.sinks or self.named)

    def wanted(self, name: str) -> bool:
        """Whether an event of this name has a listener."""
        return bool(self.sinks) or name in self.named

    def emit(self, name: str, stage: str, payload: Any = None, /, **data: Any) -> None:
        """Tell whoever listens; `payload` may be a callable, which is called only when a sink asks for the text."""
        if self.sinks or name in self.named:
            self._deliver((*self.sinks, *self.named.get(name, ())), name, stage, payload, data)

    def detail(self, name: str, stage: str, payload: Any = None, /, **data: Any) -> None:
        """An event so frequent (one an instruction) that only sinks that subscribed to its name get it."""
        if name in self.named:
            self._deliver(self.named[name], name, stage, payload, data)

    def _deliver(self, sinks: tuple[Sink, ...], name: str, stage: str, payload: Any, data: dict[str, Any]) -> None:
        event = Event(name, stage, self._compile_id.get(), time.time_ns(), data, payload)
        for sink in sinks:
            try:
                sink(event)
            except (MemoryError, RecursionError):  # no fault of the sink's
                continue
            except Exception as error:
                let_pass(error)
                self.unsubscribe(sink)
                warnings.warn(f"argand: event sink {sink!r} raised {error!r} and was removed", stacklevel=2)

    @property
    def compile_id(self) -> CompileId | None:
        return self._compile_id.get()

    def compiling(self, compile_id: CompileId | None) -> contextlib.AbstractContextManager[None]:
        """Every event emitted inside carries `compile_id`."""
        return bound(self._compile_id, compile_id)

    def next_attempt(self, attempt: int) -> None:
        """The compile that is under way begins anew; ends with the `compiling` around it."""
        now = self._compile_id.get()
        if now is not None:
            self._compile_id.set(CompileId(now.frame, now.recompile, attempt, now.autograd))

    @contextlib.contextmanager
    def span(self, name: str, stage: str, /, **data: Any) -> Iterator[dict[str, Any]]:
        """Emit "span_begin" and "span_end" around a piece of work; the end carries `seconds` and `ok`.

        Yields the end's data, to which the work may add.
        """
        path = (*self._path.get(), name)
        token = self._path.set(path)
        seconds = self.times.get(path)
        if seconds is None:  # entered before the work, so that a stage comes before what it is made of
            seconds = self.times.setdefault(path, [])
        if self.sinks or self.named:
            self.emit("span_begin", stage, None, span=name, **data)
        ok = False
        start = time.perf_counter()
        try:
            yield data
            ok = True
        finally:
            taken = time.perf_counter() - start
            seconds.append(taken)
            self._path.reset(token)
            if self.sinks or self.named:
                self.emit("span_end", stage, None, span=name, seconds=taken, ok=ok, **data)


bus = EventBus()
emit = bus.emit
span = bus.span
