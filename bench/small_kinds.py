"""More programs of `small_programs.py`: signals, images of bytes, sampling, segments, sorting, quantisation, physics,
finance, optimizers by hand, attention and normalisation variants."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, of, small

U8 = torch.uint8
_image, _heads = Whole(256, (3, 240, 320), U8), ((2, 4, 96, 32),) * 3


def ema(x: Tensor) -> Tensor:
    y, out = x[:, 0], []
    for t in range(x.shape[1]):
        y = 0.9 * y + 0.1 * x[:, t]
        out.append(y)
    return torch.stack(out, 1)


def biquad(x: Tensor) -> Tensor:
    a = b = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        y = 0.2 * x[:, t] + 0.5 * a - 0.3 * b
        a, b = y, a
        out.append(y)
    return torch.stack(out, 1)


# signals
add("exponential average of a series", ema, (256, 48))
add("biquad filter", biquad, (256, 48))
add(
    "power spectrum",
    lambda x: torch.fft.rfft(x * torch.hann_window(256)).abs().square().clamp_min(1e-9).log(),
    (64, 256),
)
add("mel energies", lambda p, m: (p.abs() @ m.abs() + 1e-6).log10().clamp_min(-4) * 10, (300, 201), (201, 64))
add(
    "frames overlapped",
    lambda x: F.fold((x * torch.hann_window(64)[:, None]), (1, 528), (1, 64), stride=(1, 16)),
    (8, 64, 30),
)
add(
    "zero crossings",
    lambda x: (torch.sign(x[:, 1:]) != torch.sign(x[:, :-1])).float().mean(1),
    (64, 4000),
    trains=False,
)
add(
    "autocorrelation again",
    lambda x: torch.stack([(x[:, k:] * x[:, : 500 - k]).mean(1) for k in range(1, 12)], 1),
    (64, 500),
)
add(
    "mu law",
    lambda x: ((x.sign() * torch.log1p(255 * x.abs()) / math.log(256) + 1) / 2 * 255 + 0.5).long(),
    (8, 8000),
    trains=False,
)

# images of bytes
add(
    "grey of bytes",
    lambda x: ((x[0].int() * 77 + x[1].int() * 150 + x[2].int() * 29) >> 8).to(U8),
    _image,
    trains=False,
)
add("brightness of bytes", lambda x: (x.float() * 1.3 + 12).clamp(0, 255).to(U8), _image, trains=False)
add(
    "threshold of bytes",
    lambda x: torch.where(x > 127, torch.full_like(x, 255), torch.zeros_like(x)),
    _image,
    trains=False,
)
add("posterize", lambda x: x & 0xE0, _image, trains=False)
add("solarize", lambda x: torch.where(x < 128, x, 255 - x), _image, trains=False)
add("box blur of bytes", lambda x: F.avg_pool2d(x.float(), 3, 1, 1).round().to(U8), _image, trains=False)
add("erosion", lambda x: -F.max_pool2d(-x, 3, 1, 1), (4, 1, 120, 160))
add("median of 3x3", lambda x: F.unfold(x, 3).median(1)[0], (2, 1, 60, 60), trains=False)
add("hsv value and saturation", lambda x: (x.amax(1), (x.amax(1) - x.amin(1)) / (x.amax(1) + 1e-6)), (2, 3, 120, 160))
add(
    "histogram equalised",
    lambda x: (torch.bincount(x.flatten().long(), minlength=256).cumsum(0) * 255 // x.numel()).to(U8)[x.long()],
    _image,
    trains=False,
)
add(
    "alpha compositing",
    lambda a, b, m: a * m.sigmoid() + b * (1 - m.sigmoid()),
    (2, 3, 120, 160),
    (2, 3, 120, 160),
    (2, 1, 120, 160),
)
add(
    "total variation",
    lambda x: (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean(),
    (4, 3, 96, 96),
)
add(
    "ssim",
    lambda x, y: (
        lambda p: (
            (2 * p(x) * p(y) + 0.01)
            * (2 * (p(x * y) - p(x) * p(y)) + 0.03)
            / ((p(x) ** 2 + p(y) ** 2 + 0.01) * (p(x * x) - p(x) ** 2 + p(y * y) - p(y) ** 2 + 0.03))
        ).mean()
    )(lambda z: F.avg_pool2d(z, 7, 1)),
    (2, 3, 64, 64),
    (2, 3, 64, 64),
)
add("gamma", lambda x: x.clamp(0, 1) ** (1 / 2.2), (4, 3, 120, 160))


# sampling and losses
add(
    "gumbel softmax", lambda x, u: F.softmax((x - torch.log(-torch.log(u.sigmoid()))) / 0.7, -1), (128, 500), (128, 500)
)
add(
    "top k masked logits",
    lambda x: F.softmax(torch.where(x >= x.topk(20, -1)[0][:, -1:], x, -math.inf), -1),
    (16, 4000),
    trains=False,
)
add(
    "top p masked logits",
    lambda x: (lambda s: s[0].masked_fill(F.softmax(s[0], -1).cumsum(-1) > 0.9, -math.inf).softmax(-1))(
        x.sort(-1, descending=True)
    ),
    (8, 2000),
    trains=False,
)
add(
    "inverse transform",
    lambda w, u: torch.searchsorted(w.abs().cumsum(-1), u.sigmoid() * 10),
    (64, 300),
    (64, 50),
    trains=False,
)
add(
    "normal log density",
    lambda x, m, s: (-0.5 * ((x - m) / s.exp()) ** 2 - s - 0.5 * math.log(2 * math.pi)).sum(-1),
    (500, 64),
    (500, 64),
    (500, 64),
)
add(
    "kl of gaussians again",
    lambda m, s, n, t: (t - s + (s.mul(2).exp() + (m - n) ** 2) / (2 * t.mul(2).exp()) - 0.5).sum(1).mean(),
    *(((256, 64),) * 4),
)
add(
    "mixture density",
    lambda x, m, s, w: (
        -(torch.logsumexp(F.log_softmax(w, -1) - 0.5 * ((x[:, None] - m) / s.exp()) ** 2 - s, -1)).mean()
    ),
    (512,),
    (512, 20),
    (512, 20),
    (512, 20),
)
add(
    "contrastive again",
    lambda a, b: F.cross_entropy(F.normalize(a) @ F.normalize(b).T / 0.07, torch.arange(128)),
    (128, 64),
    (128, 64),
)
add(
    "focal on pixels",
    lambda x, y: (lambda c: ((1 - torch.exp(-c)) ** 2 * c).mean())(F.cross_entropy(x, y, reduction="none")),
    (2, 19, 48, 64),
    Whole(19, (2, 48, 64)),
)
add(
    "tversky",
    lambda x, y: (lambda p, t: 1 - (p * t).sum((1, 2)) / (0.7 * p.sum((1, 2)) + 0.3 * t.sum((1, 2)) + 1))(
        x.sigmoid(), y.float()
    ).mean(),
    (8, 100, 100),
    Whole(2, (8, 100, 100)),
)
add(
    "quantile loss",
    lambda x, y: torch.stack(
        [torch.maximum(q * (y - x[..., i]), (q - 1) * (y - x[..., i])) for i, q in enumerate((0.1, 0.5, 0.9))]
    ).mean(),
    (400, 30, 3),
    (400, 30),
)
add("pairwise ranking", lambda s: F.softplus(-(s[:, :, None] - s[:, None])).triu(1).mean(), (8, 60))
add(
    "generalised advantages",
    lambda r, v: (
        lambda d: torch.stack([sum(0.9**k * d[t + k] for k in range(min(8, 40 - t))) for t in range(0, 40, 5)])
    )(r[:-1] + 0.99 * v[1:] - v[:-1]),
    (41, 64),
    (41, 64),
)

# segments, sorting, gathers
_ids = Whole(200, (4000,))
add(
    "segment means",
    lambda x, i: (
        torch.zeros(200, 16).index_add(0, i, x)
        / torch.zeros(200).index_add(0, i, torch.ones(4000)).clamp_min(1)[:, None]
    ),
    (4000, 16),
    _ids,
)
add(
    "segment softmax",
    lambda x, i: (lambda e: e / torch.zeros(200).index_add(0, i, e)[i])(
        (x - torch.full((200,), -9e9).scatter_reduce(0, i, x, "amax")[i]).exp()
    ),
    (4000,),
    _ids,
)
add(
    "sparse times dense",
    lambda v, r, c, d: torch.zeros(200, 32).index_add(0, r, v[:, None] * d[c]),
    (4000,),
    _ids,
    Whole(300, (4000,)),
    (300, 32),
)
add(
    "ragged bag",
    lambda w, i, o: F.embedding_bag(i, w, o, mode="mean"),
    (1000, 32),
    Whole(1000, (800,)),
    Of(lambda: torch.arange(0, 800, 8)),
)
add("argsort and gather", lambda x: x.gather(1, x.argsort(1)[:, :10]), (64, 300))
add("rank transform", lambda x: x.argsort(1).argsort(1).float() / 299, (64, 300), trains=False)
add("one hot counts", lambda i: F.one_hot(i, 50).sum(1), Whole(50, (64, 100)), trains=False)
add(
    "unique pairs key",
    lambda a, b: (a * 1000 + b).sort()[0].diff().ne(0).sum(),
    Whole(1000, (20000,)),
    Whole(1000, (20000,)),
    trains=False,
)
add(
    "bucket embeddings", lambda x, w: w[torch.bucketize(x, torch.linspace(-2, 2, 31))], of(5000, learns=False), (32, 16)
)
add(
    "masked mean of tokens",
    lambda x, n: (x * (torch.arange(60) < n[:, None])[..., None]).sum(1) / n.clamp_min(1)[:, None],
    (32, 60, 64),
    Whole(60, (32,)),
)
add("hash features", lambda i, w: w[((i * 2654435761) >> 7) % 1000].sum(1), Whole(10**6, (256, 20)), (1000, 16))

# quantisation
add(
    "fake quantised",
    lambda x: (lambda s: x + ((x / s).round().clamp(-128, 127) * s - x).detach())(x.abs().amax(-1, keepdim=True) / 127),
    (256, 300),
)
add(
    "int8 product by hand",
    lambda a, b: (a.int() @ b.int().T).float() * 0.01,
    Whole(100, (64, 128), torch.int8),
    Whole(100, (48, 128), torch.int8),
    trains=False,
)
add(
    "nibbles unpacked",
    lambda x: torch.stack([x & 15, x >> 4], -1).flatten(1).float().sub(8) * 0.1,
    Whole(256, (256, 256), U8),
    trains=False,
)
add(
    "ternary weights",
    lambda x, w: F.linear(
        x, (lambda t: w + (torch.where(w > t, 1.0, torch.where(w < -t, -1.0, 0.0)) - w).detach())(0.7 * w.abs().mean())
    ),
    (64, 128),
    (96, 128),
)
add(
    "nearest codes",
    lambda x, c: (x.square().sum(1, keepdim=True) - 2 * x @ c.T + c.square().sum(1)).argmin(1),
    (1000, 16),
    (64, 16),
    trains=False,
)
add("bit counts", lambda x: sum((x >> k) & 1 for k in range(8)), Whole(256, (300, 300)), trains=False)


# physics, finance, optimizers
def euler(x: Tensor, v: Tensor) -> Tensor:
    for _ in range(8):
        d = x[:, None] - x[None]
        v = v - 0.01 * (d / (d.square().sum(-1, keepdim=True) + 0.1) ** 1.5).sum(1)
        x = x + 0.01 * v
    return x


def walk(z: Tensor) -> Tensor:
    s = torch.full((z.shape[1],), 100.0)
    v = torch.full((z.shape[1],), 0.04)
    for t in range(z.shape[0]):
        s = s * torch.exp(-0.5 * v * 0.01 + v.clamp_min(0).sqrt() * 0.1 * z[t, :, 0])
        v = v + 0.5 * (0.04 - v) * 0.01 + 0.3 * v.clamp_min(1e-8).sqrt() * 0.1 * z[t, :, 1]
    return F.relu(s - 100).mean()


def stencil(u: Tensor) -> Tensor:
    for _ in range(6):
        lap = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u
        u = u + 0.1 * lap + 0.01 * u * (1 - u * u)
    return u


def tridiagonal(a: Tensor, b: Tensor) -> Tensor:
    c, d = [a[:, 0] * 0.1], [b[:, 0]]
    for i in range(1, 24):
        m = 1.0 / (2.5 - 0.3 * c[-1])
        c.append(a[:, i] * 0.1 * m)
        d.append((b[:, i] - 0.3 * d[-1]) * m)
    return torch.stack(d, 1)


def lamb(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.abs() + 0.001 * g * g
    u = m / (v.sqrt() + 1e-6) + 0.01 * p
    return p - 0.001 * p.norm() / u.norm() * u, m, v


add("bodies", euler, (48, 3), (48, 3))
add("heston", walk, (24, 4000, 2))
add("reaction and diffusion", stencil, (96, 96))
add("stencil 3d", lambda u: F.conv3d(u, torch.ones(1, 1, 3, 3, 3) / 27, padding=1) - u, (1, 1, 24, 32, 32))
add("tridiagonal solve", tridiagonal, (500, 24), (500, 24))
add(
    "black scholes",
    lambda s, t: (
        lambda d: (
            s.exp() * torch.special.ndtr(d)
            - torch.exp(-0.02 * t.abs()) * torch.special.ndtr(d - 0.2 * (t.abs() + 0.01).sqrt())
        )
    )((s + 0.04 * t.abs()) / (0.2 * (t.abs() + 0.01).sqrt())),
    (20000,),
    (20000,),
)
add("value at risk", lambda w, r: (r @ w.softmax(0)).quantile(0.05), (30,), (2000, 30))
add("lamb by hand", lamb, *((300, 200),) * 4, trains=False)
add(
    "lion by hand",
    lambda p, g, m: (p - 1e-4 * (torch.sign(0.9 * m + 0.1 * g) + 0.01 * p), 0.99 * m + 0.01 * g),
    *((300, 200),) * 3,
    trains=False,
)
add(
    "newton schulz",
    lambda g: [x := g / g.norm()] and [x := 1.5 * x - 0.5 * x @ x.T @ x for _ in range(4)][-1],
    (48, 64),
)

# attention, normalisation, recurrent
add("soft cap", lambda q, k, v: F.softmax(torch.tanh(q @ k.mT / 30) * 30, -1) @ v, *_heads)
add(
    "cosine attention",
    lambda q, k, v: F.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10, -1) @ v,
    *_heads,
)
add(
    "groups of queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)),
    (2, 8, 64, 32),
    (2, 2, 64, 32),
    (2, 2, 64, 32),
)
add("sigmoid attention", lambda q, k, v: torch.sigmoid(q @ k.mT / 6 - 4.6) @ v, *_heads)
add(
    "differential attention",
    lambda q, k, v: (
        (F.softmax(q[..., :16] @ k[..., :16].mT, -1) - 0.5 * F.softmax(q[..., 16:] @ k[..., 16:].mT, -1)) @ v
    ),
    *_heads,
)
add(
    "retention",
    lambda q, k, v: (q @ k.mT * (0.97 ** (torch.arange(96)[:, None] - torch.arange(96)).clamp_min(0)).tril()) @ v,
    *_heads,
)
add(
    "weight normalised linear",
    lambda x, v, g: F.linear(x, v * (g / v.norm(dim=1, keepdim=True))),
    (128, 96),
    (160, 96),
    (160, 1),
)
add(
    "batch statistics by hand",
    lambda x: (x - x.mean((0, 2, 3), keepdim=True)) * (x.var((0, 2, 3), keepdim=True) + 1e-5).rsqrt(),
    (8, 24, 28, 28),
)
add(
    "global response norm",
    lambda x: (lambda g: x * (g / (g.mean(-1, keepdim=True) + 1e-6)) + x)(x.norm(dim=(1, 2), keepdim=True)),
    (4, 24, 24, 64),
)
add(
    "adaptive layer norm",
    lambda x, c: F.layer_norm(x, (64,)) * (1 + c[:, None, :64]) + c[:, None, 64:],
    (8, 60, 64),
    (8, 128),
)
add(
    "spectral normalised",
    lambda w, u: (lambda v: w / (F.normalize(w @ v, dim=0) @ (w @ v)))(F.normalize(w.T @ u, dim=0)),
    (96, 160),
    (96,),
)
add("minimal gated unit", lambda x, w: _gated(x, w), (20, 32, 64), small(64, 128))
add(
    "swiglu with residual",
    lambda x, a, b, c: x + (F.silu(x @ a) * (x @ b)) @ c,
    (128, 64),
    small(64, 172),
    small(64, 172),
    small(172, 64),
)
add(
    "squeeze and excite 3d",
    lambda x, a, b: x * ((x.mean((2, 3, 4)) @ a).relu() @ b).sigmoid()[..., None, None, None],
    (2, 16, 8, 16, 16),
    (16, 4),
    (4, 16),
)
add(
    "pooled 3d convolution",
    lambda x, w: F.max_pool3d(F.conv3d(x, w, padding=1).relu(), 2),
    (1, 4, 12, 24, 24),
    (8, 4, 3, 3, 3),
)


def _gated(x: Tensor, w: Tensor) -> Any:
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        f, c = (torch.cat([x[t, :, :32], h[:, :32]], 1) @ w).chunk(2, 1)
        h = h + f.sigmoid() * (c.tanh() - h)
    return h
