"""Compiled calls recorded as CUDA graphs, and replayed.

A launch of a kernel costs the host some microseconds; a graph of all the launches of a call costs that once. What a
recording fixes is where everything lies: inputs that stay where they are (parameters, buffers, what the call writes
to) are used in place and their addresses are compared in each call, all others are copied into tensors of its own.
Results are copied out of the recording's memory, so that no later replay, of this or another graph, changes them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from argand import events
from argand.runtime.gpu.recorder import Recorder
from argand.runtime.host import HostCall

MAX_SIZES = 8  # that one graph is recorded for
MAX_PLACES = 64  # of what is used in place: the layers of a model may share a graph
MAX_MOVES = 16  # recordings for the same made again because something had moved: each costs what several calls cost


class NotRecorded(Exception):
    """A call that must not be replayed. The message is the reason."""


@dataclass(slots=True, eq=False)
class _Copied:
    """A tensor that is copied, as one run of memory where its layout has gaps or shows elements twice.

    Arguments:
        tensor: it.
        flat: None where `copy_` alone does it.
    """

    tensor: torch.Tensor
    flat: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Copied:
        """For a tensor of any layout."""
        return cls(tensor, None if _is_dense(tensor) else _flat(tensor))

    def like(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A new tensor of the same layout, and what to copy into."""
        tensor = self.tensor
        if self.flat is None:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return made, made
        run = torch.empty_like(self.flat)
        return run.as_strided(tensor.shape, tensor.stride()), run

    @property
    def run(self) -> torch.Tensor:
        """What is copied."""
        return self.tensor if self.flat is None else self.flat


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each element of its memory is shown once."""
    expected = 1
    for stride, size in sorted((step, extent) for step, extent in zip(tensor.stride(), tensor.shape) if extent != 1):
        if stride != expected and tensor.numel():
            return False
        expected *= size
    return True


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first to the last element of `tensor`."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((extent,), (1,))


@dataclass(slots=True, eq=False)
class _Recording:
    """One graph.

    Arguments:
        replay: queues it on the current stream.
        fixed: positions of the inputs that it uses in place and that no key names, and `addresses`, theirs.
        inputs: the other tensors, by position: where their values go.
        outputs: what the call returned while it was recorded: a tensor of the recording, a position of an input that
            is handed back, or a plain value.
    """

    replay: Callable[[], None]
    fixed: tuple[int, ...]
    addresses: tuple[int, ...]
    inputs: tuple[tuple[int, _Copied], ...]
    outputs: tuple[_Copied | _Input | _Value, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    position: int


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of the calls of one key.

    Arguments:
        threads: in which the call ran: libraries prepare themselves in each.
        addresses: of all tensors in the last call that ran, by position.
        recording: the graph; None before the second call.
        moves: how often one was made again.
    """

    threads: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    addresses: dict[int, int] = field(default_factory=dict)
    recording: _Recording | None = None
    moves: int = 0


