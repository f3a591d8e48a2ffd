"""Programs with checkpoints (`use_reentrant=False`), whose backward is compiled."""

from __future__ import annotations

from typing import Any

import torch
from tests.engine.backward_programs import Clamped, Two, data
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def checkpoint_after_checkpoint(model: Any, step: int) -> Any:
    """With dropout, what one checkpoint gives used twice, hooks in between, and code that runs as often as in eager."""
    seen: list[Any] = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append("computed")
        return F.dropout(model.a(x).exp(), 0.3) * model.b(x).sigmoid() / 3.0

    x = checkpoint(inner, data(), use_reentrant=False)
    y = checkpoint(inner, x, use_reentrant=False, preserve_rng_state=True)
    y.register_hook(lambda grad: seen.append(grad.clone()))
    z = checkpoint(lambda x: checkpoint(inner, x.cos(), use_reentrant=False).tanh(), y.sin() + x, use_reentrant=False)
    (model.b(z) * x).square().mean().backward()
    return seen


def dropped_as_on_gpus(x: torch.Tensor, rate: float) -> torch.Tensor:
    """What dropout is on a GPU: an operation of its own."""
    return torch.ops.aten.native_dropout(x, rate, True)[0]


def checkpoint_around_dropout_as_on_gpus(model: Any, step: int) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return dropped_as_on_gpus(model.a(x).exp(), 0.3) * model.b(x).sigmoid()

    y = checkpoint(inner, dropped_as_on_gpus(model.a(data()), 0.2), use_reentrant=False)
    checkpoint(inner, y, use_reentrant=False).square().mean().backward()


def checkpoint_differentiated_twice(model: Any, step: int) -> None:
    y = checkpoint(lambda x: model.b(model.a(x).tanh()).exp(), data(), use_reentrant=False)
    y.sum().backward(retain_graph=True)
    y.mean().backward()


def checkpoint_whose_gradient_is_differentiated(model: Any, step: int) -> Any:
    x = data().requires_grad_()
    y = checkpoint(lambda x: model.b(F.dropout(model.a(x).tanh(), 0.3)).exp(), x, use_reentrant=False)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (y.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()).backward()
    return grad.detach()


def checkpoint_beside_a_hook_of_a_module(model: Any, step: int) -> Any:
    """The hook is on a node that saved nothing."""
    seen: list[Any] = []
    handle = model.b.register_full_backward_hook(lambda module, given, made: seen.append(given[0].clone()))
    y = checkpoint(lambda x: model.b(model.a(x).tanh()).exp(), data(), use_reentrant=False)
    model.b(y).sum().backward()
    handle.remove()
    return seen


def checkpoint_around_a_function(model: Any, step: int) -> Any:
    y = checkpoint(lambda x: Clamped.apply(model.a(x)).sin() * model.b(x), data(), use_reentrant=False)
    return torch.autograd.grad(y.square().sum(), list(model.a.parameters()))


def checkpoint_that_raises(model: Any, step: int) -> Any:
    told: list[str] = []

    def fails(grad: torch.Tensor) -> None:
        if step > 1:
            raise ValueError("later")

    y = checkpoint(lambda x: model.a(x).tanh(), data(), use_reentrant=False)
    y.register_hook(fails)
    z = checkpoint(lambda x: model.b(x).tanh(), y, use_reentrant=False)
    try:
        z.sum().backward()
    except ValueError as error:
        told.append(str(error))
    return told


def checkpoint_and_a_hook_of_several_leaves(model: Any, step: int) -> Any:
    """Called once in each run, for the first of the leaves: the engine runs this alone."""
    seen: list[Any] = []
    leaves = [model.a.weight, model.b.weight]
    handle = torch.autograd.graph.register_multi_grad_hook(leaves, lambda grad: seen.append(grad.clone()), mode="any")
    checkpoint(lambda x: model.b(model.a(x).tanh()), data(), use_reentrant=False).sum().backward()
    handle.remove()
    return seen


def checkpoint_that_does_not_check(model: Any, step: int) -> None:
    y = checkpoint(lambda x: model.a(x).tanh(), data(), use_reentrant=False, determinism_check="none")
    model.b(y).sum().backward()


CHECKPOINTS = {
    program.__name__: (Two, program)
    for program in (
        checkpoint_after_checkpoint,
        checkpoint_around_dropout_as_on_gpus,
        checkpoint_differentiated_twice,
        checkpoint_whose_gradient_is_differentiated,
        checkpoint_beside_a_hook_of_a_module,
        checkpoint_around_a_function,
        checkpoint_that_raises,
    )
}

UNRECORDED = {
    program.__name__: (Two, program)
    for program in (checkpoint_and_a_hook_of_several_leaves, checkpoint_that_does_not_check)
}
