"""Collectives inside compiled code, by eager and by argand; every program is one graph unless it says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import argand
import sweeps
from argand.backends.registry import lookup_backend

BACKENDS = ("eager", "aot_eager", "native")


def backends(number: int) -> tuple[str, ...]:
    """Those of a program: dealt out among the programs, two to each, and one with four ranks, of which each compiles."""
    count = 3 if sweeps.WHOLE else 2 if dist.get_world_size() == 2 else 1
    return (BACKENDS * 2)[number % 3 :][:count]


def _difference(ours: Any, eager: Any) -> float:
    ours, eager = (value if isinstance(value, (list, tuple)) else [value] for value in (ours, eager))
    worst = 0.0
    for a, b in zip(ours, eager, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride(), (a.shape, b.shape)
        worst = max(worst, float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-3)))
    return worst


def _input(rank: int, step: int, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def _named(now: str, before: str) -> Any:
    """A functional collective, by the name that it has from torch 2.13 on or by the one before."""
    return getattr(funcol, now, None) or getattr(funcol, before)


gather = _named("all_gather_single", "all_gather_tensor")
scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
gather_many = _named("all_gather_single_coalesced", "all_gather_into_tensor_coalesced")
scatter_many = _named("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")


def functional(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    z = funcol.all_reduce(y, "sum", dist.group.WORLD)
    w = gather(y.relu(), 0, dist.group.WORLD)
    r = scatter(w * 3, "avg" if dist.get_backend() == "nccl" else "sum", 0, dist.group.WORLD)
    b = funcol.broadcast(x + r, 0, dist.group.WORLD)
    s = funcol.all_to_all_single(y, None, None, dist.group.WORLD)
    return (z.sin() + r.cos()) * b + s


def equal_calls(x: torch.Tensor) -> torch.Tensor:
    """Equal calls are as many calls, and one whose result nobody reads is one too."""
    first, same = funcol.all_reduce(x, "sum", dist.group.WORLD), funcol.all_reduce(x, "sum", dist.group.WORLD)
    gather(x * 3, 0, dist.group.WORLD)
    return first.sin() + same.cos()


def coalesced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    many = [x.t(), x + 1, x[:, :2].contiguous()]
    reduced = funcol.all_reduce_coalesced(many, "max", dist.group.WORLD)
    gathered = gather_many([t.contiguous() for t in many], dist.group.WORLD)
    parts = scatter_many([x * 2, x + 1], "sum", [0, 1], dist.group.WORLD)
    return (*reduced, *gathered, *parts)


def in_place(x: torch.Tensor) -> torch.Tensor:
    size = dist.get_world_size()
    y = x * 2 + 1
    view = y[1:]
    dist.all_reduce(y)
    parts = torch.empty(size * len(y), *y.shape[1:])
    dist.all_gather_into_tensor(parts, y.cos())
    piece = torch.empty_like(y)
    dist.reduce_scatter_tensor(piece, parts * 2, op=dist.ReduceOp.MAX)
    swapped = torch.empty_like(y)
    dist.all_to_all_single(swapped, piece)
    dist.broadcast(piece, src=1)
    listed = [torch.empty_like(y) for _ in range(size)]
    dist.all_gather(listed, y + dist.get_rank())
    return (y + piece * swapped).sum(1) + view.sum() + sum(t.exp().sum(1) for t in listed)


def writes_its_argument(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MIN)
    return x - y


def raw(x: torch.Tensor) -> torch.Tensor:
    ops, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    y = x * 3
    pending = ops.all_reduce_(y, "sum", name)
    meanwhile = x.exp()
    ops.wait_tensor(pending)
    return y + meanwhile


def by_rank(x: torch.Tensor) -> torch.Tensor:
    """What ranks compute differs; what they say to one another does not."""
    if dist.get_rank() == 0:
        x = x.sin()
    y = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return y * dist.get_rank() if dist.get_rank() % 2 else y.cos() + dist.get_world_size()


def in_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = funcol.all_reduce((x @ x.t()).tanh() @ x, "sum", dist.group.WORLD) / dist.get_world_size()
    return x


def _reducing(op: Any, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def reduces(x: torch.Tensor) -> torch.Tensor:
        """What it reduces by is a value from outside, which has a name and is compared."""
        y = funcol.all_reduce(x, funcol.REDUCE_OP_TO_STR[op], dist.group.WORLD)
        dist.all_reduce(y, op)
        return y * number if op == dist.ReduceOp.MAX and op != dist.ReduceOp.SUM else y + number

    return reduces


def compare(rank: int) -> dict[str, float]:
    found: dict[str, float] = {}
    programs = functional, equal_calls, coalesced, in_place, writes_its_argument, raw, by_rank, in_loop
    for number, program in enumerate((*programs, _reducing(dist.ReduceOp.MAX, 2))):
        for backend in backends(number):
            argand.reset()
            compiled = argand.compile(program, backend=backend, fullgraph=True)
            for step in range(2):
                x, y = _input(rank, step), _input(rank, step)
                found[f"{program.__name__} {step} {backend}"] = max(
                    _difference(compiled(x), program(y)), _difference(x, y)
                )
    return found


def trained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    group = dist.group.WORLD
    y = (x @ w).tanh()
    gathered = gather(y, 1, group)
    scattered = scatter(gathered @ gathered.t(), "sum", 0, group)
    swapped = funcol.all_to_all_single(y * 2, None, None, group)
    both = funcol.all_reduce_coalesced([y.exp(), swapped], "sum", group)
    parts = scatter_many([both[0]], "sum", [1], group)
    return funcol.all_reduce(both[1] * y, "sum", group).sin().sum() + scattered.square().mean() + parts[0].sum()


class _Entered(torch.autograd.Function):
    """Layers of a model that is cut by hand: what comes in, and what goes out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(grad, "sum", dist.group.WORLD)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return gather(x, 0, dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return scatter(grad, "sum", 0, dist.group.WORLD)


class _Product(torch.autograd.Function):
    """Sends one gradient while it computes the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        of_x = grad @ w.t()
        sent = dist.all_reduce(of_x, async_op=True)
        of_w = x.t() @ grad
        sent.wait()
        return of_x, of_w


class _SummedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = _Summed.apply(_Entered.apply(x) @ w).tanh()
    z = y * w.sum()
    _SummedInPlace.apply(z)
    y = y + z.cos()
    return (_Gathered.apply(y) * 0.5).sin().sum() + _Product.apply(y, w.cos()).square().mean()


def gradients(rank: int) -> dict[str, float]:
    found: dict[str, float] = {}
    programs = (trained, True), (trained, False), (by_hand, False)
    for backend, (program, dynamic) in sweeps.chessboard(("native", "eager", "aot_eager"), programs):
        argand.reset()
        compiled = argand.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
        for step, rows in enumerate((4, 4, 8) if dynamic else (4, 4)):
            made = []
            for function in (compiled, program):
                x, w = _input(rank, step, rows).requires_grad_(), _input(7, step, 8).requires_grad_()
                loss = function(x, w)
                made.append([loss.detach(), *torch.autograd.grad(loss, (x, w))])
            found[f"{program.__name__}{'.dynamic' * dynamic} {step} {backend}"] = _difference(*made)
    return found


class Grouped(torch.nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x.sin(), "sum", self.group)
        size = self.group.size() if isinstance(self.group, dist.ProcessGroup) else 1
        return total.cos() * size


def groups(rank: int) -> dict[str, Any]:
    """Groups as objects, names and meshes; one that takes another's place is another."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("outer", "inner"))
    halves = [dist.new_group([2 * n, 2 * n + 1]) for n in range(size // 2)]
    mine = halves[rank // 2]
    given = [dist.group.WORLD, mine, mesh["inner"], (mesh, 0), mine.group_name]
    found: dict[str, Any] = {}
    for (number, group), backend in sweeps.diagonal(enumerate(given), BACKENDS):
        argand.reset()
        model = Grouped(group)
        compiled = argand.compile(model, backend=backend, fullgraph=True)
        found[f"{number} {backend}"] = _difference(compiled(_input(rank, 0)), model(_input(rank, 0)))
    model = Grouped(dist.group.WORLD)
    compiled = argand.compile(model, backend="aot_eager", fullgraph=True)
    compiled(_input(rank, 0))
    model.group = mine
    found["another aot_eager"] = _difference(compiled(_input(rank, 1)), model(_input(rank, 1)))
    return found


def _later(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x.exp().sum()
    work.wait()
    return y + z


def _with_gradient(x: torch.Tensor) -> torch.Tensor:
    return funcol.broadcast(x * 2, 0, dist.group.WORLD).cos() if x.requires_grad else x


def _not_contiguous(x: torch.Tensor) -> torch.Tensor:
    y = x.t().clone() + 1
    dist.all_reduce(y, group=None)
    return y + dist.get_world_size()


def _in_a_branch(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    y = x + 1
    dist.reduce(y, 0)
    return y * 2


def breaks(rank: int) -> dict[str, float]:
    """What is no graph operation runs as in eager, between graphs."""
    found: dict[str, float] = {}
    for program, backend in sweeps.chessboard((_later, _not_contiguous, _in_a_branch), BACKENDS):
        argand.reset()
        x = _input(rank, 3)
        found[f"{program.__name__} {backend}"] = _difference(argand.compile(program, backend=backend)(x), program(x))
    x = _input(rank, 4).requires_grad_()
    ours, eager = argand.compile(_with_gradient, backend="aot_eager")(x), _with_gradient(x)
    found["_with_gradient aot_eager"] = _difference(ours.detach(), eager.detach())
    assert ours.requires_grad == eager.requires_grad
    return found


def _talkative(x: torch.Tensor, w: torch.Tensor, breaks: bool) -> torch.Tensor:
    group = dist.group.WORLD
    first = funcol.all_reduce(x @ w, "sum", group)
    if breaks:
        print("looks at it")
    second = gather(first.sin() * x, 0, group)
    third = scatter(second * second, "sum", 0, group)
    return third.sum() + first.mean()


def mixed(rank: int) -> dict[str, float]:
    """Ranks that break, trace and compile differently, or not at all, communicate in the same order."""
    backend = ("native", "aot_eager", "eager", None)[rank % 4]
    made = []
    for compiled in (False, True):
        argand.reset()
        call = argand.compile(_talkative, backend=backend) if compiled and backend else _talkative
        for step in range(2):
            x, w = _input(rank, step).requires_grad_(), _input(7, step, 8).requires_grad_()
            loss = call(x, w, rank % 2 == 1)
            made.append([loss.detach(), *torch.autograd.grad(loss, (x, w))])
    return {f"mixed {step} native": _difference(made[2 + step], made[step]) for step in range(2)}


def _looked_up(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return (funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1)[i]


def _looked_up_in_place(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y[i]


def _looked_up_in_parts(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(placements=[Replicate()]).to_local()[i]


def raising(rank: int) -> dict[str, float]:
    """What rank 1 looks up is not there, which it finds out behind a collective: that is called once, as in eager.

    A second call of it would give the other rank's next one what it is not for.
    """
    found = {}
    for program in (_looked_up, _looked_up_in_place, _looked_up_in_parts):
        for backend in ("eager", "native"):
            argand.reset()
            calls, made = (program, argand.compile(program, backend=backend)), []
            for call in calls:
                for step in range(3):
                    i = torch.tensor([0, 99 if (rank, step) == (1, 1) else 3])
                    try:
                        made.append(call(_input(rank, step), i))
                    except IndexError:
                        made.append(torch.full((2, 8), 100.0))
            found[f"{program.__name__} {backend}"] = _difference(made[3:], made[:3])
    return found


def failing(rank: int) -> dict[str, float]:
    """Whether each way tells of what did not arrive before it was compiled, and whoever reads it again is told again."""
    found = {}
    for backend in ("eager", "aot_eager", "native"):
        x = funcol.all_to_all_single(torch.ones(4, 3), [0, 9], [0, 9], dist.group.WORLD)  # refused while it is sent
        compiled, refused = argand.compile(lambda x: x * 2, backend=backend), 0
        for call in (compiled, compiled, torch.neg):
            try:
                call(x)
            except RuntimeError as error:
                refused += "Split sizes" in str(error)
        found[backend] = 3.0 - refused
    return found


def audited(rank: int) -> dict[str, float]:
    """An audit, which runs what it picks twice, picks other calls on each rank: none that communicate."""
    i, steps = torch.tensor([0, 3]), range(3)
    with argand.config.patch(audit_rate=1.0 - rank):
        compiled = argand.compile(_looked_up, backend="eager")
        made = [compiled(_input(rank, step), i) for step in steps]
    return {"audited eager": _difference(made, [_looked_up(_input(rank, step), i) for step in steps])}


def _operators(x: torch.Tensor) -> torch.Tensor:
    group, ops = dist.group.WORLD.group_name, torch.ops._c10d_functional
    y = x * 2
    first, same = ops.all_reduce(y, "sum", group), ops.all_reduce(y, "sum", group)
    ops.wait_tensor(ops.all_reduce(y + 1, "sum", group))  # nobody reads it; the other ranks wait for it
    gathered = ops.all_gather_into_tensor(x.sin().cos(), dist.get_world_size(), group)
    meanwhile = (x.exp() + 1).cos().sin()
    return ops.wait_tensor(first) + ops.wait_tensor(same) + meanwhile + ops.wait_tensor(gathered)[:4]


def operators(rank: int) -> dict[str, Any]:
    """How often each operator is called, by eager and by compiled code; and the differences."""
    x = _input(rank, 0)
    whole = torch.fx.symbolic_trace(_operators)  # as another capture would hand it to a backend
    found: dict[str, Any] = {"eager": _calls(_operators, x)}
    for backend in ("aot_eager", "native"):
        argand.reset()
        compiled = argand.compile(_operators, backend=backend)
        compiled(x)
        found[backend] = _calls(compiled, x)
        found[f"{backend} graph"] = _calls(lookup_backend(backend)(whole, [x]), x)
        found[f"{backend} difference"] = _difference(compiled(x), _operators(x))
    return found


def _calls(run: Callable[..., Any], x: torch.Tensor) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as made:
        run(x)
    return [event.name for event in made.events() if event.name.startswith("_c10d_functional")]


class _Watched(torch.autograd.Function):
    """Its backward sends what nobody reads, and what nobody has differentiated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        total = ctx.saved_tensors[0].sum()
        dist.all_reduce(total)
        funcol.all_reduce(grad.sum(), "sum", dist.group.WORLD)
        return grad * 3


def sent_by_backwards(rank: int) -> dict[str, list[list[str]]]:
    """What forward and backward send, by eager and by compiled code. Where parts are uneven, ranks have other graphs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # The gradient of `w` is computed of the whole of `x`, which is kept in parts and gathered once more.
    programs = {
        "watched": lambda x, w, b: _Watched.apply(x.to_local()).cos(),
        "uneven parts": lambda x, w, b: torch.nn.functional.linear(x, w, b).to_local(),
    }
    sent: dict[str, list[list[str]]] = {}
    for name, program in programs.items():
        for call in (program, argand.compile(program), argand.compile(program, backend="aot_eager")):
            layouts = ((torch.ones(3), Shard(0)), (torch.ones(4, 3), Replicate()), (torch.ones(4), Shard(0)))
            inputs = [distribute_tensor(value, mesh, [layout]).requires_grad_() for value, layout in layouts]
            call(*inputs)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                result = call(*inputs)
                with torch.profiler.record_function("c10d::backward"):
                    result.sum().backward()
            sent.setdefault(name, []).append([event.name for event in seen.events() if event.name.startswith("c10d::")])
    return sent
