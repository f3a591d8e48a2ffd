"""Ways in which programs train with FSDP2, parallel layers and DistributedDataParallel: losses, parameters and buffers
after some steps are eager's.

    python -m tests.distributed.worlds.training_uses
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import argand
import sweeps
from distributed.ranks import run_ranks

Compile = Callable[[Any], Any]
Told = list[torch.Tensor]
USES: dict[str, Callable[[Compile], Told]] = {}
WORDS = 16
SMALL = 0.0005  # MiB of a bucket
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
COLUMNS_AND_ROWS = {"a": ColwiseParallel(), "b": RowwiseParallel()}
OUTER = {"emb": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
SEQUENCES = {
    "n": SequenceParallel(),
    "a": ColwiseParallel(input_layouts=Shard(1)),
    "b": RowwiseParallel(output_layouts=Shard(1)),
}
OUTER_SEQUENCES = {
    "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


class Block(nn.Module):
    def __init__(self, width: int, inner: int, drop: float, again: bool) -> None:
        super().__init__()
        self.n = nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, inner), nn.Linear(inner, width)
        self.d, self.again = nn.Dropout(drop), again

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.d(F.gelu(self.a(self.n(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x))


class Net(nn.Module):
    def __init__(
        self,
        width: int = 8,
        inner: int = 12,
        blocks: int = 2,
        tied: bool = False,
        drop: float = 0.0,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([Block(width, inner, drop, again) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.emb.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.emb(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def score(self, words: torch.Tensor) -> torch.Tensor:
        return self(words) * 0.5


class AveragedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad * 0.5


class Averaging(Net):
    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.emb(words)
        for block in self.blocks:
            x = block(x)
            mean = x * 1
            AveragedInPlace.apply(mean)
            x = x + mean.tanh()
        return self.head(self.norm(x))


class Counted(nn.Module):
    """Its buffers are written to in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.bn, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen += 1
        return self.out(self.bn(self.c(x)).relu().mean((2, 3))) * (1 + 0.01 * self.seen)


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().float().clone()


def words(number: int, rank: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(100 * number + rank)
    return torch.randint(0, WORDS, (4, 6), generator=chance)


def images(number: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(10 * number + rank))


def entropy(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y.flatten(0, 1).float(), x.flatten())


def squares(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def adam(model: nn.Module, **options: Any) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2, **options)


def sgd(model: nn.Module, **options: Any) -> Any:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, **options)


def state(model: nn.Module) -> Told:
    return [whole(tensor) for tensor in (*model.parameters(), *model.buffers())]


def train(
    model: nn.Module,
    call: Any,
    optimizer: Any,
    steps: int = 3,
    *,
    alike: bool = False,
    before: Callable[[int, int], None] = lambda step, part: None,
    after: Callable[[], Iterable[Any]] = lambda: (),
    parts: int = 1,
    data: Callable[[int, int], torch.Tensor] = words,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = entropy,
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Told:
    """What some steps tell.

    Arguments:
        alike: all ranks have the same data.
        before: what is called before each part of each step; after: before the optimizer's step.
        parts: of a step, whose gradients add up.
    """
    told: Told = []
    for step in range(steps):
        for part in range(parts):
            before(step, part)
            x = data(step * parts + part, 0 if alike else dist.get_rank())
            torch.manual_seed(step)
            with around():
                error = loss(call(x), x)
                error.backward()
            told.append(whole(error))
        told += [whole(value) for value in after()]
        optimizer.step()
        optimizer.zero_grad()
    return told + state(model)


def use(function: Callable[[Compile], Told]) -> Callable[[Compile], Told]:
    USES[function.__name__] = function
    return function


# ---------------------------------------------------------------------- FSDP2


@functools.cache
def mesh_of(*shape: int) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[2 - len(shape) :])


def sharded(model: Any, **options: Any) -> Any:
    mesh = mesh_of(dist.get_world_size())
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _shards(name: str, net: Callable[[], Any] = Net, opt: Callable[[Any], Any] = adam, **options: Any) -> None:
    def run(compiled: Compile) -> Told:
        model = sharded(net(), **options)
        return train(model, compiled(model), opt(model))

    USES[name] = run


