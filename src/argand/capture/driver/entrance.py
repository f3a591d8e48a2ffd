"""Answers the frame hook: with what an earlier process captured, else by capturing, which is imported only then."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from argand import events, garbage_collection
from argand._core import _C
from argand.capture.driver import process_limits, stance, strict
from argand.capture.driver.region import Region
from argand.capture.facts.code import skip
from argand.config import config
from argand.errors import not_traced
from argand.graph import thread_state
from argand.outcomes import store
from argand.runtime import build_turns


def answer_frame(info: _C.FrameInfo, *, region: Region) -> _C.Answer:
    """As `frame.capture_frame`, which is asked where nothing is stored that fits the frame."""
    try:
        with garbage_collection.paused():  # imports make many objects, too
            return _answer(info, region)
    except BaseException as error:
        with torch._C.DisableTorchFunction():
            from argand.capture.driver.frame import raise_in_blocks

        return raise_in_blocks(info, region, error)


def _answer(info: _C.FrameInfo, region: Region) -> _C.Answer:
    if config.disable or not process_limits.can_capture():
        return None
    if skip.why_never(info.code) is not None:
        return _C.SKIP_RECURSIVE if skip.with_callees(info.code) else _C.SKIP
    if skip.is_text_of_torch(info.code, info.globals):
        return _C.SKIP
    if fx._symbolic_trace._is_fx_tracing_flag and any(isinstance(arg, fx.Proxy) for arg in tree_leaves(info.args)):
        raise not_traced("torch.fx.symbolic_trace")
    if skip.computes_nothing(info.code) and not any(isinstance(arg, torch.Tensor) for arg in tree_leaves(info.args)):
        return _C.SKIP  # what it calls is captured
    request = _request(info, region)
    answer = _stored(info, region, request) if request else None
    if answer is not None:
        return answer
    if request and build_turns.others():
        return _in_turn(info, region, request)
    return _captured(info, region)


def _captured(info: _C.FrameInfo, region: Region) -> _C.Answer:
    with torch._C.DisableTorchFunction():  # a mode of the program's is told nothing of what modules do
        from argand.capture.driver.frame import capture_frame

    return capture_frame(info, region=region)


def _in_turn(info: _C.FrameInfo, region: Region, request: str) -> _C.Answer:
    """Of the ranks of a job on one machine one captures, and the others load what it stored."""
    kept = store.STORE.kept
    with build_turns.turn(store.key_of(info, request)) as turn:
        if turn is not None:
            store.STORE.forget(info, request)
            stored = _stored(info, region, request)
            if stored is not None:
                return stored
            if not turn.waited:
                answer = _captured(info, region)
                if store.STORE.kept == kept:
                    turn.useless()
                return answer
    return _captured(info, region)


def _request(info: _C.FrameInfo, region: Region) -> str:
    """What outcomes of the frame are told from others by; "" where none is stored, or it is not to be compiled now."""
    if config.debug_function or region.observe or info.entries >= config.cache_size_limit:
        return ""
    if stance.CURRENT.name != "default" or thread_state.cannot_capture():
        return ""
    events.bus.prepare()
    request = strict.told_apart(region.stored_as())
    return request if request and store.wanted() else ""


def _stored(info: _C.FrameInfo, region: Region, request: str) -> _C.Answer:
    """What an earlier process answered; None where that is not known."""
    return store.STORE.find(info, region, request, lambda: f"Argand-Compiled Region: ({info.code.co_name})")
