"""Recorded backwards by structure: compiled when one comes a second time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from argand import events, garbage_collection
from argand._core import _C
from argand.backends.registry import Backend, lookup_backend
from argand.capture.driver.frame import next_frame_id
from argand.config import config
from argand.engine.recording import Recorded
from argand.engine.structure import Structure
from argand.events import CompileId
from argand.graph import compat
from argand.interruptions import let_pass
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels.calm import is_known

Compiled = Callable[..., Any]


class Trial:
    """Whether the engine alone is faster than reading the structure and running the compiled graph.

    For small graphs it is. The first call with the compiled graph warms it up, the next ones take turns.

    Arguments:
        reduces: the graph talks to other processes, for which both wait: times vary, and long graphs can be slower too.
    """

    def __init__(self, reduces: bool = False) -> None:
        self.turns = 2 * _TURNS if reduces else _TURNS
        self.longest = float("inf") if reduces else _LONG
        self.ours: list[float] = []
        self.engines: list[float] = []
        self.engine_is_faster = False
        self.over = False

    def is_engines_turn(self) -> bool:
        """Whether the engine is to run now."""
        return self.engine_is_faster or (not self.over and 1 < len(self.ours) > len(self.engines) + 1)

    def took(self, seconds: float, *, ours: bool) -> None:
        """One of both has run."""
        if self.over:
            return
        (self.ours if ours else self.engines).append(seconds)
        if ours and len(self.ours) == 2 and seconds > self.longest:
            self.over = True
        elif len(self.engines) >= self.turns and (
            (is_known(self.ours[1:]) and is_known(self.engines)) or len(self.engines) == _MOST * self.turns
        ):
            self.over = True
            self.engine_is_faster = min(self.ours[1:]) > _GAIN * min(self.engines)


_LONG = 0.05  # seconds beside which reading the structure does not count
_TURNS = 3
_MOST = 4  # times as many turns are taken where others may have had the processors
_GAIN = 0.95  # of the engine's time: what is hardly faster in a few calls may be slower in all


@dataclass(slots=True)
class Entry:
    """One recorded backward.

    Arguments:
        recorded: what was recorded; None where that was refused.
        compile_id: under which it is compiled.
        compiled: per backend and interval, the callable.
        trial: which of both is faster.
    """

    recorded: Recorded | None
    compile_id: CompileId
    compiled: dict[Any, Compiled] = field(default_factory=dict)
    trial: Trial = field(default_factory=Trial)


@dataclass(slots=True)
class _Form:
    """The structures that differ in sizes and numbers alone.

    Arguments:
        number: of compiled autograd's graph.
        frame: the frame id of its compiles.
        entries: how many structures were met.
        compiles: of those that were recorded.
    """

    number: int
    frame: int | None = None
    entries: int = 0
    compiles: Iterator[int] = field(default_factory=itertools.count)


_VAIN = 8  # refusals in a row after which a structure that begins so is looked at seldom
_TRIED = 64  # calls: then it is read again
_MOST_FORMS = 256  # a program whose backward is always another one is not recorded for ever


class Entries:
    """All that was recorded in this process.

    Fields:
        small: by what a backward begins with, the seconds that the engine takes where it is faster alone.
        refused: by the same, how often the structure was read for nothing since it was of use.
    """

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._entries: dict[Any, Entry] = {}
        self._forms: dict[Any, _Form] = {}
        self._numbers: Iterator[int] = itertools.count()
        self._told: set[str] = set()
        self.small: dict[Any, float] = {}
        self.refused: dict[Any, int] = {}

    def find(self, key: Any) -> Entry | None:
        """What was recorded for a key."""
        return self._entries.get(key)

    def is_vain(self, sketch: Any) -> bool:
        """Whether reading a structure is likely to be of no use, as the last times; now and then it is tried."""
        count = self.refused.get(sketch, 0)
        if count < _VAIN:
            return False
        self.refused[sketch] = count + 1
        return count % _TRIED != 0

    def was_vain(self, sketch: Any, vain: bool = True) -> None:
        """A structure was read, and its graph cannot run, or can."""
        if vain and len(self.refused) < _MOST_FORMS:
            self.refused[sketch] = self.refused.get(sketch, 0) + 1
        else:
            self.refused.pop(sketch, None)

    def next_id(self, structure: Structure) -> CompileId | None:
        """The id of a structure that is new; None where there are too many already."""
        told = structure.form()
        if told not in self._forms and len(self._forms) >= _MOST_FORMS:
            return None
        form = self._forms.setdefault(told, _Form(-1))
        if form.number < 0:
            form.number = next(self._numbers)
        if form.entries >= config.cache_size_limit:
            return None
        form.entries += 1
        return CompileId(None, None, 0, form.number)

    def keep(self, key: Any, structure: Structure, recorded: Recorded | None) -> None:
        """Remember what was recorded, or that it was refused."""
        form = self._forms[structure.form()]
        if recorded is not None and form.frame is None:
            form.frame = next_frame_id()
        compile_number = None if recorded is None else next(form.compiles)
        trial = Trial(reduces=bool(structure.reductions))
        own_id = CompileId(form.frame, compile_number, 0, form.number)
        self._entries[key] = Entry(recorded, own_id, trial=trial)

    def run(self, entry: Entry, backend: str | Backend, number: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph of an interval returns, compiled when this is asked for the first time.

        Arguments:
            inputs: are taken out of the list.
        """
        key = (backend, number)
        if entry.recorded is not None and entry.recorded.differentiable:  # code of the program made some of them
            key = (*key, *[tensor.requires_grad for tensor in inputs])
        compiled = entry.compiled.get(key)
        if compiled is None:
            _C.call_locked(self._lock, self._compile, entry, key, inputs)
            compiled = entry.compiled[key]
        taken = tuple(inputs)
        inputs.clear()
        return list(compiled(*taken))

    def _compile(self, entry: Entry, key: tuple[Any, ...], inputs: list[torch.Tensor]) -> None:
        if key in entry.compiled:
            return
        assert entry.recorded is not None
        backend, number = key[:2]
        module = fx.GraphModule({}, entry.recorded.intervals[number].graph, "CompiledAutograd")
        try:
            differentiable = entry.recorded.differentiable
            entry.compiled[key] = _compile(module, entry.compile_id, backend, inputs, differentiable)
        except Exception as error:
            let_pass(error)
            if config.verify_ir or config.repro_after:
                raise
            self.tell_once(f"compiling a backward failed, its graph runs with eager's kernels: {error}")
            entry.compiled[key] = module.forward

    def tell_once(self, reason: str) -> None:
        """Say why backwards run on the engine alone."""
        if reason not in self._told:
            self._told.add(reason)
            events.emit("fallback", "engine", reason, reason=reason, scope="compiled_autograd")


def _compile(
    module: fx.GraphModule,
    compile_id: CompileId,
    backend: str | Backend,
    inputs: Sequence[torch.Tensor],
    differentiable: bool,
) -> Compiled:
    like = [tensor.detach().requires_grad_(differentiable and tensor.requires_grad) for tensor in inputs]
    with (
        events.bus.compiling(compile_id),
        events.span("compile_autograd", "engine"),
        garbage_collection.paused(),
        compat.without_default_device(),
        torch.set_grad_enabled(differentiable),
    ):
        return lookup_backend(backend)(module, like)


entries = Entries()
reset = entries.reset
