"""Transformers with experts, adapters, other optimizers and types."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, adamw, program


@program
def moe_balance() -> Made:
    class Moe(nn.Module):
        def __init__(self, d=128, e=4, f=256):
            super().__init__()
            self.emb = nn.Embedding(1000, d)
            self.gate = nn.Linear(d, e, bias=False)
            self.w1, self.w2 = nn.Parameter(torch.randn(e, d, f) * 0.05), nn.Parameter(torch.randn(e, f, d) * 0.05)
            self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 1000)

        def forward(self, x):
            h = self.emb(x).flatten(0, 1)
            p = self.gate(h).softmax(-1)
            top, idx = p.topk(2, -1)
            top = top / top.sum(-1, keepdim=True)
            w = torch.zeros_like(p).scatter(1, idx, top)
            y = torch.einsum("tef,efd->ted", F.gelu(torch.einsum("td,edf->tef", h, self.w1)), self.w2)
            h = self.norm(h + (w[..., None] * y).sum(1))
            frac = F.one_hot(idx, p.shape[1]).float().sum(1).mean(0) / 2
            return self.out(h), p.shape[1] * (frac * p.mean(0)).sum()

    def loss(m, x, y):
        o, aux = m(x)
        return F.cross_entropy(o, y.flatten()) + 0.01 * aux

    return Moe(), (torch.randint(0, 1000, (8, 64)), torch.randint(0, 1000, (8, 64))), loss, adamw


class LoraLinear(nn.Module):
    def __init__(self, i, o, r=8):
        super().__init__()
        self.base = nn.Linear(i, o).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(r, i) * 0.02), nn.Parameter(torch.randn(o, r) * 0.02)

    def forward(self, x):
        return self.base(x) + F.dropout(x, 0.0) @ self.a.t() @ self.b.t() * 2.0


class LoraBlock(nn.Module):
    def __init__(self, d=192, h=6):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (LoraLinear(d, d) for _ in range(4))
        self.g, self.u, self.dn = nn.Linear(d, 512), nn.Linear(d, 512), nn.Linear(512, d)
        for p in (self.n1, self.n2, self.g, self.u, self.dn):
            p.requires_grad_(False)

    def forward(self, x):
        y = self.n1(x)
        b, t, d = y.shape
        q, k, v = (layer(y).view(b, t, self.h, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.dn(F.silu(self.g(y)) * self.u(y))


@program
def lora_llm() -> Made:
    class Llm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(2000, 192).requires_grad_(False)
            self.blocks = nn.ModuleList(LoraBlock() for _ in range(3))
            self.head = nn.Linear(192, 2000, bias=False).requires_grad_(False)

        def forward(self, x):
            h = self.emb(x)
            for b in self.blocks:
                h = b(h)
            return self.head(h)

    x = torch.randint(0, 2000, (4, 65))
    return Llm(), (x,), lambda m, x: F.cross_entropy(m(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()), adamw


class Tiny(nn.Module):
    def __init__(self, d=128, h=4, v=1000, n=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Parameter(torch.zeros(64, d))
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"),
            n,
            enable_nested_tensor=False,
        )
        self.out = nn.Linear(d, v)

    def forward(self, x, mask):
        return self.out(self.enc(self.emb(x) + self.pos, src_key_padding_mask=mask))


def tiny_inputs():
    x = torch.randint(1, 1000, (8, 64))
    mask = torch.arange(64)[None] >= torch.randint(30, 64, (8, 1))
    return x, mask, torch.where(torch.rand(8, 64) < 0.15, x, -100)


def mlm(m, x, mask, y):
    return F.cross_entropy(m(x, mask).flatten(0, 1), y.flatten(), ignore_index=-100)


@program
def mlm_adafactor() -> Made:
    return Tiny(), tiny_inputs(), mlm, lambda m: torch.optim.Adafactor(m.parameters(), 1e-3)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, wd=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "wd": wd})

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["m"], s["v"] = torch.zeros_like(p), torch.zeros_like(p)
                s["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                u = s["m"] / (s["v"].sqrt() + g["eps"]) + g["wd"] * p
                w, un = p.norm(), u.norm()
                p.add_(u * torch.where((w > 0) & (un > 0), w / un, torch.ones_like(w)) * -g["lr"])


@program
def mlm_lamb() -> Made:
    return Tiny(), tiny_inputs(), mlm, lambda m: Lamb(m.parameters())


@program
def autocast_bf16_gpt() -> Made:
    m = Tiny(d=192, h=6, n=2)

    def loss(m, x, mask, y):
        with torch.autocast("cpu", torch.bfloat16):
            o = m(x, mask)
        return F.cross_entropy(o.float().flatten(0, 1), y.flatten(), ignore_index=-100)

    return m, tiny_inputs(), loss, adamw
