"""Further programs of `small_programs.py`: networks' parts, masks, updates of optimizers, integers, signals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, of, small

BF16 = torch.bfloat16


# convolutional
def inverted_residual(x: Tensor, w: Tensor, d: Tensor, p: Tensor) -> Tensor:
    h = F.relu6(F.conv2d(x, w))
    h = F.relu6(F.conv2d(h, d, padding=1, groups=48))
    return x + F.conv2d(h, p)


def convnext_block(x: Tensor, d: Tensor, g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = F.conv2d(x, d, padding=3, groups=24).permute(0, 2, 3, 1)
    h = F.gelu(F.layer_norm(h, (24,), g) @ a) @ b
    return x + h.permute(0, 3, 1, 2)


def coordinates_convolution(x: Tensor, w: Tensor) -> Tensor:
    row = torch.linspace(-1, 1, x.shape[2]).view(1, 1, -1, 1).expand(x.shape[0], 1, -1, x.shape[3])
    column = torch.linspace(-1, 1, x.shape[3]).view(1, 1, 1, -1).expand(x.shape[0], 1, x.shape[2], -1)
    return F.relu(F.conv2d(torch.cat((x, row, column), 1), w, padding=1))


def spatial_attention(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.sigmoid(F.conv2d(torch.cat((x.mean(1, True), x.amax(1, True)), 1), w, padding=3))


def ghost(x: Tensor, w: Tensor, d: Tensor) -> Tensor:
    h = F.relu(F.conv2d(x, w))
    return torch.cat((h, F.relu(F.conv2d(h, d, padding=1, groups=16))), 1)


add(
    "inverted residual",
    inverted_residual,
    (2, 16, 28, 28),
    small(48, 16, 1, 1),
    small(48, 1, 3, 3),
    small(16, 48, 1, 1),
)
add("convnext block", convnext_block, (2, 24, 28, 28), small(24, 1, 7, 7), (24,), small(24, 96), small(96, 24))
add("convolution of coordinates", coordinates_convolution, (4, 8, 32, 32), small(16, 10, 3, 3))
add("spatial attention", spatial_attention, (4, 32, 28, 28), small(1, 2, 7, 7))
add("ghost module", ghost, (2, 16, 28, 28), small(16, 16, 1, 1), small(16, 1, 3, 3))
add("blur and downsample", lambda x: F.avg_pool2d(F.pad(x, (1, 1, 1, 1), "reflect"), 3, 2), (4, 16, 41, 41))
add("mean and deviation pooling", lambda x: torch.cat((x.mean(-1), x.std(-1)), 1), (16, 64, 200))


# attention
def attention_with_sinks(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    scores = (q @ k.mT / 5.6).masked_fill(torch.ones(48, 48, dtype=torch.bool).triu(1), -math.inf)
    return F.softmax(torch.cat((scores, s[None, :, None, None].expand(2, -1, 48, 1)), -1), -1)[..., :-1] @ v


def normed_queries(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    q, k = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w for x, w in ((q, a), (k, b)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def pooled_by_attention(x: Tensor, q: Tensor, m: Tensor) -> Tensor:
    scores = (x @ q).masked_fill(m == 0, -1e9)
    return (F.softmax(scores, 1)[..., None] * x).sum(1)


def slots(s: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = F.softmax(k @ s.mT / 8, -1) + 1e-8
    return (a / a.sum(1, keepdim=True)).mT @ v


_heads = ((2, 4, 48, 32),) * 3
add("attention with sinks", attention_with_sinks, *_heads, (4,))
add("normed queries and keys", normed_queries, *_heads, (32,), (32,))
add("pooled by attention", pooled_by_attention, (16, 60, 64), (64,), Whole(4, (16, 60)))
add("slot attention", slots, (8, 7, 64), (8, 100, 64), (8, 100, 64))
add(
    "memory lookup",
    lambda q, m: F.softmax(F.normalize(q, dim=-1) @ F.normalize(m, dim=-1).T * 5, -1) @ m,
    (64, 32),
    (128, 32),
)


# losses
def supervised_contrastive(x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(x, dim=1)
    s = z @ z.T / 0.1
    self_ = torch.eye(len(x), dtype=torch.bool)
    same = (y[:, None] == y[None]) & ~self_
    log = s - s.masked_fill(self_, -math.inf).logsumexp(1, keepdim=True)
    return -(log * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


def poly_loss(x: Tensor, y: Tensor) -> Tensor:
    p = F.softmax(x, -1).gather(1, y[:, None])[:, 0]
    return (F.cross_entropy(x, y, reduction="none") + 1 - p).mean()


def ordinal(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, (torch.arange(x.shape[1])[None] < y[:, None]).float())


def evidential(x: Tensor, y: Tensor) -> Tensor:
    alpha = F.softplus(x) + 1
    total = alpha.sum(1, keepdim=True)
    return (F.one_hot(y, x.shape[1]) * (total.log() - alpha.log())).sum(1).mean()


add("supervised contrastive", supervised_contrastive, (96, 64), Whole(10, (96,)))
add("poly loss", poly_loss, (256, 100), Whole(100, (256,)))
add("ordinal regression", ordinal, (500, 9), Whole(9, (500,)))
add("evidential", evidential, (200, 20), Whole(20, (200,)))
add(
    "distilled logits",
    lambda s, t: (
        F.kl_div(F.log_softmax(s / 3, -1), F.log_softmax(t / 3, -1), log_target=True, reduction="batchmean") * 9
    ),
    (64, 200),
    of(64, 200, learns=False),
)
add(
    "charbonnier and gradients",
    lambda x, y: ((x - y).square() + 1e-6).sqrt().mean() + (x.diff(dim=-1) - y.diff(dim=-1)).abs().mean(),
    (4, 3, 64, 64),
    (4, 3, 64, 64),
)
add(
    "soft f1",
    lambda x, y: (lambda p, t: (1 - (2 * p * t).sum(0) / ((p + t).sum(0) + 1e-6)).mean())(x.sigmoid(), y.float()),
    (300, 40),
    Whole(2, (300, 40)),
)
add(
    "wing loss",
    lambda x, y: (lambda d: torch.where(d < 10, 10 * (1 + d / 2).log(), d - 2.1).mean())((x - y).abs()),
    (64, 136),
    (64, 136),
)


# optimizers
def sgd_nesterov(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    g = g + 1e-4 * p
    m = 0.9 * m + g
    return p - 0.1 * (g + 0.9 * m), m


def adamw_amsgrad(p: Tensor, g: Tensor, m: Tensor, v: Tensor, top: Tensor) -> tuple[Tensor, ...]:
    m, v = m.lerp(g, 0.1), v.abs() * 0.999 + 0.001 * g * g
    top = torch.maximum(top, v)
    return p * 0.9999 - 1e-3 * m / (top.sqrt() + 1e-8), m, v, top


def clipped_by_norm(*g: Tensor) -> list[Tensor]:
    total = torch.stack([x.norm() for x in g]).norm()
    return [x * (1 / (total + 1e-6)).clamp(max=1) for x in g]


add("sgd with nesterov", sgd_nesterov, (300, 200), (300, 200), (300, 200), trains=False)
add("adamw with amsgrad", adamw_amsgrad, *((300, 200),) * 5, trains=False)
add("clipped by their norm", clipped_by_norm, (200, 100), (100,), (64, 64), (64,), trains=False)
add("average of weights", lambda p, q: torch._foreach_lerp([p], [q], 0.01)[0], (500, 400), (500, 400), trains=False)


# norms
add("scale norm", lambda x, g: g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5), (8, 50, 96), ())
add("dynamic tanh", lambda x, a, w, b: torch.tanh(a * x) * w + b, (8, 100, 128), (), (128,), (128,))
add(
    "norm after residual in bf16",
    lambda x, y, w: F.rms_norm(x + y, (256,), w),
    of(64, 256, dtype=BF16),
    of(64, 256, dtype=BF16),
    of(256, dtype=BF16),
)
add("centred by median", lambda x: (x - x.median(1, keepdim=True)[0]) / (x.std(1, keepdim=True) + 1e-5), (64, 101))
add("whitened", lambda x: (x - x.mean(0)) @ torch.linalg.cholesky(x.T @ x / 200 + torch.eye(16)), (200, 16))


# scans and steps
def leaky_integrate_and_fire(x: Tensor) -> Tensor:
    v, spikes = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        v = 0.9 * v + x[t]
        s = torch.sigmoid(10 * (v - 1))
        v = v * (1 - s)
        spikes.append(s)
    return torch.stack(spikes)


def smoothed_twice(x: Tensor, a: Tensor) -> Tensor:
    level, trend, out = x[:, 0], x[:, 1] - x[:, 0], []
    g = a.sigmoid()
    for t in range(1, x.shape[1]):
        last = level
        level = g[0] * x[:, t] + (1 - g[0]) * (level + trend)
        trend = g[1] * (level - last) + (1 - g[1]) * trend
        out.append(level + trend)
    return torch.stack(out, 1)


add("leaky integrate and fire", leaky_integrate_and_fire, (32, 16, 64))
add("smoothed twice", smoothed_twice, (64, 30), (2,))
add("running maximum and reset", lambda x: (x.cumsum(1) - x.cumsum(1).cummax(1)[0]).amin(1), (64, 250))


# gathers
def message_passing(x: Tensor, s: Tensor, t: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, t, F.relu(torch.cat((x[s], x[t]), 1) @ w))


def neighbours(x: Tensor, i: Tensor) -> Tensor:
    near = x[i]
    return torch.cat((near - x[:, None], x[:, None].expand_as(near)), -1).amax(1)


add("edge messages", message_passing, (300, 32), Whole(300, (1200,)), Whole(300, (1200,)), small(64, 32))
add("edge convolution of neighbours", neighbours, (256, 24), Whole(256, (256, 8)))
add(
    "weighted bags",
    lambda w, i, a: F.embedding_bag(i, w, mode="sum", per_sample_weights=a),
    (2000, 32),
    Whole(2000, (100, 12)),
    (100, 12),
)
add(
    "several tables",
    lambda a, b, c, i: torch.cat([F.embedding(i[:, k], t) for k, t in enumerate((a, b, c))], 1),
    (500, 16),
    (700, 8),
    (900, 32),
    Whole(500, (256, 3)),
)
add(
    "negative samples",
    lambda w, i, j, n: (
        -(F.logsigmoid((w[i] * w[j]).sum(-1)) + F.logsigmoid(-(w[i][:, None] * w[n]).sum(-1)).sum(1)).mean()
    ),
    (1000, 32),
    Whole(1000, (200,)),
    Whole(1000, (200,)),
    Whole(1000, (200, 5)),
)


# quantisation and integers
def int8_rows_and_columns(x: Tensor, w: Tensor) -> Tensor:
    a, b = x.abs().amax(1, keepdim=True) / 127, w.abs().amax(1, keepdim=True) / 127
    return ((x / a).round() @ (w / b).round().T) * a * b.T


def hamming(a: Tensor, b: Tensor) -> Tensor:
    x = a[:, None] ^ b[None]
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(torch.int32)


def lfsr(x: Tensor) -> Tensor:
    for _ in range(8):
        x = (x >> 1) ^ ((x & 1) * 0xB400)
    return x


add("int8 by rows and columns", int8_rows_and_columns, (64, 128), (96, 128), trains=False)
add("hamming distances", hamming, Whole(1 << 30, (64,)), Whole(1 << 30, (200,)), trains=False)
add("shift registers", lfsr, Whole(1 << 16, (5000,)), trains=False)
add(
    "straight through rounding",
    lambda x, s: x + ((x / s).round().clamp(-8, 7) * s - x).detach(),
    (128, 256),
    Of(lambda: torch.full((128, 1), 0.1)),
)
add("binary weights", lambda x, w: F.linear(x, (w.sign() - w).detach() + w) * w.abs().mean(), (64, 100), (80, 100))


# signals and physics
def leapfrog(x: Tensor, v: Tensor) -> Tensor:
    for _ in range(4):
        v = v - 0.05 * x * (1 + x.square().sum(-1, keepdim=True)).rsqrt()
        x = x + 0.1 * v
    return torch.cat((x, v), -1)


def maxwell(e: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(3):
        h = h + 0.5 * (F.pad(e[:, 1:], (0, 1)) - e)
        e = e + 0.5 * (h - F.pad(h[:, :-1], (1, 0)))
    return e, h


add("leapfrog", leapfrog, (1000, 3), (1000, 3))
add("maxwell in a line", maxwell, (32, 400), (32, 400))
add(
    "goertzel",
    lambda x: (x[:, None] * torch.cos(torch.arange(256) * torch.arange(1, 9)[:, None] * 0.1)).sum(-1).square(),
    (32, 256),
)
add("envelope", lambda x: F.avg_pool1d(x.square()[:, None], 15, 1, 7)[:, 0].sqrt(), (16, 1000))
add("soft threshold of waves", lambda x: x.sign() * F.relu(x.abs() - 0.3 * x.abs().amax(-1, keepdim=True)), (64, 300))
add(
    "advection upwind",
    lambda x, u: x - 0.1 * torch.where(u > 0, u * (x - x.roll(1, -1)), u * (x.roll(-1, -1) - x)),
    (50, 400),
    (50, 400),
)
add("logistic maps", lambda x: (lambda y: 3.7 * y * (1 - y))((lambda y: 3.7 * y * (1 - y))(x.sigmoid())), (100, 300))


# large pointwise, tiny
add("large swiglu", lambda x: F.silu(x[:, :1024]) * x[:, 1024:], (1024, 2048))
add("large dropout mask", lambda x, m: x * (m > 1) / 0.9, (1024, 1024), Whole(10, (1024, 1024)))
add("large tanh and sum", lambda x: torch.tanh(x).sum(-1), (2048, 1024))
add("large cast and scale", lambda x: (x.to(BF16) * 2).float(), (1024, 1500))
add("large gelu of tanh", lambda x: F.gelu(x, approximate="tanh"), (1500, 1024))
add("tiny mlp", lambda x, a, b: F.relu(x @ a) @ b, (4, 8), (8, 16), (16, 2))
add(
    "tiny rotation",
    lambda x, t: torch.stack((x[:, 0] * t.cos() - x[:, 1] * t.sin(), x[:, 0] * t.sin() + x[:, 1] * t.cos()), 1),
    (6, 2),
    (),
)
add("tiny norm", lambda x, w: F.rms_norm(x, (16,), w), (2, 16), (16,))
add("tiny softmax", lambda x: F.softmax(x * 2, -1), (3, 7))
