"""Random programs over DTensors, and writes to what they take and give, before, after and in them, by eager and by argand.

python -m tests.distributed.worlds.write_programs --count 300     # in one process, on a mesh of one
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import argand

sys.path.insert(0, str(Path(__file__).parents[2]))
import sweeps  # noqa: E402

Pool = list[Any]
Step = Callable[[Pool], Any]
LAYOUTS = (Shard(0), Shard(1), Replicate())


def _unary(draw: random.Random, mesh: DeviceMesh) -> tuple[str, Callable[[Any], Any]]:
    """A function of a DTensor of two dims, with its name."""
    layout = draw.choice(LAYOUTS)
    summed = [Partial()] if draw.random() < 0.3 else None
    functions = {
        "sin": torch.sin,
        "exp": torch.Tensor.exp,
        "affine": lambda x: x * 2 + 1,
        "view(4, 4)": lambda x: x.view(4, 4),
        "t()": lambda x: x.t(),
        "chunk(2, 1)[0].repeat(1, 2)": lambda x: x.chunk(2, 1)[0].repeat(1, 2),
        "detach()": lambda x: x.detach(),
        "unsqueeze(0)[0]": lambda x: x.unsqueeze(0)[0],
        "clone()": lambda x: x.clone(),
        "redistribute": lambda x: x.redistribute(mesh, [layout]),
        "from_local(to_local() * 3)": lambda x: DTensor.from_local(
            x.to_local() * 3, mesh, x.placements, run_check=False
        ),
        "from_local(to_local(summed))": lambda x: DTensor.from_local(
            x.to_local(grad_placements=summed), mesh, x.placements, run_check=False
        ),
        "contiguous()": lambda x: x.contiguous(),
        "mul_(0.5)": lambda x: x.mul_(0.5),
        "view(2, 2, 4)[0].sum()": lambda x: x.view(2, 2, 4)[0].sum(),
    }
    name = draw.choice([*functions])
    return f"{name} {layout if name == 'redistribute' else summed or ''}", functions[name]


def _step(draw: random.Random, mesh: DeviceMesh, size: int) -> tuple[str, Step]:
    """What computes one more tensor of those that there are, in words and as a function."""
    first, second = draw.randrange(size), draw.randrange(size)
    if draw.random() < 0.35:
        function: Any = draw.choice([torch.mul, torch.add, torch.matmul])
        return f"{function.__name__} {first} {second}", lambda pool: function(pool[first], pool[second])
    name, one = _unary(draw, mesh)
    if draw.random() < 0.15:

        def without(pool: Pool) -> Any:
            with torch.no_grad():
                return one(pool[first])

        return f"no_grad {name} {first}", without
    return f"{name} {first}", lambda pool: one(pool[first])


def program(draw: random.Random, mesh: DeviceMesh) -> tuple[str, Callable[..., Any]]:
    """A function of three DTensors, in words and as such."""
    named = [_step(draw, mesh, 3 + number) for number in range(draw.randint(1, 5))]
    steps = [step for _, step in named]
    results = [draw.randrange(3, 3 + len(steps)) for _ in range(draw.randint(1, 2))]
    view = draw.choice(["", "", "view", "to_local", "t"])
    shown = {"": lambda x: x, "view": lambda x: x.view(-1), "to_local": DTensor.to_local, "t": torch.t}[view]
    text = "; ".join(f"{number}: {name}" for number, (name, _) in enumerate(named, 3)) + f"; give {results} {view}"

    def run(w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> Any:
        pool = [w, v, u]
        for step in steps:
            pool.append(step(pool))
        given = [pool[result] for result in results]
        return [*given, shown(pool[results[-1]]), sum((x * x).sum() for x in given)]

    return text, run


def write(draw: random.Random) -> Callable[[Pool], None]:
    """A write to an input or a result, or to a view of it."""
    where, quiet = draw.randrange(7), draw.random() < 0.5
    seen = draw.choice([lambda x: x, lambda x: x, lambda x: x.view(-1), lambda x: x.detach(), lambda x: x.t()])

    def run(tensors: Pool) -> None:
        with torch.set_grad_enabled(not quiet):
            seen(tensors[where % len(tensors)]).mul_(1.5)

    return run


def _told(value: Any) -> Any:
    if isinstance(value, DTensor):
        local = value._local_tensor
        layout = str(value.placements), value.requires_grad, value.is_leaf, tuple(value.shape), value.stride()
        return (*layout, [float(f"{x:.3g}") for x in local.detach().double().flatten().tolist()])
    if isinstance(value, torch.Tensor):
        shown = [float(f"{x:.3g}") for x in value.detach().double().flatten().tolist()]
        return value.requires_grad, tuple(value.shape), value.stride(), shown
    return value


def _whole(grad: Any) -> Any:
    """Of a gradient, whose placements may be those of the parameter where eager's depend on what is differentiated."""
    return None if grad is None else _told(grad.full_tensor())


