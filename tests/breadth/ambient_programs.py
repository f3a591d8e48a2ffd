"""Programs under levels, transforms, hooks and modes of torch, for test_ambient_states.py."""

# mypy: ignore-errors
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils.deterministic
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
CASES: dict[str, Callable[[Wrap], Any]] = {}

torch.manual_seed(0)
lin = nn.Linear(4, 4)
w = torch.randn(4, 4)
x0 = torch.randn(3, 4)
t0 = torch.randn(3, 4)


def case(fn: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
    CASES[fn.__name__] = fn
    return fn


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sin() * 2 + x


@case
def dual_outside(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    for k in range(2):
        with forward_ad.dual_level():
            p, t = forward_ad.unpack_dual(c(forward_ad.make_dual(x0, t0)))
            out += [p, t]
        out.append(c(x0))
    return out


@case
def dual_after_plain(wrap: Wrap) -> Any:
    c = wrap(f)
    c(x0)
    with forward_ad.dual_level():
        a = forward_ad.unpack_dual(c(x0))
        b = forward_ad.unpack_dual(c(forward_ad.make_dual(x0, t0)))
    return (a.tangent, b.primal, b.tangent, c(x0))


@case
def dual_inside(wrap: Wrap) -> Any:

    def g(x, t):
        with forward_ad.dual_level():
            d = forward_ad.make_dual(x, t)
            return forward_ad.unpack_dual(f(d)).tangent

    c = wrap(g)
    return (c(x0, t0), c(x0, t0 * 2))


@case
def dual_inside_named(wrap: Wrap) -> Any:

    def g(x, t):
        with forward_ad.dual_level():
            d = forward_ad.make_dual(x * 2, t)
            p, tt = forward_ad.unpack_dual(f(d).exp())
        return (p + 1, tt * 2)

    c = wrap(g)
    return (c(x0, t0), c(x0, t0 * 2))


@case
def dual_param(wrap: Wrap) -> Any:
    m = nn.Linear(4, 4)
    m.load_state_dict(lin.state_dict())
    c = wrap(lambda x: m(x).tanh())
    out = [c(x0)]
    with forward_ad.dual_level():
        pw = m.weight
        del m.weight
        m.weight = forward_ad.make_dual(pw.detach(), torch.ones_like(pw))
        out += list(forward_ad.unpack_dual(c(x0)))
    return out


@case
def dual_global(wrap: Wrap) -> Any:
    state = {"w": w}
    c = wrap(lambda x: x @ state["w"])
    out = [c(x0)]
    with forward_ad.dual_level():
        state["w"] = forward_ad.make_dual(w, torch.ones_like(w))
        out += list(forward_ad.unpack_dual(c(x0)))
    return out


@case
def dual_attached_to_same_object(wrap: Wrap) -> Any:
    x = x0.clone()
    c = wrap(f)
    c(x)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, t0)
        y = x * 1
        y.copy_(d)
        a = forward_ad.unpack_dual(c(y))
        return (a.primal, a.tangent)


@case
def jvp_of_compiled(wrap: Wrap) -> Any:
    c = wrap(f)
    return (torch.func.jvp(c, (x0,), (t0,)), c(x0), torch.func.jvp(c, (x0,), (t0,)))


@case
def jvp_inside(wrap: Wrap) -> Any:

    def g(x, t):
        return torch.func.jvp(f, (x,), (t,))

    c = wrap(g)
    return (c(x0, t0), c(x0, t0 * 2))


@case
def jvp_module(wrap: Wrap) -> Any:

    def g(x, t):
        return torch.func.jvp(
            lambda p: torch.func.functional_call(lin, p, (x,)),
            ({k: v.detach() for k, v in lin.named_parameters()},),
            ({k: torch.ones_like(v) for k, v in lin.named_parameters()},),
        )

    c = wrap(g)
    return (c(x0, t0), c(x0 * 2, t0))


@case
def linearize(wrap: Wrap) -> Any:
    c = wrap(f)
    o, j = torch.func.linearize(c, x0)
    return (o, j(t0))


@case
def linearize_inside(wrap: Wrap) -> Any:

    def g(x, t):
        o, j = torch.func.linearize(f, x)
        return (o, j(t))

    c = wrap(g)
    return c(x0, t0)


@case
def jacfwd_of(wrap: Wrap) -> Any:
    c = wrap(f)
    return (torch.func.jacfwd(c)(x0), torch.func.jacrev(c)(x0), torch.func.hessian(lambda x: c(x).sum())(x0))


@case
def grad_of(wrap: Wrap) -> Any:
    c = wrap(lambda x: f(x).sum())
    return (torch.func.grad(c)(x0), c(x0), torch.func.grad(c)(x0), torch.func.vjp(c, x0)[0])


@case
def vmap_of(wrap: Wrap) -> Any:
    c = wrap(f)
    return (torch.vmap(c)(x0), c(x0), torch.vmap(c, in_dims=1, out_dims=1)(x0.t().contiguous()), torch.vmap(c)(x0 + 1))


@case
def vmap_grad_of(wrap: Wrap) -> Any:
    c = wrap(lambda x: f(x).sum())
    return torch.vmap(torch.func.grad(c))(x0)


@case
def vmap_random(wrap: Wrap) -> Any:
    c = wrap(lambda x: x + torch.rand(4))
    torch.manual_seed(1)
    a = torch.vmap(c, randomness="same")(x0)
    return (a - x0).std(0).abs().max() < 1e-05


@case
def functionalize_of(wrap: Wrap) -> Any:

    def g(x):
        y = x.clone()
        y.add_(1)
        return y * 2

    c = wrap(g)
    return (torch.func.functionalize(c)(x0), c(x0))


@case
def saved_hooks(wrap: Wrap) -> Any:
    c = wrap(lambda x: (f(x) ** 2).sum())
    out = []
    log = []
    for on in (True, False, True):
        x = x0.clone().requires_grad_()
        ctx = (
            torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append(1), t.clone())[1], lambda t: t)
            if on
            else contextlib.nullcontext()
        )
        n = len(log)
        with ctx:
            y = c(x)
        y.backward()
        out.append(x.grad)
        out.append((len(log) > n) == on)
    return out


