"""Hands what a capture made to the store of outcomes, and takes from there what earlier processes saw of sizes."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from argand._core import _C
from argand.bytecode.resume import resume_label
from argand.capture.driver import failures, late
from argand.capture.driver.region import Region
from argand.capture.interp.state import CaptureState
from argand.capture.output import rerun
from argand.capture.output.transform import Transformed
from argand.outcomes import store
from argand.outcomes.guard_log import Log
from argand.outcomes.records import Captured
from argand.outcomes.references import Unstorable, plain


class Keeper:
    """Keeps one capture.

    Arguments:
        log: notes how its guards are built.
    """

    def __init__(self, info: _C.FrameInfo, region: Region, request: str) -> None:
        self.info, self.region, self.request = info, region, request
        self.log = Log()

    def keep(self, transformed: Transformed, known: failures.Known) -> None:
        """Store what was made, if another process can use it."""
        if transformed.resumes or transformed.graph is None:
            return
        history = _plain_history(known, self.region)
        captured = Captured(transformed.code, transformed.globals, self.log, True, history, _SPECIAL, _ALIASES)
        store.STORE.keep(self.info, self.request, captured)


def keeper(info: _C.FrameInfo, region: Region, state: CaptureState) -> Keeper | None:
    """Who keeps a capture; None where it is not stored."""
    request = region.stored_as()
    if not request or not store.wanted() or state.guards.of_process or resume_label(info.code) is not None:
        return None
    return Keeper(info, region, request)


def _rerun_parts(plan: rerun.Rerun) -> tuple[str, tuple[object, ...]]:
    code = plan.code()
    if plan.points is not None or plan.written or plan.entry is not None or code is None:
        raise Unstorable("code that runs where the graph raises")
    parts = (code, plan.again, plan.noticed, plan.may_split, plan.devices)
    return "argand.capture.driver.late:StoredRerun", parts


_SPECIAL: dict[type, Callable[[Any], tuple[str, tuple[object, ...]]]] = {rerun.Rerun: _rerun_parts}
_ALIASES: dict[int, object] = {id(rerun.raised): late.raised}


def _plain_history(known: failures.Known, region: Region) -> dict[str, Any]:
    if region.dynamic is False:
        return {}
    seen = known.history(region)
    numbers = {place: value for place, value in seen.numbers.items() if plain(value)}
    return {"sizes": dict(seen.sizes), "numbers": numbers, "varying": tuple(seen.varying), "fixed": tuple(seen.fixed)}


def take_histories(code: CodeType, known: failures.Known) -> None:
    """What the captures of entries that were loaded had seen of their inputs counts as if this process had."""
    for held, region, history in store.STORE.histories.pop(id(code), ()):
        if held() is code:
            known.compiles += 1
            mine = known.history(region)
            mine.sizes.update(history["sizes"])
            mine.numbers.update(history["numbers"])
            mine.varying.update(history["varying"])
            mine.fixed.update(history["fixed"])