class Recorded:
    """A compiled call that is recorded the second time it is made, and replayed from then on.

    Arguments:
        call: the host module's. While it is recorded it must do nothing but queue work on the current stream.
        recorder: of the device that all tensors are on.
        name: of the graph, for events.
        lasting: positions of inputs that live longer than a call.
        written: positions of inputs that the call may write to.
        varying: sizes differ between calls.
    """

    def __init__(
        self,
        call: HostCall,
        recorder: Recorder,
        *,
        name: str = "graph",
        lasting: frozenset[int] = frozenset(),
        written: frozenset[int] = frozenset(),
        varying: bool = False,
    ) -> None:
        self.call = call
        self.recorder = recorder
        self.name = name
        self.reason = ""  # why nothing is recorded any more
        self._candidates = written
        self._pinned = tuple(sorted(lasting))  # inputs whose addresses are part of the key
        self._moving: set[int] = set()  # inputs that were seen at several places
        self._varying = varying
        self._entries: dict[Any, _Entry] = {}
        self._sizes: set[Any] = set()
        self._seen = False
        self._pid = os.getpid()
        self._compile_id = events.bus.compile_id

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """The results for `args`, which is emptied."""
        recorder = self.recorder
        if self.reason or os.getpid() != self._pid or recorder.capturing():
            return self.call(args)
        with recorder.lock:
            if recorder.active:  # a finalizer, a signal handler: in the middle of another replay
                return self.call(args)
            try:
                recorder.active = True
                return self._run(args)
            finally:
                recorder.active = False

    def _run(self, args: list[Any]) -> tuple[Any, ...]:
        if not self._seen:
            return self._first(args)
        key = self._key(args)
        entry = self._entries.get(key)
        if entry is None:
            reason = self._too_many(key)
            if reason:
                self._stop(reason)
                return self.call(args)
            entry = self._entries[key] = _Entry()
        recording = entry.recording
        if recording is not None and self._stayed(recording, args):
            return self._replay(recording, args)
        if threading.current_thread() not in entry.threads:
            return self._plain(entry, args)
        if recording is not None:
            entry.moves += 1
            if entry.moves > MAX_MOVES:
                self._stop(f"it was recorded again {MAX_MOVES} times, as its inputs keep moving")
                return self.call(args)
        return self._record(entry, args)

    # --- calls that are not replayed

    def _first(self, args: list[Any]) -> tuple[Any, ...]:
        """The first call of all shows what is written in place, and which inputs are parameters."""
        given = list(args)
        unfit = next((why for arg in given if (why := _unfit(arg))), "")
        if unfit:
            self._stop(unfit)
            return self.call(args)
        results = self.call(args)
        back = {id(result) for result in results if isinstance(result, torch.Tensor)}
        pinned = {p for p in self._candidates if id(given[p]) in back} | set(self._pinned)
        pinned |= {p for p, arg in enumerate(given) if isinstance(arg, torch.nn.Parameter)}
        self._pinned = tuple(sorted(pinned))
        self._seen = True
        key = self._key(given)
        self._sizes.add(key[1])
        self._note(self._entries.setdefault(key, _Entry()), given)
        return results

    def _plain(self, entry: _Entry, args: list[Any]) -> tuple[Any, ...]:
        """A call that prepares what may not be prepared while recording: libraries' handles, choices by measurement."""
        given = list(args)
        results = self.call(args)
        entry.recording = None
        self._note(entry, given)
        return results

    @staticmethod
    def _note(entry: _Entry, given: list[Any]) -> None:
        entry.threads.add(threading.current_thread())
        entry.addresses = {p: arg.data_ptr() for p, arg in enumerate(given) if isinstance(arg, torch.Tensor)}

    def _stop(self, reason: str) -> None:
        """Nothing is recorded or replayed any more."""
        self.reason = reason
        self._entries.clear()
        with events.bus.compiling(self._compile_id):
            tell(self.name, reason)

    # --- keys

    def _key(self, args: Sequence[Any]) -> Any:
        """What a recording is for: the places of inputs that are surely used in place, numbers, sizes."""
        places = tuple([args[position].data_ptr() for position in self._pinned])
        return places, tuple([_layout(arg) for arg in args]) if self._varying else ()

    def _too_many(self, key: Any) -> str:
        """Why nothing is recorded for a further key; empty if it is."""
        self._sizes.add(key[1])
        if len(self._sizes) > MAX_SIZES:
            return f"it was called with more than {MAX_SIZES} different sizes or numbers"
        if len(self._entries) >= MAX_PLACES:
            return f"parameters or tensors written to were in more than {MAX_PLACES} places"
        return ""

    def _stayed(self, recording: _Recording, args: Sequence[Any]) -> bool:
        if tuple([args[position].data_ptr() for position in recording.fixed]) == recording.addresses:
            return True
        pairs = zip(recording.fixed, recording.addresses)
        self._moving.update(position for position, address in pairs if args[position].data_ptr() != address)
        return False

    # --- recording

    def _record(self, entry: _Entry, args: list[Any]) -> tuple[Any, ...]:
        entry.recording = None  # its memory is free for the next
        try:
            with self.recorder.placing(), torch.inference_mode(False), torch.no_grad():
                recording_inputs, passed, fixed = self._passed(entry, args)
            replay, outputs = self.recorder.record(lambda: self.call(list(passed)))
            planned = self._planned(outputs, passed)
        except Exception as error:
            self._stop(str(error) if isinstance(error, NotRecorded) else f"recording failed: {_first_line(error)}")
            return self.call(args)
        addresses = tuple(args[position].data_ptr() for position in fixed)
        entry.recording = _Recording(replay, fixed, addresses, recording_inputs, planned)
        with events.bus.compiling(self._compile_id):
            copied = f"{len(recording_inputs)} inputs are copied, {len(passed) - len(recording_inputs)} used in place"
            events.bus.detail("cudagraphs", "runtime", f"{self.name} is recorded as a CUDA graph: {copied}")
        return self._replay(entry.recording, args)

    def _passed(
        self, entry: _Entry, args: Sequence[Any]
    ) -> tuple[tuple[tuple[int, _Copied], ...], list[Any], tuple[int, ...]]:
        """Tensors to copy into, what is recorded with, and which further inputs are used in place."""
        copied, fixed, passed = [], [], list(args)
        for position, arg in enumerate(args):
            if not isinstance(arg, torch.Tensor) or position in self._pinned:
                continue
            if position not in self._moving and entry.addresses.get(position) == arg.data_ptr():
                fixed.append(position)
                continue
            self._moving.add(position)
            place, run = _Copied.of(arg.detach()).like()
            copied.append((position, _Copied(place, run if run is not place else None)))
            passed[position] = place
        return tuple(copied), passed, tuple(fixed)

    def _planned(self, outputs: Sequence[Any], passed: Sequence[Any]) -> tuple[_Copied | _Input | _Value, ...]:
        """What to do for each result after a replay."""
        positions = {id(arg): position for position, arg in enumerate(passed) if isinstance(arg, torch.Tensor)}
        planned: dict[int, _Copied] = {}
        plan: list[_Copied | _Input | _Value] = []
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                if output is not None and type(output) not in (int, float, bool):
                    raise NotRecorded(f"a result is of type {type(output).__name__}")
                plan.append(_Value(output))
            elif id(output) in positions:
                plan.append(_Input(positions[id(output)]))
            else:
                why = _unfit(output) or ("a result requires grad" if output.requires_grad else "")
                if why:
                    raise NotRecorded(why)
                plan.append(planned.setdefault(id(output), _Copied.of(output)))
        return tuple(plan)

    # --- replay

    def _replay(self, recording: _Recording, args: list[Any]) -> tuple[Any, ...]:
        given = list(args)
        args.clear()
        with self.recorder.turn(), torch.no_grad():
            if recording.inputs:
                runs = [place.run for _, place in recording.inputs]
                values = [_as_run(given[position], place) for position, place in recording.inputs]
                torch._foreach_copy_(runs, values)
            made, targets, sources = _room(recording)  # before anything is written: there may be too little memory
            recording.replay()
            if targets:
                torch._foreach_copy_(targets, sources)
            return tuple([_handed_out(output, made, given) for output in recording.outputs])


