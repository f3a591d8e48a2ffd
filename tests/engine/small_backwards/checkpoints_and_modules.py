"""Checkpoints, hooks on saved tensors, modules and steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


def basic(log):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    m(torch.randn(3, 4)).sum().backward()
    return [p.grad for p in m.parameters()]


def double_bw_penalty(log):
    m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = leaf(3, 4)
    (g,) = grad(m(x).sum(), x, create_graph=True)
    (g.norm(dim=1) - 1).pow(2).mean().backward()
    return [p.grad for p in m.parameters()]


def ck(log):
    m = nn.Linear(4, 4)
    x = leaf(2, 4)
    checkpoint(lambda x: m(x).sin(), x, use_reentrant=False).sum().backward()
    return (x.grad, m.weight.grad)


def ck_re(log):
    m = nn.Linear(4, 4)
    x = leaf(2, 4)
    checkpoint(lambda x: m(x).sin(), x, use_reentrant=True).sum().backward()
    return (x.grad, m.weight.grad)


def ck_seq(log):
    m = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    x = leaf(2, 4)
    checkpoint_sequential(m, 2, x, use_reentrant=False).sum().backward()
    return x.grad


def ck_dropout(log):
    x = leaf(20)
    checkpoint(lambda x: F.dropout(x, 0.5) * x, x, use_reentrant=False).sum().backward()
    return x.grad


def ck_calls(log):
    x = leaf(4)

    def f(x):
        log.append("f")
        return x.sin().cos()

    checkpoint(f, x, use_reentrant=False).sum().backward()
    return x.grad


def ck_nested(log):
    x = leaf(4)
    g = lambda x: checkpoint(torch.sin, x.exp(), use_reentrant=False) * 2
    checkpoint(g, x, use_reentrant=False).sum().backward()
    return x.grad


def ck_kwargs(log):
    x = leaf(4)
    f = lambda x, *, k=1, t=None: (x * k).sin() * t
    checkpoint(f, x, use_reentrant=False, k=3, t=torch.ones(4)).sum().backward()
    return x.grad


def ck_double(log):
    x = leaf(4)
    (g,) = grad(checkpoint(lambda x: x.sin() ** 2, x, use_reentrant=False).sum(), x, create_graph=True)
    g.sum().backward()
    return x.grad


def ck_sac(log):
    import functools

    from torch.utils.checkpoint import CheckpointPolicy as P
    from torch.utils.checkpoint import create_selective_checkpoint_contexts as c

    pol = lambda ctx, op, *a, **k: P.MUST_SAVE if op is torch.ops.aten.mm.default else P.PREFER_RECOMPUTE
    x, w = (leaf(4, 4), leaf(4, 4))
    checkpoint(
        lambda x, w: (x @ w).sin() @ w, x, w, use_reentrant=False, context_fn=functools.partial(c, pol)
    ).sum().backward()
    return (x.grad, w.grad)


def ck_early_stop(log):
    x = leaf(4)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        y = checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False)
    y.sum().backward()
    return x.grad


def ck_mismatch(log):
    x = leaf(4)
    n = [0]

    def f(x):
        n[0] += 1
        return x.sin() if n[0] == 1 else x.sin().cos().sin()

    checkpoint(f, x, use_reentrant=False).sum().backward()


def sth(log):
    x = leaf(4)
    with saved_tensors_hooks(lambda t: (log.append("p"), t * 2)[1], lambda t: t):
        y = x.sin()
    y.sum().backward()
    return x.grad


def sth_cpu(log):
    x = leaf(4)
    with save_on_cpu():
        y = (x * x).sin()
    y.sum().backward()
    return x.grad


def sth_disabled(log):
    with torch.autograd.graph.disable_saved_tensors_hooks("nope"):
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            pass


def clip(log):
    m = nn.Linear(4, 4)
    m(torch.randn(2, 4)).sum().backward()
    n = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    nn.utils.clip_grad_value_(m.parameters(), 0.1)
    return (n, m.weight.grad)


def clip_inf_err(log):
    m = nn.Linear(4, 4)
    (m(torch.randn(2, 4)).sum() * float("inf")).backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.5, error_if_nonfinite=True)


def tied(log):
    a = nn.Linear(4, 4)
    b = nn.Linear(4, 4)
    b.weight = a.weight
    b(a(torch.randn(2, 4))).sum().backward()
    return a.weight.grad


def functional_call(log):
    m = nn.Linear(4, 4)
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    torch.func.functional_call(m, p, torch.randn(2, 4)).sum().backward()
    return (p["weight"].grad, m.weight.grad)


def swap_param(log):
    m = nn.Linear(4, 4)
    m(torch.randn(2, 4)).sum().backward()
    m.weight = nn.Parameter(torch.ones(4, 4))
    m(torch.randn(2, 4)).sum().backward()
    return (m.weight.grad, m.bias.grad)


def maml(log):
    w = leaf(4, 4)
    x = torch.randn(3, 4)
    l = (x @ w).pow(2).sum()
    (g,) = grad(l, w, create_graph=True)
    (x @ (w - 0.1 * g)).sin().sum().backward()
    return w.grad


def module_zero(log):
    m = nn.Linear(4, 4)
    m(torch.ones(1, 4)).sum().backward()
    m.zero_grad()
    a = m.weight.grad
    m.requires_grad_(False)
    return a
