"""Programs that differentiate gradients (`create_graph=True`), whose backwards are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.engine.backward_programs import Clamped, Program, Two, data, mlp
from torch import nn
from torch.nn import functional as F

import argand


def second_order(model: Any, step: int) -> None:
    x = data().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)
    grad.square().sum().backward()


def penalty(model: Any, step: int) -> Any:
    """The gradient of the data is differentiated; its graph is a result of the first backward."""
    x = data().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    y = model(x.detach())
    (y.sin().sum() + ((grad.norm(2, 1) - 1) ** 2).mean()).backward()
    return grad.detach(), grad.requires_grad


def adapted(model: Any, step: int) -> Any:
    """As for MAML: gradients of parameters after a step that itself is differentiated, twice."""
    weights = list(model.parameters())
    for _ in range(2):
        y = F.gelu(data() @ weights[0] + weights[1]) @ weights[2]
        grads = torch.autograd.grad(y.square().mean(), weights[:3], create_graph=True)
        weights[:3] = [weight - 0.1 * grad for weight, grad in zip(weights, grads)]
    torch.stack([weight.square().sum() for weight in weights]).sum().backward()


def accumulated_with_graph(model: Any, step: int) -> Any:
    model.zero_grad()
    for _ in range(2):
        model(data()).square().mean().backward(create_graph=True)
    grads = [parameter.grad for parameter in model.parameters()]
    seen = [None if grad is None else (grad.detach().clone(), grad.requires_grad) for grad in grads]
    model.zero_grad()
    torch.stack([grad.square().sum() for grad in grads if grad is not None]).sum().backward()
    return seen


def products_with_the_hessian(model: Any, step: int) -> Any:
    leaves = [*model.a.parameters(), model.b.weight]
    grads = torch.autograd.grad(model.b(F.silu(model.a(data()))).softmax(1)[:, 0].sum(), leaves, create_graph=True)
    return torch.autograd.grad(grads, leaves, [torch.ones_like(leaf) for leaf in leaves])


def differentiated_with_hooks(model: Any, step: int) -> Any:
    """A leaf's hook sees gradients that require grad."""
    seen: list[bool] = []
    handle = model.a.weight.register_hook(lambda grad: seen.append(grad.requires_grad) or grad * 2)
    model.zero_grad()
    model.b(model.a(data()).tanh()).square().sum().backward(create_graph=True)
    loss = model.a.weight.grad.square().sum() + model.b.weight.grad.sum()
    model.zero_grad()
    loss.backward()
    handle.remove()
    return seen


def penalty_behind_code(model: Any, step: int) -> Any:
    """The gradient that is differentiated has passed hooks of tensors, of a node, a function and a module's hook."""
    seen: list[Any] = []
    handle = model.b.register_full_backward_hook(lambda module, given, made: (given[0] * 3,))
    x = data().requires_grad_()
    y = Clamped.apply(model.a(x))
    y.register_hook(lambda grad: seen.append((grad.detach().clone(), grad.requires_grad)) or grad * y)
    z = model.b(y).exp()
    z.grad_fn.register_prehook(lambda given: (given[0] + x.mean(),))
    (grad,) = torch.autograd.grad(z.sin().sum(), x, create_graph=True)
    handle.remove()
    (z.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()).backward()
    return grad.detach(), seen


def penalty_with_hooks_that_detach(model: Any, step: int) -> Any:
    """What hooks give has a history in some steps only."""
    x = data().requires_grad_()
    y = model.a(x).tanh()
    y.register_hook(lambda grad: grad.detach() if step % 2 else grad * 2)
    (grad,) = torch.autograd.grad(model.b(y).square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    return grad.detach()


def penalty_through_a_graph(model: Any, step: int) -> Any:
    x = data().requires_grad_()
    y = argand.compile(lambda x: model.b(model.a(x).tanh()).exp())(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (y.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()).backward()
    return grad.detach(), grad.requires_grad


def accumulated_with_graph_behind_hooks(model: Any, step: int) -> Any:
    model.zero_grad()
    y = model.a(data()).tanh()
    y.register_hook(lambda grad: grad * y)
    model.b(y).square().sum().backward(create_graph=True)
    loss = torch.stack([one.grad.square().sum() for one in model.parameters() if one.grad is not None]).sum()
    seen = [None if one.grad is None else one.grad.detach().clone() for one in model.parameters()]
    model.zero_grad()
    loss.backward()
    return seen


DIFFERENTIATED: dict[str, tuple[Callable[[], nn.Module], Program]] = {
    "second_order": (mlp, second_order),
    "penalty": (mlp, penalty),
    "adapted": (lambda: nn.ParameterList([torch.randn(8, 8), torch.randn(8), torch.randn(8, 4)]), adapted),
    "accumulated_with_graph": (mlp, accumulated_with_graph),
    "products_with_the_hessian": (Two, products_with_the_hessian),
    "differentiated_with_hooks": (Two, differentiated_with_hooks),
    "penalty_behind_code": (Two, penalty_behind_code),
    "penalty_with_hooks_that_detach": (Two, penalty_with_hooks_that_detach),
    "penalty_through_a_graph": (Two, penalty_through_a_graph),
    "accumulated_with_graph_behind_hooks": (Two, accumulated_with_graph_behind_hooks),
}
