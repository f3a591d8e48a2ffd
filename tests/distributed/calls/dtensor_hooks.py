"""Hooks on DTensors, autograd functions of them, and meshes that are made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.dtensor_topics import _rounded, _tensors
from tests.distributed.parallel_programs import _told
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

import argand
from argand import events


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        ctx.save_for_backward(a)
        return a * a * a

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 4.5 * ctx.saved_tensors[0].square()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return a @ b, (a @ b).sum()

    @staticmethod
    def backward(ctx: Any, grad: Any, total: Any) -> Any:
        a, b = ctx.saved_tensors
        return (grad + total) @ b.t(), a.t() @ (grad + total)


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return a

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -grad


class Laid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return a * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * (2 if isinstance(grad.placements[0], Replicate) else 3)


def _hooked(hook: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def program(x: Any, w: Any) -> Any:
        y = w * 1
        y.register_hook(hook)
        z = x.relu() @ y
        z.register_hook(hook)
        return z.sin()

    return program


def _captured(x: Any, w: Any) -> Any:
    y, beside = w * 1, w.detach() * 2
    y.register_hook(lambda grad: grad + beside)
    y.register_hook(torch.abs)
    return x @ y


def _product(x: Any, w: Any) -> Any:
    product, total = Product.apply(x, w)
    return product * 0.1 + total * 0.01


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": _hooked(lambda grad: grad * 2),
    "looked at": _hooked(lambda grad: None),
    "clamped": _hooked(lambda grad: grad.clamp(-0.5, 0.5)),
    "normed": _hooked(lambda grad: grad / (grad.norm() + 1)),
    "gathered": _hooked(lambda grad: grad * grad.full_tensor().abs().max()),
    "captured": _captured,
    "written": _hooked(lambda grad: grad.clone().mul_(2)),
    "written in parts": _hooked(lambda grad: grad.clone().mul_(grad.sign()).div_(grad.abs().sum() + 2)),
    "cubed": lambda x, w: Cubed.apply(x) @ Cubed.apply(w),
    "product": _product,
    "turned": lambda x, w: Turned.apply(x * 1) @ Turned.apply(w),
}
"""Each is one graph."""
BROKEN: dict[str, Callable[[Any, Any], Any]] = {
    "placements": _hooked(lambda grad: grad * (2 if grad.placements[0].is_partial() else 3)),
    "local": _hooked(lambda grad: DTensor.from_local(grad.to_local() * 2, grad.device_mesh, grad.placements)),
    "laid out": lambda x, w: Laid.apply(x * 1) @ Laid.apply(w * 1),
}
"""What these ask of a gradient is known when a backward runs."""


def _of_mesh(mesh: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Hooks that have a mesh, or placements, from the function around them; each is one graph."""
    whole = Replicate()

    def scaled(grad: Any) -> Any:
        return grad.redistribute(mesh, [whole]) * mesh.size()

    def shifted(grad: Any) -> Any:
        return DTensor.from_local(grad.full_tensor() * 2 + mesh.size(0), mesh, (whole,))

    return {"laid out by a mesh": _hooked(scaled), "made on a mesh": _hooked(shifted)}


def _run(call: Any, mesh: Any, placement: Any) -> list[Any]:
    torch.manual_seed(3)
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).detach().requires_grad_()
    w = distribute_tensor(torch.randn(6, 6), mesh, [placement]).detach().requires_grad_()
    results = call(x, w)
    tensors: list[Any] = _tensors(results)
    sum((one.full_tensor() * 0.1).square().sum() for one in tensors).backward()  # type: ignore[union-attr]
    grads: list[Any] = [x.grad, w.grad]
    return [_rounded(_told(one.full_tensor())) for one in (*tensors, *grads)]


