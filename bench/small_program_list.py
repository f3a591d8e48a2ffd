"""The programs of `small_programs.py`: a function and the sizes and kinds of its arguments each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Program:
    function: Callable[..., Any]
    make: tuple[Any, ...]
    trains: bool

    def arguments(self, train: bool) -> tuple[Any, ...]:
        return tuple(_argument(each, train and self.trains) for each in self.make)


@dataclass(frozen=True)
class Whole:
    """Whole numbers below a limit."""

    limit: int
    size: tuple[int, ...]
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True)
class Of:
    """Values that a function makes; they need gradients where they are floating-point and `learns`."""

    function: Callable[[], Any]
    learns: bool = True


def _argument(each: Any, train: bool) -> Any:
    if isinstance(each, Whole):
        return torch.randint(0, each.limit, each.size).to(each.dtype)
    if isinstance(each, Of):
        value = each.function()
        if isinstance(value, Tensor) and train and each.learns and (value.is_floating_point() or value.is_complex()):
            return value.detach().requires_grad_()
        return value
    if isinstance(each, tuple):
        return torch.randn(each).requires_grad_(train)
    return each


PROGRAMS: dict[str, Program] = {}


def add(name: str, function: Callable[..., Any], *make: Any, trains: bool = True) -> None:
    assert name not in PROGRAMS, name
    PROGRAMS[name] = Program(function, make, trains)


def of(*size: int, dtype: torch.dtype = torch.float32, learns: bool = True) -> Of:
    return Of(lambda: torch.randn(size).to(dtype), learns)


def small(*size: int) -> Of:
    return Of(lambda: torch.randn(size) * 0.1)


def last(*size: int) -> Of:
    """An image or volume in channels-last."""
    layout = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    return Of(lambda: torch.randn(size).contiguous(memory_format=layout))


# padding
for _mode in ("reflect", "replicate", "circular"):
    for _label, _size, _pads in (
        ("1d small", (4, 16, 50), (3, 3)),
        ("1d", (16, 64, 1000), (7, 7)),
        ("2d small", (1, 3, 16, 16), (1, 1, 1, 1)),
        ("2d", (8, 32, 56, 56), (3, 3, 3, 3)),
        ("2d uneven", (2, 64, 37, 41), (2, 1, 0, 5)),
        ("3d", (2, 8, 12, 24, 24), (1, 1, 2, 2, 1, 1)),
    ):
        add(f"pad {_mode} {_label}", lambda x, p=_pads, m=_mode: F.pad(x, p, m), _size)
    add(f"pad {_mode} 2d channels-last", lambda x, m=_mode: F.pad(x, (2, 2, 2, 2), m), last(8, 32, 56, 56))
    add(f"pad {_mode} 3d channels-last", lambda x, m=_mode: F.pad(x, (1, 1, 1, 1, 1, 1), m), last(2, 16, 10, 20, 20))

# norms
add("group norm 3d input", lambda x, w, b: F.group_norm(x, 4, w, b), (4, 32, 300), (32,), (32,))
add("instance norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (4, 32, 40, 40), (32,), (32,))
add("local response norm", lambda x: F.local_response_norm(x, 5), (4, 32, 28, 28))
add("norm over dim 0", lambda x: (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt(), (512, 130))
add("layer norm over 2 dims", lambda x: F.layer_norm(x, (10, 30)), (200, 10, 30))
add("softmax over dim 1 of 4d", lambda x: F.softmax(x, 1), (4, 21, 65, 65))
add("log softmax over dim 0", lambda x: F.log_softmax(x, 0), (300, 257))
add("batch norm 1d small", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (64, 100), (100,), (100,))
add("normalize rows", lambda x: F.normalize(x, dim=1), (1000, 127))
add("std and mean", lambda x: torch.std_mean(x, (1, 2)), (16, 100, 101))
add("var over dim 1 of 3d", lambda x: x.var(1, keepdim=True), (16, 63, 127))
add("vector norms", lambda x: (x.norm(dim=1), x.norm(1, dim=0), torch.linalg.vector_norm(x, 3)), (511, 255))

# shapes of images
add("pixel shuffle", lambda x: F.pixel_shuffle(x, 3), (4, 36, 30, 30))
add("pixel unshuffle", lambda x: F.pixel_unshuffle(x, 2), (4, 8, 60, 60))
add("channel shuffle", lambda x: F.channel_shuffle(x, 4), (4, 32, 30, 30))
add(
    "roll and windows",
    lambda x: torch.roll(x, (-3, -3), (1, 2)).view(2, 4, 7, 4, 7, 32).transpose(2, 3).reshape(-1, 49, 32) * 2,
    (2, 28, 28, 32),
)
add("flip and rotate", lambda x: torch.rot90(x.flip(-1), 1, (2, 3)) + 1, (4, 8, 50, 50))
for _mode in ("nearest", "bilinear", "bicubic", "area"):
    add(f"interpolate {_mode} odd", lambda x, m=_mode: F.interpolate(x, size=(53, 71), mode=m), (2, 16, 37, 41))
add("interpolate antialias", lambda x: F.interpolate(x, size=(24, 24), mode="bilinear", antialias=True), (2, 3, 64, 64))
add("interpolate nearest 3d", lambda x: F.interpolate(x, scale_factor=2.0), (1, 8, 10, 12, 14))
add(
    "adaptive pools",
    lambda x: torch.cat([F.adaptive_avg_pool2d(x, n).flatten(1) for n in (1, 2, 3, 6)], 1),
    (2, 32, 30, 30),
)
add("adaptive max pool odd", lambda x: F.adaptive_max_pool2d(x, (5, 7)), (2, 32, 37, 41))
add(
    "max pool with indices and unpool",
    lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    (4, 16, 32, 32),
)
add("lp pool", lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 3, 2), (2, 16, 41, 41))
add(
    "image preprocessing uint8",
    lambda x: (x.permute(0, 3, 1, 2).float() / 255 - 0.45) / 0.22,
    Whole(256, (2, 128, 128, 3), torch.uint8),
    trains=False,
)
add(
    "uint8 blend",
    lambda x, y: ((x.int() * 3 + y.int()) // 4).to(torch.uint8),
    Whole(256, (300, 300, 3), torch.uint8),
    Whole(256, (300, 300, 3), torch.uint8),
    trains=False,
)

# convolutions
for _label, _function, _size, _weight in (
    ("1d 7", lambda x, w: F.conv1d(x, w, padding=3), (4, 32, 500), (32, 32, 7)),
    ("1d depthwise 31", lambda x, w: F.conv1d(x, w, padding=15, groups=64), (4, 64, 250), (64, 1, 31)),
    ("1d causal dilated", lambda x, w: F.conv1d(F.pad(x, (8, 0)), w, dilation=4), (4, 32, 600), (32, 32, 3)),
    ("1d stride 2", lambda x, w: F.conv1d(x, w, stride=2), (4, 16, 999), (48, 16, 5)),
    ("2d 5", lambda x, w: F.conv2d(x, w, padding=2), (2, 16, 37, 37), (24, 16, 5, 5)),
    ("2d grouped", lambda x, w: F.conv2d(x, w, padding=1, groups=4), (2, 64, 28, 28), (64, 16, 3, 3)),
    ("2d 1x7", lambda x, w: F.conv2d(x, w, padding=(0, 3)), (2, 32, 29, 29), (32, 32, 1, 7)),
    (
        "2d depthwise 5 stride 2",
        lambda x, w: F.conv2d(x, w, padding=2, stride=2, groups=48),
        (2, 48, 41, 41),
        (48, 1, 5, 5),
    ),
    (
        "2d depthwise dilated",
        lambda x, w: F.conv2d(x, w, padding=4, dilation=2, groups=48),
        (2, 48, 32, 32),
        (48, 1, 5, 5),
    ),
    ("2d batch 1", lambda x, w: F.conv2d(x, w, padding=1), (1, 64, 20, 20), (64, 64, 3, 3)),
    ("3d", lambda x, w: F.conv3d(x, w, padding=1), (1, 8, 12, 24, 24), (16, 8, 3, 3, 3)),
    ("3d depthwise", lambda x, w: F.conv3d(x, w, padding=1, groups=16), (1, 16, 12, 20, 20), (16, 1, 3, 3, 3)),
    ("transposed 1d", lambda x, w: F.conv_transpose1d(x, w, stride=4, padding=2), (2, 32, 100), (32, 16, 8)),
    (
        "transposed 2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (2, 32, 20, 20),
        (32, 16, 3, 3),
    ),
    (
        "transposed 2d depthwise",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=32),
        (2, 32, 20, 20),
        (32, 1, 4, 4),
    ),
):
    add(f"conv {_label}", _function, _size, _weight)
add("conv as unfold", lambda x, w: (w @ F.unfold(x, 3, padding=1)).view(2, 24, 30, 30), (2, 8, 30, 30), (24, 72))
add(
    "gaussian blur",
    lambda x: F.conv2d(F.pad(x, (2, 2, 2, 2), "reflect"), torch.full((3, 1, 5, 5), 0.04), groups=3),
    (2, 3, 100, 100),
)
add(
    "sobel edges",
    lambda x: F.conv2d(x, torch.tensor([[[[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]]]), padding=1).abs(),
    (4, 1, 100, 100),
)


# attention
def rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    n, d = q.shape[-2:]
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)

    def turned(x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    h, n = q.shape[1], q.shape[2]
    slopes = 2 ** (-8 * torch.arange(1, h + 1) / h)
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, float("-inf"))
    return F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias, -1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[2]
    apart = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(apart >= 0) & (apart < 32))


def chunks_of_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, state) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def swin_bias(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    q, k, v = x.view(-1, 49, 3, 4, 16).permute(2, 0, 3, 1, 4)
    bias = table[index.view(-1)].view(49, 49, 4).permute(2, 0, 1)
    return (F.softmax(q @ k.transpose(-2, -1) * 0.25 + bias, -1) @ v).transpose(1, 2).reshape(-1, 49, 64)


_heads = ((2, 4, 100, 32),) * 3
add("rotary interleaved", rotary, (2, 4, 100, 32), (2, 4, 100, 32))
add("alibi", alibi, *_heads)
add("sliding window", sliding, *_heads)
add("causal linear attention", chunks_of_linear_attention, *((2, 4, 64, 16),) * 3)
add("relative position bias", swin_bias, (16, 49, 192), (169, 4), Whole(169, (49, 49)))
add("sdpa batch 1", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *((1, 2, 17, 16),) * 3)
add(
    "sdpa odd",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    (2, 3, 127, 40),
    (2, 3, 131, 40),
    (2, 3, 131, 40),
)
add(
    "grouped queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)),
    (2, 8, 64, 32),
    (2, 2, 64, 32),
    (2, 2, 64, 32),
)
add(
    "local attention by unfold",
    lambda x: (
        F.softmax((x[:, 4:-4, None] * x.unfold(1, 9, 1).transpose(2, 3)).sum(-1), -1)[..., None]
        * x.unfold(1, 9, 1).transpose(2, 3)
    ).sum(2),
    (2, 136, 32),
)
add(
    "talking heads",
    lambda q, k, v, w: (
        torch.einsum("gh,bhij->bgij", w, F.softmax(torch.einsum("hg,bgij->bhij", w, q @ k.transpose(-1, -2)), -1)) @ v
    ),
    *((2, 4, 60, 16),) * 3,
    (4, 4),
)


# recurrences
def loop(cell: str) -> Callable[..., Any]:
    def run(x: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], wh.shape[1])
        c = h
        outs = []
        for t in range(x.shape[0]):
            if cell == "gru":
                h = torch.gru_cell(x[t], h, wi, wh, b, b)
            elif cell == "lstm":
                h, c = torch.lstm_cell(x[t], (h, c), wi, wh, b, b)
            else:
                h = torch.rnn_tanh_cell(x[t], h, wi, wh, b, b)
            outs.append(h)
        return torch.stack(outs)

    return run


for _cell, _gates in (("gru", 3), ("lstm", 4), ("rnn", 1)):
    add(f"{_cell} cells", loop(_cell), (24, 16, 32), small(_gates * 64, 32), small(_gates * 64, 64), (_gates * 64,))
add("gru cells wide", loop("gru"), (10, 64, 128), small(3 * 256, 128), small(3 * 256, 256), (3 * 256,))


def gated_convolutions(x: Tensor, w: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[1], 16, *x.shape[3:])
    for t in range(x.shape[0]):
        gates = F.conv2d(torch.cat([x[t], h], 1), w, padding=1)
        z, n = gates.chunk(2, 1)
        h = torch.sigmoid(z) * h + (1 - torch.sigmoid(z)) * torch.tanh(n)
    return h


add("gated convolutions in a loop", gated_convolutions, (8, 4, 8, 24, 24), small(32, 24, 3, 3))
add("gated convolutions in a loop, small", gated_convolutions, (6, 1, 8, 8, 8), small(32, 24, 3, 3))


def weight_in_a_loop(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    for _ in range(6):
        x = x + torch.tanh(F.linear(x, w, b))
    return x


add("one layer six times", weight_in_a_loop, (128, 192), small(192, 192), (192,))
add("one layer six times, 3d", weight_in_a_loop, (8, 40, 192), small(192, 192), (192,))


def mamba(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    delta = F.softplus(delta)
    decay, into = torch.exp(delta[..., None] * -a.exp()), delta[..., None] * b[:, :, None] * u[..., None]
    state, out = torch.zeros_like(into[:, 0]), []
    for t in range(u.shape[1]):
        state = decay[:, t] * state + into[:, t]
        out.append((state * c[:, t, None]).sum(-1))
    return torch.stack(out, 1)


add("mamba-like scan", mamba, (2, 48, 64), (2, 48, 64), (64, 8), (2, 48, 8), (2, 48, 8))
for _dim in (0, 1, 2):
    for _name in ("cumsum", "cumprod", "logcumsumexp"):
        add(f"{_name} over {_dim}", lambda x, n=_name, d=_dim: getattr(torch, n)(x * 0.5 + 1, d), (20, 60, 70))
add("cummax over 1", lambda x: torch.cummax(x, 1)[0], (20, 60, 70))
add("cumsum bf16", lambda x: x.cumsum(-1), of(64, 500, dtype=torch.bfloat16))
add("cumsum int over 0", lambda x: x.cumsum(0), Whole(100, (700, 90)), trains=False)


# routing, places, sparse reads
def experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    weight, chosen = F.softmax(x @ gate, -1).topk(2, -1)
    out = torch.zeros_like(x)
    for e in range(gate.shape[1]):
        row, slot = (chosen == e).nonzero(as_tuple=True)
        out = out.index_add(0, row, weight[row, slot, None] * (F.silu(x[row] @ up[e]) @ down[e]))
    return out


add("top-2 experts with index_add", experts, (96, 64), (64, 4), (4, 64, 128), (4, 128, 64))
add(
    "embedding bag mean",
    lambda w, i, o: F.embedding_bag(i, w, o, mode="mean"),
    (1000, 48),
    Whole(1000, (3000,)),
    Of(lambda: torch.arange(0, 3000, 10)),
)
add("embedding bag max 2d", lambda w, i: F.embedding_bag(i, w, mode="max"), (1000, 48), Whole(1000, (300, 10)))
add("index_add", lambda x, i, y: x.index_add(0, i, y), (200, 48), Whole(200, (3000,)), (3000, 48))
add("scatter_add last dim", lambda x, i: torch.zeros(64, 100).scatter_add(1, i, x), (64, 3000), Whole(100, (64, 3000)))
add(
    "scatter_reduce amax",
    lambda x, i: torch.zeros(200, 32).scatter_reduce(0, i[:, None].expand(-1, 32), x, "amax", include_self=False),
    (3000, 32),
    Whole(200, (3000,)),
)
add(
    "index_put accumulate 2d",
    lambda x, i, j, y: x.index_put((i, j), y, accumulate=True),
    (100, 120),
    Whole(100, (4000,)),
    Whole(120, (4000,)),
    (4000,),
)
add("gather last dim", lambda x, i: x.gather(1, i), (256, 1000), Whole(1000, (256, 30)))
add("take along dim", lambda x, i: torch.take_along_dim(x, i, 0), (300, 100), Whole(300, (40, 100)))
add("where of masks", lambda x, m: torch.where(m > 2, x, x.mean()) * (m < 9), (300, 301), Whole(12, (300, 301)))
add(
    "masked fill and sum",
    lambda x, m: x.masked_fill(m == 0, 0).sum(1) / (m != 0).sum(1),
    (64, 50, 33),
    Whole(3, (64, 50, 1)),
)
add("tril and triu", lambda x: torch.tril(x, -1) + torch.triu(x, 2), (8, 130, 130))
add("diagonals", lambda x: torch.diagonal(x, 1, 1, 2).sum(-1) + torch.diag_embed(x[:, 0]).sum((1, 2)), (16, 60, 60))
add("one hot", lambda i: F.one_hot(i, 50).float().mean(0), Whole(50, (20, 300)), trains=False)
add("bincount", lambda i: torch.bincount(i, minlength=100), Whole(100, (20000,)), trains=False)
add("histogram", lambda x: torch.histc(x, 50, -3.0, 3.0), (20000,), trains=False)
add(
    "bincount weighted, small", lambda i, w: torch.bincount(i, w, minlength=10), Whole(10, (100,)), (100,), trains=False
)
add("unique counts", lambda i: torch.unique(i, return_counts=True), Whole(50, (5000,)), trains=False)
add("searchsorted rows", lambda s, x: torch.searchsorted(s.sort(-1)[0], x), (40, 100), (40, 300), trains=False)

# distances, products
add("cosine similarities", lambda x, y: F.normalize(x, dim=1) @ F.normalize(y, dim=1).T, (200, 65), (150, 65))
add("cosine similarity", lambda x, y: F.cosine_similarity(x, y), (500, 130), (500, 130))
add("cdist small", lambda x, y: torch.cdist(x, y), (20, 3), (24, 3))
add("cdist batched", lambda x, y: torch.cdist(x, y), (4, 100, 16), (4, 120, 16))
add("pdist by differences", lambda x: (x[:, None] - x[None]).square().sum(-1), (120, 24))
add("pairwise distance", lambda x, y: F.pairwise_distance(x, y), (700, 90), (700, 90))


def k_means(x: Tensor, c: Tensor) -> Tensor:
    nearest = (x[:, None] - c[None]).square().sum(-1).argmin(1)
    hot = F.one_hot(nearest, c.shape[0]).to(x.dtype)
    return hot.T @ x / hot.sum(0).clamp(min=1)[:, None]


add("k-means step", k_means, (1000, 8), (12, 8), trains=False)
add("kron", lambda x, y: torch.kron(x, y), (20, 24), (17, 15))
add("outer and trace", lambda x, y: torch.outer(x, y).diagonal().sum() * torch.ones(3), (400,), (410,))
add("einsum odd order", lambda x, y, z: torch.einsum("bic,cjd,dk->kbij", x, y, z), (5, 20, 16), (16, 18, 12), (12, 9))
add("bmm small", lambda x, y: torch.bmm(x, y), (500, 4, 4), (500, 4, 4))
add("bmm 3x3 chain", lambda x, y: x @ y @ x.transpose(-1, -2), (1000, 3, 3), (1000, 3, 3))
add("matmul primes", lambda x, y: x @ y, (127, 251), (251, 131))
add("matmul batch 1", lambda x, w, b: F.linear(x, w, b), (1, 300), (200, 300), (200,))
add("matmul of a transposed", lambda x, y: x.T @ y.T, (150, 100), (90, 150))
add("matmul int", lambda x, y: x @ y, Whole(9, (60, 70)), Whole(9, (70, 50)), trains=False)
add("matmul double", lambda x, y: x @ y + 1, of(100, 120, dtype=torch.float64), of(120, 80, dtype=torch.float64))
add("matmul bf16", lambda x, y: F.relu(x @ y), of(100, 128, dtype=torch.bfloat16), of(128, 96, dtype=torch.bfloat16))
add("bilinear form", lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y), (64, 30), (20, 30, 31), (64, 31))
add("nn.bilinear", lambda x, y, w: F.bilinear(x, y, w), (64, 30), (64, 31), (20, 30, 31))
add(
    "addmm chain",
    lambda b, x, w: torch.addmm(torch.addmm(b, x, w, beta=0.5).tanh(), x, w),
    (64, 64),
    (64, 64),
    (64, 64),
)
add(
    "inverse and det 4x4",
    lambda x: torch.linalg.inv(x + 4 * torch.eye(4)).sum(0) + torch.linalg.det(x).sum(),
    (200, 4, 4),
)
add("cholesky solve", lambda x, y: torch.linalg.solve(x @ x.mT + torch.eye(12), y), (30, 12, 12), (30, 12, 2))
add("matrix power", lambda x: torch.matrix_power(x * 0.1, 5), (60, 60))
add("cross", lambda x, y: torch.linalg.cross(x, y), (3000, 3), (3000, 3))
add(
    "quaternion product",
    lambda a, b: torch.stack(
        (
            a[:, 0] * b[:, 0] - (a[:, 1:] * b[:, 1:]).sum(1),
            a[:, 0] * b[:, 1] + a[:, 1] * b[:, 0] + a[:, 2] * b[:, 3] - a[:, 3] * b[:, 2],
        ),
        1,
    ),
    (3000, 4),
    (3000, 4),
)
