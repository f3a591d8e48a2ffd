"""Steps of torch.optim that read tensors' numbers: as programs over tensors, interpreted in their place.

Eager asks for the step's number, and for norms, to compute with Python's numbers and to branch on them. Here these
stay tensors, of float64 as Python's numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.torch_functions.torch_calls import Handler

Tensors = Sequence[torch.Tensor]


def _number_of(step: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """The step's number where the parameter is."""
    return step.double().to(param.device)


def get_value(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`torch.optim.optimizer._get_value`: eager asks a tensor for its number."""
    if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor) or args[0].dtype is not torch.float32:
        return NotImplemented
    return state.interpreter.call(torch.Tensor.double, args, {})


def _at_least(low: float, value: torch.Tensor) -> torch.Tensor:
    """`max(low, value)` of Python, for which nan is not the larger one."""
    return torch.where(value > low, value, low)


def _decayed(param: torch.Tensor, grad: torch.Tensor, lr: float, weight_decay: float, decoupled: bool) -> torch.Tensor:
    """The gradient with the weights' decay, or, where that is decoupled, as it is: the parameter is decayed then."""
    if weight_decay == 0:
        return grad
    if decoupled:
        param.mul_(1 - lr * weight_decay)
        return grad
    return grad.add(param, alpha=weight_decay)


def _real(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Complex tensors as their parts, which are what eager computes with."""
    return tuple([torch.view_as_real(tensor) if torch.is_complex(tensor) else tensor for tensor in tensors])


def _add(param: torch.Tensor, change: torch.Tensor, scale: torch.Tensor, at_once: bool) -> None:
    """`param += change * scale`; `at_once`: rounded once, as eager does it for a parameter by itself."""
    if at_once and param.dim():
        param.add_(change, alpha=scale)
    else:
        param.add_(change * scale)


def radam(
    params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, steps: Tensors, *, beta1: float,
    beta2: float, lr: float, weight_decay: float, eps: float, decoupled_weight_decay: bool, maximize: bool,
) -> None:  # fmt: skip
    """RAdam: the variance is rectified as soon as enough gradients are averaged."""
    longest = 2 / (1 - beta2) - 1
    for *tensors, step in zip(params, grads, averages, squares, steps):
        param, grad, average, square = _real(*tensors)
        step += 1
        grad = _decayed(param, -grad if maximize else grad, lr, weight_decay, decoupled_weight_decay)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        number = _number_of(step, param)
        left = 1 - beta2**number
        length = longest - 2 * number * beta2**number / left
        rectified = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
        adapted = left**0.5 / square.sqrt().add_(eps) * rectified
        param.sub_(average / (1 - beta1**number) * lr * torch.where(length > 5.0, adapted, 1.0))


def nadam(
    params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, products: Tensors, steps: Tensors, *,
    beta1: float, beta2: float, lr: float, weight_decay: float, momentum_decay: float, eps: float,
    decoupled_weight_decay: bool, maximize: bool,
) -> None:  # fmt: skip
    """NAdam: the momentum grows with the steps; the product of those so far is kept, as exact as its tensor."""
    for *tensors, product, step in zip(params, grads, averages, squares, products, steps):
        param, grad, average, square = _real(*tensors)
        step += 1
        grad = _decayed(param, -grad if maximize else grad, lr, weight_decay, decoupled_weight_decay)
        number = _number_of(step, param)
        momentum = beta1 * (1.0 - 0.5 * (0.96 ** (number * momentum_decay)))
        following = beta1 * (1.0 - 0.5 * (0.96 ** ((number + 1) * momentum_decay)))
        product.mul_(momentum.to(product.device, product.dtype))
        so_far = _number_of(product, param)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = square.div(1 - beta2**number).sqrt().add_(eps)
        param.addcdiv_(grad, root, value=-lr * (1.0 - momentum) / (1.0 - so_far))
        param.addcdiv_(average, root, value=-lr * following / (1.0 - so_far * following))


def asgd(
    params: Tensors, grads: Tensors, means: Tensors, mus: Tensors, etas: Tensors, steps: Tensors, *, lambd: float,
    lr: float, t0: float, alpha: float, weight_decay: float, maximize: bool, at_once: bool,
) -> None:  # fmt: skip
    """ASGD: a decaying rate, and from step `t0` on a mean of the parameters."""
    for *tensors, mu, eta, step in zip(params, grads, means, mus, etas, steps):
        param, grad, mean = _real(*tensors)
        grad = -grad if maximize else grad
        step += 1
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = _number_of(eta, param)
        _add(param.mul_(1 - lambd * rate), grad, -rate, at_once)
        mean.copy_(torch.where(mu.to(param.device) == 1, param, mean + param.sub(mean).mul_(mu)))
        eta.copy_(lr / (1 + lambd * lr * step.double()) ** alpha)
        mu.copy_(1 / _at_least(1, step.double() - t0))


def adafactor(
    params: Tensors, grads: Tensors, rows: Tensors, columns: Tensors, variances: Tensors,
    steps: Tensors, *, d: float, lr: float, beta2_decay: float, weight_decay: float, eps1: float | None, eps2: float,
    maximize: bool, at_once: bool,
) -> None:  # fmt: skip
    """Adafactor: second moments by rows and columns, and a rate relative to the parameter's size."""
    for param, grad, row, column, variance, step in zip(params, grads, rows, columns, variances, steps):
        grad = -grad if maximize else grad
        least = torch.finfo(param.dtype).eps if eps1 is None else eps1
        step += 1
        number = _number_of(step, param)
        weight = (number**beta2_decay).to(grad.dtype)
        root = 1 / number**0.5
        rate = _at_least(eps2, param.norm(2).double() / param.numel() ** 0.5) * torch.where(root < lr, root, lr)
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        if grad.dim() > 1:
            row.lerp_(torch.norm(grad, dim=-1, keepdim=True).square_().div_(grad.size(-1)), weight)
            column.lerp_(torch.norm(grad, dim=-2, keepdim=True).square_().div_(grad.size(-2)), weight)
            estimate = (row @ column).div_(row.mean(dim=-2, keepdim=True).clamp_(min=least))
        else:
            variance.lerp_(grad * grad, weight)
            estimate = variance.clone()
        update = estimate.clamp_(min=least * least).rsqrt_().mul_(grad)
        largest = _at_least(1.0, update.norm(2).double() / (update.numel() ** 0.5 * d))
        _add(param, update, -rate / largest, at_once)


def stand_in(function: Any, unset: Mapping[str, object], **given: object) -> Handler:
    """A handler that has `function` interpreted in place of torch's.

    Arguments:
        given: further keyword arguments for it.
        unset: keyword arguments that it does not know, and the value that each must have (...: any).
    """
    code = function.__code__
    lists = code.co_argcount
    names = frozenset(code.co_varnames[lists : lists + code.co_kwonlyargcount])

    def call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        mine = {name: value for name, value in kwargs.items() if name not in unset} | given
        if torch.is_grad_enabled() or len(args) != lists or frozenset(mine) != names:
            return NotImplemented
        if any(kwargs[name] is not value for name, value in unset.items() if value is not ... and name in kwargs):
            return NotImplemented
        return state.interpreter.call(function, args, mine)

    return call
