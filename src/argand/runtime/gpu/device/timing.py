"""How long calls keep a device busy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from argand.graph.metadata.strides import elements_spanned
from argand.runtime.kernels.calm import Watch, is_known

ROUNDS = 5
_REPEATS = 10  # of a call in a round
_AHEAD = 1_000_000  # cycles that the GPU waits in a round (half a millisecond), while calls are queued
_LEAST_REPEATS = 2
_DRAWN = 1 << 13  # random numbers
_LONG = 400.0  # microseconds from which a call is repeated less often
_LEAST_ROUNDS_ON_HOST, _LONG_ON_HOST = 3, 0.03  # seconds of all rounds from which there are fewer
_MOST_ROUNDS_ON_HOST, _SHORT_ON_HOST = 25, 0.004  # seconds of all rounds up to which there are more
_LONGEST_ON_HOST = 0.15  # seconds of all rounds up to which there are more, as others had the processors in some
_FAR = 1.2  # times that differ by more than this factor are not taken more often


def can_time() -> bool:
    """Whether calls can be timed now: not where the program records its own into a CUDA graph."""
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def random_tensor(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers to time a call on, not drawn from the program's generators; integers are zeros, as positions are.

    They are some thousands, again and again: drawing one takes as long as ten multiplications.
    """
    count = elements_spanned(size, stride)
    if not dtype.is_floating_point:
        return torch.zeros(count, dtype=dtype, device=device).as_strided(tuple(size), tuple(stride))
    generator = torch.Generator(device)
    drawn = torch.empty(min(count, _DRAWN), device=device).uniform_(-1.0, 1.0, generator=generator.manual_seed(0))
    flat = torch.empty(count, dtype=dtype, device=device)
    whole = count // _DRAWN * _DRAWN
    if whole:
        flat[:whole].view(-1, _DRAWN).copy_(drawn)
    flat[whole:].copy_(drawn[: count - whole])
    return flat.as_strided(tuple(size), tuple(stride))


def time_calls(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Microseconds that each call takes on a device, once its launches are queued: the least of several rounds.

    Rounds of all calls alternate, so that a change of the clock meets all of them. All are NaN, which is neither less
    nor more than anything, where others had the host's processors so often that nothing is known.
    """
    if device.type != "cuda":
        return _on_host(calls)
    with torch.cuda.device(device), torch.no_grad():
        repeats = []
        for call in calls:
            call()
            once = _round(call, 1)
            torch.cuda.synchronize()
            repeats.append(_LEAST_REPEATS if _elapsed(once) > _LONG else _REPEATS)
        rounds = [[_round(call, count) for call, count in zip(calls, repeats)] for _ in range(ROUNDS)]
        torch.cuda.synchronize()
        best = [min(_elapsed(events_of_round[place]) for events_of_round in rounds) for place in range(len(calls))]
    return [total / count for total, count in zip(best, repeats)]


def _round(call: Callable[[], object], repeats: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_AHEAD)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    return begin, end


def _elapsed(events: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    return 1e3 * float(events[0].elapsed_time(events[1]))


def _on_host(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The first call of each makes ready what it needs, which seldom takes a long one much longer: it counts, too."""
    times: list[list[float]] = [[] for _ in calls]
    alone = torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter  # others may want the processor
    watch, begin = Watch(), 0.0
    for number in range(1 + _MOST_ROUNDS_ON_HOST):
        for taken, call in zip(times, calls):
            start = clock()
            call()
            seconds = clock() - start
            if watch.calm() or alone:
                taken.append(1e6 * seconds)
        begin = begin if number else clock()
        passed = clock() - begin
        known = all(map(is_known, times))
        least = 1 if known and _are_far_apart(times) else _LEAST_ROUNDS_ON_HOST if passed > _LONG_ON_HOST else ROUNDS
        if number >= least and passed > _SHORT_ON_HOST and (known or passed > _LONGEST_ON_HOST):
            break
    return [min(taken) for taken in times] if all(map(is_known, times)) else [math.nan] * len(times)


def _are_far_apart(times: Sequence[Sequence[float]]) -> bool:
    """Whether one of some calls is quicker than all others, however much each time is off."""
    quickest = sorted(map(min, times))[:2]
    return len(quickest) == 2 and quickest[1] > _FAR * quickest[0]
