"""Training under DistributedDataParallel with compiled autograd, beside eager's; ranks answer with differences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import argand
from argand.engine.entries import Trial
from argand.events import bus
from distributed.models import CNN, GPT, MANY, ONE_BLOCK, TWO_BLOCKS, SometimesUnused, batch

DEVICE = os.environ.get("RANKS_DEVICE", "cpu")
if DEVICE == "cuda":
    torch.use_deterministic_algorithms(True)


@contextlib.contextmanager
def recorded(backend: Any, turns: bool) -> Iterator[list[str]]:
    """Compiled autograd, and what it recorded or why it did not.

    Arguments:
        turns: the engine may take its turns.
    """
    told: list[str] = []
    stop = bus.subscribe(
        lambda event: told.append(event.data.get("reason") or event.text()), ("compiled_autograd_graph", "fallback")
    )
    before = Trial.is_engines_turn
    if not turns:
        Trial.is_engines_turn = lambda self: False  # type: ignore[method-assign]
    try:
        with argand.compiled_autograd(backend=backend):
            yield told
    finally:
        Trial.is_engines_turn = before  # type: ignore[method-assign]
        stop()


def train(
    rank: int,
    make: Callable[[], nn.Module],
    backend: Any = None,
    *,
    steps: int = MANY,
    accumulate: int = 1,
    set_to_none: bool = True,
    hook: Any = None,
    uneven: bool = False,
    by_all: bool = True,
    turns: bool = False,
    two_backwards: bool = False,
    compiled: bool = False,
    told: list[str] | None = None,
    call_args: Callable[[int], tuple[Any, ...]] = lambda step: (),
    **options: Any,
) -> list[Any]:
    """Parameters, buffers, gradients and the optimizer's state after training; with gradients of each step."""
    argand.reset()
    torch.manual_seed(0)
    model = make().to(DEVICE)
    options.setdefault("bucket_cap_mb", 0.05)
    ddp = DDP(model, **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    called = argand.compile(ddp, backend=backend) if compiled and backend else ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    context = contextlib.nullcontext([]) if backend is None else recorded(backend, turns)
    seen: list[Any] = []
    with context as reasons, ddp.join(by_all) if uneven else contextlib.nullcontext():
        for step in range(steps - 2 * rank if uneven else steps):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(accumulate):
                with ddp.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                    out = called(batch(model, rank, step * accumulate + part).to(DEVICE), *call_args(step))
                    loss = out.float().square().mean()
                    loss.backward(retain_graph=two_backwards)
                    if two_backwards:
                        loss.backward()
            seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            optimizer.step()
    if told is not None:
        told += reasons
    state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters() if p in optimizer.state]
    return [*model.parameters(), *model.buffers(), *seen, *state]


def compare(rank: int, make: Callable[[], nn.Module], backends: str = "eager", **options: Any) -> dict[str, Any]:
    """Per backend the largest difference to eager, and how many reductions were in the graphs."""
    want = train(rank, make, **options)
    found: dict[str, Any] = {}
    for backend in backends.split():
        told: list[str] = []
        got = train(rank, make, backend, told=told, **options)
        assert len(want) == len(got) and all((a is None) == (b is None) for a, b in zip(want, got))
        errors = [float((a.detach() - b.detach()).abs().max()) for a, b in zip(want, got) if a is not None]
        found[backend] = {"error": max(errors), "reductions": [text.count("all_reduce") for text in told], "told": told}
    return found


def gpt(rank: int) -> dict[str, Any]:
    return compare(rank, TWO_BLOCKS, "eager aot_eager native")


def cnn(rank: int) -> dict[str, Any]:
    return compare(rank, CNN, "eager native", steps=20 if dist.get_world_size() == 2 else MANY)


def no_sync(rank: int) -> dict[str, Any]:
    return compare(rank, ONE_BLOCK, accumulate=3, steps=4)


def accumulated(rank: int) -> dict[str, Any]:
    """Gradients are not set to None in between: what is reduced is what has been added up."""
    return compare(rank, CNN, accumulate=2, set_to_none=False, steps=5)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class CodeWithin(CNN):
    """The backward comes to code of the program's when some gradients of a bucket have been accumulated already."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = Doubled.apply(self.body(x).mean((2, 3)))
        y.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        return self.head(y)


def accumulated_around_code(rank: int) -> dict[str, Any]:
    return compare(rank, CodeWithin, "eager native", accumulate=2, set_to_none=False, steps=5)


class Checkpointed(GPT):
    """Its blocks are computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(block, nn.Dropout(0.1)) for block in self.blocks]
        self.blocks = nn.ModuleList(Again(block) for block in blocks)


