"""Programs of other kinds: state spaces by chunks, volumes, rays, splines, filters, caches, codecs, world models."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from .entering import program


@program("RWKV", lambda: (torch.randint(2000, (4, 96)),))
class RWKV(nn.Module):
    """A recurrent network without products between steps, its loop over time in Python, as in RWKV."""

    def __init__(self, d=192, n=3, v=2000):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.blocks = nn.ModuleList()
        for _ in range(n):
            b = nn.Module()
            b.n1, b.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
            b.mk, b.mv, b.mr, b.ck, b.cr = (nn.Parameter(torch.rand(1, 1, d)) for _ in range(5))
            b.k, b.v, b.r, b.o = (nn.Linear(d, d, bias=False) for _ in range(4))
            b.fk, b.fv, b.fr = (
                nn.Linear(d, 4 * d, bias=False),
                nn.Linear(4 * d, d, bias=False),
                nn.Linear(d, d, bias=False),
            )
            b.w, b.u = nn.Parameter(torch.rand(d) - 3), nn.Parameter(torch.rand(d))
            self.blocks.append(b)
        self.out = nn.Linear(d, v, bias=False)

    def wkv(self, w, u, k, v):
        B, T, D = k.shape
        w = -torch.exp(w)
        a, b, m = (k.new_zeros(B, D) for _ in range(3))
        m = m - 1e38
        ys = []
        for t in range(T):
            kt, vt = k[:, t], v[:, t]
            q = torch.maximum(m, u + kt)
            e1, e2 = torch.exp(m - q), torch.exp(u + kt - q)
            ys.append((e1 * a + e2 * vt) / (e1 * b + e2))
            q = torch.maximum(m + w, kt)
            e1, e2 = torch.exp(m + w - q), torch.exp(kt - q)
            a, b, m = e1 * a + e2 * vt, e1 * b + e2, q
        return torch.stack(ys, 1)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            y = b.n1(x)
            p = F.pad(y, (0, 0, 1, -1))
            k, v, r = b.k(y * b.mk + p * (1 - b.mk)), b.v(y * b.mv + p * (1 - b.mv)), b.r(y * b.mr + p * (1 - b.mr))
            x = x + b.o(torch.sigmoid(r) * self.wkv(b.w, b.u, k, v))
            y = b.n2(x)
            p = F.pad(y, (0, 0, 1, -1))
            k = b.fk(y * b.ck + p * (1 - b.ck))
            x = x + torch.sigmoid(b.fr(y * b.cr + p * (1 - b.cr))) * b.fv(torch.relu(k) ** 2)
        return self.out(x)


@program("state space duality", lambda: (torch.randn(4, 256, 128),))
class Mamba2SSD(nn.Module):
    """State spaces by chunks, whose insides are attention with decays, as in Mamba-2."""

    def __init__(self, d=128, heads=4, n=32, chunk=64, layers=2):
        super().__init__()
        self.h, self.n, self.c, e = heads, n, chunk, 2 * d
        self.e = e
        self.into = nn.ModuleList(nn.Linear(d, 2 * e + 2 * n + heads, bias=False) for _ in range(layers))
        self.conv = nn.ModuleList(
            nn.Conv1d(e + 2 * n, e + 2 * n, 4, padding=3, groups=e + 2 * n) for _ in range(layers)
        )
        self.out = nn.ModuleList(nn.Linear(e, d, bias=False) for _ in range(layers))
        self.norm = nn.ModuleList(nn.RMSNorm(e) for _ in range(layers))
        self.A = nn.Parameter(torch.rand(layers, heads))
        self.D = nn.Parameter(torch.ones(layers, heads))
        self.dt = nn.Parameter(torch.rand(layers, heads))

    @staticmethod
    def segsum(x):
        T = x.size(-1)
        s = x.cumsum(-1)
        s = s[..., :, None] - s[..., None, :]
        return s.masked_fill(~torch.ones(T, T, dtype=torch.bool, device=x.device).tril(), -torch.inf)

    def ssd(self, X, A, B, C):
        b, t, h, p = X.shape
        c = self.c
        X, B, C = (z.reshape(b, t // c, c, *z.shape[2:]) for z in (X, B, C))
        A = A.reshape(b, t // c, c, h).permute(0, 3, 1, 2)
        cs = A.cumsum(-1)
        L = torch.exp(self.segsum(A))
        Yd = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", C, B, L, X)
        decay = torch.exp(cs[..., -1:] - cs)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", B, decay, X)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        dc = torch.exp(self.segsum(F.pad(cs[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", dc, states)[:, :-1]
        Yo = torch.einsum("bcln,bchpn,bhcl->bclhp", C, states, torch.exp(cs))
        return (Yd + Yo).reshape(b, t, h, p)

    def forward(self, x):
        for i in range(len(self.into)):
            z, xbc, dt = self.into[i](x).split((self.e, self.e + 2 * self.n, self.h), -1)
            xbc = F.silu(self.conv[i](xbc.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            y, B, C = xbc.split((self.e, self.n, self.n), -1)
            dt = F.softplus(dt + self.dt[i])
            y = y.view(*y.shape[:2], self.h, -1)
            y = self.ssd(y * dt[..., None], -torch.exp(self.A[i]) * dt, B, C) + y * self.D[i][:, None]
            x = x + self.out[i](self.norm[i](y.flatten(2) * F.silu(z)))
        return x


def of_volumes(ins: int, outs: int) -> nn.Sequential:
    """Two convolutions of volumes, each normalized."""
    return nn.Sequential(
        nn.Conv3d(ins, outs, 3, padding=1),
        nn.InstanceNorm3d(outs, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(outs, outs, 3, padding=1),
        nn.InstanceNorm3d(outs, affine=True),
        nn.LeakyReLU(0.01),
    )


@program("3D U-Net", lambda: (torch.randn(1, 2, 32, 32, 32),))
class UNet3D(nn.Module):
    """A U-Net of volumes."""

    def __init__(self, w=16):
        super().__init__()
        self.a, self.b, self.c = of_volumes(2, w), of_volumes(w, 2 * w), of_volumes(2 * w, 4 * w)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.d2, self.d1, self.o = of_volumes(4 * w, 2 * w), of_volumes(2 * w, w), nn.Conv3d(w, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool3d(a, 2))
        x = self.c(F.max_pool3d(b, 2))
        x = self.d2(torch.cat([self.u2(x), b], 1))
        return self.o(self.d1(torch.cat([self.u1(x), a], 1)))


@program("ConvLSTM", lambda: (torch.randn(2, 8, 3, 32, 32),))
class ConvLSTM(nn.Module):
    """Two layers of LSTM cells whose products are convolutions."""

    def __init__(self, h=32):
        super().__init__()
        self.h, self.c1, self.c2, self.o = (
            h,
            nn.Conv2d(3 + h, 4 * h, 3, padding=1),
            nn.Conv2d(2 * h, 4 * h, 3, padding=1),
            nn.Conv2d(h, 3, 1),
        )

    def forward(self, x):
        B, T, _, H, W = x.shape
        h1 = c1 = h2 = c2 = x.new_zeros(B, self.h, H, W)
        out = []

        def cell(conv, x, h, c):
            i, f, o, g = conv(torch.cat([x, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c

        for t in range(T):
            h1, c1 = cell(self.c1, x[:, t], h1, c1)
            h2, c2 = cell(self.c2, h1, h2, c2)
            out.append(self.o(h2))
        return torch.stack(out, 1)


@program("point sets", lambda: (torch.randn(4, 3, 512),))
class PointNet2(nn.Module):
    """Farthest points, their neighbours, shared MLPs, as in PointNet++."""

    def __init__(self):
        super().__init__()

        def m(*w):
            return nn.Sequential(
                *[part for a, b in itertools.pairwise(w) for part in (nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU())]
            )

        self.s1, self.s2 = m(6, 32, 32, 64), m(67, 64, 128)
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def sample(self, xyz, feats, n, k):
        B, N, _ = xyz.shape
        idx = torch.zeros(B, n, dtype=torch.long, device=xyz.device)
        dist = torch.full((B, N), 1e10, device=xyz.device)
        far = torch.zeros(B, dtype=torch.long, device=xyz.device)
        bi = torch.arange(B, device=xyz.device)
        for i in range(n):
            idx[:, i] = far
            c = xyz[bi, far][:, None]
            dist = torch.minimum(dist, ((xyz - c) ** 2).sum(-1))
            far = dist.max(-1)[1]
        new = xyz.gather(1, idx[..., None].expand(-1, -1, 3))
        near = torch.cdist(new, xyz).topk(k, largest=False)[1]
        g = feats[bi[:, None, None], near]
        d = xyz[bi[:, None, None], near] - new[:, :, None]
        return new, torch.cat([d, g], -1)

    def forward(self, x):
        xyz = x.transpose(1, 2)
        p, g = self.sample(xyz, xyz, 32, 16)
        f = self.s1(g.permute(0, 3, 1, 2)).amax(3).transpose(1, 2)
        p, g = self.sample(p, f, 8, 8)
        f = self.s2(g.permute(0, 3, 1, 2)).amax(3)
        return self.head(f.amax(2))


@program("rays", lambda: (torch.randn(256, 3), F.normalize(torch.randn(256, 3), dim=-1)))
class NeRF(nn.Module):
    """Rays marched through a field of positional features, composited, as in NeRF."""

    def __init__(self, w=128, s=32):
        super().__init__()
        self.s = s
        self.l1 = nn.Sequential(nn.Linear(63, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
        self.l2 = nn.Sequential(nn.Linear(w + 63, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
        self.sig, self.feat, self.rgb = (
            nn.Linear(w, 1),
            nn.Linear(w, w),
            nn.Sequential(nn.Linear(w + 27, w // 2), nn.ReLU(), nn.Linear(w // 2, 3), nn.Sigmoid()),
        )

    @staticmethod
    def enc(x, n):
        out = [x]
        for i in range(n):
            out += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
        return torch.cat(out, -1)

    def forward(self, o, d):
        t = torch.linspace(2.0, 6.0, self.s, device=o.device)
        pts = o[:, None] + d[:, None] * t[:, None]
        e = self.enc(pts, 10)
        h = self.l2(torch.cat([self.l1(e), e], -1))
        sigma = F.relu(self.sig(h))[..., 0]
        rgb = self.rgb(torch.cat([self.feat(h), self.enc(d, 4)[:, None].expand(-1, self.s, -1)], -1))
        delta = torch.cat([t[1:] - t[:-1], t.new_full((1,), 1e10)])
        alpha = 1 - torch.exp(-sigma * delta)
        T = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        w = alpha * T
        return torch.cat([(w[..., None] * rgb).sum(1), (w * t).sum(1, keepdim=True)], -1)


@program("splines on edges", lambda: (torch.rand(512, 16) * 2 - 1,))
class KAN(nn.Module):
    """Layers whose weights are B-splines, as in Kolmogorov-Arnold networks."""

    def __init__(self, widths=(16, 64, 64, 8), g=5, k=3):
        super().__init__()
        self.k = k
        self.register_buffer("grid", torch.arange(-k, g + k + 1) * (2 / g) - 1)
        self.base = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.coef = nn.ParameterList(
            nn.Parameter(torch.randn(b, a, g + k) * 0.1) for a, b in itertools.pairwise(widths)
        )

    def basis(self, x):
        x, t = x[..., None], self.grid
        b = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for k in range(1, self.k + 1):
            b = (x - t[: -(k + 1)]) / (t[k:-1] - t[: -(k + 1)]) * b[..., :-1] + (t[k + 1 :] - x) / (
                t[k + 1 :] - t[1:-k]
            ) * b[..., 1:]
        return b

    def forward(self, x):
        for base, c in zip(self.base, self.coef):
            x = base(F.silu(x)) + F.linear(self.basis(x).flatten(1), c.flatten(1))
        return x


@program("transport", lambda: (torch.rand(16, 64, 3), torch.rand(16, 64, 3)))
class Sinkhorn(nn.Module):
    """Optimal transport between point sets by thirty rounds of Sinkhorn."""

    def __init__(self):
        super().__init__()
        self.f, self.eps = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 16)), 0.1

    def forward(self, a, b):
        C = ((self.f(a)[:, :, None] - self.f(b)[:, None]) ** 2).sum(-1)
        n = C.shape[-1]
        u = v = torch.zeros_like(C[:, 0])
        for _ in range(30):
            u = self.eps * (-math.log(n) - torch.logsumexp((v[:, None] - C) / self.eps, 2))
            v = self.eps * (-math.log(n) - torch.logsumexp((u[:, :, None] - C) / self.eps, 1))
        pi = torch.exp((u[:, :, None] + v[:, None] - C) / self.eps)
        return (pi * C).sum((1, 2))


@program("boxes", lambda: tuple(torch.randn(2, c, s, s) for c, s in ((64, 32), (128, 16), (256, 8))))
class YoloHead(nn.Module):
    """Decoupled heads of three scales, boxes as distributions, decoded, as in YOLOv8."""

    def __init__(self, nc=20, reg=16):
        super().__init__()

        def cb(i, o, k=3):
            return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())

        self.box = nn.ModuleList(
            nn.Sequential(cb(c, 64), cb(64, 64), nn.Conv2d(64, 4 * reg, 1)) for c in (64, 128, 256)
        )
        self.cls = nn.ModuleList(nn.Sequential(cb(c, 64), cb(64, 64), nn.Conv2d(64, nc, 1)) for c in (64, 128, 256))
        self.nc, self.reg = nc, reg
        self.register_buffer("proj", torch.arange(reg).float())

    def forward(self, *xs):
        out, anchors, strides = [], [], []
        for x, b, c, s in zip(xs, self.box, self.cls, (8, 16, 32)):
            h, w = x.shape[2:]
            out.append(torch.cat([b(x), c(x)], 1).flatten(2))
            sy, sx = torch.meshgrid(
                torch.arange(h, device=x.device) + 0.5, torch.arange(w, device=x.device) + 0.5, indexing="ij"
            )
            anchors.append(torch.stack([sx, sy], -1).view(-1, 2))
            strides.append(torch.full((h * w, 1), float(s), device=x.device))
        y = torch.cat(out, 2)
        a = torch.cat(anchors).T[None]
        s = torch.cat(strides).T[None]
        box, cls = y.split((4 * self.reg, self.nc), 1)
        B, _, N = box.shape
        d = (box.view(B, 4, self.reg, N).softmax(2) * self.proj.view(1, 1, -1, 1)).sum(2)
        lt, rb = d.chunk(2, 1)
        x1, x2 = a - lt, a + rb
        return torch.cat([torch.cat([(x1 + x2) / 2, x2 - x1], 1) * s, cls.sigmoid()], 1)


@program(
    "cached decoding",
    lambda: (
        torch.randint(2000, (4, 1)),
        torch.randn(4, 4, 8, 128, 32),
        torch.randn(4, 4, 8, 128, 32),
        torch.tensor(77),
    ),
)
class DecodeStep(nn.Module):
    """One token through a decoder with a cache of keys and values."""

    def __init__(self, d=256, n=4, h=8, v=2000):
        super().__init__()
        self.h, self.emb = h, nn.Embedding(v, d)
        self.b = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.RMSNorm(d),
                    "n2": nn.RMSNorm(d),
                    "qkv": nn.Linear(d, 3 * d, bias=False),
                    "o": nn.Linear(d, d, bias=False),
                    "g": nn.Linear(d, 3 * d, bias=False),
                    "u": nn.Linear(d, 3 * d, bias=False),
                    "w": nn.Linear(3 * d, d, bias=False),
                }
            )
            for _ in range(n)
        )
        self.n = nn.RMSNorm(d)

    def forward(self, ids, K, V, pos):
        x = self.emb(ids)
        B = x.shape[0]
        mask = (torch.arange(K.shape[3], device=x.device) <= pos)[None, None, None]
        nk, nv = [], []
        for i, b in enumerate(self.b):
            q, k, v = (z.view(B, 1, self.h, -1).transpose(1, 2) for z in b["qkv"](b["n1"](x)).chunk(3, -1))
            k, v = K[i].index_copy(2, pos[None], k), V[i].index_copy(2, pos[None], v)
            nk.append(k)
            nv.append(v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + b["o"](y.transpose(1, 2).reshape(B, 1, -1))
            y = b["n2"](x)
            x = x + b["w"](F.silu(b["g"](y)) * b["u"](y))
        return F.linear(self.n(x), self.emb.weight), torch.stack(nk), torch.stack(nv)


@program("Fourier mixing", lambda: (torch.randn(4, 128, 192),))
class FNet(nn.Module):
    """Fourier transforms in place of attention, as in FNet."""

    def __init__(self, d=192, n=4):
        super().__init__()
        self.n1, self.n2 = (nn.ModuleList(nn.LayerNorm(d) for _ in range(n)) for _ in range(2))
        self.f = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n))

    def forward(self, x):
        for a, b, f in zip(self.n1, self.n2, self.f):
            x = a(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
            x = b(x + f(x))
        return x


@program("Kalman filter", lambda: (torch.randn(8, 32, 4),))
class Kalman(nn.Module):
    """A Kalman filter with learned matrices."""

    def __init__(self, n=6, m=4):
        super().__init__()
        self.A, self.H = nn.Parameter(torch.eye(n) * 0.9 + 0.01 * torch.randn(n, n)), nn.Parameter(torch.randn(m, n))
        self.q, self.r, self.n = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(m)), n

    def forward(self, z):
        B, T, _ = z.shape
        x = z.new_zeros(B, self.n, 1)
        P = torch.eye(self.n, device=z.device).expand(B, -1, -1)
        Q, Rn = torch.diag(self.q.exp()), torch.diag(self.r.exp())
        out, _ll = [], 0.0
        for t in range(T):
            x = self.A @ x
            P = self.A @ P @ self.A.T + Q
            y = z[:, t, :, None] - self.H @ x
            S = self.H @ P @ self.H.T + Rn
            K = torch.linalg.solve(S, self.H @ P).transpose(1, 2)
            x = x + K @ y
            P = P - K @ self.H @ P
            out.append(x[..., 0])
        return torch.stack(out, 1)


@program("wide residual", lambda: (torch.randn(8, 3, 32, 32),))
class WideResNet(nn.Module):
    """A wide residual network of small images, norms first."""

    def __init__(self, w=32):
        super().__init__()

        def blk(i, o, s):
            m = nn.Module()
            m.b1, m.c1, m.b2, m.c2 = (
                nn.BatchNorm2d(i),
                nn.Conv2d(i, o, 3, s, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.Conv2d(o, o, 3, 1, 1, bias=False),
            )
            m.s = nn.Conv2d(i, o, 1, s, bias=False) if i != o or s != 1 else None
            return m

        self.i = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bs = nn.ModuleList(
            [
                blk(16, w, 1),
                blk(w, w, 1),
                blk(w, 2 * w, 2),
                blk(2 * w, 2 * w, 1),
                blk(2 * w, 4 * w, 2),
                blk(4 * w, 4 * w, 1),
            ]
        )
        self.n, self.f = nn.BatchNorm2d(4 * w), nn.Linear(4 * w, 10)

    def forward(self, x):
        x = self.i(x)
        for m in self.bs:
            y = F.relu(m.b1(x))
            s = m.s(y) if m.s is not None else x
            x = s + m.c2(F.relu(m.b2(m.c1(y))))
        return self.f(F.adaptive_avg_pool2d(F.relu(self.n(x)), 1).flatten(1))


@program("neural codec", lambda: (torch.randn(2, 4, 16000 // 4),))
class Wave(nn.Module):
    """Snakes, dilations and residual codebooks, as in neural codecs."""

    def __init__(self, w=32):
        super().__init__()
        self.i = nn.Conv1d(4, w, 7, padding=3)
        self.al = nn.ParameterList(nn.Parameter(torch.ones(1, w * 2**i, 1)) for i in range(3))
        self.r = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(w * 2**i, w * 2**i, 7, padding=3 * d, dilation=d) for d in (1, 3, 9))
            for i in range(3)
        )
        self.d = nn.ModuleList(nn.Conv1d(w * 2**i, w * 2 ** (i + 1), 4, 2, 1) for i in range(3))
        self.books = nn.ParameterList(nn.Parameter(torch.randn(128, 8 * w)) for _ in range(3))

    def forward(self, x):
        x = self.i(x)
        for a, rs, d in zip(self.al, self.r, self.d):
            for r in rs:
                x = x + r(x + torch.sin(a * x) ** 2 / (a + 1e-9))
            x = d(x)
        z = x.transpose(1, 2)
        q = torch.zeros_like(z)
        for b in self.books:
            res = z - q.detach()
            i = (res.pow(2).sum(-1, keepdim=True) - 2 * res @ b.T + b.pow(2).sum(-1)).argmin(-1)
            q = q + b[i]
        return z + (q - z)


@program("pairs of positions", lambda: (torch.randn(4, 64, 128), torch.randint(0, 2, (4, 64)).bool()))
class Evoformer(nn.Module):
    """Products over triangles, attention with biases of pairs, as in AlphaFold."""

    def __init__(self, d=128, p=32, h=4):
        super().__init__()
        self.h = h
        self.a, self.b = nn.Linear(d, p), nn.Linear(d, p)
        self.np, self.tl, self.tr, self.tg, self.tou = (
            nn.LayerNorm(p),
            nn.Linear(p, 2 * p),
            nn.Linear(p, 2 * p),
            nn.Linear(p, p),
            nn.Linear(p, p),
        )
        self.nt, self.bias, self.n = nn.LayerNorm(p), nn.Linear(p, h, bias=False), nn.LayerNorm(d)
        self.qkv, self.g, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, m):
        z = self.a(x)[:, :, None] + self.b(x)[:, None]
        y = self.np(z)
        left, right = F.glu(self.tl(y)), F.glu(self.tr(y))
        left, right = left.masked_fill(~m[:, :, None, None], 0), right.masked_fill(~m[:, None, :, None], 0)
        z = z + self.tg(y).sigmoid() * self.tou(self.nt(torch.einsum("bikc,bjkc->bijc", left, right)))
        B, T, D = x.shape
        y = self.n(x)
        q, k, v = (s.view(B, T, self.h, -1).transpose(1, 2) for s in self.qkv(y).chunk(3, -1))
        s = q @ k.transpose(-1, -2) / math.sqrt(D // self.h) + self.bias(z).permute(0, 3, 1, 2)
        s = s.masked_fill(~m[:, None, None], -1e9).softmax(-1)
        o = (s @ v).transpose(1, 2).reshape(B, T, D)
        return x + self.o(o * self.g(y).sigmoid()), z


@program("world model", lambda: (torch.randn(8, 40, 16), torch.randn(8, 4)))
class WorldModel(nn.Module):
    """A recurrent state space with categorical latents straight through, as in Dreamer."""

    def __init__(self, h=128, c=8, k=8):
        super().__init__()
        self.h, self.c, self.k = h, c, k
        self.e, self.pre, self.cell = (
            nn.Sequential(nn.Linear(16, 128), nn.LayerNorm(128), nn.SiLU(), nn.Linear(128, 128)),
            nn.Linear(c * k + 4, h),
            nn.GRUCell(h, h),
        )
        self.post, self.prior, self.dec = nn.Linear(h + 128, c * k), nn.Linear(h, c * k), nn.Linear(h + c * k, 16)

    def forward(self, x, a):
        B, T, _ = x.shape
        e = self.e(x)
        h = x.new_zeros(B, self.h)
        z = x.new_zeros(B, self.c * self.k)
        outs, kl = [], 0.0
        for t in range(T):
            h = self.cell(F.elu(self.pre(torch.cat([z, a], 1))), h)
            p = self.post(torch.cat([h, e[:, t]], 1)).view(B, self.c, self.k).log_softmax(-1)
            q = self.prior(h).view(B, self.c, self.k).log_softmax(-1)
            hard = F.one_hot(p.argmax(-1), self.k).float()
            z = (hard + p.exp() - p.exp().detach()).flatten(1)
            kl = kl + (p.exp() * (p - q)).sum((1, 2)).mean()
            outs.append(self.dec(torch.cat([h, z], 1)))
        return (torch.stack(outs, 1) - x).pow(2).mean() + kl / T
