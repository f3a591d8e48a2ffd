"""Speech, translation, language."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .program import Made, adam, mlp, program, sgd


class SpeechCtc(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(80, 128, 5, 2, 2), nn.GELU(), nn.Conv1d(128, 128, 5, 1, 2), nn.GELU())
        self.rnn = nn.GRU(128, 96, batch_first=True, bidirectional=True)
        self.out = nn.Linear(192, 40)

    def forward(self, x):
        x = self.conv(x).transpose(1, 2)
        return self.out(self.rnn(x)[0]).log_softmax(-1)


@program
def ctc_speech() -> Made:
    x, t = torch.randn(8, 80, 128), torch.randint(1, 40, (8, 20))
    il, tl = torch.full((8,), 64, dtype=torch.long), torch.full((8,), 20, dtype=torch.long)

    def loss(m, x, t, il, tl):
        return F.ctc_loss(m(x).transpose(0, 1), t, il, tl)

    return SpeechCtc(), (x, t, il, tl), loss, adam


class Attend(nn.Module):
    def __init__(self, v=1000, d=96):
        super().__init__()
        self.src, self.tgt = nn.Embedding(v, d), nn.Embedding(v, d)
        self.enc = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(3 * d, d)
        self.key, self.query, self.score = nn.Linear(2 * d, d), nn.Linear(d, d), nn.Linear(d, 1)
        self.start, self.out = nn.Linear(2 * d, d), nn.Linear(3 * d, v)

    def forward(self, s, t):
        mem, _ = self.enc(self.src(s))
        keys = self.key(mem)
        h = self.start(mem.mean(1)).tanh()
        e = self.tgt(t)
        outs = []
        for i in range(t.shape[1]):
            w = self.score((keys + self.query(h)[:, None]).tanh()).squeeze(-1).softmax(-1)
            ctx = (w[:, None] @ mem).squeeze(1)
            h = self.cell(torch.cat([e[:, i], ctx], -1), h)
            outs.append(torch.cat([h, ctx], -1))
        return self.out(torch.stack(outs, 1))


@program
def seq2seq_bahdanau() -> Made:
    s, t, y = (torch.randint(0, 1000, (16, n)) for n in (20, 16, 16))
    return Attend(), (s, t, y), lambda m, s, t, y: F.cross_entropy(m(s, t).flatten(0, 1), y.flatten()), adam


class Lm(nn.Module):
    def __init__(self, v=2000, d=128):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.rnn = nn.LSTM(d, d, 2, batch_first=True)
        self.out = nn.Linear(d, v)
        self.out.weight = self.emb.weight

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@program
def lstm_lm_tied() -> Made:
    x, y = torch.randint(0, 2000, (16, 35)), torch.randint(0, 2000, (16, 35))
    return Lm(), (x, y), lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), sgd


@program
def transformer_xl() -> Made:
    class Layer(nn.Module):
        def __init__(self, d=128, h=4):
            super().__init__()
            self.h = h
            self.qkv, self.r, self.o = (
                nn.Linear(d, 3 * d, bias=False),
                nn.Linear(d, d, bias=False),
                nn.Linear(d, d, bias=False),
            )
            self.u, self.v = nn.Parameter(torch.zeros(h, d // h)), nn.Parameter(torch.zeros(h, d // h))
            self.n1, self.n2, self.ff = nn.LayerNorm(d), nn.LayerNorm(d), mlp(d, 4 * d, d)

        def forward(self, x, mem, pos):
            c = torch.cat([mem, x], 1)
            b, k, d = c.shape
            t = x.shape[1]
            q, kk, v = self.qkv(c).chunk(3, -1)
            q = q[:, -t:].reshape(b, t, self.h, -1)
            kk, v = (z.reshape(b, k, self.h, -1) for z in (kk, v))
            r = self.r(pos).view(k, self.h, -1)
            ac = torch.einsum("bihd,bjhd->bhij", q + self.u, kk)
            bd = torch.einsum("bihd,jhd->bhij", q + self.v, r)
            bd = F.pad(bd, (1, 0)).view(b, self.h, k + 1, t)[:, :, 1:].reshape(b, self.h, t, k)
            s = (ac + bd) / (d // self.h) ** 0.5
            s = s.masked_fill(torch.ones(t, k, dtype=torch.bool).triu(1 + k - t), float("-inf"))
            y = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(b, t, d)
            x = self.n1(x + self.o(y))
            return self.n2(x + self.ff(x))

    class Xl(nn.Module):
        def __init__(self, d=128, v=1000):
            super().__init__()
            self.emb, self.layers, self.out = (
                nn.Embedding(v, d),
                nn.ModuleList(Layer(d) for _ in range(3)),
                nn.Linear(d, v),
            )

        def forward(self, x, mems):
            h = self.emb(x)
            k = mems.shape[2] + x.shape[1]
            f = 1 / 10000 ** (torch.arange(0, 128, 2) / 128)
            p = torch.arange(k - 1, -1, -1.0)[:, None] * f
            pos = torch.cat([p.sin(), p.cos()], -1)
            new = []
            for layer, mem in zip(self.layers, mems):
                new.append(h.detach())
                h = layer(h, mem, pos)
            return self.out(h), torch.stack(new)

    def loss(m, x, y, mems):
        o, _new = m(x, mems)
        return F.cross_entropy(o.flatten(0, 1), y.flatten())

    return (
        Xl(),
        (torch.randint(0, 1000, (4, 64)), torch.randint(0, 1000, (4, 64)), torch.randn(3, 4, 64, 128)),
        loss,
        adam,
    )


@program
def tcn_weightnorm() -> Made:
    from torch.nn.utils.parametrizations import weight_norm

    class B(nn.Module):
        def __init__(self, i, o, d):
            super().__init__()
            self.d = d
            self.c1, self.c2 = weight_norm(nn.Conv1d(i, o, 3, dilation=d)), weight_norm(nn.Conv1d(o, o, 3, dilation=d))
            self.s = nn.Conv1d(i, o, 1) if i != o else nn.Identity()

        def forward(self, x):
            h = F.relu(self.c1(F.pad(x, (2 * self.d, 0))))
            h = F.relu(self.c2(F.pad(h, (2 * self.d, 0))))
            return F.relu(h + self.s(x))

    m = nn.Sequential(B(8, 64, 1), B(64, 64, 2), B(64, 64, 4), B(64, 64, 8), nn.Conv1d(64, 1, 1))
    return m, (torch.randn(16, 8, 128), torch.randn(16, 1, 128)), lambda m, x, y: F.huber_loss(m(x), y), adam
