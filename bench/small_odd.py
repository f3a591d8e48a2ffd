"""Odd programs of `small_programs.py`: reductions over any axis, chains, gathers, layouts, dtypes, large and tiny."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, last, of, small

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
I32, U8 = torch.int32, torch.uint8


# reductions over odd axes
add("odd middle mean", lambda x: x.mean(1), (64, 77, 130))
add("odd outer and inner sums", lambda x: x.sum((0, 2)), (50, 96, 200))
add("odd first two axes", lambda x: x.square().sum((0, 1)), (40, 300, 96))
add("odd columns of three", lambda x: x.sum(0), (200000, 3))
add("odd columns of five, extremes", lambda x: (x.amax(0), x.amin(0)), (100000, 5))
add("odd large columns", lambda x: (x.mean(0), x.var(0)), (6000, 700))
add("odd large columns of bf16", lambda x: x.sum(0), of(8192, 1024, dtype=BF16))
add("odd large column maxima", lambda x: x.amax(0), (4096, 1024))
add("odd every third row", lambda x: x[::3].sum(0), (9000, 200))
add("odd argmax of columns", lambda x: x.argmax(0), (2000, 300), trains=False)
add("odd log sum of columns", lambda x: x.logsumexp(0), (1500, 400))
add("odd sum of products", lambda x, y: (x * y).sum((1, 2)), (60, 40, 50), (60, 40, 50))
add("odd trace of squares", lambda x: (x @ x.mT).diagonal(dim1=1, dim2=2).sum(-1), (64, 30, 40))


# norms and chains
def residual_chain(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.layer_norm(x + y, (768,), w, b)
    return F.gelu(h) * torch.sigmoid(x)


def normed_twice(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.rms_norm(F.silu(F.rms_norm(x, (512,), w)), (512,), v) + x


add("odd residual norm and gelu", residual_chain, (2000, 768), (2000, 768), (768,), (768,))
add("odd rms norms with silu", normed_twice, (1500, 512), (512,), (512,))
add("odd rms norm of bf16", lambda x, w: F.rms_norm(x, (1024,), w), of(2048, 1024, dtype=BF16), of(1024, dtype=BF16))
add("odd group norm and silu", lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), (8, 64, 56, 56), (64,), (64,))
add(
    "odd batch norm, relu, channels last",
    lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
    last(16, 64, 40, 40),
    (64,),
    (64,),
)
add("odd instance norm and leak", lambda x: F.leaky_relu(F.instance_norm(x), 0.2), (8, 32, 60, 60))
add("odd bias and gelu", lambda x, b: F.gelu(x + b), (4096, 1024), (1024,))
add("odd bias, relu, dropout mask", lambda x, b, m: F.relu(x + b) * m, (2048, 512), (512,), of(2048, 512, learns=False))
add(
    "odd film",
    lambda x, s, b: x * (1 + s[:, :, None, None]) + b[:, :, None, None],
    (16, 64, 28, 28),
    (16, 64),
    (16, 64),
)
add(
    "odd weight norm",
    lambda x, v, g: F.linear(x, g[:, None] * v / v.norm(dim=1, keepdim=True)),
    (64, 256),
    (512, 256),
    (512,),
)
add(
    "odd standardised weights",
    lambda w: (w - w.mean((1, 2, 3), True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5),
    (128, 64, 3, 3),
)


# softmax variants
add("odd softmax in the middle", lambda x: F.softmax(x, 1), (32, 50, 64))
add("odd softmax, short rows", lambda x: F.softmax(x, -1), (20000, 9))
add(
    "odd masked softmax of bf16",
    lambda x, m: F.softmax(x.masked_fill(m > 6, -1e4), -1),
    of(64, 8, 100, dtype=BF16),
    Whole(10, (64, 8, 100)),
)
add(
    "odd sparsemax by sorting",
    lambda x: (lambda s: F.relu(x - ((s.cumsum(-1) - 1) / torch.arange(1, 65)).amax(-1, keepdim=True)))(
        x.sort(-1, descending=True)[0]
    ),
    (200, 64),
)
add("odd entropy", lambda x: -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1), (512, 1000))
add("odd two way softmax", lambda x: F.softmax(x, 1) * F.softmax(x, 2), (16, 80, 90))
add(
    "odd cosine softmax",
    lambda q, k: F.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10, -1),
    (16, 60, 32),
    (16, 70, 32),
)


# gathers and scatters
add("odd rows and scale", lambda t, i, s: t[i] * s[:, None], (5000, 128), Whole(5000, (3000,)), (3000,))
add("odd last of sequences", lambda x, n: x[torch.arange(x.shape[0]), n], (64, 100, 128), Whole(100, (64,)))
add(
    "odd scatter mean",
    lambda x, i: torch.zeros(100, 32).index_add(0, i, x) / torch.bincount(i, minlength=100).clamp(min=1)[:, None],
    (5000, 32),
    Whole(100, (5000,)),
)
add(
    "odd scatter of maxima",
    lambda x, i: torch.full((200,), -9.0).scatter_reduce(0, i, x, "amax"),
    (8000,),
    Whole(200, (8000,)),
)
add("odd bags by hand", lambda t, i: t[i].mean(1), (5000, 64), Whole(5000, (512, 20)))
add("odd bag of sums", lambda t, i: F.embedding_bag(i, t, mode="sum"), (5000, 64), Whole(5000, (512, 20)))
add("odd bag of maxima", lambda t, i: F.embedding_bag(i, t, mode="max"), (2000, 32), Whole(2000, (100, 10)))
add("odd take along", lambda x, i: x.take_along_dim(i, 1).sum(-1), (256, 300), Whole(300, (256, 40)))
add("odd permuted columns", lambda x, i: x[:, i], (1000, 256), Whole(256, (256,)))
add("odd histogram", lambda i: torch.zeros(64).scatter_add(0, i, torch.ones(20000)), Whole(64, (20000,)), trains=False)


# pads, layouts
add("odd pad and difference", lambda x: F.pad(x, (1, 1))[..., 2:] - F.pad(x, (1, 1))[..., :-2], (64, 32, 300))
add("odd crop and flip", lambda x: x[..., 3:-3, 3:-3].flip(-1) * 0.5, (8, 16, 70, 70))
add("odd transposed sum", lambda x, y: x.transpose(1, 2) + y, (32, 100, 120), (32, 120, 100))
add("odd large transposed product", lambda x, y: x.T * y, (2000, 1500), (1500, 2000))
add(
    "odd heads apart",
    lambda x, b: (x + b).view(8, 128, 3, 8, 32).permute(2, 0, 3, 1, 4).contiguous(),
    (8, 128, 768),
    (768,),
)
add("odd heads together", lambda x: F.gelu(x.transpose(1, 2).reshape(8, 128, 256)), (8, 8, 128, 32))
add(
    "odd space to depth",
    lambda x: F.relu(x.view(4, 16, 32, 2, 32, 2).permute(0, 1, 3, 5, 2, 4).reshape(4, 64, 32, 32)),
    (4, 16, 64, 64),
)
add(
    "odd rotary",
    lambda x, c, s: x * c + torch.cat((-x[..., 32:], x[..., :32]), -1) * s,
    (8, 8, 128, 64),
    (128, 64),
    (128, 64),
)
add(
    "odd interleaved rotary",
    lambda x, c, s: torch.stack((x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c), -1).flatten(
        -2
    ),
    (8, 8, 128, 64),
    (128, 32),
    (128, 32),
)
add("odd glu over channels", lambda x: F.glu(x, 1), (16, 128, 400))
add("odd swiglu of bf16", lambda x: (lambda a, b: F.silu(a) * b)(*x.chunk(2, -1)), of(1024, 2048, dtype=BF16))


# small products
add("odd small batched products", lambda a, b: torch.bmm(a, b).relu(), (256, 8, 16), (256, 16, 8))
add("odd bilinear form", lambda x, w, y: ((x @ w) * y).sum(-1), (512, 64), (64, 64), (512, 64))
add("odd outer products", lambda x, y: x[:, :, None] * y[:, None, :], (128, 64), (128, 64))
add("odd einsum of heads", lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.2, (4, 60, 4, 32), (4, 60, 4, 32))
add("odd quadratic form", lambda x, m: (x @ m @ x.mT).tanh(), (32, 24, 16), (16, 16))


# cumulative, sorted
add("odd decayed sums", lambda x: (x.exp() * 0.1).cumsum(-1).log(), (128, 400))
add("odd cumulative maxima of columns", lambda x: x.cummax(0)[0], (300, 200))
add("odd cumulative products", lambda x: (1 - x.sigmoid() * 0.1).cumprod(-1), (128, 200))
add("odd sorted and weighted", lambda x, w: (x.sort(-1)[0] * w).sum(-1), (128, 300), (300,))
add("odd top values, normed", lambda x: (lambda t: t / t.sum(-1, keepdim=True))(x.sigmoid().topk(8, -1)[0]), (256, 128))
add("odd median and scale", lambda x: (x - x.median(-1, keepdim=True)[0]).abs().mean(-1), (200, 201))


# images
add("odd max pool of 5", lambda x: F.max_pool2d(x, 5, 2, 2), (8, 32, 45, 45))
add("odd average pool and relu", lambda x: F.relu(F.avg_pool2d(x, 3, 2, 1)), (8, 32, 57, 57))
add("odd bilinear by 2", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (4, 16, 40, 40))
add("odd nearest and sum", lambda x, y: F.interpolate(x, scale_factor=2) + y, (4, 32, 20, 20), (4, 32, 40, 40))
add("odd unfold and weight", lambda x, w: (F.unfold(x, 3, padding=1) * w).sum(1), (4, 8, 32, 32), (72, 1))
add("odd total variation", lambda x: x.diff(dim=2).abs().sum() + x.diff(dim=3).abs().sum(), (8, 3, 128, 128))


# losses
add(
    "odd focal",
    lambda x, y: (lambda p, c: (c * (1 - p) ** 2).mean())(
        x.softmax(-1).gather(1, y[:, None])[:, 0], F.cross_entropy(x, y, reduction="none")
    ),
    (1024, 80),
    Whole(80, (1024,)),
)
add("odd cross entropy of images", lambda x, y: F.cross_entropy(x, y), (4, 21, 64, 64), Whole(21, (4, 64, 64)))
add("odd large cross entropy", F.cross_entropy, (1024, 8000), Whole(8000, (1024,)))
add("odd huber", lambda x, y: F.huber_loss(x, y, delta=0.5), (1024, 1024), (1024, 1024))
add(
    "odd dice",
    lambda x, y: (lambda p: 1 - (2 * (p * y).sum((1, 2)) + 1) / (p.sum((1, 2)) + y.sum((1, 2)) + 1))(
        x.sigmoid()
    ).mean(),
    (16, 96, 96),
    (16, 96, 96),
)
add(
    "odd gaussian likelihood",
    lambda m, s, x: F.gaussian_nll_loss(m, x, F.softplus(s)),
    (512, 64),
    (512, 64),
    of(512, 64, learns=False),
)


# dtypes
add("odd int8 scale", lambda x, s: x.float() * s, Whole(100, (512, 1024), torch.int8), (512, 1), trains=False)
add("odd uint8 mean", lambda x: x.float().mean((1, 2)), Whole(256, (16, 200, 300), U8), trains=False)
add("odd half products and sums", lambda x, y: (x * y).sum(-1), of(512, 1000, dtype=F16), of(512, 1000, dtype=F16))
add("odd half gelu", F.gelu, of(1024, 1024, dtype=F16))
add("odd bf16 softmax", lambda x: F.softmax(x, -1), of(1024, 1000, dtype=BF16))
add(
    "odd bf16 layer norm",
    lambda x, w, b: F.layer_norm(x, (768,), w, b),
    of(1024, 768, dtype=BF16),
    of(768, dtype=BF16),
    of(768, dtype=BF16),
)
add("odd counts of bools", lambda x, y: ((x > 0) & (y > 0)).sum(-1), (1000, 700), (1000, 700), trains=False)
add("odd double norm", lambda x: x / x.norm(dim=-1, keepdim=True), of(1000, 300, dtype=F64))
add(
    "odd int32 arithmetic",
    lambda x, y: (x * 7 + y) % 1009,
    Whole(10000, (300000,), I32),
    Whole(10000, (300000,), I32),
    trains=False,
)


# large
add("odd large sine and square", lambda x: x.sin() * x.cos() + x.square(), (8 << 20,))
add("odd large axpy", lambda x, y: x * 2 + y, (12 << 20,), (12 << 20,))
add("odd large sigmoid", torch.sigmoid, (4 << 20,))
add("odd large cube and mean", lambda x: (x**3).mean(), (8 << 20,))
add("odd large layer norm", lambda x, w, b: F.layer_norm(x, (2048,), w, b), (4096, 2048), (2048,), (2048,))
add("odd large log softmax", lambda x: F.log_softmax(x, -1), (2048, 4096))
add("odd large clip by norm", lambda x: x * (1 / x.norm()).clamp(max=1), (6 << 20,))
add("odd tiny rows", lambda x: x / x.sum(-1, keepdim=True), (3, 5))
add("odd tiny chain", lambda x, w: torch.tanh(x @ w).softmax(-1), (2, 4), (4, 3))
add("odd scalar chain", lambda x: (x.sin() + 1).log() * math.pi, (1,))
add("odd tiny loss", lambda x, y: F.cross_entropy(x, y), (8, 5), Whole(5, (8,)))
add("odd small linear", lambda x, w, b: F.relu(F.linear(x, w, b)), (32, 64), small(64, 64), (64,))
add(
    "odd quantised scales",
    lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round().clamp(-128, 127),
    Of(lambda: torch.randn(1024, 512)),
    trains=False,
)


# products and attention of few rows, weighted losses, parts of sequences
add("odd rows against rows", lambda x, a: x @ a @ x.T, (200, 32), small(32, 32))
add("odd mahalanobis", lambda x, m, a: (((x - m) @ a) * (x - m)).sum(-1), (1500, 40), (40,), small(40, 40))
add("odd attention of one query", F.scaled_dot_product_attention, (4, 4, 1, 32), (4, 4, 90, 32), (4, 4, 90, 32))
add("odd last step, projected", lambda x, w: F.linear(x[:, -1], w), (64, 50, 128), small(20, 128))
add("odd class token", lambda x, w, b: F.layer_norm(x[:, 0], (192,), w, b), (16, 65, 192), (192,), (192,))
add("odd mean of first axis", lambda x: x.mean(0), (300, 64, 40))
add("odd error of means", lambda x, y: F.mse_loss(x.mean(1), y.mean(1)), (100, 40, 64), (100, 40, 64))
add(
    "odd weighted cross entropy",
    lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, w),
    (512, 80),
    of(512, 80, learns=False),
    of(512, 80, learns=False),
)
add("odd residual layers", lambda x, a, b: x + F.relu(x @ a) @ b, (48, 96), small(96, 192), small(192, 96))
add("odd large permuted sum", lambda x, y: x.permute(2, 0, 1) + y, (160, 170, 180), (180, 160, 170))
