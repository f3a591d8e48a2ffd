"""Compiled functions under states of torch that the program sets around them: active at the first call, and toggled later.

Each program runs in eager and compiled, and must give the same. What a state is (levels, modes, hooks, flags, bits of tensors) is
in the name of the program.
"""

# mypy: ignore-errors
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils.deterministic
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import argand
from helpers import assert_same

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


@case
def default_dtype(wrap: Wrap) -> Any:
    c = wrap(
        lambda x: (
            x + torch.ones(4),
            torch.zeros(2),
            torch.tensor(1.5),
            torch.arange(3) / 2,
            torch.rand(2).dtype == torch.get_default_dtype(),
        )
    )
    out = []
    for d in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(d)
        try:
            out.append(c(x0))
        finally:
            torch.set_default_dtype(torch.float32)
    return out


@case
def default_dtype_true_div(wrap: Wrap) -> Any:
    i = torch.arange(6)
    c = wrap(lambda x: (x / 4, x.sqrt(), torch.sigmoid(x), x * 1.5, x.float().mean()))
    out = []
    for d in (torch.float32, torch.float64, torch.float16, torch.float32):
        torch.set_default_dtype(d)
        try:
            out.append(c(i))
        finally:
            torch.set_default_dtype(torch.float32)
    return out


@case
def default_device(wrap: Wrap) -> Any:
    c = wrap(lambda x: torch.ones(3).device.type)
    out = []
    for d in ("cpu", "meta", None):
        torch.set_default_device(d)
        try:
            out.append(c(x0))
        finally:
            torch.set_default_device(None)
    return out


@case
def default_device_with(wrap: Wrap) -> Any:
    c = wrap(lambda: torch.ones(3))
    out = []
    for d in ("meta", "cpu", "meta"):
        with torch.device(d):
            out.append(c().device.type)
    return out


@case
def deterministic(wrap: Wrap) -> Any:
    c = wrap(lambda: torch.empty(5))
    out = []
    for on in (True, False, True):
        torch.use_deterministic_algorithms(on)
        try:
            y = c()
        finally:
            torch.use_deterministic_algorithms(False)
        if on:
            out.append(y.isnan().all())
    return out


@case
def deterministic_fill(wrap: Wrap) -> Any:
    D = torch.utils.deterministic

    def g(x):
        return (
            torch.empty(5),
            torch.empty_like(x),
            torch.empty(3, dtype=torch.int64),
            torch.empty_strided((2, 2), (1, 2)),
            x.new_empty(2),
            torch.empty(3, dtype=torch.bool),
            torch.empty(2, dtype=torch.bfloat16),
            torch.empty(2, dtype=torch.complex64),
        )

    c = wrap(g)
    out = []
    for on, fill in ((True, True), (True, False), (False, True), (True, True)):
        torch.use_deterministic_algorithms(on)
        D.fill_uninitialized_memory = fill
        try:
            y = c(x0)
        finally:
            torch.use_deterministic_algorithms(False)
            D.fill_uninitialized_memory = True
        if on and fill:
            out.append(list(y))
    return out


@case
def deterministic_raise(wrap: Wrap) -> Any:

    def g(x):
        return (
            torch.nn.functional.max_unpool1d(x, torch.zeros(1, 1, 2, dtype=torch.int64), 2)
            if False
            else torch.are_deterministic_algorithms_enabled()
        )

    c = wrap(g)
    out = []
    for on in (False, True, False):
        torch.use_deterministic_algorithms(on)
        try:
            out.append(c(x0))
        finally:
            torch.use_deterministic_algorithms(False)
    return out


@case
def matmul_precision(wrap: Wrap) -> Any:
    c = wrap(lambda x: (x @ w, torch.get_float32_matmul_precision()))
    out = []
    for p in ("highest", "medium", "highest"):
        torch.set_float32_matmul_precision(p)
        try:
            out.append(c(x0))
        finally:
            torch.set_float32_matmul_precision("highest")
    return out


@case
def multithreading(wrap: Wrap) -> Any:
    c = wrap(lambda x: f(x).sum())
    out = []
    for on in (True, False):
        with torch.autograd.set_multithreading_enabled(on):
            x = x0.clone().requires_grad_()
            c(x).backward()
            out.append(x.grad)
    return out


