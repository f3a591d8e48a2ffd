"""Ranks that compile differently, and ranks that die."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import argand
from argand.runtime.tape.plan import Plan
from distributed.models import CNN, ONE_BLOCK, batch


def _warned(run: Any) -> list[str]:
    argand.reset()
    argand.config.check_ranks = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    dist.barrier()
    return [str(one.message) for one in caught if "compile differently" in str(one.message)]


def breaks(rank: int) -> list[str]:
    """One rank prints."""

    def breaking(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if rank == 1:
            print("rank 1 looks at it")
        return x + 1

    return _warned(lambda: argand.compile(breaking, backend="eager")(torch.ones(4)))


def sizes(rank: int) -> list[str]:
    def sized(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x.shape[0]

    return _warned(lambda: argand.compile(sized, backend="eager")(torch.ones(4 + rank)))


def order(rank: int) -> list[str]:
    def left(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def right(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    chosen = (left, right) if rank == 0 else (right, left)
    return _warned(lambda: [argand.compile(f, backend="eager")(torch.ones(4)) for f in chosen])


def recompiles(rank: int) -> list[str]:
    """One rank compiles again, for another dtype; then all go on alike. Nobody waits, and nothing is told."""

    def again(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def after(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def run() -> None:
        compiled = argand.compile(again, backend="eager", dynamic=False)
        compiled(torch.ones(4))
        if rank == 1:
            compiled(torch.ones(4, dtype=torch.float64))
        total = argand.compile(after, backend="eager")(torch.ones(4))
        dist.all_reduce(total)
        assert total[0] == 6

    return _warned(run)


def alike(rank: int) -> list[str]:
    def run() -> None:
        model = argand.compile(DDP(ONE_BLOCK(), bucket_cap_mb=0.05), backend="aot_eager")
        for step in range(2):
            model(batch(model.module, rank, step)).sum().backward()

    return _warned(run)


def dies(rank: int) -> None:
    """Rank 1 is killed while it compiles kernels, and holds the cache's lock; the other needs the same kernels."""
    from argand.runtime import cache

    store = torch.distributed.distributed_c10d._get_default_store()
    build, ask = cache._build_entry, cache.get_or_build

    def killed(*args: Any, **kwargs: Any) -> Any:
        store.set("holds the lock", "yes")
        os.kill(os.getpid(), signal.SIGKILL)
        return build(*args, **kwargs)

    def later(*args: Any, **kwargs: Any) -> Any:
        store.wait(["holds the lock"])  # else this rank may build all that the other needs
        return ask(*args, **kwargs)

    if rank == 1:
        cache._build_entry = killed
    else:
        cache.get_or_build = later
    model = argand.compile(DDP(ONE_BLOCK()))
    model(batch(model.module, rank, 0)).sum().backward()


def dies_in_a_graph(rank: int) -> None:
    """Rank 1 is killed between two calls; the other is in the middle of a compiled graph by then."""
    import torch.distributed._functional_collectives as funcol

    @argand.compile(backend="native", fullgraph=True)
    def graph(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x.exp(), "sum", dist.group.WORLD).sin() + funcol.all_reduce(x, "sum", dist.group.WORLD)

    graph(torch.ones(64, 64))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    graph(torch.zeros(64, 64))


def dies_before_a_backward(rank: int) -> None:
    """Rank 1 is killed between a compiled forward and its backward, which communicates."""
    import torch.distributed._functional_collectives as funcol

    @argand.compile(backend="native", fullgraph=True)
    def graph(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_gather_tensor_autograd(x.exp(), 0, dist.group.WORLD)
        return y.sin().sum()

    graph(torch.ones(8, 8, requires_grad=True)).backward()
    loss = graph(torch.zeros(8, 8, requires_grad=True))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()


def _talks(x: torch.Tensor) -> torch.Tensor:
    argand.graph_break()
    return x + 1


def one_compile(rank: int) -> dict[str, Any]:
    """What the cache says of outcomes while all ranks begin at once; and how far results are from eager's."""
    return _shared(rank, ONE_BLOCK, 2, lambda model: model)


def one_compile_of_parts(rank: int) -> dict[str, Any]:
    """The same of graphs whose backward stops where DDP's buckets end, and of which conv layers write to buffers."""
    found = [_shared(rank, make, 3, lambda model: DDP(model, bucket_cap_mb=0.01)) for make in (ONE_BLOCK, CNN)]
    parts = sum(len(obj.arrivals) for obj in gc.get_objects() if type(obj) is Plan)
    return {
        "said": [said for each in found for said in each["said"]],
        "worst": max(each["worst"] for each in found),
        "parts": parts,
    }


def _shared(rank: int, make: Any, steps: int, spread: Any) -> dict[str, Any]:
    argand.reset()
    said: list[str] = []
    remove = argand.events.bus.subscribe(
        lambda event: said.append(str(event.data["outcome"])) if event.data.get("level") == "outcome" else None,
        ("cache",),
    )
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = make()
        parallel = spread(model)
        call, losses = argand.compile(parallel) if compiled else parallel, []
        for step in range(steps):
            losses.append(call(batch(model, rank, step)).square().mean())
            losses[-1].backward()
        found.append([*(loss.detach() for loss in losses), *(p.grad for p in model.parameters()), *model.buffers()])
    whole = list(said)
    assert torch.equal(argand.compile(_talks)(torch.ones(3)), torch.full((3,), 2.0))  # nobody can load that
    remove()
    worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(*found, strict=True))
    return {"said": whole, "worst": worst}
