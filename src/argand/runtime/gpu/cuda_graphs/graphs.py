"""Compiled calls recorded as CUDA graphs, and replayed.

A launch of a kernel costs the host some microseconds; a graph of all the launches of a call costs that once. What a
recording fixes is where everything lies: inputs that stay where they are (parameters, buffers, what the call writes
to, what a forward kept) are used in place and their addresses are compared in each call, all others are copied into
tensors of its own. A recording whose results are still held is not replayed: the call uses another one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch

from argand import events
from argand.graph import compat
from argand.graph.operators.random_ops import seeds_from
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.cuda_graphs.recorder import Recorder
from argand.runtime.gpu.cuda_graphs.recording import SMALL, Copied, NotRecorded, Recording, Results, planned, unfit
from argand.runtime.gpu.cuda_graphs.trial import MOST_RESULTS, Trial, other_threads
from argand.runtime.host import HostCall
from argand.runtime.recipes import Described

MAX_SIZES = 8  # that one graph is recorded for
MAX_PLACES = 256  # of what is used in place: the layers of a model may share a graph
MAX_MOVES = 4  # recordings made again because an input had moved; then all inputs that may move are copied
LARGE = 1 << 22  # bytes of an input that is better not copied, if that can be
MAX_RING = 4  # recordings for the same: as many calls' results may be held at once
MUCH_KEPT = 1 << 25  # bytes that a forward keeps, from which on its backward is recorded in the same memory


@dataclass(frozen=True, slots=True)
class Roles:
    """What is known of the inputs and results of a call before it is made.

    Arguments:
        lasting: positions of inputs that live longer than a call.
        written: positions of inputs that the call may write to.
        taken: positions of inputs that a recorded forward keeps where they are.
        kept: positions of results that only a backward sees.
        varying: sizes differ between calls.
        draws: kernels draw from torch's generator.
        seeded: seeds are drawn from it.
    """

    lasting: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    varying: bool = False
    draws: bool = False
    seeded: bool = False

    def described(self) -> tuple[Any, ...]:
        """As plain values, of which `of` makes the same."""
        sets = (self.lasting, self.written, self.taken, self.kept)
        return (*[tuple(sorted(each)) for each in sets], self.varying, self.draws, self.seeded)

    @classmethod
    def of(cls, told: Sequence[Any]) -> Roles:
        """What `described` told of."""
        lasting, written, taken, kept = map(frozenset, told[:4])
        return cls(lasting, written, taken, kept, *told[4:])


_Seen = dict[int, tuple["weakref.ref[torch.Tensor]", int]]


@dataclass(slots=True, eq=False)
class _Entry:
    """The recordings for one set of places.

    Arguments:
        places: addresses of the inputs that are surely used in place.
        seen: the tensors of the last call that ran and their addresses, by position; None before one did.
        ring: recordings of the same; a call uses one whose results nobody holds.
        source: of a backward, the recording of the forward that kept what it gets; None where it cannot use that up.
        kept: of a backward, positions of what that recording kept, and which of the tensors there it is.
    """

    places: list[int]
    seen: _Seen | None = None
    ring: list[Recording] = field(default_factory=list)
    source: weakref.ref[Recording] | None = None
    kept: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Shape:
    """What is known of the calls with tensors of the same sizes.

    Arguments:
        threads: in which such a call ran: libraries prepare themselves in each.
        entries: by places; `last`: the one that was used last.
        seen: the tensors of the last call that ran.
    """

    threads: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    entries: dict[tuple[int, ...], _Entry] = field(default_factory=dict)
    last: _Entry | None = None
    seen: _Seen | None = None


class Recorded(Described):
    """A compiled call that is recorded the second time it is made, and replayed from then on.

    Arguments:
        call: the host module's. While it is recorded it must do nothing but queue work on the current stream.
        recorder: of the device that all tensors are on.
        name: of the graph, for events.
        roles: of inputs and results.
        asked: whether the program asked for it; else it is recorded where that is measured to gain time.
    """

    def __init__(
        self,
        call: HostCall,
        recorder: Recorder,
        *,
        name: str = "graph",
        roles: Roles | None = None,
        asked: bool = True,
    ) -> None:
        self.call = call
        self.recorder = recorder
        self.name = name
        self.reason = ""  # why nothing is recorded any more
        self.roles = roles or Roles()
        self._asked = asked
        self._trial = None if asked else Trial(recorder)
        self._pinned: tuple[int, ...] = ()  # inputs whose addresses are those of an entry
        self._moving: set[int] = set()  # inputs that were seen at several places
        self._moves = 0
        # Some results stay in the recording's memory. Of a forward these are what it keeps; what programs get of it
        # they mostly hold until after the next call, which would need another recording with all that it keeps.
        self._lends = False
        self._apart = False  # a forward's recordings share their memory with nothing but its backward's
        self._shapes: dict[Any, _Shape] = {}
        self._seen = False
        self._pid = os.getpid()
        self._compile_id = events.bus.compile_id

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """The results for `args`, which is emptied."""
        recorder = self.recorder
        if self.reason or os.getpid() != self._pid or recorder.capturing():
            return self.call(args)
        if self.roles.kept and compat.saved_tensor_hooks_active():
            return self.call(args)  # a hook may read what it is given after it dropped it, on a stream of its own
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
        shape = None if self._lost() else self._shape(self._key(args))
        if shape is None:
            return self.call(args)
        entry = self._entry(shape, [args[position].data_ptr() for position in self._pinned], args)
        if entry is None:
            return self._plain(shape, None, args)
        if entry.seen is None or threading.current_thread() not in shape.threads:
            return self._plain(shape, entry, args)
        source = self._used_up(entry, args)
        chosen = self._chosen(entry, args, source)
        if chosen is None and len(entry.ring) < MAX_RING and self._pays(source):
            chosen = self._record(entry, args, source)
        if source is not None and (chosen is None or not chosen[0].uses_up):
            _put_back(entry, source, args)
        if chosen is None:
            return self.call(args) if self._trial is None else self._trial.call(lambda: self.call(args))
        recording, lend = chosen
        given = list(args)
        args.clear()
        lend = lend and self._asked and not torch.is_inference_mode_enabled()
        if self._trial is None:
            return recording.run(given, self.recorder.turn(), lend=lend)
        return self._trial.replay(lambda: recording.run(given, self.recorder.turn(), lend=lend))

    def _pays(self, source: Recording | None) -> bool:
        """Whether a recording is to be made now.

        Arguments:
            source: of what may be used up; while a backward is not recorded, that stays in memory until its end.
        """
        if self._asked:
            return True
        why = other_threads() if self._trial is None else self._trial.why_not()
        if why and self._trial is not None:
            self._stop(why)
        if why is None and source is not None:
            why = other_threads()
        return why == ""

    def _lost(self) -> bool:
        """Whether replays were found to gain no time."""
        if self._trial is None:
            return False
        verdict = self._trial.verdict()
        if verdict is not None:
            self._trial = None
            if verdict:
                self._stop(verdict)
        return bool(verdict)

    # --- calls that are not replayed

    def _first(self, args: list[Any]) -> tuple[Any, ...]:
        """The first call of all shows what is written in place, and which inputs are parameters."""
        why = next((why for arg in args if (why := unfit(arg))), "")
        if why:
            self._stop(why)
            return self.call(args)
        seen, key = _seen(args), self._key(args)
        parameters = {position for position, arg in enumerate(args) if self._is_parameter(arg)}
        known = parameters | self.roles.written
        given = [arg if position in known else None for position, arg in enumerate(args)]  # others may die in the call
        results = self.call(args)
        shown = [out for at, out in enumerate(results) if isinstance(out, torch.Tensor) and at not in self.roles.kept]
        large = sum(out.numel() * out.element_size() for out in shown) > SMALL
        self._lends = bool(self.roles.kept) or (self._asked and large)
        kept = [results[at] for at in self.roles.kept]
        self._apart = sum(out.nbytes for out in kept if isinstance(out, torch.Tensor)) >= MUCH_KEPT
        del kept
        back = {id(out) for out in shown}
        pinned = {p for p in self.roles.written if id(given[p]) in back} | self.roles.lasting | self.roles.taken
        self._pinned = tuple(sorted(pinned | parameters))
        self._seen = True
        shape = self._shape(key)
        if shape is not None:
            places = [seen[position][1] for position in self._pinned]
            self._note(shape, None if self.roles.taken else self._entry(shape, places, given), seen)
        return tuple(results)

    def _is_parameter(self, arg: Any) -> bool:
        """Whether an input is a parameter, or what a forward saved of one."""
        if isinstance(arg, torch.nn.Parameter):
            return True
        return isinstance(arg, torch.Tensor) and arg.data_ptr() in self.recorder.parameters

    def _plain(self, shape: _Shape, entry: _Entry | None, args: list[Any]) -> tuple[Any, ...]:
        """A call that prepares what may not be prepared while recording: libraries' handles, choices by measurement."""
        seen = _seen(args)
        results = self.call(args) if self._trial is None else self._trial.call(lambda: self.call(args))
        self._note(shape, entry, seen)
        return results

    @staticmethod
    def _note(shape: _Shape, entry: _Entry | None, seen: _Seen) -> None:
        shape.threads.add(threading.current_thread())
        shape.seen = seen
        if entry is not None:
            entry.seen = seen

    def _stop(self, reason: str) -> None:
        """Nothing is recorded or replayed any more."""
        self.reason = reason
        self._shapes.clear()
        with events.bus.compiling(self._compile_id):
            tell(self.name, reason, self._asked)

    # --- which recording

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The sizes and numbers of a call, where they vary."""
        return tuple([_layout(arg) for arg in args]) if self.roles.varying else ()

    def _shape(self, key: tuple[Any, ...]) -> _Shape | None:
        """What is known of calls with such sizes and numbers; None when there are too many."""
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MAX_SIZES:
                self._stop(f"it was called with more than {MAX_SIZES} different sizes or numbers")
                return None
            shape = self._shapes[key] = _Shape()
        return shape

    def _entry(self, shape: _Shape, places: list[int], args: Sequence[Any]) -> _Entry | None:
        """The recordings for the places of the inputs that are surely used in place; None when nothing is to be
        recorded."""
        entry = shape.last
        if entry is not None and entry.places == places:
            return entry
        key = tuple(places)
        entry = shape.entries.get(key)
        if entry is None:
            if self.roles.taken and not self._follows_a_recording(places):
                return None
            if sum(len(each.entries) for each in self._shapes.values()) >= MAX_PLACES:
                self._stop(f"parameters or tensors written to were in more than {MAX_PLACES} places")
                return None
            self._drop_the_dead(shape)
            entry = shape.entries[key] = _Entry(places)
            if self.roles.taken:  # but for what the forward kept, a call like the earlier ones
                entry.seen = shape.seen
                self._find_source(entry, args)
            pinned = [(place, args[position]) for place, position in zip(places, self._pinned)]
            self.recorder.parameters.update({p: arg for p, arg in pinned if isinstance(arg, torch.nn.Parameter)})
        shape.last = entry
        return entry

    def _follows_a_recording(self, places: Sequence[int]) -> bool:
        """Whether what the forward kept is where the next call of it will keep it."""
        lent, taken = self.recorder.lent, self.roles.taken
        return all(place in lent for place, position in zip(places, self._pinned) if position in taken)

    def _find_source(self, entry: _Entry, args: Sequence[Any]) -> None:
        """Note whose memory it is that a backward may use up, if all that it gets of a forward is of one recording."""
        if self.roles.draws or self.roles.seeded:  # seeds are written before a replay, wherever they lie
            return
        of_recordings: dict[Recording, list[tuple[int, int]]] = {}
        for position in sorted(self.roles.taken):
            recording: Recording | None = self.recorder.lent.get(args[position].data_ptr())
            number = None if recording is None or not args[position].nbytes else recording.kept_at(args[position])
            if recording is not None and number is not None:  # else an input of the forward, where the program has it
                of_recordings.setdefault(recording, []).append((position, number))
        if len(of_recordings) == 1:
            [(source, kept)] = of_recordings.items()
            if source.room is not None:
                entry.source, entry.kept = weakref.ref(source), kept

    def _used_up(self, entry: _Entry, args: list[Any]) -> Recording | None:
        """The recording of the forward, after what it kept was taken out of `args`; None where somebody else holds it,
        as the program may differentiate once more."""
        source = None if entry.source is None else entry.source()
        if source is None:
            return None
        for position, _ in entry.kept:
            args[position] = None
        if source.unheld():
            return source
        _put_back(entry, source, args)
        return None

    def _drop_the_dead(self, shape: _Shape) -> None:
        """Recordings that read what a recorded forward kept, which is recorded anew, are never used again."""
        taken = [number for number, position in enumerate(self._pinned) if position in self.roles.taken]
        gone = [key for key in shape.entries if any(key[number] not in self.recorder.lent for number in taken)]
        for key in gone:
            del shape.entries[key]

    def _chosen(
        self, entry: _Entry, args: Sequence[Any], source: Recording | None = None
    ) -> tuple[Recording, bool] | None:
        """A recording whose results nobody holds, and whether it may lend its large ones: one must be left.

        Arguments:
            source: of what may be used up.
        """
        first: Recording | None = None
        for recording in tuple(entry.ring):
            if recording.uses_up and source is None:
                continue
            if not recording.stayed(args):
                self._moving.update(recording.moved(args))
                self._moves += 1
                self._forget(entry, recording)
            elif not recording.whole():
                self._forget(entry, recording)
            elif recording.outlived():  # gradients are dropped late, or added up: they need memory of their own
                self._apart = False
                self._forget(entry, recording)
            elif recording.free():
                if first is not None:
                    return first, first.lends
                first = recording
                if not recording.lends:
                    break
        return None if first is None else (first, first.lends and len(entry.ring) < MAX_RING)

    def _forget(self, entry: _Entry, recording: Recording) -> None:
        entry.ring.remove(recording)
        source = entry.source() if recording.uses_up and entry.source is not None else None
        if source is not None:
            source.broken = True  # the forward is recorded again, and its backward with it

    # --- recording

    def _record(self, entry: _Entry, args: list[Any], source: Recording | None = None) -> tuple[Recording, bool] | None:
        """A recording for these inputs, and whether it may lend its large results; None when that failed.

        Arguments:
            source: of what may be used up, and is missing in `args`.
        """
        seeds: list[torch.Tensor] = []
        if source is not None and (source.room is None or source.broken):
            if source.broken:
                return None
            _put_back(entry, source, args)
            source = None

        def seed(device: torch.device) -> torch.Tensor:
            seeds.append(torch.empty((), dtype=torch.int64, device=device))
            return seeds[-1]

        try:
            with torch.inference_mode(False), torch.no_grad():
                room = self.recorder.room(lasting=self._lends, apart=self._apart) if source is None else source.room
                with self.recorder.placing(room):
                    copied, passed, fixed = self._passed(entry, args)
                given = list(passed)
                if source is not None:
                    self._give_up(entry, source, given)
                with seeds_from(seed):
                    replay, outputs = self.recorder.record(
                        lambda: self.call(list(given) if source is None else given), room, draws=self.roles.draws
                    )
                if source is not None and seeds:
                    raise NotRecorded("seeds are drawn that nobody knew of")
                results = planned(outputs, args, passed, self.roles.kept, lend=self._lends and not self.roles.kept)
            if not self._asked:
                self._check(results)
        except Exception as error:
            let_pass(error)
            self._stop(str(error) if isinstance(error, NotRecorded) else f"recording failed: {_first_line(error)}")
            return None
        del outputs
        addresses = [args[position].data_ptr() for position in fixed]
        pure, own_room = not self.roles.written, room if self._apart else None
        recording = Recording(replay, fixed, addresses, copied, seeds, results, pure=pure, room=own_room, source=source)
        if source is not None:
            source.broken = False
        entry.ring.append(recording)
        self.recorder.lent.update(dict.fromkeys(recording.places, recording))
        with events.bus.compiling(self._compile_id):
            text = f"{len(copied)} inputs are copied, {len(passed) - len(copied)} used in place, {results.text()}"
            text = f"{self.name} is recorded as a CUDA graph: {text}"
            events.emit("cudagraphs", "runtime", text, graph=self.name, outcome="recorded")
        return recording, recording.lends and len(entry.ring) < MAX_RING

    def _give_up(self, entry: _Entry, source: Recording, given: list[Any]) -> None:
        """Put what a forward kept into `given`, which alone holds its memory then. The forward cannot be replayed until
        the backward that uses it up is recorded."""
        source.broken, room = True, source.room
        kept = source.give_up(lambda tensor: self.recorder.unowned(tensor, room))
        for position, number in entry.kept:
            given[position] = kept[number]

    def _check(self, results: Results) -> None:
        """Raises NotRecorded where nobody asked for what the recording takes."""
        size = results.visible
        if size > MOST_RESULTS:
            raise NotRecorded(f"its results take {size >> 20} MB, which it would keep twice")
        why = self.recorder.crowded()
        if why:
            raise NotRecorded(why)

    def _passed(
        self, entry: _Entry, args: Sequence[Any]
    ) -> tuple[list[tuple[int, Copied]], list[Any], tuple[int, ...]]:
        """Tensors to copy into, what is recorded with, and which further inputs are used in place."""
        copied, fixed, passed = [], [], list(args)
        for position, arg in enumerate(args):
            if not isinstance(arg, torch.Tensor) or position in self._pinned:
                continue
            if self._stays(entry, position, arg):
                fixed.append(position)
                continue
            place, run = Copied.of(arg.detach()).like()
            copied.append((position, Copied(place, run if run is not place else None)))
            passed[position] = place
        return copied, passed, tuple(fixed)

    def _stays(self, entry: _Entry, position: int, arg: torch.Tensor) -> bool:
        """Whether an input will be where it is in later calls, as far as one can tell.

        A tensor that was given before will. Another one in its place, for which the memory of the earlier was taken,
        will some day be elsewhere; if it is large, it is worth a try.
        """
        last = (entry.seen or {}).get(position)
        if last is None or last[1] != arg.data_ptr() or position in self._moving or self._moves > MAX_MOVES:
            return False
        return last[0]() is arg or arg.nbytes > LARGE


def _put_back(entry: _Entry, source: Recording, args: list[Any]) -> None:
    """What a forward kept, for a call that does not use it up."""
    for position, number in entry.kept:
        args[position] = source.kept(number)


def _seen(args: Sequence[Any]) -> _Seen:
    """The tensors of a call and their addresses, by position."""
    return {p: (weakref.ref(arg), arg.data_ptr()) for p, arg in enumerate(args) if isinstance(arg, torch.Tensor)}


def _layout(arg: Any) -> Any:
    """What of an argument a recording depends on, where sizes vary (-0.0 is not 0.0)."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride()
    return type(arg), repr(arg)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def tell(name: str, reason: str, asked: bool = True) -> None:
    """Say why a graph has none: in the log, metrics and the report; where one was asked for, as a fallback too."""
    text = f"no CUDA graph is recorded: {name}: {reason}"
    events.emit("cudagraphs", "backend", text, graph=name, outcome="skipped", reason=reason)
    if asked:
        events.emit("fallback", "backend", text, backend="native", scope="cudagraphs", reason=reason)
