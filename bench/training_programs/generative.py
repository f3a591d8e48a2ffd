"""Generative models: variational, adversarial, diffusion, flows, codebooks."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, adam, adamw, mlp, program


@program
def vae_mlp() -> Made:
    m = nn.ModuleDict({"enc": mlp(784, 512, 256, 64), "dec": mlp(32, 256, 512, 784)})
    x = torch.rand(128, 784)
    eps = torch.randn(128, 32)

    def loss(m, x, eps):
        mu, lv = m["enc"](x).chunk(2, -1)
        z = mu + eps * torch.exp(0.5 * lv)
        r = m["dec"](z)
        rec = F.binary_cross_entropy_with_logits(r, x, reduction="sum")
        kl = -0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
        return (rec + kl) / x.shape[0]

    return m, (x, eps), loss, adam


@program
def vae_conv() -> Made:
    enc = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.BatchNorm2d(64),
        nn.LeakyReLU(0.1),
        nn.Conv2d(64, 128, 4, 2, 1),
        nn.BatchNorm2d(128),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(128 * 16, 128),
    )
    dec = nn.Sequential(
        nn.Linear(64, 128 * 16),
        nn.Unflatten(1, (128, 4, 4)),
        nn.ConvTranspose2d(128, 64, 4, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1),
        nn.Sigmoid(),
    )
    m = nn.ModuleDict({"enc": enc, "dec": dec})
    x = torch.rand(16, 3, 32, 32)
    eps = torch.randn(16, 64)

    def loss(m, x, eps):
        mu, lv = m["enc"](x).chunk(2, -1)
        r = m["dec"](mu + eps * (0.5 * lv).exp())
        return F.mse_loss(r, x) + 1e-3 * -0.5 * (1 + lv - mu**2 - lv.exp()).mean()

    return m, (x, eps), loss, adam


@program
def wgan_gp_critic() -> Made:
    critic = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(128 * 16, 1),
    )
    real, fake, a = torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32), torch.rand(8, 1, 1, 1)

    def loss(m, real, fake, a):
        mix = (a * real + (1 - a) * fake).requires_grad_(True)
        out = m(mix)
        (g,) = torch.autograd.grad(out.sum(), mix, create_graph=True)
        gp = ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        return m(fake).mean() - m(real).mean() + 10 * gp

    return critic, (real, fake, a), loss, adam


@program
def gan_generator() -> Made:
    gen = nn.Sequential(
        nn.Linear(64, 128 * 16),
        nn.Unflatten(1, (128, 4, 4)),
        nn.BatchNorm2d(128),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(128, 64, 3, 1, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 32, 3, 1, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 3, 3, 1, 1),
        nn.Tanh(),
    )
    dis = nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(3, 32, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.utils.spectral_norm(nn.Conv2d(32, 64, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.utils.spectral_norm(nn.Linear(64 * 64, 1)),
    )
    m = nn.ModuleDict({"gen": gen, "dis": dis})
    z = torch.randn(16, 64)

    def loss(m, z):
        return F.softplus(-m["dis"](m["gen"](z))).mean()

    return m, (z,), loss, adam


class ResBlock(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.n1, self.c1, self.t, self.n2, self.c2 = (
            nn.GroupNorm(8, i),
            nn.Conv2d(i, o, 3, 1, 1),
            nn.Linear(t, o),
            nn.GroupNorm(8, o),
            nn.Conv2d(o, o, 3, 1, 1),
        )
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
        return self.s(x) + self.c2(F.silu(self.n2(h)))


class SmallUnet(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.time = mlp(w, 4 * w, 4 * w, act=nn.SiLU)
        self.w = w
        self.i, self.d1, self.down, self.d2, self.mid = (
            nn.Conv2d(3, w, 3, 1, 1),
            ResBlock(w, w, 4 * w),
            nn.Conv2d(w, w, 3, 2, 1),
            ResBlock(w, 2 * w, 4 * w),
            ResBlock(2 * w, 2 * w, 4 * w),
        )
        self.qkv, self.proj = nn.Conv2d(2 * w, 6 * w, 1), nn.Conv2d(2 * w, 2 * w, 1)
        self.u2, self.u1, self.o = ResBlock(4 * w, w, 4 * w), ResBlock(2 * w, w, 4 * w), nn.Conv2d(w, 3, 3, 1, 1)

    def forward(self, x, t):
        f = torch.exp(-math.log(10000) * torch.arange(self.w // 2) / (self.w // 2))
        e = t[:, None] * f
        t = self.time(torch.cat([e.sin(), e.cos()], -1))
        a = self.d1(self.i(x), t)
        b = self.d2(self.down(a), t)
        h = self.mid(b, t)
        q, k, v = (z.flatten(2).transpose(1, 2)[:, None] for z in self.qkv(h).chunk(3, 1))
        h = h + self.proj(F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).unflatten(2, h.shape[2:]))
        h = F.interpolate(self.u2(torch.cat([h, b], 1), t), scale_factor=2)
        return self.o(self.u1(torch.cat([h, a], 1), t))


@program
def ddpm_ema() -> Made:
    net = SmallUnet()
    m = nn.ModuleDict({"net": net, "ema": copy.deepcopy(net).requires_grad_(False)})
    x, n, t = torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32), torch.randint(0, 1000, (4,))
    beta = torch.linspace(1e-4, 0.02, 1000)
    ab = (1 - beta).cumprod(0)

    def loss(m, x, n, t, ab):
        with torch.no_grad():
            torch._foreach_lerp_(list(m["ema"].parameters()), list(m["net"].parameters()), 0.001)
        a = ab[t][:, None, None, None]
        return F.mse_loss(m["net"](a.sqrt() * x + (1 - a).sqrt() * n, t.float()), n)

    return m, (x, n, t, ab), loss, adamw


@program
def flow_coupling() -> Made:
    class Flow(nn.Module):
        def __init__(self, d=32, n=6):
            super().__init__()
            self.nets = nn.ModuleList(mlp(d // 2, 128, 128, d) for _ in range(n))

        def forward(self, x):
            ld = x.new_zeros(x.shape[0])
            for _i, net in enumerate(self.nets):
                a, b = x.chunk(2, -1)
                s, t = net(a).chunk(2, -1)
                s = s.tanh()
                b = b * s.exp() + t
                ld = ld + s.sum(-1)
                x = torch.cat([b, a], -1)
            return x, ld

    def loss(m, x):
        z, ld = m(x)
        return (0.5 * z.pow(2).sum(-1) - ld).mean()

    return Flow(), (torch.randn(512, 32),), loss, adam


@program
def vq_codebook() -> Made:
    enc = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 32, 3, 1, 1)
    )
    dec = nn.Sequential(
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 64, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
    )
    m = nn.ModuleDict({"enc": enc, "dec": dec, "code": nn.Embedding(256, 32)})

    def loss(m, x):
        z = m["enc"](x).permute(0, 2, 3, 1)
        f = z.reshape(-1, 32)
        e = m["code"].weight
        i = (f.pow(2).sum(1, keepdim=True) - 2 * f @ e.t() + e.pow(2).sum(1)).argmin(1)
        q = m["code"](i).view(z.shape)
        st = z + (q - z).detach()
        return (
            F.mse_loss(m["dec"](st.permute(0, 3, 1, 2)), x)
            + F.mse_loss(q, z.detach())
            + 0.25 * F.mse_loss(z, q.detach())
        )

    return m, (torch.rand(16, 3, 32, 32),), loss, adam