@case
def view_replay(wrap: Wrap) -> Any:
    c = wrap(lambda x: x[0])
    out = []
    for on in (True, False):
        with torch.autograd._force_original_view_tracking(on):
            x = x0.clone().requires_grad_()
            c(x).sum().backward()
            out.append(x.grad)
    return out


@case
def conj_neg(wrap: Wrap) -> Any:
    z = torch.randn(3, 4, dtype=torch.complex64)
    c = wrap(lambda z: (z * 2, torch.real(z), torch.imag(z)))
    return (c(z), c(z.conj()), c(torch._neg_view(z)), c(z.conj().resolve_conj()), c(z.t().conj()))


@case
def neg_view(wrap: Wrap) -> Any:
    c = wrap(lambda x: (x * 2).exp())
    z = torch.randn(4, dtype=torch.complex64)
    return (c(z.real), c(z.conj().imag), c(z.imag))


@case
def py_attrs(wrap: Wrap) -> Any:
    c = wrap(lambda x: x * x.scale)
    x = x0.clone()
    x.scale = 2.0
    a = c(x)
    x.scale = 3.0
    b = c(x)
    return (a, b)


@case
def hooks_outside(wrap: Wrap) -> Any:
    c = wrap(lambda x: (x * 2).sum())
    out = []
    for k in range(3):
        x = x0.clone().requires_grad_()
        if k == 1:
            x.register_hook(lambda g: g * 3)
        c(x).backward()
        out.append(x.grad)
    return out


@case
def retains_grad(wrap: Wrap) -> Any:
    c = wrap(lambda x: (x * 2).sum())
    out = []
    for k in range(3):
        x = x0.clone().requires_grad_() * 1
        if k == 1:
            x.retain_grad()
        c(x).backward()
        out.append(x.grad if k == 1 else x.retains_grad)
    return out


@case
def post_acc_hook(wrap: Wrap) -> Any:
    log = []
    c = wrap(lambda x: (x * 2).sum())
    x = x0.clone().requires_grad_()
    x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    c(x).backward()
    c(x).backward()
    return log


@case
def grad_existing(wrap: Wrap) -> Any:

    def g(x):
        return x.grad * 2 if x.grad is not None else x * 0

    c = wrap(g)
    x = x0.clone().requires_grad_()
    a = c(x).detach()
    x.grad = t0.clone()
    b = c(x)
    x.grad = None
    return (a, b, c(x).detach())


@case
def flush_denormal(wrap: Wrap) -> Any:
    c = wrap(lambda x: x * 0.5)
    d = torch.full((4,), 1e-38)
    out = []
    for on in (True, False, True):
        torch.set_flush_denormal(on)
        try:
            out.append(c(d))
        finally:
            torch.set_flush_denormal(False)
    return [o.tolist() for o in out]


