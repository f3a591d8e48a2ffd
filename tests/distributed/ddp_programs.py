"""Training under DistributedDataParallel, by eager and by argand; what each rank answers is the differences."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import argand
from argand._core import _C
from argand.events import bus
from distributed.models import CNN, GPT, MANY, ONE_BLOCK, TWO_BLOCKS, Llama, SometimesUnused, batch


def train(
    rank: int,
    make: Callable[[], nn.Module],
    how: str = "outer",
    backend: Any = None,
    *,
    steps: int = MANY,
    accumulate: int = 1,
    hook: Any = None,
    uneven: bool = False,
    call_args: Callable[[int], tuple[Any, ...]] = lambda step: (),
    **options: Any,
) -> list[torch.Tensor]:
    """Parameters, buffers, gradients and the optimizer's state after training.

    Arguments:
        how: what is compiled: the module inside DDP ("inner"), DDP ("outer"), a function that calls it ("step").
        backend: None is eager.
        accumulate: backwards per step, all but the last under `no_sync`.
        uneven: rank 1 has two batches less, under `join`.
    """
    argand.reset()
    torch.manual_seed(0)
    model = make()
    compiled = argand.compile(backend=backend) if backend is not None else lambda found: found
    options.setdefault("bucket_cap_mb", 0.05)
    ddp = DDP(compiled(model) if how == "inner" else model, **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    called = compiled(ddp) if how == "outer" else ddp

    def loss_of(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return called(x, *args).float().square().mean()

    loss_of = compiled(loss_of) if how == "step" else loss_of
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with ddp.join() if uneven else contextlib.nullcontext():
        for step in range(steps - 2 * rank if uneven else steps):
            optimizer.zero_grad()
            for part in range(accumulate):
                with ddp.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                    loss_of(batch(model, rank, step * accumulate + part), *call_args(step)).backward()
            optimizer.step()
    state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters() if p in optimizer.state]
    return [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *state]


def difference(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> float:
    """The largest error, relative to the size of the tensor's values."""
    assert len(ours) == len(eager) and all((a is None) == (b is None) for a, b in zip(ours, eager))
    pairs = [(a.detach().float(), b.detach().float()) for a, b in zip(ours, eager) if a is not None]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs)


def compare(rank: int, make: Callable[[], nn.Module], *ways: str, **options: Any) -> dict[str, float]:
    """The differences to eager of each way to compile, `how backend`."""
    eager = [None if t is None else t.detach().clone() for t in train(rank, make, **options)]
    return {way: difference(train(rank, make, *way.split(), **options), eager) for way in ways}


def gpt(rank: int) -> dict[str, float]:
    return compare(rank, TWO_BLOCKS, "outer aot_eager", "outer native", "inner aot_eager", "step eager")


def llama(rank: int) -> dict[str, float]:
    return compare(rank, partial(Llama, layers=2), "outer native")


def cnn(rank: int) -> dict[str, float]:
    return compare(rank, CNN, "outer aot_eager", "step native", steps=20)


def default_buckets(rank: int) -> dict[str, float]:
    return compare(rank, ONE_BLOCK, "outer aot_eager", bucket_cap_mb=None, steps=3)


def no_sync(rank: int) -> dict[str, float]:
    return compare(rank, ONE_BLOCK, "outer aot_eager", accumulate=3, steps=3)


def static_graph(rank: int) -> dict[str, float]:
    return compare(rank, ONE_BLOCK, "outer aot_eager", static_graph=True, steps=4)


def unused(rank: int) -> dict[str, float]:
    """Ranks use different layers; without `find_unused_parameters` this is an error, in eager too."""
    use = lambda step: ((step + rank) % 3 == 0,)  # noqa: E731
    ways = ("outer aot_eager", "outer native", "step aot_eager")
    return compare(
        rank, SometimesUnused, *ways, find_unused_parameters=True, call_args=use, bucket_cap_mb=0.002, steps=9
    )


def bucket_views(rank: int) -> dict[str, float]:
    return compare(rank, CNN, "outer aot_eager", gradient_as_bucket_view=True, steps=4)


def own_buffers(rank: int) -> dict[str, float]:
    known = inspect.signature(DDP).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
    return compare(rank, CNN, "outer aot_eager", **{option: False}, steps=4)


def joined(rank: int) -> dict[str, float]:
    return compare(rank, CNN, "outer aot_eager", uneven=True, steps=6)


def hook(rank: int) -> dict[str, float]:
    return compare(rank, ONE_BLOCK, "outer aot_eager", hook=_halved, steps=4)