def outcome(function: Callable[..., Any], mesh: DeviceMesh, seed: int) -> list[Any]:
    """What a program gives, what is told of its tensors after writes to them, gradients, or the error."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    leaves = [distribute_tensor(torch.randn(4, 4), mesh, [draw.choice(LAYOUTS)]).requires_grad_() for _ in range(2)]
    inputs = [
        leaves[0] * 1 if draw.random() < 0.7 else leaves[0],
        distribute_tensor(torch.randn(4, 4), mesh, [draw.choice(LAYOUTS)]),
        leaves[1],
    ]
    before, between = draw.random() < 0.2, draw.random() < 0.7
    writes = [write(draw) for _ in range(3)]
    told: list[Any] = []
    try:
        if before:
            writes[0](inputs)
        results = function(*inputs)
        told.append([_told(result) for result in results])
        if between:
            writes[1]([*results, *inputs])
        told.append([_told(one) for one in (*results, *inputs)])
        losses = [one.sum() for one in results if one.requires_grad]
        losses = [loss.full_tensor() if isinstance(loss, DTensor) else loss for loss in losses]
        if losses:
            torch.stack(losses).sum().backward(retain_graph=True)
        told.append([_whole(leaf.grad) for leaf in leaves])
        writes[2]([*results, *inputs])
        if losses:
            torch.stack(losses).sum().backward()
        told.append([_whole(leaf.grad) for leaf in leaves])
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        told.append((type(error).__name__, str(error)[:40]))
    return told


_APART = {"redistribute", "from_local(to_local()", "from_local(to_local(summed))", "to_local"}
_REFUSED = "one of the variables needed for gradient"


def _allowed(function: Callable[..., Any], mesh: DeviceMesh, seed: int) -> list[Any]:
    """Eager's outcome where autograd keeps copies of what is written to."""
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        return outcome(function, mesh, seed)


def _is_as_good(ours: list[Any], eager: list[Any], text: str, allowed: Callable[[], list[Any]]) -> bool:
    """Whether an outcome that is not eager's is right: argand computes again what was written to, or refuses to compute
    with a part of a DTensor that eager does not know to be written to."""
    apart = bool(_APART & {*text.split()})
    if _REFUSED in str(eager[-1]) or (apart and _REFUSED not in str(ours[-1])):
        other = allowed()
        return ours == other[: len(ours)] if _REFUSED not in str(ours[-1]) else ours[:-1] == other[: len(ours) - 1]
    return _REFUSED in str(ours[-1]) and ours[:-1] == eager[: len(ours) - 1] and apart


def differences(mesh: DeviceMesh, seeds: range, backends: tuple[str, ...]) -> tuple[list[str], int]:
    """Where argand's outcome is not eager's; how many of eager's were errors of autograd about what was written to."""
    wrong, refused = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            text, function = program(random.Random(seed), mesh)
            eager = outcome(function, mesh, seed)
            refused += _REFUSED in str(eager[-1])
            for backend in backends:
                argand.reset()
                ours = outcome(argand.compile(function, backend=backend), mesh, seed)
                if ours != eager and not _is_as_good(ours, eager, text, lambda: _allowed(function, mesh, seed)):
                    part = next((pair for pair in zip(ours, eager) if pair[0] != pair[1]), (ours, eager))
                    wrong.append(f"seed {seed} {backend}: {text}\n  argand {part[0]}\n  eager  {part[1]}")
    return wrong, refused