def hooks(rank: int) -> list[str]:
    """Programs that differ from eager; whole ones that break; broken ones that do not."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrong = []
    whole = WHOLE | _of_mesh(mesh)
    for number, (name, program) in enumerate((whole | BROKEN).items()):
        backend = ("eager", "aot_eager", "native")[number % 3]
        compiled = argand.compile(program, backend=backend, fullgraph=name in whole)
        seen: list[object] = []
        stop = events.bus.subscribe(seen.append, ("graph_breaks",))
        for placement in (Replicate(),) if name in BROKEN else (Replicate(), Shard(1), Replicate()):
            ours, eager = _run(compiled, mesh, placement), _run(program, mesh, placement)
            if ours != eager:
                wrong.append(f"{name} {backend} {placement}: {ours} {eager}")
        stop()
        if bool(seen) is not (name in BROKEN):
            wrong.append(f"{name}: {len(seen)} breaks")
    return wrong


def meshes(rank: int) -> list[object]:
    """How often a function of a mesh is compiled: for equal meshes; for meshes of process groups of their own, whose
    calls eager makes in these groups."""
    counts: list[object] = []
    size = dist.get_world_size()
    for shape in ((size,), (1, size)):
        seen: list[object] = []
        stop = events.bus.subscribe(seen.append, ("graph_code",))

        def gathered(x: Any, mesh: Any) -> Any:
            return x.redistribute(mesh, [Replicate()] * mesh.ndim).to_local() * mesh.size(-1)

        compiled = argand.compile(gathered, backend="eager")
        for _ in range(3):
            mesh = init_device_mesh("cpu", shape)
            x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)] * len(shape))
            assert torch.equal(compiled(x, mesh), torch.arange(8.0) * size)
        stop()
        counts.append(len(seen))
    return counts


def made_anew(rank: int) -> int:
    """How many graphs modules take that are made parallel one after the other, in the same way."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    seen: list[object] = []
    stop = events.bus.subscribe(seen.append, ("graph_code",))
    compiled = argand.compile(lambda module, x: module(x) * 2, backend="eager", fullgraph=True)
    for number in range(3):
        torch.manual_seed(number)
        module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        x = torch.randn(4, 6)
        eager = module(x) * 2
        plan: Any = {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(),
            "": PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),), use_local_output=True
            ),
        }
        assert torch.allclose(compiled(parallelize_module(module, mesh, plan), x), eager, atol=1e-5)
    stop()
    return len(seen)


_WHOLE, _ROWS, _COLUMNS = Replicate(), Shard(0), Shard(1)
UNEVEN: dict[str, tuple[tuple[int, ...], Any, Any, Callable[[Any, Any], Any]]] = {
    "scale": ((6,), _COLUMNS, _WHOLE, lambda x, w: (x * w).relu()),
    "bias": ((6,), _COLUMNS, _WHOLE, lambda x, w: x + w.sin()),
    "rows": ((8, 1), _ROWS, _WHOLE, lambda x, w: x * w),
    "one row": ((1, 6), _COLUMNS, _WHOLE, lambda x, w: x * w + w),
    "whole": ((8, 6), _ROWS, _WHOLE, lambda x, w: x * w.t().contiguous().t()),
    "part of a sum": ((6,), _ROWS, _WHOLE, lambda x, w: x * w),
    "several results": ((6,), _COLUMNS, _WHOLE, lambda x, w: (x * w, w * 2)),
    "sum of rows": ((8, 6), _ROWS, _ROWS, lambda x, w: x.sum(0) * w.sum(0)),
    "sum": ((8, 6), _COLUMNS, _ROWS, lambda x, w: x.sum() * w.sum()),
    "other rows": ((7, 6), _ROWS, _ROWS, lambda x, w: x.sum(0) + w),
    "product": ((8, 6), _ROWS, _COLUMNS, lambda x, w: (x.t() @ w).sin()),
    "softmax": ((8, 6), _COLUMNS, _COLUMNS, lambda x, w: x.softmax(1) * w),
}
"""Gradients whose parts are smaller or larger than those of what they belong to: its size; how `x` and it are laid out;
a program."""


def uneven(rank: int) -> list[str]:
    """Where a gradient, or what a hook on the tensor sees of it, is not laid out as eager's, differentiated twice or
    not. Where it depends on the results that are differentiated, it is laid out as the tensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrong = []
    for number, (name, (size, rows, own, program)) in enumerate(UNEVEN.items()):
        answers = []
        backend = ("native", "aot_eager", "eager")[number % 3]
        for call in (program, argand.compile(program, backend=backend, fullgraph=True)):
            torch.manual_seed(3)
            x = distribute_tensor(torch.randn(8, 6), mesh, [rows]).requires_grad_()
            w = distribute_tensor(torch.randn(size), mesh, [own]).requires_grad_()
            told: list[Any] = []
            w.register_hook(lambda grad: told.append([*grad.shape, *grad.to_local().shape, str(grad.placements)]))  # noqa: B023
            for twice in (False, False, True):
                results = call(x, w)
                total: Any = sum((one.full_tensor() * 0.1).square().sum() for one in _tensors(results))  # type: ignore[union-attr]
                if twice and rows is own:
                    (again,) = torch.autograd.grad(total, x, create_graph=True)
                    total = again.full_tensor().square().sum()
                total.backward()
            if name == "several results":
                told.clear()
            answers.append([told, *(_rounded(_told(one.grad.full_tensor())) for one in (x, w))])
        if answers[0] != answers[1]:
            wrong.append(f"{name} {backend}: {answers[1]} {answers[0]}")
    return wrong


def refused(rank: int) -> list[str]:
    """What autograd says of writes to what `to_local` gave, by eager and by each backend."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def doubled(x: Any) -> Any:
        return (x * 2).to_local()

    said = []
    for call in (doubled, *[argand.compile(doubled, backend=name) for name in ("eager", "aot_eager", "native")]):
        x = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).detach().requires_grad_()
        try:
            call(x).mul_(2)
        except RuntimeError as error:
            said.append(str(error))
    return said