def _halved(state, bucket):  # DDP reads annotations, and takes no texts
    work = dist.all_reduce(bucket.buffer().div_(2 * dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


_COMPILED = ("CompiledFunctionBackward", "_InputsBackward")


def overlap(rank: int) -> dict[str, Any]:
    """In which order the backwards of parts and the reductions of buckets begin, and what the events said."""
    argand.reset()
    torch.manual_seed(0)
    model = GPT()
    ddp = DDP(model, bucket_cap_mb=0.2)
    order: list[str] = []
    told: list[tuple[str, str]] = []
    hooked: list[bool] = []

    def reduce(state, bucket):
        order.append("bucket")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    def looks_at_buffers() -> bool:
        hooked.append(_C.is_hook_installed())
        return False

    stop = bus.subscribe(
        lambda event: told.append((event.name, event.data.get("child", ""))),
        ("optimize_ddp_split_graph", "optimize_ddp_split_child"),
    )
    ddp._check_sync_bufs_pre_fwd = looks_at_buffers
    ddp.register_comm_hook(None, reduce)
    compiled = argand.compile(ddp, backend="aot_eager")
    for step in range(3):
        order.clear()
        loss = compiled(batch(model, rank, step)).square().mean()
        for node in _compiled_nodes(loss.grad_fn):
            node.register_prehook(lambda grads: order.append("part") if order[-1:] != ["part"] else None)
        loss.backward()
    stop()
    return {"order": order, "told": told, "hooked": hooked}


def buckets(rank: int) -> dict[str, float]:
    """DDP makes its buckets anew in the order in which gradients arrived first, the first time without `no_sync`."""
    found = []
    for backend in (None, "aot_eager", "native"):
        argand.reset()
        model = Llama(layers=2)
        ddp = DDP(model, bucket_cap_mb=0.05)
        called = ddp if backend is None else argand.compile(ddp, backend=backend)
        for step in range(3):
            with ddp.no_sync() if step == 0 else contextlib.nullcontext():
                called(batch(model, rank, step)).square().mean().backward()
        found.append([bucket.buffer().numel() for bucket in ddp.reducer._get_zeros_like_grad_buckets()])
    assert len(found[0]) > 4, found
    return {f"buckets {name}": float(one != found[0]) for name, one in zip(("aot_eager", "native"), found[1:])}


def _compiled_nodes(node: Any) -> list[Any]:
    """Nodes of autograd's tape that are compiled backwards; one of several results has several."""
    found, seen, todo = [], set(), [node]
    while todo:
        one = todo.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        found += [one] if "argand" in type(one).__module__ or type(one).__name__ in _COMPILED else []
        todo += [following for following, _ in one.next_functions]
    return found


def contest(rank: int) -> dict[str, Any]:
    """Ranks by whose clocks steps are faster whole, and slower: what the first to decide found, all do, as eager."""
    steps = 30
    eager = compare_layers(rank, None, steps)
    chosen = []
    stop = bus.subscribe(lambda event: chosen.append(event.data["reason"]), ("optimize_ddp",))
    ours, ran = contested_layers(rank, steps)
    stop()
    return {"apart": difference(ours, eager), "ran": ran, "told": len(chosen)}


def compare_layers(rank: int, backend: Any, steps: int, each: Any = None) -> list[torch.Tensor]:
    """Layers that are trained, in many parts where they are compiled."""
    argand.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))
    ddp = DDP(model, bucket_cap_mb=0.001)
    called = ddp if backend is None else argand.compile(ddp, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + rank)
        called(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        if each is not None:
            each(ddp)
    return [*model.parameters(), *(p.grad for p in model.parameters())]


def contested_layers(rank: int, steps: int) -> tuple[list[torch.Tensor], list[bool]]:
    """The same by argand, whose clock says that one kind of step is faster, and what each step ran."""
    from argand.backends.in_parts import contest as contests
    from argand.backends.in_parts import cuts

    clock, ran = [0.0], list[bool]()

    def each(ddp: DDP) -> None:
        ran.append(contests.contest_of(ddp).whole)

    def now(device: torch.device) -> float:
        *_, (_, contest) = contests._contests().values()
        clock[0] += 0.01 if contest.whole == (rank == 0) else 0.02
        return clock[0]

    real, arrivals = contests._now, cuts._arrivals
    contests._now, cuts._arrivals = now, lambda gm, places: []  # as where gradients cannot leave a graph early
    try:
        return compare_layers(rank, "native", steps, each), ran
    finally:
        contests._now, cuts._arrivals = real, arrivals