@case
def sdp_kernel(wrap: Wrap) -> Any:
    q = torch.randn(1, 2, 8, 16)
    c = wrap(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    out = [c(q)]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        out.append(c(q))
    return out


@case
def mkldnn_off(wrap: Wrap) -> Any:
    conv = nn.Conv2d(3, 4, 3)
    c = wrap(lambda x: conv(x))
    x = torch.randn(1, 3, 8, 8)
    with torch.backends.mkldnn.flags(enabled=False):
        a = c(x)
    return (a, c(x))


@case
def grad_mode_of_enable_inside(wrap: Wrap) -> Any:

    def g(x):
        with torch.enable_grad():
            return (x * 2).sum()

    c = wrap(g)
    x = x0.clone().requires_grad_()
    out = []
    for ctx in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with ctx:
            out.append(c(x).requires_grad)
    return out


@case
def jvp_vmap_hops(wrap: Wrap) -> Any:
    c = wrap(lambda x: f(x).sum())
    return torch.func.jvp(torch.func.grad(c), (x0,), (t0,))


@case
def gradcheck(wrap: Wrap) -> Any:
    wd = w.double()
    c = wrap(lambda x: (x @ wd).sin())
    x = x0.double().requires_grad_()
    return torch.autograd.gradcheck(c, (x,), check_forward_ad=True)


@case
def deterministic_inside(wrap: Wrap) -> Any:

    def g(x):
        torch.use_deterministic_algorithms(True)
        y = torch.empty(4)
        torch.use_deterministic_algorithms(False)
        return y + x

    c = wrap(g)
    return (c(x0), torch.are_deterministic_algorithms_enabled(), c(x0), torch.are_deterministic_algorithms_enabled())


@case
def deterministic_left_on(wrap: Wrap) -> Any:

    def g(x):
        torch.use_deterministic_algorithms(True)
        return torch.empty(4) + x

    c = wrap(g)
    try:
        r = (c(x0), torch.are_deterministic_algorithms_enabled())
        torch.use_deterministic_algorithms(False)
        return (r, c(x0), torch.are_deterministic_algorithms_enabled())
    finally:
        torch.use_deterministic_algorithms(False)


@case
def default_dtype_inside(wrap: Wrap) -> Any:

    def g(x):
        torch.set_default_dtype(torch.float64)
        y = torch.ones(4)
        torch.set_default_dtype(torch.float32)
        return (y + x, torch.ones(2))

    c = wrap(g)
    return (c(x0), torch.get_default_dtype(), c(x0), torch.get_default_dtype())


@case
def vmap_random_no_args(wrap: Wrap) -> Any:
    c = wrap(lambda: torch.rand(4))
    c()
    torch.manual_seed(0)
    a = torch.vmap(lambda x: x * 0 + c(), randomness="different")(x0)
    return (a.std(0).abs().max() < 1e-05, a.shape)


@case
def empty_grad(wrap: Wrap) -> Any:
    c = wrap(lambda x: x * torch.empty_like(x).fill_(2))
    out = []
    for on in (True, False):
        torch.use_deterministic_algorithms(on)
        try:
            x = x0.clone().requires_grad_()
            y = c(x)
            y.sum().backward()
            out += [y.detach(), x.grad]
        finally:
            torch.use_deterministic_algorithms(False)
    return out


@case
def hvp_allow_unused(wrap: Wrap) -> Any:
    c = wrap(lambda x: x.exp())
    leaf = x0.clone().requires_grad_()
    x = leaf * 1
    (g,) = torch.autograd.grad(c(x).sum(), leaf, create_graph=True)
    try:
        r = torch.autograd.grad(g.sum(), leaf, allow_unused=True)[0]
    except RuntimeError:
        return "ok"
    return "ok" if r is not None and torch.allclose(r, x0.exp()) else r


@case
def vmap_chunk(wrap: Wrap) -> Any:
    c = wrap(f)
    return torch.vmap(c, chunk_size=2)(x0)


@case
def per_sample_grads(wrap: Wrap) -> Any:
    m = nn.Linear(4, 4)
    m.load_state_dict(lin.state_dict())
    cm = wrap(lambda p, x: torch.func.functional_call(m, p, (x,)).sum())
    p = {k: v.detach() for k, v in m.named_parameters()}
    return list(torch.vmap(torch.func.grad(cm), in_dims=(None, 0))(p, x0).values())


@case
def compiled_module_functional(wrap: Wrap) -> Any:
    m = wrap(nn.Linear(4, 4)) if False else nn.Linear(4, 4)
    m.load_state_dict(lin.state_dict())
    cm = wrap(m.forward)
    a = cm(x0)
    return (torch.func.functional_call(m, {k: v * 2 for k, v in m.named_parameters()}, (x0,)), a, cm(x0))


def outcome(fn: Callable[[Wrap], Any], wrap: Wrap) -> Any:
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fn(wrap)
    return [one.detach() if isinstance(one, torch.Tensor) else str(one) for one in leaves(result)]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in leaves(item)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", CASES)
def test_state(name: str, backend: str) -> None:
    want = outcome(CASES[name], lambda fn: fn)
    assert_same(want, outcome(CASES[name], lambda fn: argand.compile(fn, backend=backend)), strides=False)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_second_derivative_is_refused_and_never_zero(backend: str) -> None:
    c = argand.compile(f, backend=backend)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        torch.autograd.functional.jvp(c, x0, t0)
    x = x0.clone().requires_grad_()
    (g,) = torch.autograd.grad(argand.compile(lambda x: x.exp(), backend=backend)(x * 1).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        torch.autograd.grad(g.sum(), x, allow_unused=True)
