"""More programs of `small_programs.py`: losses, statistics, transforms, numbers of other kinds, other layouts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, of

# losses
add(
    "contrastive",
    lambda x, y: F.cross_entropy(F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T / 0.07, torch.arange(128)),
    (128, 64),
    (128, 64),
)
add("triplet", lambda a, p, n: F.triplet_margin_loss(a, p, n), (256, 64), (256, 64), (256, 64))


def focal(x: Tensor, y: Tensor) -> Tensor:
    y = y.float()
    p = torch.sigmoid(x)
    ce = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    pt = p * y + (1 - p) * (1 - y)
    return (ce * (1 - pt) ** 2 * (0.25 * y + 0.75 * (1 - y))).mean()


add("focal", focal, (64, 500), Whole(2, (64, 500)))


def dice(x: Tensor, y: Tensor) -> Tensor:
    p = F.softmax(x, 1)
    hot = F.one_hot(y, x.shape[1]).permute(0, 3, 1, 2).float()
    return 1 - (2 * (p * hot).sum((2, 3)) / (p + hot).sum((2, 3))).mean()


add("dice", dice, (2, 6, 60, 60), Whole(6, (2, 60, 60)))
add(
    "ctc",
    lambda x, y: F.ctc_loss(F.log_softmax(x, -1), y, torch.full((8,), 50), torch.full((8,), 12)),
    (50, 8, 20),
    Of(lambda: torch.randint(1, 20, (8, 12))),
)
add("hinge", lambda x, y: F.multi_margin_loss(x, y), (128, 50), Whole(50, (128,)))
add("multilabel margin", lambda x, y: F.multilabel_soft_margin_loss(x, y.float()), (128, 50), Whole(2, (128, 50)))
add(
    "label smoothing",
    lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=0),
    (500, 300),
    Whole(300, (500,)),
)
add("cross entropy 4d", lambda x, y: F.cross_entropy(x, y), (2, 11, 50, 50), Whole(11, (2, 50, 50)))
add("kl of gaussians", lambda m, s: (-0.5 * (1 + s - m.square() - s.exp())).sum(1).mean(), (200, 60), (200, 60))
add("huber", lambda x, y: F.huber_loss(x, y) + F.smooth_l1_loss(x, y, beta=0.5), (1000,), (1000,))
add("gaussian nll", lambda x, y, v: F.gaussian_nll_loss(x, y, v.exp()), (300, 40), (300, 40), (300, 40))
add("mse tiny", lambda x, y: F.mse_loss(x, y), (8,), (8,))
add(
    "cosine embedding",
    lambda x, y, t: F.cosine_embedding_loss(x, y, t.float() * 2 - 1),
    (300, 64),
    (300, 64),
    Whole(2, (300,)),
)


def sorted_auc(x: Tensor, y: Tensor) -> Tensor:
    order = x.argsort(descending=True)
    hits = y[order].float()
    return (hits.cumsum(0) * (1 - hits)).sum() / (hits.sum() * (1 - hits).sum())


add("auc by sorting", sorted_auc, (5000,), Whole(2, (5000,)), trains=False)
add(
    "ndcg",
    lambda s, r: (r.gather(1, s.argsort(1, descending=True)) / torch.log2(torch.arange(50) + 2.0)).sum(1).mean(),
    (60, 50),
    (60, 50),
    trains=False,
)


def wasserstein(x: Tensor, y: Tensor) -> Tensor:
    return (x.sort(0)[0] - y.sort(0)[0]).abs().mean()


add("sliced wasserstein", wasserstein, (500, 20), (500, 20))

# statistics
add("median", lambda x: x.median(1)[0], (100, 301))
add("median over dim 0", lambda x: x.median(0)[0], (101, 300))
add("quantile", lambda x: torch.quantile(x, torch.tensor([0.25, 0.5, 0.75]), dim=1), (100, 300))
add("mode", lambda i: torch.mode(i, 1)[0], Whole(20, (100, 200)), trains=False)
add("sort rows", lambda x: x.sort(1)[0], (100, 300))
add("sort columns", lambda x: x.sort(0)[0], (300, 100))
add("topk 5 of 1000", lambda x: x.topk(5, 1)[0], (100, 1000))
add("argmax over dim 1 of 4d", lambda x: x.argmax(1), (4, 21, 65, 65), trains=False)
add("amin amax over dim 0", lambda x: x.amax(0) - x.amin(0), (700, 90))
add("logsumexp over dim 1", lambda x: x.logsumexp(1), (20, 60, 70))
add("covariance", lambda x: torch.cov(x), (30, 400))
add("correlation", lambda x: torch.corrcoef(x), (30, 400))
add("prod over last", lambda x: (1 + 0.1 * x).prod(-1), (500, 40))
add("total sum", lambda x: x.sum(), (300, 300))
add("any and all", lambda x: ((x > 3).any(1), (x > -3).all(0)), (300, 300), trains=False)
add("count nonzero", lambda x: (x > 0.5).sum(0), (300, 300), trains=False)


# complex numbers and transforms
def spectral(x: Tensor, w: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(w), n=x.shape[-1])


add("spectral filter 1d", spectral, (8, 16, 200), (101, 2))
add(
    "spectral filter 2d",
    lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(w), s=(32, 32)),
    (4, 8, 32, 32),
    (8, 32, 17, 2),
)
add(
    "stft magnitudes",
    lambda x: torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True).abs(),
    (4, 2000),
)
add("fft shift and phase", lambda x: torch.fft.fftshift(torch.fft.fft(x)).angle(), (40, 128))
add("complex polynomials", lambda z: (z * z + z.conj() / (z.abs() + 1)).real, of(100, 100, dtype=torch.complex64))
add("autocorrelation", lambda x: torch.fft.irfft(torch.fft.rfft(x, 512).abs().square())[..., :100], (10, 256))

# numbers of other kinds, sizes, layouts
add("double gelu", lambda x: F.gelu(x), of(200, 200, dtype=torch.float64))
add("double layer norm", lambda x: F.layer_norm(x, (60,)), of(300, 60, dtype=torch.float64))
add(
    "bf16 layer norm",
    lambda x, w: F.layer_norm(x, (130,), w),
    of(300, 130, dtype=torch.bfloat16),
    of(130, dtype=torch.bfloat16),
)
add("bf16 softmax", lambda x: F.softmax(x, -1), of(300, 130, dtype=torch.bfloat16))
add("half silu", lambda x: F.silu(x) * 2, of(300, 130, dtype=torch.float16))
add(
    "int32 division and remainder",
    lambda x, y: x // (y + 1) + x % (y + 1),
    Whole(1000, (300, 100), torch.int32),
    Whole(20, (300, 100), torch.int32),
    trains=False,
)
add("int64 bits", lambda x: ((x >> 3) & 255) ^ (x << 1), Whole(1000, (300, 100)), trains=False)
add(
    "int8 saturating",
    lambda x: torch.clamp(x.float() * 1.7, -128, 127).round().to(torch.int8),
    Whole(100, (300, 300), torch.int8),
    trains=False,
)
add(
    "bool algebra", lambda x, y: (x > 2) & ~(y > 1) | (x == y), Whole(5, (300, 300)), Whole(5, (300, 300)), trains=False
)
add("prime sizes", lambda x, y: torch.tanh(x * y + y), (1009, 101), (101,))
add("non-contiguous", lambda x: F.gelu(x[:, ::3].T) + x[:, 1::3].T, (300, 603))
add("expanded", lambda x, y: (x[:, None] + y[None]).relu().mean(1), (120, 40), (110, 40))
add("batch 1 perceptron", lambda x, a, b: F.linear(F.relu(F.linear(x, a)), b), (1, 32), (64, 32), (10, 64))
add("scalar arithmetic", lambda x, y: x * y + y.sin() / 3, (), ())
add("tiny vectors", lambda x, y: (x * y).sum() / (x.norm() * y.norm()), (16,), (16,))
add("large polynomial", lambda x: ((x * 2 + 1) * x - 3) * x + x.abs(), (2000, 1000))
add("large reduction", lambda x: x.square().mean((0, 2)), (32, 64, 900))
add("concatenation of many", lambda *xs: torch.cat([x * 2 for x in xs], 1), *((40, 30),) * 12)
add("stack and unbind", lambda x: torch.stack([y * i for i, y in enumerate(x.unbind(1))], 0), (40, 10, 60))
add(
    "meshgrid field",
    lambda x: torch.exp(
        -(
            torch.stack(torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij"))[None]
            - x[:, :, None, None]
        )
        .square()
        .sum(1)
        / 50
    ),
    (20, 2),
)
add(
    "affine grid",
    lambda x, t: F.grid_sample(x, F.affine_grid(t, (2, 8, 30, 30), align_corners=False), align_corners=False),
    (2, 8, 32, 32),
    (2, 2, 3),
)
add(
    "grid sample many channels",
    lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
    (4, 32, 40, 40),
    (4, 60, 4, 2),
)
add(
    "grid sample few points",
    lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
    (8, 16, 20, 20),
    (8, 100, 1, 2),
)
add("grid sample image", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=True), (2, 3, 64, 64), (2, 64, 64, 2))
add(
    "sinusoids",
    lambda t: torch.cat(
        [
            (t[:, None] * torch.exp(-math.log(1e4) * torch.arange(32) / 32)).sin(),
            (t[:, None] * torch.exp(-math.log(1e4) * torch.arange(32) / 32)).cos(),
        ],
        1,
    ),
    (500,),
)
add(
    "swish gate with chunk",
    lambda x, w: F.silu(F.linear(x, w).chunk(2, -1)[0]) * F.linear(x, w).chunk(2, -1)[1],
    (100, 64),
    (256, 64),
)
add(
    "adam step",
    lambda p, g, m, v: (
        p - 1e-3 * (0.9 * m + 0.1 * g) / ((0.999 * v.abs() + 0.001 * g * g).sqrt() + 1e-8),
        0.9 * m + 0.1 * g,
    ),
    *((300, 300),) * 4,
    trains=False,
)
