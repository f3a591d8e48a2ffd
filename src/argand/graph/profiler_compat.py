"""The one file with private or version-dependent use of torch's profilers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def profiler_flag() -> tuple[dict[str, Any], str]:
    """A module's variables and the name of the one that is true while torch's profiler runs."""
    from torch.autograd import profiler

    return profiler.__dict__, "_is_profiler_enabled"


def profiler_range(name: str, values: tuple[Any, ...] = ()) -> contextlib.AbstractContextManager[Any]:
    """A range of this name in torch's profiler; `values` are shown as its inputs (`record_shapes=True`).

    `torch.profiler.record_function` would take 16 us where a small kernel takes one; this takes one.
    """
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    context: contextlib.AbstractContextManager[Any] = (
        torch.profiler.record_function(name) if fast is None else fast(name, values)
    )
    return context


def operation_times(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds that each operation, and each range in the profile, takes in `call`, what is within it left out.

    By torch's old profiler: the first profile of the other one takes seconds, to look for GPUs.
    """
    from torch.autograd import profiler, profiler_legacy

    times: dict[str, float] = {}
    with profiler_legacy.profile() as profile:
        profiler._is_profiler_enabled = True
        try:
            call()
        finally:
            profiler._is_profiler_enabled = False
    for event in profile.function_events:
        times[event.name] = times.get(event.name, 0.0) + float(event.self_cpu_time_total)
    return times


def allocations(profile: torch.profiler.profile) -> list[int]:
    """Bytes of each allocation that a profile with `profile_memory=True` saw, in order."""
    results = getattr(profile.profiler, "kineto_results", None)
    if results is None:
        return []
    return [event.nbytes() for event in results.events() if event.name() == "[memory]" and event.nbytes() > 0]
