"""Hands what a capture made to the store of outcomes, and takes from there what earlier processes saw of sizes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, MappingProxyType
from typing import Any, Final

from argand import errors
from argand._core import _C
from argand.bytecode.decode import decode
from argand.bytecode.resume import resume_label, transformed_code
from argand.capture.driver import consequent_breaks, failures, lazy_references, strict
from argand.capture.driver.region import Region
from argand.capture.facts.abc_non_members import Unregistered
from argand.capture.facts.code import effort_limits
from argand.capture.facts.kinds import is_a
from argand.capture.interp.state import CaptureState
from argand.capture.objects.call_protocol.lru_caches import Answer
from argand.capture.output import rerun
from argand.capture.output.transform import Transformed
from argand.capture.record import self_written
from argand.capture.record.guards import GuardSet
from argand.outcomes import dtensor_layouts, store
from argand.outcomes.guard_log import Log
from argand.outcomes.records import Captured
from argand.outcomes.references import Parts, Unstorable, plain
from argand.outcomes.resume_codes import PARTS

_OF_THE_MACHINE: Final = frozenset((effort_limits.OUT_OF_TIME, "tensor larger than memory"))
"""Kinds of breaks that the same program may do without another time."""


class Keeper:
    """Keeps one capture.

    Arguments:
        guards: what it relies on.
        log: notes how their tree is built.
    """

    def __init__(self, info: _C.FrameInfo, region: Region, request: str, guards: GuardSet) -> None:
        self.info, self.region, self.request, self.guards = info, region, request, guards
        self.log = Log()

    def keep(
        self, transformed: Transformed, known: failures.Known, reason: errors.BreakReason | None, whole: int
    ) -> None:
        """Store what was made, if another process can use it.

        Arguments:
            reason: why the graph breaks, if it does.
            whole: whether the frame's own code does the same (`_C.Entry`).
        """
        history = _plain_history(known, self.region)
        self._keep(transformed.code, reason, transformed.globals, transformed.graph is not None, history, whole=whole)

    def keep_python(self, code: CodeType, whole: int) -> None:
        """Store that nothing of torch's ran.

        Arguments:
            code: the frame's own.
            whole: as `keep`'s.
        """
        self._keep(code, whole=whole)

    def keep_written(self, reason: errors.BreakReason | None) -> None:
        """Store that the frame, which is to end in a loop, runs as it is written under the guards that led there.

        Arguments:
            reason: why the graph ends, where that is to be told.
        """
        with contextlib.suppress(errors.GraphBreak):
            self.guards.build((), self.log)
            self._keep(transformed_code(self.info.code, decode(self.info.code)), reason)

    def keep_eager(self, reason: errors.BreakReason | None = None, once: bool = False) -> None:
        """Store that the frame is never captured.

        Arguments:
            reason: why it cannot be.
            once: it is, but for such a call.
        """
        try:
            self.guards.build((), self.log)
        except errors.GraphBreak:
            return
        self._keep(None, reason, once=once)

    def _keep(
        self,
        code: CodeType | None,
        reason: errors.BreakReason | None = None,
        names: Mapping[str, object] = MappingProxyType({}),
        graph: bool = False,
        history: Mapping[str, object] = MappingProxyType({}),
        once: bool = False,
        whole: int = 0,
    ) -> None:
        if reason is not None and reason.kind in _OF_THE_MACHINE:
            return store.STORE.leave_out(self.info, reason.kind)
        if reason is not None:
            reason = consequent_breaks.in_terms_of_the_program(reason, self.info.code)
        registered = self.guards.registered
        special: dict[type, Callable[[Any], Parts]] = {**_SPECIAL, **dtensor_layouts.special()}
        captured = Captured(
            code,
            names,
            self.log,
            graph,
            once,
            reason,
            registered,
            self.guards.operators,
            history,
            special,
            _ALIASES,
            self.guards.of_rank,
            whole,
            self.region,
        )
        store.STORE.keep(self.info, self.request, captured)


def keeper(info: _C.FrameInfo, region: Region, state: CaptureState) -> Keeper | None:
    """Who keeps a capture; None where it is not stored."""
    request = strict.told_apart(region.stored_as())
    if not request or not store.wanted():
        return None
    reason = state.guards.of_process
    if not reason and resume_label(info.code) is not None and PARTS.of(info.code) is None:
        reason = "a resume function of a resume function"
    if not reason:
        return Keeper(info, region, request, state.guards)
    store.STORE.leave_out(info, reason)
    return None


def _rerun_parts(plan: rerun.Rerun) -> tuple[str, tuple[object, ...]]:
    code = plan.code()
    if plan.points is not None or code is None:
        raise Unstorable("code that runs where the graph raises")
    entry = None if plan.entry is None else plan.entry.of_torch
    parts = (code, plan.again, plan.noticed, plan.may_split, plan.devices, entry, plan.unwritten)
    return "argand.capture.driver.lazy_references:StoredRerun", parts


def _unregistered_parts(guard: Unregistered) -> tuple[str, tuple[object, ...]]:
    return f"{Unregistered.__module__}:{Unregistered.__qualname__}", (tuple(guard.pairs),)


def _answer_parts(guard: Answer) -> tuple[str, tuple[object, ...]]:
    question = guard.ask
    if any(type(value) is weakref.ref for value in (*question.args, *question.kwargs.values())):
        raise Unstorable("what a cached function gives for an object")
    parts = (question.fn, question.args, tuple(question.kwargs.items()), guard.value)
    return "argand.capture.driver.lazy_references:StoredAnswer", parts


_SPECIAL: dict[type, Callable[[Any], Parts]] = {
    rerun.Rerun: _rerun_parts,
    Unregistered: _unregistered_parts,
    Answer: _answer_parts,
}
_ALIASES: dict[int, object] = {id(rerun.raised): lazy_references.raised}


def _plain_history(known: failures.Known, region: Region) -> dict[str, Any]:
    if region.dynamic is False:
        return {}
    seen = known.history(region)
    numbers = {place: value for place, value in seen.numbers.items() if plain(value)}
    parts = {name: tuple(getattr(seen, name)) for name in _NAMES}
    return {"sizes": dict(seen.sizes), "numbers": numbers, **parts}


_NAMES = ("varying", "moving", "fixed")  # fields of histories


def take_histories(code: CodeType, known: failures.Known) -> None:
    """What the captures of entries that were loaded had seen of their inputs counts as if this process had."""
    for held, region, history in store.STORE.histories.pop(id(code), ()):
        if held() is code:
            known.compiles += "sizes" in history
            mine = known.history(region)
            for name in ("sizes", "numbers", *_NAMES):
                getattr(mine, name).update(history.get(name, ()))


def filling_tables(info: _C.FrameInfo, region: Region, state: CaptureState, known: failures.Known) -> _C.Entry | None:
    """What is answered where a package finds out in this call what it looks up from then on, or an optimizer; None for
    other calls.

    Who asked for one graph, or has a backend of their own, gets the graph of the first call; so does what goes on
    behind a graph and asks whether it is compiled: what was computed before it was told that it is.
    """
    named = region.request and is_a(region.request[0], str)
    if not named or region.fullgraph or strict.wanted() or store.STORE.collected is not None:
        return None
    if state.told_compiling and resume_label(info.code) is not None:
        return None
    interpreter = state.interpreter
    if interpreter.types.changed_meanwhile(interpreter.local_classes):
        return None
    if not self_written.fills_one(state, known.filled) and not self_written.begins_training(state):
        return None
    once = failures.runs_once(info, region, known)
    keeps = keeper(info, region, state) if once is not None else None
    if keeps is not None:
        keeps.keep_eager(once=True)
    return once
