"""Programs under defaults and flags of torch, and with bits of tensors, for test_ambient_states.py."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import torch
import torch.utils.deterministic
from tests.breadth.ambient_programs import Wrap, case, f, lin, t0, w, x0
from torch import nn


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
