"""Programs over series, sets, tables and sound, and over what agents do."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from .entering import program


@program("fourier mixing", lambda: (torch.randn(8, 128, 256),))
class FNet(nn.Module):
    def __init__(self, d=256, n=4):
        super().__init__()
        self.n1 = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.n2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n))

    def forward(self, x):
        for a, b, f in zip(self.n1, self.n2, self.ff):
            x = a(x + torch.fft.fft2(x).real)
            x = b(x + f(x))
        return x


@program("perceiver", lambda: (torch.randn(4, 1024, 64),))
class Perceiver(nn.Module):
    def __init__(self, d=128, m=64, n=4, h=4):
        super().__init__()
        self.lat = nn.Parameter(torch.randn(m, d))
        self.inp = nn.Linear(64, d)
        self.cross = nn.MultiheadAttention(d, h, batch_first=True)
        self.selfs = nn.ModuleList(
            nn.TransformerEncoderLayer(d, h, 4 * d, batch_first=True, norm_first=True, dropout=0.0) for _ in range(n)
        )
        self.out = nn.Linear(d, 10)

    def forward(self, x):
        x = self.inp(x)
        q = self.lat.expand(x.shape[0], -1, -1)
        q = q + self.cross(q, x, x, need_weights=False)[0]
        for s in self.selfs:
            q = s(q)
        return self.out(q.mean(1))


@program("temporal convolutions", lambda: (torch.randn(16, 32, 512),))
class TCN(nn.Module):
    def __init__(self, c=64, n=6):
        super().__init__()
        self.convs = nn.ModuleList()
        self.down = nn.Conv1d(32, c, 1)
        for i in range(n):
            self.convs.append(nn.utils.parametrizations.weight_norm(nn.Conv1d(c, c, 3, dilation=2**i)))
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        x = self.down(x)
        for i, c in enumerate(self.convs):
            x = x + F.dropout(F.relu(c(F.pad(x, (2 * 2**i, 0)))), 0.1, self.training)
        return self.head(x[..., -1])


@program("deep and cross", lambda: (torch.randint(1000, (512, 26)), torch.randn(512, 13)))
class DCN(nn.Module):
    def __init__(self, e=16, n=3):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(1000, e) for _ in range(26))
        d = 26 * e + 13
        self.u = nn.ModuleList(nn.Linear(d, 32, bias=False) for _ in range(n))
        self.v = nn.ModuleList(nn.Linear(32, d) for _ in range(n))
        self.mlp = nn.Sequential(
            nn.Linear(d, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, ids, dense):
        x0 = x = torch.cat([e(ids[:, k]) for k, e in enumerate(self.emb)] + [torch.log1p(dense.abs())], 1)
        for u, v in zip(self.u, self.v):
            x = x0 * v(u(x)) + x
        return torch.sigmoid(self.mlp(x))


@program("spline network", lambda: (torch.randn(256, 32),))
class KAN(nn.Module):
    def __init__(self, widths=(32, 64, 64, 10), g=5, k=3):
        super().__init__()
        self.k = k
        h = 2 / g
        self.register_buffer("grid", torch.arange(-k, g + k + 1) * h - 1)
        self.base = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths))
        self.coef = nn.ParameterList(
            nn.Parameter(torch.randn(b, a * (g + k)) * 0.05) for a, b in itertools.pairwise(widths)
        )

    def basis(self, x):
        x = x[..., None]
        g = self.grid
        b = ((x >= g[:-1]) & (x < g[1:])).to(x.dtype)
        for k in range(1, self.k + 1):
            b = (x - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)]) * b[..., :-1] + (g[k + 1 :] - x) / (
                g[k + 1 :] - g[1:-k]
            ) * b[..., 1:]
        return b

    def forward(self, x):
        for layer, c in zip(self.base, self.coef):
            x = layer(F.silu(x)) + self.basis(torch.tanh(x)).flatten(1) @ c.t()
        return x


@program("speech by waves", lambda: (torch.randn(8, 1, 16000),))
class Wav(nn.Module):
    def __init__(self, c=128, n=3):
        super().__init__()
        ks = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
        i = 1
        self.f = nn.ModuleList()
        self.g = nn.ModuleList()
        for k, s in ks:
            self.f.append(nn.Conv1d(i, c, k, s, bias=False))
            self.g.append(nn.GroupNorm(c, c) if i == 1 else nn.Identity())
            i = c
        self.pos = nn.utils.parametrizations.weight_norm(nn.Conv1d(c, c, 32, padding=16, groups=8))
        self.enc = nn.ModuleList(nn.TransformerEncoderLayer(c, 4, 4 * c, 0.0, batch_first=True) for _ in range(n))
        self.o = nn.Linear(c, 32)

    def forward(self, x):
        for f, g in zip(self.f, self.g):
            x = F.gelu(g(f(x)))
        x = x + F.gelu(self.pos(x)[..., :-1])
        x = x.transpose(1, 2)
        for e in self.enc:
            x = e(x)
        return F.log_softmax(self.o(x), -1)


@program("set transformer", lambda: (torch.randn(16, 200, 16),))
class SetT(nn.Module):
    class MAB(nn.Module):
        def __init__(s, d, h=4):
            super().__init__()
            s.h = h
            s.q, s.k, s.v, s.o = (nn.Linear(d, d) for _ in range(4))
            s.n0, s.n1 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(s, x, y):
            q, k, v = s.q(x), s.k(y), s.v(y)
            d = q.shape[-1] // s.h
            q_, k_, v_ = (torch.cat(t.split(d, 2), 0) for t in (q, k, v))
            a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(q.shape[-1]), 2)
            o = torch.cat((q_ + a.bmm(v_)).split(q.shape[0], 0), 2)
            o = s.n0(o)
            return s.n1(o + F.relu(s.o(o)))

    def __init__(self, d=128, m=32):
        super().__init__()
        self.i = nn.Linear(16, d)
        self.ind = nn.ParameterList(nn.Parameter(torch.randn(1, m, d)) for _ in range(2))
        self.a = nn.ModuleList(self.MAB(d) for _ in range(2))
        self.b = nn.ModuleList(self.MAB(d) for _ in range(2))
        self.seed = nn.Parameter(torch.randn(1, 4, d))
        self.p = self.MAB(d)
        self.s = self.MAB(d)
        self.o = nn.Linear(d, 1)

    def forward(self, x):
        x = self.i(x)
        for i, a, b in zip(self.ind, self.a, self.b):
            x = b(x, a(i.expand(x.shape[0], -1, -1), x))
        y = self.p(self.seed.expand(x.shape[0], -1, -1), x)
        return self.o(self.s(y, y))


@program(
    "actor and critic",
    lambda: (torch.randn(256, 24), torch.randint(6, (256,)), torch.randn(256), torch.randn(256), torch.randn(256)),
)
class PPO(nn.Module):
    def __init__(self):
        super().__init__()

        def m(o):
            return nn.Sequential(nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, o))

        self.pi, self.v = m(6), m(1)

    def forward(self, s, a, old, adv, ret):
        d = torch.distributions.Categorical(logits=self.pi(s))
        lp = d.log_prob(a)
        r = torch.exp(lp - old)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        return (
            -torch.min(r * adv, r.clamp(0.8, 1.2) * adv).mean()
            + 0.5 * F.mse_loss(self.v(s)[:, 0], ret)
            - 0.01 * d.entropy().mean()
        )[None]


@program("contrastive speech", lambda: (torch.randn(16, 64, 200),))
class CPC(nn.Module):
    def __init__(self, c=128, k=6):
        super().__init__()
        self.e = nn.Sequential(
            nn.Conv1d(64, c, 4, 2, 1),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.Conv1d(c, c, 4, 2, 1),
            nn.BatchNorm1d(c),
            nn.ReLU(),
        )
        self.g = nn.GRU(c, c, batch_first=True)
        self.w = nn.ModuleList(nn.Linear(c, c) for _ in range(k))

    def forward(self, x):
        z = self.e(x).transpose(1, 2)
        c, _ = self.g(z)
        loss = 0
        for k, w in enumerate(self.w, 1):
            p = w(c[:, :-k])
            s = torch.einsum("btd,ntd->tbn", p, z[:, k:])
            loss = loss - s.log_softmax(-1).diagonal(dim1=1, dim2=2).mean()
        return (loss / len(self.w))[None]


@program("CTC speech", lambda: (torch.randn(8, 1, 80, 240), torch.randint(1, 30, (8, 20))))
class DS(nn.Module):
    def __init__(self, h=192):
        super().__init__()
        self.c = nn.Sequential(
            nn.Conv2d(1, 16, (11, 11), (2, 2), (5, 5)),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20),
            nn.Conv2d(16, 16, (11, 5), (2, 1), (5, 2)),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20),
        )
        self.r = nn.LSTM(320, h, 2, bidirectional=True, batch_first=True)
        self.o = nn.Linear(2 * h, 30)

    def forward(self, x, y):
        x = self.c(x)
        b, c, f, t = x.shape
        x = self.r(x.permute(0, 3, 1, 2).reshape(b, t, c * f))[0]
        lp = self.o(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(
            lp, y, torch.full((b,), t, dtype=torch.long), torch.full((b,), 20, dtype=torch.long), zero_infinity=True
        )[None]


@program("pointer network", lambda: (torch.rand(32, 12, 2),))
class Pointer(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.e = nn.Linear(2, d)
        self.enc = nn.LSTM(d, d, batch_first=True)
        self.cell = nn.LSTMCell(d, d)
        self.w1, self.w2 = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.v = nn.Linear(d, 1, bias=False)
        self.s = nn.Parameter(torch.randn(d))

    def forward(self, x):
        e = self.e(x)
        o, (h, c) = self.enc(e)
        h, c = h[0], c[0]
        mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        i = self.s.expand(x.shape[0], -1)
        k = self.w1(o)
        lps = []
        for _ in range(x.shape[1]):
            h, c = self.cell(i, (h, c))
            a = self.v(torch.tanh(k + self.w2(h)[:, None]))[..., 0].masked_fill(mask, float("-inf"))
            lp = a.log_softmax(-1)
            j = lp.argmax(-1, keepdim=True)
            lps.append(lp.gather(1, j))
            mask = mask.scatter(1, j, True)
            i = e.gather(1, j[..., None].expand(-1, -1, e.shape[-1]))[:, 0]
        return torch.cat(lps, 1)


@program("spectrogram losses", lambda: (torch.randn(4, 16000), torch.randn(4, 16000)))
class Spec(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1))
        self.c = nn.Conv1d(1, 1, 15, padding=7)
        [self.register_buffer(f"w{n}", torch.hann_window(n)) for n in (256, 512, 1024)]

    def forward(self, x, y):
        x = self.c(x[:, None])[:, 0] * self.g
        loss = 0
        for n in (256, 512, 1024):
            a, b = (
                torch.stft(v, n, n // 4, window=getattr(self, f"w{n}"), return_complex=True).abs().clamp(min=1e-5)
                for v in (x, y)
            )
            loss = loss + (a - b).norm() / b.norm() + F.l1_loss(a.log(), b.log())
        return loss[None]


@program("tables with attention", lambda: (torch.randint(20, (256, 12)), torch.randn(256, 8)))
class FTT(nn.Module):
    def __init__(self, d=64, n=3):
        super().__init__()
        self.e = nn.Embedding(240, d)
        self.register_buffer("o", torch.arange(12) * 20)
        self.w, self.b = nn.Parameter(torch.randn(8, d)), nn.Parameter(torch.randn(8, d))
        self.cls = nn.Parameter(torch.randn(1, 1, d))
        self.l = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 8, 2 * d, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(n)
        )
        self.h = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, c, x):
        t = torch.cat([self.cls.expand(c.shape[0], -1, -1), self.e(c + self.o), x[..., None] * self.w + self.b], 1)
        for layer in self.l:
            t = layer(t)
        return self.h(t[:, 0])


@program("low-rank fine-tuning", lambda: (torch.randint(4000, (4, 128)),))
class LoRA(nn.Module):
    class L(nn.Module):
        def __init__(s, a, b, r=8):
            super().__init__()
            s.w = nn.Linear(a, b, bias=False)
            s.w.weight.requires_grad_(False)
            s.a, s.b = nn.Linear(a, r, bias=False), nn.Linear(r, b, bias=False)

        def forward(s, x):
            return s.w(x) + s.b(s.a(F.dropout(x, 0.05, s.training))) * 2

    def __init__(self, d=256, n=4, h=8):
        super().__init__()
        self.h = h
        self.e = nn.Embedding(4000, d)
        self.e.weight.requires_grad_(False)
        self.qkv = nn.ModuleList(self.L(d, 3 * d) for _ in range(n))
        self.o = nn.ModuleList(self.L(d, d) for _ in range(n))
        self.g = nn.ModuleList(self.L(d, 4 * d) for _ in range(n))
        self.dn = nn.ModuleList(self.L(4 * d, d) for _ in range(n))
        self.n1 = nn.ModuleList(nn.RMSNorm(d) for _ in range(n))
        self.n2 = nn.ModuleList(nn.RMSNorm(d) for _ in range(n))

    def forward(self, ids):
        x = self.e(ids)
        b, t, d = x.shape
        for q, o, g, dn, n1, n2 in zip(self.qkv, self.o, self.g, self.dn, self.n1, self.n2):
            a = F.scaled_dot_product_attention(
                *(v.view(b, t, self.h, -1).transpose(1, 2) for v in q(n1(x)).chunk(3, -1)), is_causal=True
            )
            x = x + o(a.transpose(1, 2).reshape(b, t, d))
            x = x + dn(F.silu(g(n2(x))))
        return F.cross_entropy((x[:, :-1] @ self.e.weight.t()).flatten(0, 1), ids[:, 1:].flatten())[None]


@program("state space by FFT", lambda: (torch.randn(8, 512, 64),))
class S4(nn.Module):
    def __init__(self, d=64, n=32, depth=3):
        super().__init__()
        self.la = nn.ParameterList(nn.Parameter(torch.log(0.5 * torch.ones(d, n))) for _ in range(depth))
        self.im = nn.ParameterList(nn.Parameter(math.pi * torch.arange(n).repeat(d, 1).float()) for _ in range(depth))
        self.c = nn.ParameterList(nn.Parameter(torch.randn(d, n, 2) * 0.5) for _ in range(depth))
        self.dt = nn.ParameterList(nn.Parameter(torch.rand(d) * 4 - 6) for _ in range(depth))
        self.D = nn.ParameterList(nn.Parameter(torch.randn(d)) for _ in range(depth))
        self.o = nn.ModuleList(nn.Sequential(nn.GELU(), nn.Linear(d, 2 * d), nn.GLU()) for _ in range(depth))
        self.nm = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))

    def forward(self, x):
        L = x.shape[1]
        for la, im, c, dt, D, o, nm in zip(self.la, self.im, self.c, self.dt, self.D, self.o, self.nm):
            A = torch.complex(-la.exp(), im)
            dtA = A * dt.exp()[:, None]
            C = torch.view_as_complex(c) * (dtA.exp() - 1) / A
            K = 2 * torch.einsum("hn,hnl->hl", C, torch.exp(dtA[..., None] * torch.arange(L, device=x.device))).real
            u = x.transpose(1, 2)
            y = (
                torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]
                + u * D[:, None]
            )
            x = nm(x + o(y.transpose(1, 2)))
        return x.mean(1)


@program("N-BEATS", lambda: (torch.randn(256, 60),))
class NB(nn.Module):
    def __init__(self, n=6, w=256):
        super().__init__()
        self.b = nn.ModuleList(
            nn.Sequential(
                nn.Linear(60, w),
                nn.ReLU(),
                nn.Linear(w, w),
                nn.ReLU(),
                nn.Linear(w, w),
                nn.ReLU(),
                nn.Linear(w, 60 + 12),
            )
            for _ in range(n)
        )

    def forward(self, x):
        f = 0
        for b in self.b:
            t = b(x)
            x = x - t[:, :60]
            f = f + t[:, 60:]
        return (200 * (f - x[:, :12]).abs() / (f.abs() + x[:, :12].abs().detach() + 1e-3)).mean()[None]
