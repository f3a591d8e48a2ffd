"""What programs do with DTensors in captured code, a function each, of tensors that a mesh of two has parts of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.distributed.parallel_programs import _leaves, _told
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.utils.checkpoint import checkpoint

import argand


def _topics(mesh: DeviceMesh, meshes: DeviceMesh) -> dict[str, Callable[[Any, Any], Any]]:
    """Each is one graph.

    Arguments:
        meshes: of two dimensions, "shards" and "parts".
    """

    def placements_asked(x: Any, w: Any) -> Any:
        placement = x.placements[0]
        if placement.is_shard(0) and not placement.is_partial() and w.placements[0].is_replicate():
            return (x @ w) * x.device_mesh.size() + x.stride()[0] + x.numel()
        return x

    def placements_made(x: Any, w: Any) -> Any:
        rows, columns, summed = Shard(0), Shard(dim=1), Partial("sum")
        assert rows.dim == 0 and summed.reduce_op == "sum" and rows == Shard(0)
        return x.redistribute(mesh, (columns,)).redistribute(mesh, [Replicate()]).to_local(), summed.is_partial()

    def part_of_a_mesh(x: Any, w: Any) -> Any:
        parts = meshes["parts"]
        made = DTensor.from_local(x.to_local(), parts, [Shard(0)], run_check=False)
        return made * parts.size() + parts.get_local_rank(), meshes["shards", "parts"].ndim

    def softmaxes(x: Any, w: Any) -> Any:
        return F.softmax(x, -1), F.log_softmax(x, 1), F.layer_norm(w, (6,)), F.gelu(w)

    def maxima(x: Any, w: Any) -> Any:
        plain = x.detach()  # torch 2.11 has no gradients of these
        return x.amax(1), plain.max(1)[0], plain.sort(1)[0], plain.topk(2, 1)[0]

    def sums_of_parts(x: Any, w: Any) -> Any:
        summed = DTensor.from_local(x.to_local(), mesh, [Partial()], run_check=False)
        return summed.redistribute(mesh, [Shard(0)]) + 1, summed.full_tensor(), x.sum(0)

    def gradients_laid_out(x: Any, w: Any) -> Any:
        return (x * 2).to_local(grad_placements=[Shard(0)]).sum(), (x @ w).full_tensor(grad_placements=[Replicate()])

    def parts_of_an_input(x: Any, w: Any) -> Any:
        return w.to_local(grad_placements=[Replicate()])[1:], w.view(-1), w.t()[1:], w * 2

    def like_others(x: Any, w: Any) -> Any:
        return x + torch.ones_like(x), torch.full_like(w, 2.0) * w, x.new_zeros(8, 6) + x

    def ranks(x: Any, w: Any) -> Any:
        group = mesh.get_group()
        return x * dist.get_world_size(group) + dist.get_rank(group) + dist.get_rank()

    def parts_and_specs(x: Any, w: Any) -> Any:
        spec = (x * 2)._spec
        if spec.num_shards == mesh.size() and spec.placements == x.placements and spec.mesh == mesh and spec != w._spec:
            return x._local_tensor * mesh.mesh.numel(), (x @ w)._local_tensor + spec.shape[0], x * spec.ndim
        return x

    def gradients_read(x: Any, w: Any) -> Any:
        return x * 2 if x.grad is None else x * 2 + x.grad.redistribute(mesh, [Shard(0)])

    def gradients_set(x: Any, w: Any) -> Any:
        x.grad, w.grad = None, w.detach() * 2
        return x @ w

    def moved_to_where_it_is(x: Any, w: Any) -> Any:
        return x.to("cpu") * 2, w.to(w.device, torch.float64), x.cpu().sum(0), w.to(device="cpu", dtype=torch.bfloat16)

    def drawn(x: Any, w: Any) -> Any:
        return torch.rand_like(x) * x, F.dropout(x, 0.5), torch.empty_like(w).uniform_() + torch.randn_like(w)

    def first_and_last(x: Any, w: Any) -> Any:
        return x.argmax(1), w.argmin(1), w.argmax(0), abs(x), F.normalize(x, dim=1)

    def convolved(x: Any, w: Any) -> Any:
        return F.conv1d(x.view(8, 1, 6), w[:3].view(3, 1, 6), padding=2)

    def written_from_outside(x: Any, w: Any) -> Any:
        with torch.no_grad():
            w.mul_(1.5)
            w.to_local().add_(1)
            x.view(-1).sub_(0.5)
            x._local_tensor.mul_(2)
            torch._foreach_add_([x, w], 1.0)
        return x @ w, torch.empty_like(x).copy_(x)

    def steps(x: Any, w: Any) -> Any:
        with torch.no_grad():
            for p in (x, w):
                if p.grad is not None:
                    p.sub_(0.1 * p.grad)
        return (x @ w).tanh()

    def checkpointed(x: Any, w: Any) -> Any:
        def inner(a: Any) -> Any:
            b = a @ w
            return b.sin(), b.redistribute(mesh, [Replicate()]).to_local().cos()

        y, z = checkpoint(inner, x * 2, use_reentrant=False)
        reentrant = checkpoint(lambda a: (a @ w).sin(), x * 1, use_reentrant=True)
        return (
            y * 2,
            z.sum(),
            checkpoint(lambda a: checkpoint(torch.tanh, a, use_reentrant=False) * 2, reentrant, use_reentrant=False),
        )

    def cast(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, w).redistribute(mesh, [Replicate()])
            return F.gelu(y), F.softmax(y, -1), y.t().to_local() @ y.to_local()

    def replicated_implicitly(x: Any, w: Any) -> Any:
        with implicit_replication():
            return x + torch.ones(6), x * 2 - torch.ones(8, 6)

    def of_local_tensors(x: Any, w: Any) -> Any:
        product = local_map(torch.matmul, [Shard(0)], ([Shard(0)], [Replicate()]), device_mesh=mesh)
        return product(x, w) * 2

    def zeros_for_gradients(x: Any, w: Any) -> Any:
        return torch.copysign(x, w[0])  # torch's formula makes the gradient of `w` no DTensor

    topics = [parts_and_specs, gradients_read, gradients_set, moved_to_where_it_is, drawn, first_and_last, convolved]
    topics += [written_from_outside, steps, checkpointed, cast, replicated_implicitly, of_local_tensors]
    topics += [
        placements_asked,
        placements_made,
        part_of_a_mesh,
        softmaxes,
        maxima,
        sums_of_parts,
        gradients_laid_out,
        parts_of_an_input,
        like_others,
        ranks,
        zeros_for_gradients,
    ]
    return {topic.__name__: topic for topic in topics}


def topics(rank: int) -> list[str]:
    """Those whose results, layouts or gradients are not eager's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    meshes = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("shards", "parts"))
    wrong = []
    for number, (name, topic) in enumerate(_topics(mesh, meshes).items()):
        outcomes = []
        backend = ("eager", "aot_eager")[number % 2] if name != "softmaxes" else "aot_eager"
        for call in (topic, argand.compile(topic, backend=backend, fullgraph=True)):
            torch.manual_seed(0)
            x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).detach().requires_grad_()
            w = distribute_tensor(torch.randn(6, 6), mesh, [Replicate()]).detach().requires_grad_()
            told: list[object] = []
            torch.manual_seed(1)
            try:
                for _ in range(2):
                    told += _step(call, x, w)
            except RuntimeError as error:  # DTensor has no rule for some gradients in torch 2.11
                told.append(str(error))
            outcomes.append(told)
        if outcomes[0] != outcomes[1]:
            wrong.append(f"{name} {backend}: {outcomes[1]} {outcomes[0]}")
    return wrong


def _step(call: Any, x: torch.Tensor, w: torch.Tensor) -> list[object]:
    """What a call and its backward tell."""
    results = call(x, w)
    told = [_rounded(_told(results))]
    tensors = [one for one in _leaves(_tensors(results)) if one.requires_grad]
    sum(one.double().square().sum() for one in tensors).backward()  # type: ignore[union-attr]
    grads = [one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad for one in (x, w)]
    return told + [None if grad is None else _rounded(_told(grad)) for grad in grads]


def _tensors(results: Any) -> list[torch.Tensor]:
    items = results if isinstance(results, (tuple, list)) else [results]
    return [one for one in items if isinstance(one, torch.Tensor)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.3g}")
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
