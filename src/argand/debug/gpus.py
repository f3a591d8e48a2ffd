"""What tools must know of GPUs that a program uses: their random numbers, autocast, waiting for them, timing on them.

No GPU is set up here: of a process that has used none, there is nothing to keep.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

KINDS = ("cpu", "cuda")  # of devices that have autocast of their own
_COPIED = 256 << 20  # bytes of a copy that tells a GPU's bandwidth: more than its caches hold


def in_use() -> bool:
    """Whether this process has used a GPU. Asking whether there is one would keep its children from using it."""
    return bool(torch.cuda.is_initialized())


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The device that a call on these tensors keeps busy: the first GPU among theirs, else the CPU."""
    devices = [tensor.device for tensor in tensors]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def synchronize() -> None:
    """Wait for what GPUs have been given, unless it is being recorded."""
    if in_use() and not torch.cuda.is_current_stream_capturing():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


def generators() -> tuple[Any, list[Any]]:
    """States of torch's random number generators: of the CPU, of each GPU in use."""
    return torch.random.get_rng_state(), torch.cuda.get_rng_state_all() if in_use() else []


def set_generators(states: tuple[Any, list[Any]]) -> None:
    """Put states back."""
    torch.random.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """What is drawn inside is not seen outside."""
    states = generators()
    try:
        yield
    finally:
        set_generators(states)


def autocast() -> dict[str, torch.dtype]:
    """By kind of device, the dtype of autocast where it is on."""
    return {kind: torch.get_autocast_dtype(kind) for kind in KINDS if torch.is_autocast_enabled(kind)}


@contextlib.contextmanager
def autocast_as(wanted: dict[str, torch.dtype]) -> Iterator[None]:
    """Under autocast as `autocast` told of it; off for kinds of devices that are not in it."""
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            if kind in wanted:
                stack.enter_context(torch.autocast(kind, dtype=wanted[kind]))
            elif torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """How long the device is at what `run` gives it: on a GPU between two events, else until it returns."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    with torch.cuda.device(device):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


@functools.cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a large copy in the memory of a device reads and writes, at best."""
    count = (_COPIED if device.type == "cuda" else 64 << 20) // 4
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    best = min(seconds_of(lambda: target.copy_(source), device) for _ in range(8))
    return 2 * int(source.nbytes) / best