_shards("fsdp_bf16", mp_policy=BF16)
_shards("fsdp_whole_between", reshard_after_forward=False)
_shards("fsdp_last_dim", shard_placement_fn=lambda p: Shard(p.ndim - 1))
_shards("fsdp_tied", lambda: Net(tied=True))
_shards("fsdp_uneven", lambda: Net(7, 5))
_shards("fsdp_checkpointed", lambda: Net(again=True, drop=0.2))
_shards("fsdp_foreach", opt=lambda model: sgd(model, momentum=0.9, foreach=True))
_shards("fsdp_offloaded", offload_policy=CPUOffloadPolicy(pin_memory=False))
_shards("fsdp_written_sums", Averaging)
_shards("fsdp_fused", opt=lambda model: adam(model, fused=True))


@use
def fsdp_ignored(compiled: Compile) -> Told:
    model, mesh = Net(), mesh_of(dist.get_world_size())
    ignored = {block.n.weight for block in model.blocks} | {model.emb.weight}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, ignored_params={block.n.weight})
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    return train(model, compiled(model), adam(model), alike=True)


@use
def fsdp_accumulated(compiled: Compile) -> Told:
    model = sharded(Net())

    def before(step: int, part: int) -> None:
        model.set_requires_gradient_sync(part == 1)
        model.set_reshard_after_backward(part == 1)
        model.set_is_last_backward(part == 1)

    return train(model, compiled(model), adam(model), parts=2, before=before)


@use
def fsdp_clipped(compiled: Compile) -> Told:
    """What clips gradients is compiled too: all shards that are written to share memory in several groups."""
    model = sharded(Net())
    clip = compiled(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1, foreach=True))
    return train(model, compiled(model), adam(model), after=lambda: [clip(list(model.parameters()))])


@use
def fsdp_frozen_and_thawed(compiled: Compile) -> Told:
    model = Net()
    model.emb.weight.requires_grad_(False)
    model = sharded(model)
    weight = model.blocks[0].a.weight
    optimizer = sgd(model)
    return train(model, compiled(model), optimizer, before=lambda step, part: weight.requires_grad_(step % 2 == 0))