def writes(rank: int) -> dict[str, object]:
    """Of some random programs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrong, refused = differences(mesh, range(400 if sweeps.WHOLE else 16), ("eager", "aot_eager"))
    return {"wrong": wrong, "refused": refused}


def noticed(rank: int) -> dict[str, list[str]]:
    """What backends say, or compute, after a write to an input, a result, or a view of one; the first is eager."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ways: dict[str, Callable[..., object]] = {
        "nothing": lambda w, v, y: None,
        "a result": lambda w, v, y: y.mul_(3),
        "an input": lambda w, v, y: v.mul_(3),
        "an input with a history": lambda w, v, y: w.mul_(3),
        "a view of a result": lambda w, v, y: y.view(-1).mul_(3),
        "a detached result": lambda w, v, y: y.detach().mul_(3),
    }

    def run(w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = w @ v  # which a backward does not compute again
        return y, (y * y).sum() + (w * w).sum()

    told: dict[str, list[str]] = {name: [] for name in ways}
    for backend in ("", "eager", "aot_eager", "native"):
        argand.reset()
        call = argand.compile(run, backend=backend, fullgraph=True) if backend else run
        for name, way in ways.items():
            torch.manual_seed(0)
            leaf, v = (distribute_tensor(torch.randn(4, 4), mesh, [layout]) for layout in (Shard(0), Replicate()))
            w = leaf.requires_grad_() * 1
            y, loss = call(w, v)
            way(w, v, y)
            try:
                loss.to_local().backward()
                told[name].append(str(_told(leaf.grad)))
            except RuntimeError as error:
                told[name].append(str(error)[:40])
    return told


def _quietly(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def _collectives() -> dict[str, Callable[..., Any]]:
    """Functions of what functional collectives give; the last result is a loss."""
    group = dist.group.WORLD

    def reduced(x: Any, w: Any) -> Any:
        y = funcol.all_reduce(x, "sum", group)
        return y, (y * y * w).sum()

    def gathered(x: Any, w: Any) -> Any:
        y = funcol.all_gather_tensor(x, 0, group)
        return y, y[1:], (y * y).sum() * w.sum()

    def viewed(x: Any, w: Any) -> Any:
        y = funcol.all_reduce(x, "sum", group)
        return y.view(-1), (y * y * w).sum()

    def waited_for(x: Any, w: Any) -> Any:
        y = funcol.wait_tensor(funcol.all_reduce(x, "sum", group))
        return y, (y * y * w).sum()

    def not_saved(x: Any, w: Any) -> Any:
        y = funcol.all_reduce(x, "sum", group)
        return y, (y + w).sum()

    def entered(y: Any, w: Any) -> Any:
        return y * 2, y, (y * y * w).sum()

    functions = [reduced, gathered, viewed, waited_for, not_saved, entered]
    return {function.__name__: function for function in functions}


def arrived(rank: int) -> dict[str, object]:
    """Where a gradient is not eager's, or is there though eager refuses, after a write to what a collective gave."""
    ways: dict[str, Callable[[list[Any]], object]] = {
        "nothing": lambda ys: None,
        "in place": lambda ys: ys[0].mul_(2),
        "a detached one": lambda ys: ys[0].detach().mul_(2),
        "a view": lambda ys: _quietly(ys[0].view(-1)),
        "the last": lambda ys: _quietly(ys[-1]),
        "what it waits for": lambda ys: _quietly(getattr(ys[0], "elem", ys[0])),
    }
    wrong, refused = [], 0
    for name, function in _collectives().items():
        told: dict[tuple[str, bool], list[str]] = {}
        for backend in ("", "eager", "aot_eager", *(["native"] if sweeps.WHOLE else [])):
            argand.reset()
            call = argand.compile(function, backend=backend, fullgraph=True) if backend else function
            for way, recorded in [(way, recorded) for way in ways for recorded in (True, False)]:
                torch.manual_seed(0)
                x, w = (torch.randn(4, 3).requires_grad_(requires) for requires in (recorded, True))
                before = funcol.all_reduce(x, "sum", dist.group.WORLD) if name == "entered" else x * 1
                *ys, loss = call(before, w)
                try:
                    ways[way](ys)
                    loss.backward()
                    outcome = str([_told(grad) for grad in (x.grad, w.grad)])
                except RuntimeError:
                    outcome = "refused"
                told.setdefault((way, recorded), []).append(outcome)
        for (way, recorded), (eager, *ours) in told.items():
            refused += eager == "refused"
            wrong += [f"{name} {way} {recorded} {one} {eager}" for one in ours if one not in (eager, "refused")]
            if way == "nothing" and set(ours) != {eager}:
                wrong.append(f"{name} {ours} {eager}")
    return {"wrong": wrong, "refused": refused}


def own_gradients(rank: int) -> dict[str, object]:
    """Gradients after two backwards, of parameters that have the same one, which may be the caller's: and the caller's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told: dict[str, object] = {}
    for number, function in enumerate((torch.add, torch.sub, lambda a, b: a + b.t())):
        for backend in ("", "eager", "aot_eager", "native"):
            argand.reset()
            a, b = (distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]).requires_grad_() for _ in range(2))
            result = (argand.compile(function, backend=backend, fullgraph=True) if backend else function)(a, b)
            given = torch.ones_like(result)
            result.backward(given, retain_graph=True)
            result.backward(given)
            told[f"{number} {backend}"] = [one.to_local().sum().item() for one in (a.grad, b.grad, given)]
    return told


def main() -> None:
    """Compare many programs in one process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--backends", default="eager,aot_eager")
    given = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    seeds = range(given.start, given.start + given.count)
    wrong, refused = differences(mesh, seeds, tuple(given.backends.split(",")))
    print("\n".join(wrong), f"{given.count} programs, {len(wrong)} differences, {refused} refused by eager", sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
