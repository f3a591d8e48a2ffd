"""Networks that learn what images have in common, or from another network."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, adam, adamw, mlp, program, sgd


class Backbone(nn.Module):
    def __init__(self, width=32, out=128):
        super().__init__()

        def b(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.stem = b(3, width, 1)
        self.a = b(width, width, 1)
        self.down = b(width, 2 * width, 2)
        self.c = b(2 * width, 2 * width, 1)
        self.down2 = b(2 * width, 4 * width, 2)
        self.d = b(4 * width, 4 * width, 1)
        self.head = mlp(4 * width, 4 * width, out)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.a(x)
        x = self.down(x)
        x = x + self.c(x)
        x = self.down2(x)
        x = x + self.d(x)
        return self.head(x.mean((2, 3)))


@program
def simclr() -> Made:
    m = Backbone()

    def loss(m, x, y):
        z = F.normalize(torch.cat([m(x), m(y)]), dim=1)
        s = z @ z.t() / 0.1
        n = z.shape[0]
        s = s.masked_fill(torch.eye(n, dtype=torch.bool), float("-inf"))
        target = (torch.arange(n) + n // 2) % n
        return F.cross_entropy(s, target)

    return m, (torch.randn(16, 3, 32, 32), torch.randn(16, 3, 32, 32)), loss, adam


@program
def byol_ema() -> Made:
    on = Backbone(24, 64)
    m = nn.ModuleDict({"on": on, "pred": mlp(64, 128, 64), "target": copy.deepcopy(on).requires_grad_(False)})

    def loss(m, x, y):
        with torch.no_grad():
            for p, q in zip(m["target"].parameters(), m["on"].parameters()):
                p.mul_(0.99).add_(q, alpha=0.01)
            tx, ty = m["target"](x), m["target"](y)
        a, b = m["pred"](m["on"](x)), m["pred"](m["on"](y))
        return 4 - 2 * F.cosine_similarity(a, ty).mean() - 2 * F.cosine_similarity(b, tx).mean()

    return m, (torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)), loss, sgd


@program
def metric_arcface() -> Made:
    m = Backbone(32, 128)
    m.register_parameter("w", nn.Parameter(torch.randn(500, 128)))

    def loss(m, x, y):
        c = F.linear(F.normalize(m(x)), F.normalize(m.w)).clamp(-1 + 1e-6, 1 - 1e-6)
        theta = torch.acos(c)
        one = F.one_hot(y, 500).bool()
        return F.cross_entropy(30 * torch.where(one, torch.cos(theta + 0.5), c), y)

    return m, (torch.randn(16, 3, 32, 32), torch.randint(0, 500, (16,))), loss, sgd


@program
def triplet_hard() -> Made:
    m = mlp(256, 512, 512, 128)

    def loss(m, x, y):
        z = F.normalize(m(x))
        d = torch.cdist(z, z)
        same = y[:, None] == y[None]
        pos = d.masked_fill(~same, 0).max(1)[0]
        neg = d.masked_fill(same, 1e9).min(1)[0]
        return F.relu(pos - neg + 0.2).mean()

    return m, (torch.randn(256, 256), torch.randint(0, 16, (256,))), loss, adam


@program
def distillation() -> Made:
    m = nn.ModuleDict({"s": Backbone(16, 100), "t": Backbone(48, 100).requires_grad_(False).eval()})

    def loss(m, x, y):
        with torch.no_grad():
            t = m["t"](x)
        s = m["s"](x)
        return F.kl_div(F.log_softmax(s / 4, 1), F.softmax(t / 4, 1), reduction="batchmean") * 16 + F.cross_entropy(
            s, y, label_smoothing=0.1
        )

    return m, (torch.randn(16, 3, 32, 32), torch.randint(0, 100, (16,))), loss, sgd


@program
def vit_mae() -> Made:
    class Mae(nn.Module):
        def __init__(self, d=128, n=64):
            super().__init__()
            self.patch = nn.Conv2d(3, d, 4, 4)
            self.pos = nn.Parameter(torch.randn(1, n, d) * 0.02)
            self.tok = nn.Parameter(torch.zeros(1, 1, 64))
            self.enc = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(d, 4, 4 * d, 0.0, batch_first=True, norm_first=True, activation="gelu"),
                2,
                enable_nested_tensor=False,
            )
            self.proj = nn.Linear(d, 64)
            self.dpos = nn.Parameter(torch.randn(1, n, 64) * 0.02)
            self.dec = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True, activation="gelu"),
                1,
                enable_nested_tensor=False,
            )
            self.out = nn.Linear(64, 48)

        def forward(self, x, order):
            b = x.shape[0]
            t = self.patch(x).flatten(2).transpose(1, 2) + self.pos
            keep = order[:, :16]
            v = self.proj(self.enc(t.gather(1, keep[..., None].expand(-1, -1, t.shape[-1]))))
            full = torch.cat([v, self.tok.expand(b, 48, -1)], 1)
            back = order.argsort(1)
            full = full.gather(1, back[..., None].expand(-1, -1, 64))
            return self.out(self.dec(full + self.dpos)), back

    def loss(m, x, order):
        p, back = m(x, order)
        t = F.unfold(x, 4, stride=4).transpose(1, 2)
        mask = (back >= 16).float()
        t = (t - t.mean(-1, keepdim=True)) / (t.var(-1, keepdim=True) + 1e-6).sqrt()
        return (((p - t) ** 2).mean(-1) * mask).sum() / mask.sum()

    return Mae(), (torch.randn(8, 3, 32, 32), torch.rand(8, 64).argsort(1)), loss, adamw