@use
def fsdp_states_between(compiled: Compile) -> Told:
    model = sharded(Net())
    call, optimizer = compiled(model), adam(model)
    told = train(model, call, optimizer, 1)
    kept = {key: value.clone() for key, value in get_model_state_dict(model).items()}
    kept_states = get_optimizer_state_dict(model, optimizer)
    told += train(model, call, optimizer, 1)
    set_model_state_dict(model, kept)
    set_optimizer_state_dict(model, optimizer, kept_states)
    told += train(model, call, optimizer, 1)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    halves = {key: value * 0.5 for key, value in full.items()} if dist.get_rank() == 0 else {}
    set_model_state_dict(model, halves, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return told + train(model, call, optimizer, 1)


@use
def fsdp_blocks(compiled: Compile) -> Told:
    model = Net(drop=0.1)
    for block in model.blocks:
        block.forward = compiled(block.forward)

    def before(step: int, part: int) -> None:
        for block in model.blocks if step == 1 else ():
            block.unshard(async_op=True)

    sharded(model, mp_policy=BF16)
    return train(model, model, adam(model), before=before)


@use
def fsdp_method(compiled: Compile) -> Told:
    model = sharded(Net(blocks=3))
    for block, following in zip(model.blocks, list(model.blocks)[1:]):
        block.set_modules_to_forward_prefetch([following])
    register_fsdp_forward_method(model, "score")
    optimizer = adam(model)
    return train(model, compiled(model.score), optimizer, 2) + train(model, compiled(model), optimizer, 2)


@use
def fsdp_buffers(compiled: Compile) -> Told:
    model = Counted()
    fully_shard(model.c, mesh=mesh_of(dist.get_world_size()))
    fully_shard(model, mesh=mesh_of(dist.get_world_size()))
    return train(model, compiled(model), sgd(model), data=images, loss=squares)


@use
def fsdp_steps_in_backward(compiled: Compile) -> Told:
    model = sharded(Net())
    optimizers = {p: torch.optim.SGD([p], 0.1, foreach=False) for p in model.parameters()}

    def stepped(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(0.5)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(stepped)
    return train(model, compiled(model), torch.optim.SGD([torch.zeros(1)], 0.1))


@use
def fsdp_whole_step(compiled: Compile) -> Told:
    model = sharded(Net())
    return _whole_steps(compiled, model) + _evaluated(compiled, model)


def _whole_steps(compiled: Compile, model: nn.Module, alike: bool = False) -> Told:
    optimizer = adam(model, foreach=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        error = entropy(model(x), x)
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        return error

    call = compiled(step)
    return [whole(call(words(number, 0 if alike else dist.get_rank()))) for number in range(3)] + state(model)


def _evaluated(compiled: Compile, model: nn.Module) -> Told:
    call = compiled(model.eval())
    with torch.no_grad():
        told = [whole(call(words(0, 0)))]
    with torch.inference_mode():
        return [*told, whole(call(words(1, 0)))]


# ---------------------------------------------------------------------- parallel layers


def _parallel(outer: dict[str, Any] | None = OUTER, inner: Any = COLUMNS_AND_ROWS, **options: Any) -> Any:
    model = Net(**options)
    for block in model.blocks:
        parallelize_module(block, mesh_of(dist.get_world_size()), inner)
    return parallelize_module(model, mesh_of(dist.get_world_size()), outer) if outer else model


def _layers(name: str, outer: Any, inner: Any, around: Any = contextlib.nullcontext, **options: Any) -> None:
    def run(compiled: Compile) -> Told:
        model = _parallel(outer, inner, **options)
        return train(model, compiled(model), adam(model, foreach=False), alike=True, around=around)

    USES[name] = run


_layers("tp_inner", None, COLUMNS_AND_ROWS, drop=0.3)
_layers("tp_sequences", OUTER_SEQUENCES, SEQUENCES, again=True)
_layers("tp_bf16", OUTER, COLUMNS_AND_ROWS, lambda: torch.autocast("cpu", torch.bfloat16))
_layers("tp_recorded", OUTER, COLUMNS_AND_ROWS, argand.compiled_autograd)


@use
def tp_clipped(compiled: Compile) -> Told:
    model = _parallel()
    clip = compiled(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1))
    cut = [p for p in model.parameters() if isinstance(p, DTensor)]
    optimizer = adam(model, foreach=False)
    return train(model, compiled(model), optimizer, alike=True, parts=2, after=lambda: [clip(cut)])


@use
def tp_frozen_and_thawed(compiled: Compile) -> Told:
    model = _parallel()
    model.emb.weight.requires_grad_(False)
    weight, optimizer = model.blocks[0].a.weight, sgd(model, foreach=False)
    change = lambda step, part: weight.requires_grad_(step % 2 == 0)  # noqa: E731
    return train(model, compiled(model), optimizer, alike=True, before=change)


@use
def tp_states_between(compiled: Compile) -> Told:
    model = _parallel()
    call, optimizer = compiled(model), adam(model, foreach=False)
    told = train(model, call, optimizer, 1, alike=True)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    told += train(model, call, optimizer, 1, alike=True)
    model.load_state_dict(kept)
    told += train(model, call, optimizer, 1, alike=True)
    model.load_state_dict(kept, assign=True)
    return [*told, whole(call(words(9, 0))), *state(model)]


@use
def tp_whole_step(compiled: Compile) -> Told:
    model = _parallel()
    return _whole_steps(compiled, model, alike=True) + _evaluated(compiled, model)


@use
def tp_hooks(compiled: Compile) -> Told:
    model = _parallel()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * 0.5)
    _hook_modules(model)
    optimizer = adam(model, foreach=False)
    optimizer.step = compiled(optimizer.step)
    return train(model, compiled(model), optimizer, alike=True)


def _hook_modules(model: Any) -> None:
    doubled = lambda module, inputs, grads: tuple([None if g is None else g * 2 for g in inputs])  # noqa: E731
    model.blocks[0].register_full_backward_hook(doubled)
    model.blocks[1].register_forward_hook(lambda module, given, result: result * 1.1)


@use
def tp_losses(compiled: Compile) -> Told:
    model = Net()
    parallelize_module(model, mesh_of(dist.get_world_size()), {"head": ColwiseParallel(use_local_output=False)})
    loss = compiled(lambda x: F.cross_entropy(model(x).flatten(0, 1), x.flatten()))
    optimizer = adam(model, foreach=False)
    return train(model, loss, optimizer, alike=True, loss=lambda error, x: error, around=loss_parallel)


# ---------------------------------------------------------------------- DistributedDataParallel


def _spread(
    name: str, net: Callable[[], Any] = Net, opt: Any = adam, data: Any = words, around: Any = None, **options: Any
) -> None:
    def run(compiled: Compile) -> Told:
        model = DistributedDataParallel(net(), **options)
        loss = entropy if data is words else squares
        around_steps = around or contextlib.nullcontext
        return train(model, compiled(model), opt(model), data=data, loss=loss, around=around_steps)

    USES[name] = run


_spread("ddp_static", static_graph=True, bucket_cap_mb=SMALL)
_spread("ddp_views", lambda: Net(tied=True), gradient_as_bucket_view=True, bucket_cap_mb=SMALL)
_spread("ddp_checkpointed", lambda: Net(again=True), find_unused_parameters=True, bucket_cap_mb=SMALL)
_spread("ddp_recorded", around=argand.compiled_autograd, bucket_cap_mb=SMALL)
_spread("ddp_written_sums", lambda: Averaging(again=True), static_graph=True, bucket_cap_mb=SMALL)
_spread("ddp_buffers", Counted, sgd, images)
_spread("ddp_zero", opt=lambda model: ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))