class Again(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def checkpoints(rank: int) -> dict[str, Any]:
    return compare(rank, Checkpointed, "eager native", steps=5)


class Penalised(nn.Module):
    """Gives the gradient of a layer, which is differentiated with all else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = self.first(x).tanh()
        y.register_hook(lambda grad: grad * 2)
        (grad,) = torch.autograd.grad(self.last(y).sin().sum(), x, create_graph=True)
        return torch.cat([self.last(y), grad], 1)


def penalties(rank: int) -> dict[str, Any]:
    return compare(rank, Penalised, "eager native", bucket_cap_mb=0.002, steps=5)


def static_graph(rank: int) -> dict[str, Any]:
    return compare(rank, ONE_BLOCK, static_graph=True, steps=6)


def several_backwards(rank: int) -> dict[str, Any]:
    return compare(rank, CNN, static_graph=True, two_backwards=True, steps=5)


def unused(rank: int) -> dict[str, Any]:
    """Ranks use different layers."""
    use = lambda step: ((step + rank) % 3 == 0,)  # noqa: E731
    return compare(rank, SometimesUnused, find_unused_parameters=True, call_args=use, bucket_cap_mb=0.002, steps=9)


def unused_accumulated(rank: int) -> dict[str, Any]:
    use = lambda step: (step % 4 == 0 and rank == 0,)  # noqa: E731
    return compare(
        rank,
        SometimesUnused,
        find_unused_parameters=True,
        call_args=use,
        bucket_cap_mb=0.002,
        accumulate=2,
        set_to_none=False,
        steps=9,
    )


def bucket_views(rank: int) -> dict[str, Any]:
    return compare(rank, CNN, gradient_as_bucket_view=True, steps=5)


def default_buckets(rank: int) -> dict[str, Any]:
    return compare(rank, ONE_BLOCK, bucket_cap_mb=None, steps=4)


def joined(rank: int) -> dict[str, Any]:
    return compare(rank, CNN, uneven=True, steps=6)


def joined_by_some(rank: int) -> dict[str, Any]:
    """Gradients are divided by the number of ranks that go on."""
    return compare(rank, ONE_BLOCK, uneven=True, by_all=False, steps=6)


def compressed(rank: int) -> dict[str, Any]:
    return compare(rank, ONE_BLOCK, hook=fp16_compress_hook, steps=5)


def one_rank_records(rank: int) -> dict[str, Any]:
    """Other ranks run the engine and DDP's reducer: they call the same collectives."""
    want = train(rank, ONE_BLOCK)
    got = train(rank, ONE_BLOCK, "eager" if rank == 0 else None)
    return {"eager": {"error": max(float((a - b).detach().abs().max()) for a, b in zip(want, got)), "told": []}}


def one_rank_compiles(rank: int) -> dict[str, Any]:
    want = train(rank, ONE_BLOCK)
    got = train(rank, ONE_BLOCK, "native" if rank == 0 else None)
    return {"native": {"error": max(float((a - b).detach().abs().max()) for a, b in zip(want, got)), "told": []}}


def engines_turns(rank: int) -> dict[str, Any]:
    """As it is used: ranks measure, each for itself, whether the engine is faster."""
    return compare(rank, CNN, "eager native", turns=True, steps=20)


def types_and_layouts(rank: int) -> dict[str, Any]:
    return compare(rank, Types, steps=5)


def compiled_forward(rank: int) -> dict[str, Any]:
    return compare(rank, ONE_BLOCK, "aot_eager", steps=5, compiled=True)


def two_modules(rank: int) -> dict[str, Any]:
    """One backward through both: their buckets are sent in turns, as they become complete."""

    def outcome(backend: Any) -> list[torch.Tensor]:
        argand.reset()
        torch.manual_seed(0)
        modules = [DDP(SometimesUnused().to(DEVICE), bucket_cap_mb=0.002) for _ in range(2)]
        optimizer = torch.optim.SGD([p for one in modules for p in one.parameters()], lr=0.1)
        with contextlib.nullcontext() if backend is None else recorded(backend, False):
            for step in range(5):
                optimizer.zero_grad()
                x = batch(modules[0].module, rank, step).to(DEVICE)
                (modules[0](x) * modules[1](x).tanh()).mean().backward()
                optimizer.step()
        return [p for one in modules for p in one.parameters()]

    want, got = outcome(None), outcome("eager" if rank == 0 else "aot_eager")
    return {"eager": {"error": max(float((a - b).detach().abs().max()) for a, b in zip(want, got)), "told": []}}


def parts(rank: int) -> dict[str, Any]:
    """When a communication hook of the program's gets buckets: while the backward goes on."""
    order: list[str] = []

    def reduce(state, bucket):  # DDP reads annotations, and takes no texts
        order.append("bucket")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            order.append("part")
            return module(*args)

        return run

    argand.reset()
    torch.manual_seed(0)
    ddp = DDP(GPT().to(DEVICE), bucket_cap_mb=0.2)
    ddp.register_comm_hook(None, reduce)
    with recorded(backend, False):
        for step in range(4):
            order.clear()
            ddp(batch(ddp.module, rank, step).to(DEVICE)).square().mean().backward()
    return {"order": order}


def order(rank: int) -> dict[str, Any]:
    """The operations of the recorded graph, in order."""
    told: list[str] = []
    train(rank, GPT, "eager", steps=4, told=told)
    lines = [line for line in told[-1].splitlines() if "=" in line]
    return {
        "starts": [at for at, line in enumerate(lines) if "all_reduce" in line and "wait" not in line],
        "waits": [at for at, line in enumerate(lines) if "wait_tensor" in line],
        "count": len(lines),
    }


class Types(nn.Module):
    """Channels last, a module of two types, a parameter that is a scalar, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(8, 8).double()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.reshape(6, 3, 2, 2)).mean((2, 3)) * self.scale + self.frozen
        return self.linear(y.double())
