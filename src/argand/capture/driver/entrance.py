"""Answers the frame hook: with what an earlier process captured, else by capturing, which is imported only then."""

from __future__ import annotations

from argand import collector, events
from argand._core import _C
from argand.capture.driver import process_limits, stance
from argand.capture.driver.region import Region
from argand.capture.facts.code import skip
from argand.config import config
from argand.graph import ambient
from argand.outcomes import store


def answer_frame(info: _C.FrameInfo, *, region: Region) -> _C.Answer:
    """As `frame.capture_frame`, which is asked where nothing is stored that fits the frame."""
    if config.disable or not process_limits.can_capture():
        return None
    if skip.why_never(info.code) is not None:
        return _C.SKIP_RECURSIVE if skip.with_callees(info.code) else _C.SKIP
    entry = _stored(info, region)
    if entry is not None:
        return entry
    from argand.capture.driver.frame import capture_frame

    return capture_frame(info, region=region)


def _stored(info: _C.FrameInfo, region: Region) -> _C.Entry | None:
    """An entry of an earlier process; None where there is none, or the frame is not to be compiled now."""
    if config.debug_function or region.observe or info.entries >= config.cache_size_limit:
        return None
    if stance.CURRENT.name != "default" or ambient.cannot_capture():
        return None
    events.bus.prepare()
    request = region.stored_as()
    if not request or not store.wanted():
        return None
    with collector.paused():
        return store.STORE.find(info, region, request, lambda: f"Argand-Compiled Region: ({info.code.co_name})")