@case
def saved_hooks_half(wrap: Wrap) -> Any:
    c = wrap(lambda x: (x * x).sum())
    out = []
    for on in (False, True, False):
        x = x0.clone().requires_grad_()
        ctx = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2) if on else contextlib.nullcontext()
        with ctx:
            y = c(x)
        y.backward()
        out.append(x.grad)
    return out


@case
def saved_hooks_inside(wrap: Wrap) -> Any:

    def g(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2):
            y = (x * x).sum()
        return y

    c = wrap(g)
    x = x0.clone().requires_grad_()
    c(x).backward()
    return x.grad


@case
def save_on_cpu(wrap: Wrap) -> Any:
    c = wrap(lambda x: (f(x) ** 2).sum())
    out = []
    for on in (True, False):
        x = x0.clone().requires_grad_()
        with torch.autograd.graph.save_on_cpu() if on else contextlib.nullcontext():
            y = c(x)
        y.backward()
        out.append(x.grad)
    return out


@case
def save_on_cpu_inside(wrap: Wrap) -> Any:

    def g(x):
        with torch.autograd.graph.save_on_cpu():
            return (f(x) ** 2).sum()

    x = x0.clone().requires_grad_()
    wrap(g)(x).backward()
    return x.grad


@case
def disable_saved_hooks(wrap: Wrap) -> Any:
    c = wrap(lambda x: (f(x) ** 2).sum())
    x = x0.clone().requires_grad_()
    with torch.autograd.graph.disable_saved_tensors_hooks("no"):
        y = c(x)
    y.backward()
    return x.grad


@case
def anomaly(wrap: Wrap) -> Any:

    def g(x):
        return torch.sqrt(x * 0 - 1).sum()

    c = wrap(g)
    out = []
    for on in (False, True, False):
        x = x0.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(on):
            try:
                c(x).backward()
                out.append(x.grad.isnan().all())
            except RuntimeError as e:
                out.append("nan values" in str(e))
    return out


@case
def grad_modes(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    x = x0.clone().requires_grad_()
    for ctx in (torch.no_grad(), torch.enable_grad(), torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
        with ctx:
            y = c(x)
            out += [y.requires_grad, y.is_inference(), y.detach().clone()]
    return out


@case
def inference_inputs(wrap: Wrap) -> Any:
    c = wrap(f)
    with torch.inference_mode():
        xi = x0 * 1
    out = [c(x0), c(xi), c(xi).is_inference(), c(x0).is_inference()]
    with torch.inference_mode():
        out += [c(xi), c(xi).is_inference(), c(x0).is_inference()]
    return [o.clone() if isinstance(o, torch.Tensor) else o for o in out]


@case
def inference_input_with_grad(wrap: Wrap) -> Any:
    c = wrap(lambda x, p: (x * p).sum())
    with torch.inference_mode():
        xi = x0 * 1
    p = torch.ones(3, 4, requires_grad=True)
    try:
        c(xi, p).backward()
        return p.grad
    except RuntimeError as e:
        return "nference" in str(e)


@case
def inference_inplace(wrap: Wrap) -> Any:

    def g(x):
        x.add_(1)
        return x * 2

    c = wrap(g)
    with torch.inference_mode():
        xi = x0 * 1
    try:
        r = c(xi).clone()
    except RuntimeError as e:
        r = "nference" in str(e)
    with torch.inference_mode():
        r2 = c(xi).clone()
    return (r, r2, xi.clone())


@case
def autocast(wrap: Wrap) -> Any:
    c = wrap(lambda x: x @ w)
    out = []
    for on in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            out.append(c(x0))
    with torch.autocast("cpu", torch.float16):
        out.append(c(x0))
    return out


class Neg(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        r = func(*args, **kwargs or {})
        return -r if func in (torch.sin, torch.Tensor.sin) else r


class NegD(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        r = func(*args, **kwargs or {})
        return -r if func is torch.ops.aten.sin.default else r


@case
def function_mode(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    for on in (True, False, True):
        with Neg() if on else contextlib.nullcontext():
            out.append(c(x0))
    return out


@case
def function_mode_later(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    for on in (False, True, False):
        with Neg() if on else contextlib.nullcontext():
            out.append(c(x0))
    return out


@case
def dispatch_mode(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    for on in (True, False, True):
        with NegD() if on else contextlib.nullcontext():
            out.append(c(x0))
    return out


@case
def dispatch_mode_later(wrap: Wrap) -> Any:
    c = wrap(f)
    out = []
    for on in (False, True, False):
        with NegD() if on else contextlib.nullcontext():
            out.append(c(x0))
    return out


@case
def flop_counter(wrap: Wrap) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    c = wrap(lambda x: x @ w)
    out = []
    for _ in range(2):
        with FlopCounterMode(display=False) as m:
            c(x0)
        out.append(m.get_total_flops())
    return out
