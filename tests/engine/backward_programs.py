"""Training programs whose backward is called outside of captured code, each with a model that it is run on.

A program takes the model and the number of the step, and calls `backward()` as often as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import argand

Program = Callable[[Any, int], Any]


class Block(nn.Module):
    """A small transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).split(c, dim=2)
        q, k, v = (one.view(b, t, 4, c // 4).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Tied embeddings, so that a parameter gets gradients from two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 2).flatten(1))


class Two(nn.Module):
    """Two layers, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x).relu()
        argand.graph_break()
        return self.b(x).tanh()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4))


def data() -> torch.Tensor:
    return torch.randn(5, 8)


def gpt(model: Any, step: int) -> None:
    ids = torch.randint(0, 20, (2, 9))
    F.cross_entropy(model(ids[:, :8]).flatten(0, 1), ids[:, 1:].flatten()).backward()


def cnn(model: Any, step: int) -> None:
    F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(0, 10, (4,))).backward()


def plain(model: Any, step: int) -> None:
    model(data()).pow(2).mean().backward()


def whole_compiled(model: Any, step: int) -> None:
    plain(argand.compile(model), step)


def graph_break(model: Any, step: int) -> None:
    y = argand.compile(model)(data())
    (y * y).sum().backward()


def several_results(model: Any, step: int) -> None:
    @argand.compile
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model.b(model.a(x).relu())
        return y.sin(), y.exp()

    first, second = forward(data())
    (first.sum() * second.exp().mean()).backward()


def results_of_some_inputs(model: Any, step: int) -> None:
    @argand.compile
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model.a(x)
        z = model.b(y)
        return z.sin(), model.b(y.relu()) * z

    first, second = forward(data())
    (first.sum() * second.exp().mean()).backward()


def chained_results(model: Any, step: int) -> None:
    @argand.compile
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model.b(model.a(x)).tanh()
        return y, (y * y).sum()

    first, second = forward(data())
    (first.sum() * second).backward()


def results_of_some_leaves(model: Any, step: int) -> None:
    @argand.compile
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model.a(x)
        return y.sin(), model.b(y.relu())

    forward(data())[0].sum().backward()


def results_of_a_computed_input(model: Any, step: int) -> None:
    @argand.compile
    def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = model.a(x)
        return y.sin(), model.b(y.relu()) * w

    forward(data(), model.b.bias * 2)[0].sum().backward()


def micro_batches(model: Any, step: int) -> None:
    for _ in range(3):
        (model(data()).square().sum() / 3).backward()


def optimized(model: Any, step: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.zero_grad()
    plain(model, step)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def zeroed(model: Any, step: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    plain(model, step)


def shared(model: Any, step: int) -> None:
    x = data()
    (model.a(model.a(x).sigmoid()) * model.b(x)).sum().backward()


def retained(model: Any, step: int) -> None:
    loss = model(data()).exp().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def with_gradient(model: Any, step: int) -> None:
    y = model(data())
    y.backward(torch.randn_like(y))


def many_roots(model: Any, step: int) -> None:
    x = data()
    torch.autograd.backward([model.a(x).sum(), model.b(x).cos().sum()])


def in_place(model: Any, step: int) -> None:
    y = model.a(data())
    y = y.mul_(2).tanh_() + 1
    y[:, 0] = 1
    model.b(y).sum().backward()


def strange_layouts(model: Any, step: int) -> None:
    y = torch.cat([model.a(data()), torch.ones(2, 8)]).t()[1:].flip(0)
    torch.stack([y, y.roll(1, 0)]).index_select(1, torch.tensor([0, 2, 2])).pow(3).sum().backward()


def numbers(model: Any, step: int) -> None:
    y = model(data()).double()
    (y.sum() * 2 + (y.mean() * 1.5) ** 3 / (step % 2 + 1)).backward()


def tensor_hook(model: Any, step: int) -> None:
    y = model.a(data())
    y.register_hook(lambda grad: grad * 2)
    model.b(y.tanh()).sum().backward()


def removed_hook(model: Any, step: int) -> None:
    y = model.a(data())
    y.register_hook(lambda grad: grad * 2).remove()
    model.b(y.tanh()).sum().backward()


def leaf_hook(model: Any, step: int) -> None:
    handle = model.a.weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    plain(model, step)
    handle.remove()


def leaf_hook_in_place(model: Any, step: int) -> None:
    handles = [parameter.register_hook(lambda grad: grad.mul_(2)) for parameter in model.parameters()]
    plain(model, step)
    for handle in handles:
        handle.remove()


def hooks_in_order(model: Any, step: int) -> Any:
    """Which hooks are called when, with what, and which gradients are there then."""
    seen: list[Any] = []
    parameters = dict(model.named_parameters())
    model.zero_grad()
    handles = []

    def note(name: str) -> Callable[[Any], None]:
        def hook(given: Any) -> None:
            there = [other for other, one in parameters.items() if one.grad is not None]
            seen.append((name, None if given is None else given.detach().clone(), there))

        return hook

    for name, one in parameters.items():
        handles.append(one.register_hook(note(f"{name} before")))
        handles.append(one.register_post_accumulate_grad_hook(note(f"{name} after")))
    x = data()
    (model.b(model.a(x).tanh()) * model.a(x)).sum().backward()
    for handle in handles:
        handle.remove()
    return seen


def multi_grad_hook_of_leaves(model: Any, step: int) -> Any:
    seen: list[Any] = []
    leaves = [model.a.weight, model.b.weight]
    handle = torch.autograd.graph.register_multi_grad_hook(leaves, lambda grads: seen.append(list(grads)))
    plain(model, step)
    handle.remove()
    return seen


def post_accumulate_hook(model: Any, step: int) -> None:
    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.01 * parameter.grad
        parameter.grad = None

    handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.a.parameters()]
    plain(model, step)
    for handle in handles:
        handle.remove()


def hooks_in_a_row(model: Any, step: int) -> Any:
    seen: list[Any] = []
    y = model.a(data())
    z = y.tanh()
    u = z.exp()
    for at, one in enumerate((y, z, u)):
        one.register_hook(lambda grad, at=at: seen.append((at, grad.clone())))
        one.register_hook(lambda grad: grad * 1.5)
    u.retain_grad()
    (model.b(u) * z).sum().backward()
    return seen, u.grad


def module_hook(model: Any, step: int) -> None:
    seen: list[float] = []
    handle = model.b.register_full_backward_hook(lambda module, given, made: (given[0] * 3,))
    other = model.a.register_full_backward_pre_hook(lambda module, made: seen.append(float(made[0].sum())))
    plain(model, step)
    assert len(seen) == 1
    handle.remove()
    other.remove()


def node_hooks(model: Any, step: int) -> None:
    y = model.a(data()).sigmoid()
    y.grad_fn.register_hook(lambda made, given: (made[0] * 2,))
    y.grad_fn.register_prehook(lambda given: (given[0] + 1,))
    model.b(y).sum().backward()


def multi_grad_hook(model: Any, step: int) -> None:
    y, z = model.a(data()), model.b(data())
    seen: list[Any] = []
    torch.autograd.graph.register_multi_grad_hook([y, z], seen.append)
    (y.sin() * z.cos()).sum().backward()
    assert len(seen) == 1 and all(one is not None for one in seen[0])


def retained_gradient(model: Any, step: int) -> Any:
    y = model.a(data())
    y.retain_grad()
    model.b(y.exp()).sum().backward()
    return y.grad


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 2)


def own_function(model: Any, step: int) -> None:
    model.b(Clamped.apply(model.a(data())).sin()).sum().backward()


def checkpointed(model: Any, step: int) -> None:
    checkpoint(model, data(), use_reentrant=False).square().sum().backward()


def checkpointed_reentrant(model: Any, step: int) -> None:
    checkpoint(model, data().requires_grad_(), use_reentrant=True).square().sum().backward()


def checkpointed_reentrant_around_shared(model: Any, step: int) -> Any:
    """The engine comes to the leaves of `b` twice: within the checkpoint, and outside of it."""
    seen: list[torch.Tensor] = []
    parameters = list(model.b.parameters())
    hooks = [p.register_hook(lambda grad: seen.append(grad.clone())) for p in parameters]
    hooks += [p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())) for p in parameters]
    x = model.b(model.a(data()).tanh())
    checkpoint(model.b, x, use_reentrant=True).square().sum().backward()
    for hook in hooks:
        hook.remove()
    return seen


def hook_that_differentiates(model: Any, step: int) -> None:
    """What it differentiates leads to a leaf of the backward in which it runs."""
    x = model.a(data()).tanh()

    def differentiate(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            model.a.weight.square().sum().backward()

    x.register_hook(differentiate)
    model.b(x).square().sum().backward()


def saved_elsewhere(model: Any, step: int) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y = model(data())
    y.exp().sum().backward()


def some_inputs(model: Any, step: int) -> None:
    model(data()).exp().sum().backward(inputs=list(model.a.parameters()))


def retained_and_hooked(model: Any, step: int) -> Any:
    """What is retained is what the hook gives, added to what was retained before."""
    y = model.a(data())
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    z = y.exp()
    z.retain_grad()
    for _ in range(2):
        (model.b(z) + y).sum().backward(retain_graph=True)
    return y.grad, z.grad


def gradients_of_leaves(model: Any, step: int) -> Any:
    return torch.autograd.grad(model.b(model.a(data()).tanh()).exp().mean(), [*model.a.parameters(), model.b.weight])


def gradients_of_results(model: Any, step: int) -> Any:
    """Of what lies on the way, with a gradient to begin with, and of leaves behind it."""
    y = model.a(data()).sigmoid()
    z = model.b(y) * y
    return torch.autograd.grad(z, [y, model.a.weight], torch.randn_like(z))


def gradient_of_data(model: Any, step: int) -> Any:
    x = data().requires_grad_()
    found = torch.autograd.grad(model.b(model.a(x).sin()).square().sum(), x)
    plain(nn.Sequential(model.a, model.b), step)
    return found


def gradients_through_a_graph(model: Any, step: int) -> Any:
    y = argand.compile(lambda x: model.a(x).tanh())(data())
    return torch.autograd.grad(model.b(y).sin().sum(), [model.a.weight, model.b.bias])


def gradients_one_by_one(model: Any, step: int) -> Any:
    """The tape is used up where gradients have come, and is there elsewhere."""
    y = model.b(model.a(data()).tanh()).exp()
    found = list(torch.autograd.grad(y.sum(), model.b.weight, retain_graph=True))
    found += torch.autograd.grad(y.mean(), model.b.weight)
    try:
        torch.autograd.grad(y.sum(), model.a.weight)
    except RuntimeError as error:
        return found, "second time" in str(error)
    return found, None


def gradients_of_a_hooked_leaf(model: Any, step: int) -> Any:
    handle = model.a.weight.register_hook(lambda grad: grad * 2)
    found = torch.autograd.grad(model.b(model.a(data())).sin().sum(), model.a.weight)
    handle.remove()
    return found


def gradients_past_hooks(model: Any, step: int) -> Any:
    """Code of the program runs on the way to the leaves that are asked for, and elsewhere, where it does not."""
    seen: list[Any] = []
    y = Clamped.apply(model.a(data()))
    y.register_hook(lambda grad: seen.append(grad.clone()))
    z = model.b(y.sin())
    z.register_hook(lambda grad: grad * 2)
    u = model.unused(y).tanh()
    u.register_hook(lambda grad: seen.append("nobody asked"))
    return torch.autograd.grad((z * u).sum(), [model.a.weight, model.b.weight]), seen


def gradients_of_unused(model: Any, step: int) -> Any:
    y = model.b(model.a(data())).sin().sum()
    return torch.autograd.grad(y, [model.a.weight, model.unused.weight], allow_unused=True)


def results_accumulate(model: Any, step: int) -> Any:
    y = model.a(data())
    model.b(y).sin().sum().backward(inputs=[y, model.b.weight])
    return y.grad


def sparse(model: Any, step: int) -> None:
    F.embedding(torch.tensor([0, 2, 2]), model.a.weight, sparse=True).sum().backward()
    model.a.weight.grad = model.a.weight.grad.to_dense()


def leaf_alone(model: Any, step: int) -> None:
    model.a.bias.backward(torch.ones(8))


COMPILED: dict[str, tuple[Callable[[], nn.Module], Program]] = {
    "gpt": (Gpt, gpt),
    "cnn": (Cnn, cnn),
    "plain": (mlp, plain),
    "whole_compiled": (mlp, whole_compiled),
    "graph_break": (Two, graph_break),
    "several_results": (Two, several_results),
    "chained_results": (Two, chained_results),
    "results_of_some_leaves": (Two, results_of_some_leaves),
    "micro_batches": (mlp, micro_batches),
    "optimized": (mlp, optimized),
    "zeroed": (mlp, zeroed),
    "shared": (Two, shared),
    "retained": (Two, retained),
    "with_gradient": (mlp, with_gradient),
    "many_roots": (Two, many_roots),
    "strange_layouts": (Two, strange_layouts),
    "numbers": (mlp, numbers),
    "leaf_hook": (Two, leaf_hook),
    "leaf_hook_in_place": (Two, leaf_hook_in_place),
    "post_accumulate_hook": (Two, post_accumulate_hook),
    "hooks_in_order": (Two, hooks_in_order),
    "multi_grad_hook_of_leaves": (Two, multi_grad_hook_of_leaves),
    "in_place": (Two, in_place),
    "removed_hook": (Two, removed_hook),
    "results_of_some_inputs": (Two, results_of_some_inputs),
    "tensor_hook": (Two, tensor_hook),
    "module_hook": (Two, module_hook),
    "node_hooks": (Two, node_hooks),
    "hooks_in_a_row": (Two, hooks_in_a_row),
    "own_function": (Two, own_function),
    "checkpointed_reentrant": (Two, checkpointed_reentrant),
    "checkpointed_reentrant_around_shared": (Two, checkpointed_reentrant_around_shared),
    "hook_that_differentiates": (Two, hook_that_differentiates),
    "checkpointed": (Two, checkpointed),
    "retained_gradient": (Two, retained_gradient),
    "retained_and_hooked": (Two, retained_and_hooked),
    "some_inputs": (Two, some_inputs),
    "gradients_of_leaves": (Two, gradients_of_leaves),
    "gradients_of_results": (Two, gradients_of_results),
    "gradient_of_data": (Two, gradient_of_data),
    "gradients_through_a_graph": (Two, gradients_through_a_graph),
    "gradients_of_unused": (Two, gradients_of_unused),
    "gradients_past_hooks": (Two, gradients_past_hooks),
    "gradients_one_by_one": (Two, gradients_one_by_one),
}
"""Programs whose backward is compiled."""

ENGINE: dict[str, tuple[Callable[[], nn.Module], Program]] = {
    "results_of_a_computed_input": (Two, results_of_a_computed_input),
    "multi_grad_hook": (Two, multi_grad_hook),
    "saved_elsewhere": (Two, saved_elsewhere),
    "sparse": (Two, sparse),
    "gradients_of_a_hooked_leaf": (Two, gradients_of_a_hooked_leaf),
    "results_accumulate": (Two, results_accumulate),
    "leaf_alone": (Two, leaf_alone),
}
"""Programs whose backward is the engine's alone."""