def _as_run(value: torch.Tensor, place: _Copied) -> torch.Tensor:
    return value if place.flat is None else value.as_strided((place.flat.numel(),), (1,))


def _room(recording: _Recording) -> tuple[dict[int, torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """New tensors for the results, by identity of what they are copied from; and what to copy."""
    made: dict[int, torch.Tensor] = {}
    targets, sources = [], []
    for output in recording.outputs:
        if isinstance(output, _Copied) and id(output) not in made:
            made[id(output)], target = output.like()
            targets.append(target)
            sources.append(output.run)
    return made, targets, sources


def _handed_out(output: _Copied | _Input | _Value, made: dict[int, torch.Tensor], given: Sequence[Any]) -> Any:
    """One result of a replay, in memory of its own."""
    if isinstance(output, _Copied):
        return made[id(output)]
    return given[output.position] if isinstance(output, _Input) else output.value


def _layout(arg: Any) -> Any:
    """What of an argument a recording depends on, where sizes vary (-0.0 is not 0.0)."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride()
    return type(arg), repr(arg)


def _unfit(value: Any) -> str:
    """Why a tensor can be no input or result of a recording; empty if it can."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.layout is not torch.strided:
        return f"a tensor has the layout {value.layout}"
    return "a tensor is a conjugate or negated view" if value.is_conj() or value.is_neg() else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def tell(name: str, reason: str) -> None:
    """Say why a graph, for which CUDA graphs were asked for, has none: in the log, metrics and the report."""
    text = f"no CUDA graph is recorded: {name}: {reason}"
    events.bus.detail("cudagraphs", "backend", text)
    events.emit("fallback", "backend", text, backend="native", scope="cudagraphs", reason=reason)