@use
def ddp_hooks(compiled: Compile) -> Told:
    net = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["norm.weight"])
    model = DistributedDataParallel(net, bucket_cap_mb=SMALL)
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * 0.5)
    _hook_modules(net)
    return train(model, compiled(model), adam(model))


@use
def ddp_scaled(compiled: Compile) -> Told:
    model = DistributedDataParallel(Net())
    call, optimizer = compiled(model), adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for number in range(4):
        x = words(number, dist.get_rank())
        scaler.scale(entropy(call(x), x) * (float("inf") if number == 2 else 1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [*state(model), torch.tensor(scaler.get_scale())]


@use
def ddp_around_compiled(compiled: Compile) -> Told:
    net = Net()
    model = DistributedDataParallel(compiled(net), bucket_cap_mb=SMALL)
    return train(net, model, adam(net), parts=2)


# ---------------------------------------------------------------------- four ranks


def _on_four(compiled: Compile, shards: Any, parts: Any, outer: Any, inner: Any, **options: Any) -> Told:
    model = Net(16, 16)
    for block in model.blocks:
        if parts is not None:
            parallelize_module(block, parts, inner)
        fully_shard(block, mesh=shards, **options)
    if outer:
        parallelize_module(model, parts, outer)
    fully_shard(model, mesh=shards, **options)
    group = 2 if parts is not None else 1
    data = lambda number, rank: words(number, rank // group)  # noqa: E731
    return train(model, compiled(model), adam(model, foreach=False), data=data)


def _uses_of_four() -> dict[str, Callable[[Compile], Told]]:
    two = mesh_of(2, 2)
    return {
        "hsdp": lambda c: _on_four(c, two, None, None, None, mp_policy=BF16),
        "fsdp_by_two": lambda c: _on_four(c, mesh_of(4), None, None, None, reshard_after_forward=2),
        "fsdp_tp": lambda c: _on_four(c, two["outer"], two["inner"], OUTER, COLUMNS_AND_ROWS),
        "fsdp_tp_sequences": lambda c: _on_four(c, two["outer"], two["inner"], OUTER_SEQUENCES, SEQUENCES),
    }


# ---------------------------------------------------------------------- by eager and by argand


def compare(names: Iterable[str] = ()) -> list[str]:
    """Uses whose end is not eager's."""
    warnings.simplefilter("ignore")
    uses = USES if dist.get_world_size() == 2 else _uses_of_four()
    wrong = []
    with argand.config.patch(fallback_random=True):
        for name in names or uses:
            outcomes = []
            for compiled in (lambda function: function, argand.compile):
                torch.manual_seed(0)
                argand.reset()
                outcomes.append(uses[name](compiled))
            eager, ours = outcomes
            tolerance = 3e-2 if name in ("fsdp_bf16", "fsdp_blocks", "tp_bf16", "hsdp") else 2e-4
            close = functools.partial(torch.allclose, rtol=tolerance, atol=tolerance)
            differ = [at for at, (a, b) in enumerate(zip(eager, ours)) if a.shape != b.shape or not close(a, b)]
            if differ or len(eager) != len(ours):
                wrong.append(f"{name}: {differ} of {len(eager)}")
    return wrong


def sample(rank: int) -> list[str]:
    """Every seventh of them, and one of the two with shards of parallel layers; or all (`sweeps`)."""
    if sweeps.WHOLE:
        return compare()
    two = dist.get_world_size() == 2
    return compare(list(USES)[::7] if two else [name for name in _uses_of_four() if name != "fsdp_tp"])


def every(rank: int) -> list[str]:
    return compare()


def main() -> None:
    for ranks in (2, 4):
        print(ranks, run_ranks("tests.distributed.worlds.training_uses", ["every"], ranks)[0]["every"])


if __name__ == "__main__":
    main()
