"""Programs over fields: images, rays, flows, volumes, particles and molecules, simulated or rendered."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .entering import program
from .further import of_volumes


@program("E(n) graph", lambda: (torch.randn(8, 40, 32), torch.randn(8, 40, 3)))
class EGNN(nn.Module):
    def __init__(self, d=32, n=4):
        super().__init__()
        self.e = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * d + 1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU()) for _ in range(n)
        )
        self.c = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1, bias=False)) for _ in range(n)
        )
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(d + 64, 64), nn.SiLU(), nn.Linear(64, d)) for _ in range(n))

    def forward(self, h, x):
        n = h.shape[1]
        for e, c, u in zip(self.e, self.c, self.h):
            r = x[:, :, None] - x[:, None]
            d2 = (r**2).sum(-1, keepdim=True)
            m = e(torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), d2], -1))
            x = x + (r / (d2.sqrt() + 1) * c(m)).sum(2) / (n - 1)
            h = h + u(torch.cat([h, m.sum(2)], -1))
        return h.sum(1) + x.sum((1, 2))[:, None]


@program("SchNet", lambda: (torch.randint(10, (600,)), torch.randn(600, 3) * 4, torch.randint(600, (2, 12000))))
class SchNet(nn.Module):
    def __init__(self, d=64, n=3, g=50):
        super().__init__()
        self.emb = nn.Embedding(10, d)
        self.register_buffer("mu", torch.linspace(0, 10, g))
        self.f = nn.ModuleList(nn.Sequential(nn.Linear(g, d), nn.Softplus(), nn.Linear(d, d)) for _ in range(n))
        self.a = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n))
        self.b = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.Softplus(), nn.Linear(d, d)) for _ in range(n))
        self.out = nn.Sequential(nn.Linear(d, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, z, pos, edge):
        h = self.emb(z)
        i, j = edge
        dist = (pos[i] - pos[j]).norm(dim=-1)
        rbf = torch.exp(-10 * (dist[:, None] - self.mu) ** 2)
        cut = 0.5 * (torch.cos(dist * math.pi / 10) + 1) * (dist < 10)
        for f, a, b in zip(self.f, self.a, self.b):
            w = f(rbf) * cut[:, None]
            h = h + b(torch.zeros_like(h).index_add(0, i, a(h)[j] * w))
        return self.out(h).sum()[None]


@program("deformable attention", lambda: (torch.randn(2, 128, 32, 32), torch.randn(2, 100, 128)))
class Deform(nn.Module):
    def __init__(self, d=128, h=4, p=4, n=3):
        super().__init__()
        self.h, self.p = h, p
        self.val = nn.ModuleList(nn.Conv2d(d, d, 1) for _ in range(n))
        self.off = nn.ModuleList(nn.Linear(d, h * p * 2) for _ in range(n))
        self.w = nn.ModuleList(nn.Linear(d, h * p) for _ in range(n))
        self.o = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.ref = nn.Linear(d, 2)

    def forward(self, f, q):
        b, d, hh, ww = f.shape
        nq = q.shape[1]
        ref = self.ref(q).sigmoid()
        for val, off, w, o, norm in zip(self.val, self.off, self.w, self.o, self.norm):
            v = val(f).view(b * self.h, d // self.h, hh, ww)
            loc = ref[:, :, None, None] + off(q).view(b, nq, self.h, self.p, 2) * 0.05
            g = (2 * loc - 1).permute(0, 2, 1, 3, 4).reshape(b * self.h, nq, self.p, 2)
            s = F.grid_sample(v, g, align_corners=False)
            a = w(q).view(b, nq, self.h, self.p).softmax(-1).permute(0, 2, 1, 3).reshape(b * self.h, 1, nq, self.p)
            y = (s * a).sum(-1).view(b, d, nq).transpose(1, 2)
            q = norm(q + o(y))
        return q


@program("radiance field", lambda: (torch.randn(256, 3), torch.randn(256, 3)))
class NeRF(nn.Module):
    def __init__(self, w=128, s=48):
        super().__init__()
        self.s = s
        self.l = nn.ModuleList(
            [nn.Linear(63, w), nn.Linear(w, w), nn.Linear(w, w), nn.Linear(w + 63, w), nn.Linear(w, w)]
        )
        self.sig = nn.Linear(w, 1)
        self.rgb = nn.Sequential(nn.Linear(w + 27, w // 2), nn.ReLU(), nn.Linear(w // 2, 3), nn.Sigmoid())

    def enc(self, x, n):
        return torch.cat([x] + [f(x * 2.0**i) for i in range(n) for f in (torch.sin, torch.cos)], -1)

    def forward(self, o, d):
        d = F.normalize(d, dim=-1)
        t = torch.linspace(0.5, 4, self.s, device=o.device)
        p = o[:, None] + d[:, None] * t[:, None]
        e = self.enc(p, 10)
        h = e
        for i, layer in enumerate(self.l):
            if i == 3:
                h = torch.cat([h, e], -1)
            h = F.relu(layer(h))
        sigma = F.softplus(self.sig(h))[..., 0]
        rgb = self.rgb(torch.cat([h, self.enc(d, 4)[:, None].expand(-1, self.s, -1)], -1))
        alpha = 1 - torch.exp(-sigma * (t[1] - t[0]))
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return ((alpha * trans)[..., None] * rgb).sum(1)


@program("quantised autoencoder", lambda: (torch.randn(8, 3, 64, 64),))
class VQ(nn.Module):
    def __init__(self, c=64, k=256):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1)
        )
        self.code = nn.Embedding(k, c)
        self.dec = nn.Sequential(
            nn.Conv2d(c, c, 3, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(c, c, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
        )

    def forward(self, x):
        z = self.enc(x)
        b, c, h, w = z.shape
        f = z.permute(0, 2, 3, 1).reshape(-1, c)
        d = f.pow(2).sum(1, keepdim=True) - 2 * f @ self.code.weight.t() + self.code.weight.pow(2).sum(1)
        q = self.code(d.argmin(1)).view(b, h, w, c).permute(0, 3, 1, 2)
        commit = F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach())
        return self.dec(z + (q - z).detach()) + commit


@program("modulated convolutions", lambda: (torch.randn(4, 128),))
class Style(nn.Module):
    def __init__(self, c=64, n=4):
        super().__init__()
        self.map = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.LeakyReLU(0.2))])
        self.const = nn.Parameter(torch.randn(1, c, 8, 8))
        self.w = nn.ParameterList(nn.Parameter(torch.randn(c, c, 3, 3) * 0.05) for _ in range(n))
        self.a = nn.ModuleList(nn.Linear(128, c) for _ in range(n))
        self.rgb = nn.Conv2d(c, 3, 1)

    def forward(self, z):
        w = self.map(F.normalize(z))
        x = self.const.expand(z.shape[0], -1, -1, -1)
        for k, a in zip(self.w, self.a):
            b, c, h, ww = x.shape
            m = k[None] * (a(w) + 1)[:, None, :, None, None]
            m = m * torch.rsqrt(m.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = F.conv2d(x.reshape(1, b * c, 2 * h, 2 * ww), m.view(b * c, c, 3, 3), padding=1, groups=b).view(
                b, c, 2 * h, 2 * ww
            )
            x = F.leaky_relu(x, 0.2) * math.sqrt(2)
        return torch.tanh(self.rgb(x))


@program("correlation flow", lambda: (torch.randn(1, 3, 128, 160), torch.randn(1, 3, 128, 160)))
class Flow(nn.Module):
    def __init__(self, c=64, it=4, r=3):
        super().__init__()
        self.it, self.r = it, r
        self.f = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3),
            nn.InstanceNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, c, 3, 2, 1),
            nn.InstanceNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, 2, 1),
        )
        self.m = nn.Conv2d((2 * r + 1) ** 2 + 2, 64, 3, 1, 1)
        self.z = nn.Conv2d(128, 64, 3, 1, 1)
        self.q = nn.Conv2d(128, 64, 3, 1, 1)
        self.o = nn.Conv2d(64, 2, 3, 1, 1)

    def forward(self, a, b):
        fa, fb = self.f(a), self.f(b)
        n, c, h, w = fa.shape
        corr = (fa.flatten(2).transpose(1, 2) @ fb.flatten(2) / math.sqrt(c)).view(n * h * w, 1, h, w)
        ys, xs = torch.meshgrid(torch.arange(h, device=a.device), torch.arange(w, device=a.device), indexing="ij")
        base = torch.stack([xs, ys]).float()[None]
        flow = torch.zeros_like(base.expand(n, -1, -1, -1))
        hid = torch.tanh(fa)
        d = torch.linspace(-self.r, self.r, 2 * self.r + 1, device=a.device)
        dy, dx = torch.meshgrid(d, d, indexing="ij")
        delta = torch.stack([dx, dy], -1)[None]
        for _ in range(self.it):
            p = (base + flow).permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2) + delta
            g = torch.stack([2 * p[..., 0] / (w - 1) - 1, 2 * p[..., 1] / (h - 1) - 1], -1)
            s = F.grid_sample(corr, g, align_corners=True).view(n, h, w, -1).permute(0, 3, 1, 2)
            x = F.relu(self.m(torch.cat([s, flow], 1)))
            z = torch.sigmoid(self.z(torch.cat([hid, x], 1)))
            q = torch.tanh(self.q(torch.cat([hid, x], 1)))
            hid = (1 - z) * hid + z * q
            flow = flow + self.o(hid)
        return F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True) * 8


@program("ConvLSTM of two layers", lambda: (torch.randn(4, 10, 1, 32, 32),))
class ConvLSTM(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.c = c
        self.g1 = nn.Conv2d(1 + c, 4 * c, 3, padding=1)
        self.g2 = nn.Conv2d(2 * c, 4 * c, 3, padding=1)
        self.o = nn.Conv2d(c, 1, 1)

    def cell(self, g, x, h, c):
        i, f, o, u = g(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, x):
        b, t, _, h, w = x.shape
        h1 = c1 = h2 = c2 = x.new_zeros(b, self.c, h, w)
        out = []
        for k in range(t):
            h1, c1 = self.cell(self.g1, x[:, k], h1, c1)
            h2, c2 = self.cell(self.g2, h1, h2, c2)
            out.append(self.o(h2))
        return torch.stack(out, 1)


@program("lattice Boltzmann", lambda: (torch.rand(9, 128, 128) + 0.5,))
class LB(nn.Module):
    def __init__(self, n=20):
        super().__init__()
        self.n = n
        self.tau = nn.Parameter(torch.tensor(0.6))
        self.e = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
        self.w = (4 / 9,) + (1 / 9,) * 4 + (1 / 36,) * 4

    def forward(self, f):
        for _ in range(self.n):
            rho = f.sum(0)
            ux = sum(e[0] * f[k] for k, e in enumerate(self.e) if e[0]) / rho
            uy = sum(e[1] * f[k] for k, e in enumerate(self.e) if e[1]) / rho
            u2 = ux * ux + uy * uy
            new = []
            for k, (ex, ey) in enumerate(self.e):
                eu = ex * ux + ey * uy
                eq = self.w[k] * rho * (1 + 3 * eu + 4.5 * eu * eu - 1.5 * u2)
                new.append(torch.roll(f[k] - (f[k] - eq) / self.tau, (ex, ey), (0, 1)))
            f = torch.stack(new)
        return f


@program("option prices", lambda: (torch.rand(20000) * 50 + 75, torch.randn(20000, 40)))
class MC(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor(0.2))
        self.r = nn.Parameter(torch.tensor(0.03))

    def forward(self, s0, z):
        dt = 1 / 40
        s = s0
        m = s0
        avg = torch.zeros_like(s0)
        for k in range(40):
            s = s * torch.exp((self.r - 0.5 * self.sigma**2) * dt + self.sigma * math.sqrt(dt) * z[:, k])
            m = torch.maximum(m, s)
            avg = avg + s / 40
        pay = torch.relu(avg - 100) + torch.relu(m - 120) * 0.5
        d1 = (torch.log(s0 / 100) + (self.r + 0.5 * self.sigma**2)) / self.sigma
        bs = s0 * torch.special.ndtr(d1) - 100 * torch.exp(-self.r) * torch.special.ndtr(d1 - self.sigma)
        return torch.exp(-self.r) * pay - bs


@program("U-Net of volumes", lambda: (torch.randn(1, 1, 32, 48, 48),))
class UNet3(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.a, self.b, self.m = of_volumes(1, c), of_volumes(c, 2 * c), of_volumes(2 * c, 4 * c)
        self.ub = nn.ConvTranspose3d(4 * c, 2 * c, 2, 2)
        self.db = of_volumes(4 * c, 2 * c)
        self.ua = nn.ConvTranspose3d(2 * c, c, 2, 2)
        self.da = of_volumes(2 * c, c)
        self.o = nn.Conv3d(c, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool3d(a, 2))
        m = self.m(F.max_pool3d(b, 2))
        y = self.db(torch.cat([self.ub(m), b], 1))
        return self.o(self.da(torch.cat([self.ua(y), a], 1)))


@program("neural ODE", lambda: (torch.randn(128, 16),))
class NODE(nn.Module):
    def __init__(self, d=16, n=12):
        super().__init__()
        self.n = n
        self.f = nn.Sequential(nn.Linear(d + 1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, d))

    def g(self, t, x):
        return self.f(torch.cat([x, torch.full_like(x[:, :1], t)], 1))

    def forward(self, x):
        h = 1 / self.n
        for i in range(self.n):
            t = i * h
            k1 = self.g(t, x)
            k2 = self.g(t + h / 2, x + h / 2 * k1)
            k3 = self.g(t + h / 2, x + h / 2 * k2)
            k4 = self.g(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x


@program("Glow", lambda: (torch.randn(4, 12, 32, 32),))
class Glow(nn.Module):
    def __init__(self, c=12, n=6, w=64):
        super().__init__()
        self.s = nn.ParameterList(nn.Parameter(torch.zeros(1, c, 1, 1)) for _ in range(n))
        self.b = nn.ParameterList(nn.Parameter(torch.zeros(1, c, 1, 1)) for _ in range(n))
        self.w = nn.ParameterList(nn.Parameter(torch.linalg.qr(torch.randn(c, c))[0]) for _ in range(n))
        self.net = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(c // 2, w, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(w, w, 1),
                nn.ReLU(),
                nn.Conv2d(w, c, 3, padding=1),
            )
            for _ in range(n)
        )

    def forward(self, x):
        b, _, h, w = x.shape
        ld = x.new_zeros(b)
        for s, t, k, n in zip(self.s, self.b, self.w, self.net):
            x = (x + t) * s.exp()
            ld = ld + s.sum() * h * w
            x = F.conv2d(x, k[:, :, None, None])
            ld = ld + torch.linalg.slogdet(k)[1] * h * w
            a, y = x.chunk(2, 1)
            u, v = n(a).chunk(2, 1)
            sc = torch.sigmoid(u + 2)
            y = (y + v) * sc
            ld = ld + sc.log().sum((1, 2, 3))
            x = torch.cat([y, a], 1)
        return -(-0.5 * (x**2 + math.log(2 * math.pi))).sum((1, 2, 3)) - ld


@program("structural similarity", lambda: (torch.rand(4, 3, 128, 128), torch.rand(4, 3, 128, 128)))
class SSIM(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.exp(-((torch.arange(11.0) - 5) ** 2) / 4.5)
        g = g / g.sum()
        self.register_buffer("k", (g[:, None] * g)[None, None].repeat(3, 1, 1, 1))
        self.n = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(32, 3, 3, padding=1),
        )

    def b(self, x):
        return F.conv2d(x, self.k, groups=3)

    def forward(self, x, y):
        x = torch.sigmoid(self.n(x) + x)
        loss = 0
        for _ in range(3):
            mx, my = self.b(x), self.b(y)
            sx, sy, sxy = self.b(x * x) - mx * mx, self.b(y * y) - my * my, self.b(x * y) - mx * my
            loss = (
                loss
                + 1
                - (((2 * mx * my + 1e-4) * (2 * sxy + 9e-4)) / ((mx * mx + my * my + 1e-4) * (sx + sy + 9e-4))).mean()
            )
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
        tv = (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        return (loss + 0.1 * tv)[None]


@program(
    "Gaussian splats", lambda: (torch.randn(200, 2) * 0.5, torch.randn(200, 3), torch.randn(200, 1), torch.rand(200, 3))
)
class Splat(nn.Module):
    def __init__(self, n=64):
        super().__init__()
        g = torch.linspace(-1, 1, n)
        self.register_buffer("p", torch.stack(torch.meshgrid(g, g, indexing="xy"), -1).view(-1, 2))
        self.bg = nn.Parameter(torch.zeros(3))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, mu, ch, op, col):
        l1, l2, o = ch[:, 0].exp() * 8 * self.scale, ch[:, 1].exp() * 8, ch[:, 2]
        d = self.p[:, None] - mu
        a, b = d[..., 0] * l1 + d[..., 1] * o, d[..., 1] * l2
        w = torch.sigmoid(op)[:, 0] * torch.exp(-0.5 * (a * a + b * b))
        w = w.clamp(max=0.99)
        t = torch.cumprod(torch.cat([torch.ones_like(w[:, :1]), 1 - w], 1), 1)
        return (w * t[:, :-1]) @ col + t[:, -1:] * self.bg


@program("hypernetwork", lambda: (torch.randn(64, 32), torch.randn(64, 100, 2)))
class Hyper(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.w = w
        self.n = 2 * w + w + w * w + w + w + 1
        self.h = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, self.n))

    def forward(self, z, x):
        p = self.h(z) * 0.1
        w = self.w
        a, b, c, d, e, f = p.split([2 * w, w, w * w, w, w, 1], 1)
        x = torch.sin(30 * (torch.bmm(x, a.view(-1, 2, w)) + b[:, None]))
        x = torch.sin(torch.bmm(x, c.view(-1, w, w)) + d[:, None])
        return torch.bmm(x, e.view(-1, w, 1)) + f[:, None]
