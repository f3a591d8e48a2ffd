"""Communication hooks that torch brings, beside eager's training: under compiled modules, and under compiled autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP

import argand
import sweeps
from distributed.ddp_programs import difference
from distributed.models import CNN, ONE_BLOCK, SometimesUnused, batch
from distributed.recorded_programs import recorded

Register = Callable[[Any], None]


def _hook(make: Callable[[], tuple[Any, Any]]) -> Register:
    return lambda ddp: ddp.register_comm_hook(*make())


def _power() -> Any:
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=8)


def _local() -> Any:
    return post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=3)


def _bf16(state, bucket):  # under its own name DDP refuses it without NCCL
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS: dict[str, Register] = {
    "allreduce": _hook(lambda: (None, default_hooks.allreduce_hook)),
    "fp16": _hook(lambda: (None, default_hooks.fp16_compress_hook)),
    "bf16": _hook(lambda: (None, _bf16)),
    "powerSGD": _hook(lambda: (_power(), powerSGD_hook.powerSGD_hook)),
    "fp16 powerSGD": _hook(lambda: (_power(), default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))),
    "local SGD": _hook(lambda: (_local(), post_localSGD_hook.post_localSGD_hook)),
    "C++ allreduce": lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "C++ fp16": lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
}


POWER = [name for name in HOOKS if "power" in name]
BOTH = "compiled aot_eager", "recorded eager"


def train(
    rank: int,
    make: Callable[[], nn.Module],
    name: str,
    way: str,
    *,
    steps: int = 6,
    accumulate: int = 1,
    told: list[str] | None = None,
    call_args: Callable[[int], tuple[Any, ...]] = lambda step: (),
    **options: Any,
) -> list[Any]:
    """Parameters, buffers, gradients of each step and the optimizer's state.

    Arguments:
        way: "eager", "compiled BACKEND" or "recorded BACKEND".
    """
    argand.reset()
    torch.manual_seed(0)
    model = make()
    several = name not in POWER  # those begin collectives where others have ended: buckets overtake each other
    ddp = DDP(model, **{"bucket_cap_mb": 0.05 if several else 25.0, **options})
    HOOKS[name](ddp)
    how, _, backend = way.partition(" ")
    called = argand.compile(ddp, backend=backend) if how == "compiled" else ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[Any] = []

    def run() -> None:
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(accumulate):
                ddp.require_backward_grad_sync = part == accumulate - 1
                called(batch(model, rank, step * accumulate + part), *call_args(step)).square().mean().backward()
            seen.extend(None if p.grad is None else p.grad.clone() for p in model.parameters())
            optimizer.step()

    if how == "recorded":
        with recorded(backend, turns=False) as reasons:
            run()
        if told is not None:
            told += reasons
    else:
        run()
    state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters() if p in optimizer.state]
    return [*model.parameters(), *model.buffers(), *seen, *state]


def compare(rank: int, *ways: str, model: Any = ONE_BLOCK, hooks: Any = tuple(HOOKS), **options: Any) -> dict[str, Any]:
    """The largest difference to eager of each hook by one of the ways in turn, or by all (`sweeps`).

    PowerSGD draws random numbers for its matrices in the order in which they lie in a bucket, which is that in which
    gradients have arrived once: it is compared where it compresses one of them.
    """
    found: dict[str, Any] = {}
    for number, name in enumerate(hooks):
        make = SometimesUnused if name in POWER else model
        want = train(rank, make, name, "eager", **options)
        for way in ways if sweeps.WHOLE else [ways[number % len(ways)]]:
            told: list[str] = []
            got = train(rank, make, name, way, told=told, **options)
            found[f"{name}, {way}"] = {"error": difference(got, want), "told": told}
    return found


NATIVELY = ("allreduce", "fp16", "C++ allreduce", "powerSGD")


def compiled(rank: int) -> dict[str, Any]:
    hooks = [name for name in HOOKS if sweeps.WHOLE or name not in NATIVELY]
    return compare(rank, "compiled aot_eager", hooks=hooks)


def compiled_natively(rank: int) -> dict[str, Any]:
    return compare(rank, "compiled native", hooks=NATIVELY)


def recorded_eagerly(rank: int) -> dict[str, Any]:
    return compare(rank, "recorded eager")


def accumulated(rank: int) -> dict[str, Any]:
    hooks = ["allreduce", "fp16", "powerSGD", "C++ fp16"]
    hooks = hooks if dist.get_world_size() == 2 or sweeps.WHOLE else hooks[:2]
    return compare(rank, *BOTH, model=CNN, accumulate=2, hooks=hooks)


def static(rank: int) -> dict[str, Any]:
    hooks = ["fp16", "powerSGD", "local SGD", "C++ allreduce"]
    return compare(rank, *BOTH, model=CNN, static_graph=True, hooks=hooks)


def unused(rank: int) -> dict[str, Any]:
    """Ranks use different layers."""
    use = lambda step: ((step + rank) % 3 == 0,)  # noqa: E731
    options: dict[str, Any] = {"find_unused_parameters": True, "call_args": use, "steps": 8, "bucket_cap_mb": 0.002}
    hooks = ["fp16", "allreduce", "C++ allreduce", "C++ fp16"]
    return compare(rank, *BOTH, model=SometimesUnused, hooks=hooks, **options)
