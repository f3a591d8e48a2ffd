"""Losses of segmentation and detection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, program, sgd


@program
def unet_dice() -> Made:
    class U(nn.Module):
        def __init__(self, w=16):
            super().__init__()

            def b(i, o):
                return nn.Sequential(
                    nn.Conv2d(i, o, 3, 1, 1),
                    nn.InstanceNorm2d(o, affine=True),
                    nn.LeakyReLU(0.01),
                    nn.Conv2d(o, o, 3, 1, 1),
                    nn.InstanceNorm2d(o, affine=True),
                    nn.LeakyReLU(0.01),
                )

            self.a, self.b, self.c = b(1, w), b(w, 2 * w), b(2 * w, 4 * w)
            self.u2, self.u1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)
            self.d2, self.d1, self.o = b(4 * w, 2 * w), b(2 * w, w), nn.Conv2d(w, 4, 1)

        def forward(self, x):
            a = self.a(x)
            b = self.b(F.max_pool2d(a, 2))
            c = self.c(F.max_pool2d(b, 2))
            x = self.d2(torch.cat([self.u2(c), b], 1))
            return self.o(self.d1(torch.cat([self.u1(x), a], 1)))

    def loss(m, x, y):
        o = m(x)
        p = o.softmax(1)
        t = F.one_hot(y, 4).permute(0, 3, 1, 2).float()
        dice = (2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)
        return F.cross_entropy(o, y) + 1 - dice.mean()

    return U(), (torch.randn(2, 1, 96, 96), torch.randint(0, 4, (2, 96, 96))), loss, sgd


@program
def focal_head() -> Made:
    class Head(nn.Module):
        def __init__(self, c=64, k=20, a=3):
            super().__init__()

            def tower():
                parts = [(nn.Conv2d(c, c, 3, 1, 1), nn.GroupNorm(8, c), nn.ReLU()) for _ in range(2)]
                return nn.Sequential(*parts[0], *parts[1])

            self.ct, self.bt = tower(), tower()
            self.cls, self.box = nn.Conv2d(c, a * k, 3, 1, 1), nn.Conv2d(c, a * 4, 3, 1, 1)
            self.k = k

        def forward(self, feats):
            c = [self.cls(self.ct(f)).permute(0, 2, 3, 1).reshape(f.shape[0], -1, self.k) for f in feats]
            b = [self.box(self.bt(f)).permute(0, 2, 3, 1).reshape(f.shape[0], -1, 4) for f in feats]
            return torch.cat(c, 1), torch.cat(b, 1)

    fs = [torch.randn(2, 64, s, s) for s in (32, 16, 8)]
    n = 3 * (32 * 32 + 16 * 16 + 64)
    lab, box = torch.randint(-20, 20, (2, n)), torch.randn(2, n, 4)

    def loss(m, f1, f2, f3, lab, box):
        c, b = m([f1, f2, f3])
        t = F.one_hot(lab.clamp(min=0), 20).float() * (lab >= 0)[..., None]
        p = c.sigmoid()
        ce = F.binary_cross_entropy_with_logits(c, t, reduction="none")
        pt = p * t + (1 - p) * (1 - t)
        fl = (0.25 * t + 0.75 * (1 - t)) * ce * (1 - pt) ** 2
        pos = (lab >= 0).float()
        return (
            fl.sum() / pos.sum()
            + (F.smooth_l1_loss(b, box, reduction="none", beta=0.1).sum(-1) * pos).sum() / pos.sum()
        )

    return Head(), (*fs, lab, box), loss, sgd
