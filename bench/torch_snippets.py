"""Small programs that use torch beyond plain operations; each is one function of tensors (see torch_breadth.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

SNIPPETS: dict[str, Callable[..., Any]] = {}


def snippet(fn: Callable[..., Any]) -> Callable[..., Any]:
    SNIPPETS[fn.__name__] = fn
    return fn


# ---------------------------------------------------------------------- autograd.Function


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x * 0.5, None


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        low, index = torch.max(x, dim=-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(x, y)
        return low * 2, index

    @staticmethod
    def backward(ctx, grad, _):
        x, y = ctx.saved_tensors
        gx = grad.unsqueeze(-1) * torch.ones_like(x) if ctx.needs_input_grad[0] else None
        gy = grad.sum() * y if ctx.needs_input_grad[1] else None
        return gx, gy


class Contextual(torch.autograd.Function):
    @staticmethod
    def forward(x, y, power):
        return x * y**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, power = inputs
        ctx.save_for_backward(x, y)
        ctx.power = power

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y**ctx.power, grad * x * ctx.power, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.clamp(grad, -1, 1)


@snippet
def function_scale(x, y):
    return Scale.apply(x, 3.0).sin() + y


@snippet
def function_two_outputs(x, y):
    value, index = TwoOutputs.apply(x, y)
    return value + 1, index + 1


@snippet
def function_setup_context(x, y):
    return Contextual.apply(x, y, 2) * 2


@snippet
def function_straight_through(x, y):
    return StraightThrough.apply(x + y)


@snippet
def function_twice(x, y):
    return Scale.apply(Scale.apply(x, 2.0), 3.0) + Scale.apply(y, 4.0)


@snippet
def function_without_grad(x, y):
    return Scale.apply(x.detach(), 2.0) + y


# ---------------------------------------------------------------------- checkpoint


def _block(x, y):
    return torch.sin(x) @ torch.cos(y).t()


@snippet
def checkpoint_not_reentrant(x, y):
    return checkpoint(_block, x, y, use_reentrant=False) + 1


@snippet
def checkpoint_reentrant(x, y):
    return checkpoint(_block, x, y, use_reentrant=True) + 1


@snippet
def checkpoint_closure(x, y):
    def inner(a):
        return torch.sigmoid(a * y) * 2

    return checkpoint(inner, x * 2, use_reentrant=False)


@snippet
def checkpoint_dropout(x, y):
    return checkpoint(lambda a: F.dropout(a, 0.5, True) * y, x, use_reentrant=False)


@snippet
def checkpoint_tuple(x, y):
    a, b = checkpoint(lambda a, b: (a.sin(), b.cos()), x, y, use_reentrant=False)
    return a * b


# ---------------------------------------------------------------------- torch.func


@snippet
def func_vmap(x, y):
    return torch.vmap(lambda a, b: a * b.sum())(x, y)


@snippet
def func_vmap_dims(x, y):
    return torch.vmap(torch.dot, in_dims=(1, 1))(x, y)


@snippet
def func_vmap_closure(x, y):
    return torch.func.vmap(lambda row: (row * y).sum(0), out_dims=1)(x)


@snippet
def func_grad(x, y):
    return torch.func.grad(lambda a: (a.sin() * y).sum())(x)


@snippet
def func_grad_and_value(x, y):
    grad, value = torch.func.grad_and_value(lambda a: (a * y).sum())(x)
    return grad, value


@snippet
def func_grad_aux(x, y):
    grad, aux = torch.func.grad(lambda a: ((a * y).sum(), a * 2), has_aux=True)(x)
    return grad, aux


@snippet
def func_jacrev(x, y):
    return torch.func.jacrev(lambda a: a.sin() * y[0])(x[0])


@snippet
def func_jacfwd(x, y):
    return torch.func.jacfwd(lambda a: a.sin() * y[0])(x[0])


@snippet
def func_hessian(x, y):
    return torch.func.hessian(lambda a: (a**3 * y[0]).sum())(x[0])


@snippet
def func_jvp(x, y):
    return torch.func.jvp(lambda a: a.sin(), (x,), (y,))


@snippet
def func_vjp(x, y):
    out, pull = torch.func.vjp(lambda a: a.sin() * y, x)
    return out, pull(torch.ones_like(out))


@snippet
def func_per_sample(x, y):
    def loss(weight, sample):
        return (weight * sample).sum() ** 2

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(y[0], x)


_LINEAR = torch.nn.Linear(4, 4)


@snippet
def func_functional_call(x, y):
    parameters = {"weight": y[:1].expand(4, 4), "bias": y[0]}
    return torch.func.functional_call(_LINEAR, parameters, (x,))


_MODELS = [torch.nn.Linear(4, 4) for _ in range(3)]


@snippet
def func_linearize(x, y):
    return torch.func.vmap(lambda w: (x * w).sum(1))(y)


# ---------------------------------------------------------------------- autograd in the frame


@snippet
def autograd_grad(x, y):
    z = (x * x * y).sum()
    return torch.autograd.grad(z, x, create_graph=True)[0] * 2


@snippet
def autograd_grad_detached(x, y):
    a = x.detach().requires_grad_()
    (g,) = torch.autograd.grad((a.sin() * y.detach()).sum(), a)
    return g + x


@snippet
def requires_grad_of_result(x, y):
    z = (x.detach() * 2).requires_grad_()
    return z * y, z.requires_grad


@snippet
def data_attribute(x, y):
    return x.data * 2 + y, x.detach() + 1


@snippet
def grad_read(x, y):
    return x + y if x.grad is None else x.grad + y


@snippet
def hook_on_result(x, y):
    z = x * y
    z.register_hook(lambda g: g * 2)
    return z.sin()


# ---------------------------------------------------------------------- contexts


@snippet
def context_no_grad(x, y):
    with torch.no_grad():
        z = x * 2
    return z + y, z.requires_grad


@snippet
def context_inference(x, y):
    with torch.inference_mode():
        z = x * 2
    return z.sum(), y * 1


@snippet
def context_set_grad(x, y):
    torch.set_grad_enabled(False)
    z = x * 2
    torch.set_grad_enabled(True)
    return z + y


@snippet
def context_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y.t()
    return z, z.dtype


@snippet
def context_sdpa_kernel(x, y):
    q = x.reshape(1, 1, *x.shape)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, y.reshape(1, 1, *y.shape))


@snippet
def context_record_function(x, y):
    with torch.profiler.record_function("named"):
        return x * y


@snippet
def context_device(x, y):
    with torch.device("cpu"):
        return x + torch.ones(4) * y


@snippet
def context_saved_tensors_hooks(x, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x * y


@snippet
def context_fork_rng(x, y):
    with torch.random.fork_rng():
        z = torch.rand(3)
    return x * z[:, None] + y


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.add else result


@snippet
def context_function_mode(x, y):
    with Doubling():
        return torch.add(x, y) + torch.mul(x, y)


@snippet
def context_nullcontext(x, y):
    with contextlib.nullcontext(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        return x * y


@snippet
def context_deterministic(x, y):
    torch.use_deterministic_algorithms(True)
    z = x * y
    torch.use_deterministic_algorithms(False)
    return z


# ---------------------------------------------------------------------- random numbers


@snippet
def rng_dropout(x, y):
    return F.dropout(x, 0.3) + torch.rand(3, 4) * torch.rand_like(y)


@snippet
def rng_manual_seed(x, y):
    torch.manual_seed(3)
    return x + torch.rand(4) + y


@snippet
def rng_generator(x, y):
    generator = torch.Generator().manual_seed(3)
    return x + torch.rand(4, generator=generator) + y


# ---------------------------------------------------------------------- writes


@snippet
def write_items(x, y):
    z = x.detach().clone()
    z[0] = 1
    z[1:, ::2] = y[1:, ::2].detach()
    z[..., -1] += 2
    z[torch.tensor([0, 1]), torch.tensor([1, 2])] = 5.0
    z[z > 3] = 0
    return z


@snippet
def write_out(x, y):
    out = torch.empty(3, 4)
    torch.add(x.detach(), 1, out=out)
    other = torch.empty(0)
    torch.mul(y.detach(), 2, out=other)
    return out, other


@snippet
def write_views(x, y):
    z = x.detach().clone()
    view = z.view(-1)
    view[3:6].mul_(2)
    z.t()[0].add_(1)
    return z, view


@snippet
def views_complex(x, y):
    z = torch.view_as_complex(x.reshape(3, 2, 2).contiguous())
    return torch.view_as_real(z * 1j), z.real, z.conj().imag


# ---------------------------------------------------------------------- overriding, operators, control flow


class Tagged:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.tensor if isinstance(a, Tagged) else a for a in args]
        return Tagged(func(*plain, **(kwargs or {})))


@snippet
def duck_typed(x, y):
    return torch.mul(Tagged(x), y).tensor + 1


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@snippet
def subclass_made(x, y):
    return (x.detach().as_subclass(Loud) * 2 + y.detach()).as_subclass(torch.Tensor)


@torch.library.custom_op("argand_breadth::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("argand_breadth::bump", mutates_args=("x",))
def bump(x: torch.Tensor, by: float) -> None:
    x.add_(by)


_LIBRARY = torch.library.Library("argand_breadth_lib", "DEF")
_LIBRARY.define("twice(Tensor x) -> Tensor")
_LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")


@snippet
def custom_operator(x, y):
    return scaled(x, 2.0) + torch.ops.argand_breadth.scaled(y, 3.0)


@snippet
def custom_operator_writes(x, y):
    z = x.detach().clone()
    bump(z, 1.0)
    return z + y


@snippet
def custom_library(x, y):
    return torch.ops.argand_breadth_lib.twice(x.detach()) + y


@snippet
def aten_operators(x, y):
    return torch.ops.aten.mul.Tensor(x, y) + torch.ops.aten.relu(x)


@snippet
def control_cond(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, y))


@snippet
def control_while(x, y):
    from torch._higher_order_ops.while_loop import while_loop

    def going(i, a):
        return i < 3

    def step(i, a):
        return i + 1, a * 2

    return while_loop(going, step, (torch.tensor(0), x.detach()))[1] + y


@snippet
def control_scan(x, y):
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry + row, carry * row), y[0].detach(), x.detach(), dim=0)


@snippet
def control_map(x, y):
    from torch._higher_order_ops.map import map as control

    return control(lambda row, other: row.sin() + other[0], x.detach(), y.detach())


@torch.jit.script
def scripted_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + 2 * y


@snippet
def scripted(x, y):
    return scripted_sum(x, y) * 2


@snippet
def questions(x, y):
    torch._assert(x.shape[0] == 3, "rows")
    torch._check(y.shape[1] == 4, lambda: "columns")
    flags = torch.jit.is_scripting(), torch.is_grad_enabled(), torch.overrides.is_tensor_like(x)
    return (x * y, *flags)


@snippet
def tensor_properties(x, y):
    return x.mT @ y, x.H.shape, x.is_leaf, x.grad_fn is None, x.itemsize, x.element_size(), x.dim_order()
