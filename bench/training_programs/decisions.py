"""Reinforcement learning, equations, fields, graphs, recommendation."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, adam, mlp, program


@program
def dqn() -> Made:
    net = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 6),
    )
    m = nn.ModuleDict({"q": net, "t": copy.deepcopy(net).requires_grad_(False)})
    s, s2 = (
        torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8),
        torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8),
    )
    a, r, d = torch.randint(0, 6, (32,)), torch.randn(32), (torch.rand(32) < 0.1).float()

    def loss(m, s, s2, a, r, d):
        q = m["q"](s.float() / 255).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = m["q"](s2.float() / 255).argmax(1, keepdim=True)
            tq = m["t"](s2.float() / 255).gather(1, best).squeeze(1)
            y = r + 0.99 * (1 - d) * tq
        return F.smooth_l1_loss(q, y)

    return m, (s, s2, a, r, d), loss, adam


@program
def ppo() -> Made:
    m = nn.ModuleDict({"pi": mlp(64, 256, 256, 8, act=nn.Tanh), "v": mlp(64, 256, 256, 1, act=nn.Tanh)})
    m.register_parameter("log_std", nn.Parameter(torch.zeros(8)))
    n = 1024
    obs, act, old, adv, ret = torch.randn(n, 64), torch.randn(n, 8), torch.randn(n) - 11, torch.randn(n), torch.randn(n)

    def loss(m, obs, act, old, adv, ret):
        dist = torch.distributions.Normal(m["pi"](obs), m.log_std.exp())
        lp = dist.log_prob(act).sum(-1)
        ratio = (lp - old).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        vl = F.mse_loss(m["v"](obs).squeeze(-1), ret)
        return pg + 0.5 * vl - 0.01 * dist.entropy().sum(-1).mean()

    return m, (obs, act, old, adv, ret), loss, adam


@program
def sac_actor_critic() -> Made:
    m = nn.ModuleDict(
        {
            "pi": mlp(32, 256, 256, 12),
            "q1": mlp(38, 256, 256, 1),
            "q2": mlp(38, 256, 256, 1),
            "t1": mlp(38, 256, 256, 1).requires_grad_(False),
            "t2": mlp(38, 256, 256, 1).requires_grad_(False),
        }
    )
    n = 256
    ins = (
        torch.randn(n, 32),
        torch.randn(n, 6).tanh(),
        torch.randn(n),
        torch.randn(n, 32),
        torch.randn(n, 6),
        torch.randn(n, 6),
    )

    def sample(m, s, eps):
        mu, ls = m["pi"](s).chunk(2, -1)
        ls = ls.clamp(-20, 2)
        u = mu + ls.exp() * eps
        lp = (-0.5 * eps**2 - ls - 0.5 * math.log(2 * math.pi)).sum(-1) - (
            2 * (math.log(2) - u - F.softplus(-2 * u))
        ).sum(-1)
        return u.tanh(), lp

    def loss(m, s, a, r, s2, e1, e2):
        with torch.no_grad():
            a2, lp2 = sample(m, s2, e2)
            x2 = torch.cat([s2, a2], -1)
            y = r + 0.99 * (torch.min(m["t1"](x2), m["t2"](x2)).squeeze(-1) - 0.2 * lp2)
        x = torch.cat([s, a], -1)
        cl = F.mse_loss(m["q1"](x).squeeze(-1), y) + F.mse_loss(m["q2"](x).squeeze(-1), y)
        an, lp = sample(m, s, e1)
        xn = torch.cat([s, an], -1)
        return cl + (0.2 * lp - torch.min(m["q1"](xn), m["q2"](xn)).squeeze(-1)).mean()

    return m, ins, loss, adam


@program
def pinn() -> Made:
    m = mlp(2, 64, 64, 64, 1, act=nn.Tanh)

    def loss(m, xt, xb, ub):
        xt = xt.clone().requires_grad_(True)
        u = m(xt)
        (du,) = torch.autograd.grad(u.sum(), xt, create_graph=True)
        ux, ut = du[:, 0], du[:, 1]
        uxx = torch.autograd.grad(ux.sum(), xt, create_graph=True)[0][:, 0]
        f = ut + u.squeeze(-1) * ux - 0.01 / math.pi * uxx
        return f.pow(2).mean() + (m(xb) - ub).pow(2).mean()

    return m, (torch.rand(2000, 2), torch.rand(200, 2), torch.rand(200, 1)), loss, adam


@program
def neural_ode() -> Made:
    m = mlp(8, 64, 64, 8, act=nn.Tanh)

    def loss(m, z, y):
        h = 0.1
        for _ in range(10):
            k1 = m(z)
            k2 = m(z + h / 2 * k1)
            k3 = m(z + h / 2 * k2)
            k4 = m(z + h * k3)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return F.mse_loss(z, y)

    return m, (torch.randn(256, 8), torch.randn(256, 8)), loss, adam


@program
def nerf() -> Made:
    class Field(nn.Module):
        def __init__(self, w=128):
            super().__init__()
            self.a, self.b, self.sigma, self.rgb = (
                mlp(39, w, w, w),
                mlp(w + 39, w, w),
                nn.Linear(w, 1),
                mlp(w + 27, 64, 3),
            )

        def forward(self, p, d):
            h = F.relu(self.a(p))
            h = F.relu(self.b(torch.cat([h, p], -1)))
            return F.relu(self.sigma(h)).squeeze(-1), torch.sigmoid(self.rgb(torch.cat([h, d], -1)))

    def enc(x, n):
        f = 2.0 ** torch.arange(n) * math.pi
        y = (x[..., None] * f).flatten(-2)
        return torch.cat([x, y.sin(), y.cos()], -1)

    def loss(m, o, d, t, target):
        pts = o[:, None] + d[:, None] * t[..., None]
        sigma, rgb = m(enc(pts, 6), enc(F.normalize(d, dim=-1), 4)[:, None].expand(-1, t.shape[1], -1))
        delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e3)], -1)
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return F.mse_loss((alpha * trans)[..., None].mul(rgb).sum(1), target)

    return (
        Field(),
        (torch.randn(128, 3), torch.randn(128, 3), torch.rand(128, 32).sort(-1)[0] * 4, torch.rand(128, 3)),
        loss,
        adam,
    )


@program
def gnn_edges() -> Made:
    class Gnn(nn.Module):
        def __init__(self, d=64):
            super().__init__()
            self.node, self.edge = nn.Linear(16, d), nn.Linear(4, d)
            self.msg = nn.ModuleList(mlp(3 * d, d, d) for _ in range(3))
            self.upd = nn.ModuleList(nn.GRUCell(d, d) for _ in range(3))
            self.out = mlp(d, d, 1)

        def forward(self, x, e, src, dst, batch):
            h, e = self.node(x), self.edge(e)
            for msg, upd in zip(self.msg, self.upd):
                mm = msg(torch.cat([h[src], h[dst], e], -1))
                h = upd(torch.zeros_like(h).index_add_(0, dst, mm), h)
            pool = torch.zeros(32, h.shape[1]).index_add_(0, batch, h)
            return self.out(pool).squeeze(-1)

    n, k = 640, 2000
    ins = (
        torch.randn(n, 16),
        torch.randn(k, 4),
        torch.randint(0, n, (k,)),
        torch.randint(0, n, (k,)),
        torch.arange(n) // 20,
        torch.randn(32),
    )
    return Gnn(), ins, lambda m, x, e, s, d, b, y: F.l1_loss(m(x, e, s, d, b), y), adam


@program
def dlrm() -> Made:
    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.bot, self.top = mlp(13, 128, 32), mlp(32 + 27 * 26 // 2, 256, 128, 1)
            self.tables = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(26))
            i = torch.tril_indices(27, 27, -1)
            self.register_buffer("i", i[0])
            self.register_buffer("j", i[1])

        def forward(self, dense, sparse):
            x = self.bot(dense)
            f = torch.stack([x] + [t(sparse[:, i]) for i, t in enumerate(self.tables)], 1)
            z = torch.bmm(f, f.transpose(1, 2))[:, self.i, self.j]
            return self.top(torch.cat([x, z], 1)).squeeze(-1)

    b = 512
    return (
        Dlrm(),
        (torch.randn(b, 13), torch.randint(0, 1000, (b, 26)), (torch.rand(b) < 0.3).float()),
        lambda m, d, s, y: F.binary_cross_entropy_with_logits(m(d, s), y),
        lambda m: torch.optim.Adagrad(m.parameters(), 1e-2),
    )
