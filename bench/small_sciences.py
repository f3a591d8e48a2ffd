"""More programs of `small_programs.py`, as papers' code is written: geometry, images, signals, physics, probabilistic
models, optimizers, quantisation, tensors of many dtypes and layouts."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, of, small

BF16 = torch.bfloat16
F16 = torch.float16
F64 = torch.float64
I32 = torch.int32


# geometry
def rodrigues(r: Tensor) -> Tensor:
    angle = r.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    x, y, z = (r / angle).unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(-1, 3, 3)
    angle = angle[..., None]
    return torch.eye(3) + angle.sin() * k + (1 - angle.cos()) * (k @ k)


def quaternions(q: Tensor, p: Tensor) -> Tensor:
    q = F.normalize(q, dim=-1)
    t = 2 * torch.cross(q[..., 1:], p, dim=-1)
    return p + q[..., :1] * t + torch.cross(q[..., 1:], t, dim=-1)


def six_d(x: Tensor) -> Tensor:
    a, b = x[..., :3], x[..., 3:]
    a = F.normalize(a, dim=-1)
    b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
    return torch.stack([a, b, torch.linalg.cross(a, b)], -2)


def projection(points: Tensor, focal: Tensor, pose: Tensor) -> Tensor:
    homogeneous = F.pad(points, (0, 1), value=1.0)
    seen = homogeneous @ pose.mT
    flat = seen[..., :2] / (seen[..., 2:3].abs() + 1)
    r2 = flat.square().sum(-1, keepdim=True)
    return flat * (1 + 0.1 * r2 - 0.02 * r2 * r2) * focal


def volume_rendering(density: Tensor, colour: Tensor, z: Tensor) -> Tensor:
    steps = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e3)], 1).abs()
    alpha = 1 - torch.exp(-F.relu(density) * steps)
    seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * seen)[..., None] * colour.sigmoid()).sum(1)


def encoding(x: Tensor) -> Tensor:
    y = x[..., None] * (2.0 ** torch.arange(6)) * math.pi
    return torch.cat([x, y.sin().flatten(-2), y.cos().flatten(-2)], -1)


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return d.min(1)[0].mean() + d.min(2)[0].mean()


def harmonics(d: Tensor) -> Tensor:
    x, y, z = F.normalize(d, dim=-1).unbind(-1)
    return torch.stack([torch.ones_like(x), y, z, x, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y], -1)


add("rodrigues", rodrigues, (500, 3))
add("rotated by quaternions", quaternions, (1000, 4), (1000, 3))
add("rotations of six numbers", six_d, (600, 6))
add("projected points", projection, (8, 300, 3), (2,), (8, 4, 4))
add("volume rendering", volume_rendering, (256, 48), (256, 48, 3), (256, 48))
add("frequencies of positions", encoding, (2000, 3))
add("chamfer", chamfer, (4, 100, 3), (4, 120, 3))
add("spherical harmonics", harmonics, (3000, 3))
add(
    "affine of images",
    lambda t, x: F.grid_sample(x, F.affine_grid(t, x.shape, align_corners=False), align_corners=False),
    (2, 2, 3),
    (2, 8, 40, 40),
)
add(
    "flow warping",
    lambda x, f: F.grid_sample(
        x,
        torch.stack(torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="xy"), -1)
        + f.permute(0, 2, 3, 1) * 0.1,
        align_corners=True,
        padding_mode="border",
    ),
    (2, 16, 32, 32),
    (2, 2, 32, 32),
)


# images and augmentations
def mixup(x: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    w = weight.sigmoid()[:, None, None, None]
    return w * x + (1 - w) * x[order]


def cutout(x: Tensor, cy: Tensor, cx: Tensor) -> Tensor:
    h, w = torch.arange(64)[:, None], torch.arange(64)
    inside = ((h - cy[:, None, None]).abs() < 8) & ((w - cx[:, None, None]).abs() < 8)
    return x.masked_fill(inside[:, None], 0.0)


def jitter(x: Tensor, b: Tensor, c: Tensor) -> Tensor:
    x = x * b.exp()[:, None, None, None]
    grey = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    mean = grey.mean((1, 2, 3), keepdim=True)
    return ((x - mean) * c.exp()[:, None, None, None] + mean).clamp(0, 1)


add("mixup", mixup, (16, 3, 64, 64), Whole(16, (16,)), (16,))
add("cutout", cutout, (16, 3, 64, 64), Whole(64, (16,)), Whole(64, (16,)))
add("colour jitter", jitter, (16, 3, 64, 64), (16,), (16,))
add("flipped at random", lambda x, m: torch.where((m > 0)[:, None, None, None], x.flip(-1), x), (16, 3, 64, 64), (16,))
add(
    "crops by index",
    lambda x, t: torch.stack([x[:, :, i : i + 40, j : j + 40] for i, j in ((0, 0), (8, 3), (20, 20), (24, 1))], 1),
    (8, 3, 64, 64),
    1,
)
add(
    "bytes normalised, channels last",
    lambda x: (
        (x.permute(0, 3, 1, 2).float() / 255 - torch.tensor([0.48, 0.45, 0.4])[:, None, None])
        / torch.tensor([0.22, 0.22, 0.22])[:, None, None]
    ),
    Whole(256, (8, 96, 96, 3), torch.uint8),
    trains=False,
)
add(
    "patches",
    lambda x, w: x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(4, 64, 192) @ w,
    (4, 3, 64, 64),
    small(192, 96),
)
add(
    "bilateral weights",
    lambda x: (
        lambda p: (
            (p * (lambda w: w / w.sum(2, keepdim=True))(torch.exp(-((p - x.flatten(2)[:, :, None]) ** 2) * 5)))
            .sum(2)
            .view_as(x)
        )
    )(F.unfold(x.view(-1, 1, 32, 32), 3, padding=1).view(2, 3, 9, -1)),
    (2, 3, 32, 32),
)


# signals
def stft_by_hand(x: Tensor) -> Tensor:
    frames = x.unfold(-1, 256, 64) * torch.hann_window(256)
    return torch.fft.rfft(frames).abs().clamp_min(1e-6).log()


def fft_convolution(x: Tensor, k: Tensor) -> Tensor:
    n = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(k, n), n)[..., : x.shape[-1]]


def multi_resolution(x: Tensor, y: Tensor) -> Any:
    total = 0.0
    for n in (128, 256):
        a, b = (torch.stft(t, n, n // 4, window=torch.hann_window(n), return_complex=True).abs() + 1e-5 for t in (x, y))
        total = total + (a - b).norm() / b.norm() + (a.log() - b.log()).abs().mean()
    return total


def diagonal_states(x: Tensor, re: Tensor, im: Tensor, c: Tensor) -> Tensor:
    a = torch.complex(-re.exp(), im)
    powers = torch.exp(a[..., None] * torch.arange(x.shape[-1]) * 0.05)
    kernel = 2 * (torch.view_as_complex(c)[..., None] * powers).sum(1).real
    return fft_convolution(x, kernel)


add("spectrogram by hand", stft_by_hand, (8, 4000))
add("long convolution", fft_convolution, (4, 16, 512), (16, 512))
add("spectral losses", multi_resolution, (4, 2000), (4, 2000))
add("diagonal state space", diagonal_states, (4, 16, 256), (16, 8), (16, 8), (16, 8, 2))
add(
    "spectral operator",
    lambda x, w: torch.fft.irfft2(
        F.pad(
            torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[..., :8, :8], torch.view_as_complex(w)), (0, 9, 0, 24)
        ),
        s=(32, 32),
    ),
    (4, 8, 32, 32),
    (8, 8, 8, 8, 2),
)
add(
    "pre-emphasis and energy",
    lambda x: F.pad(x[:, 1:] - 0.97 * x[:, :-1], (1, 0)).unfold(1, 400, 160).square().mean(-1).add(1e-6).log(),
    (8, 8000),
)
add(
    "haar wavelets",
    lambda x: (
        [y := x]
        and torch.cat(
            [
                (p := (y[..., ::2], y[..., 1::2])) and [d := (p[0] - p[1]) * 0.7071, y := (p[0] + p[1]) * 0.7071] and d
                for _ in range(4)
            ]
            + [y],
            -1,
        )
    ),
    (32, 512),
)
add(
    "linear prediction",
    lambda x: torch.linalg.solve(
        (lambda r: r[:, (torch.arange(8)[:, None] - torch.arange(8)).abs()] + torch.eye(8))(
            (torch.stack([(x[:, k:] * x[:, : 400 - k]).mean(1) for k in range(9)], 1))[:, :8]
        ),
        torch.ones(16, 8, 1),
    ),
    (16, 400),
)


# physics
def lennard_jones(p: Tensor) -> Tensor:
    d = p[:, None] - p[None]
    d = d - 6.0 * torch.round(d / 6.0)
    r2 = d.square().sum(-1) + torch.eye(p.shape[0]) * 100 + 0.5
    s = 1 / r2**3
    return (4 * (s * s - s)).triu(1).sum()


def burgers(u: Tensor) -> Tensor:
    for _ in range(10):
        flux = 0.5 * u * u
        u = u - 0.1 * (flux - flux.roll(1, -1)) + 0.02 * (u.roll(-1, -1) - 2 * u + u.roll(1, -1))
    return u


def lattice(f: Tensor) -> Tensor:
    w = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]
    cx = torch.tensor([0.0, 1, 0, -1, 0, 1, -1, -1, 1])[:, None, None]
    cy = torch.tensor([0.0, 0, 1, 0, -1, 1, 1, -1, -1])[:, None, None]
    rho = f.sum(0)
    ux, uy = (f * cx).sum(0) / rho, (f * cy).sum(0) / rho
    cu = cx * ux + cy * uy
    f = f - 0.6 * (f - w * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * (ux * ux + uy * uy)))
    shifts = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, -1), (-1, 1)]
    return torch.stack([f[i].roll(s, (0, 1)) for i, s in enumerate(shifts)])


def pendulum(state: Tensor) -> Tensor:
    def change(s: Tensor) -> Tensor:
        a, b, wa, wb = s.unbind(-1)
        d = a - b
        den = 3 - torch.cos(2 * d)
        fa = (-3 * torch.sin(a) - torch.sin(a - 2 * b) - 2 * torch.sin(d) * (wb**2 + wa**2 * torch.cos(d))) / den
        fb = 2 * torch.sin(d) * (2 * wa**2 + 2 * torch.cos(a) + wb**2 * torch.cos(d)) / den
        return torch.stack([wa, wb, fa, fb], -1)

    for _ in range(5):
        k1 = change(state)
        k2 = change(state + 0.01 * k1)
        k3 = change(state + 0.01 * k2)
        k4 = change(state + 0.02 * k3)
        state = state + 0.02 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def jacobi(u: Tensor, f: Tensor) -> Tensor:
    for _ in range(8):
        p = F.pad(u, (1, 1, 1, 1))
        u = 0.25 * (p[..., 1:-1, :-2] + p[..., 1:-1, 2:] + p[..., :-2, 1:-1] + p[..., 2:, 1:-1] - f)
    return u


def conjugate_gradients(a: Tensor, b: Tensor) -> Tensor:
    a = a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1])
    x, r = torch.zeros_like(b), b
    p, rs = r, (r * r).sum()
    for _ in range(8):
        ap = a @ p
        alpha = rs / (p * ap).sum()
        x, r = x + alpha * p, r - alpha * ap
        new = (r * r).sum()
        p, rs = r + new / rs * p, new
    return x


def game_of_life(x: Tensor) -> Tensor:
    for _ in range(4):
        n = sum(x.roll((i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
        x = ((n == 3) | ((x == 1) & (n == 2))).to(x.dtype)
    return x


add("lennard-jones", lennard_jones, (64, 3))
add("burgers", burgers, (16, 256))
add("lattice boltzmann", lattice, Of(lambda: torch.rand(9, 48, 64) + 0.5))
add("double pendulum", pendulum, (300, 4))
add("jacobi", jacobi, (2, 1, 48, 48), (2, 1, 48, 48))
add("conjugate gradients", conjugate_gradients, (64, 64), (64,))
add("game of life", game_of_life, Whole(2, (64, 64), torch.uint8), trains=False)


# probabilistic models
def kalman(y: Tensor, a: Tensor) -> Tensor:
    m, p, out = torch.zeros(y.shape[0], 4), torch.eye(4).expand(y.shape[0], 4, 4), []
    h = torch.eye(2, 4)
    for t in range(y.shape[1]):
        m, p = m @ a.T, a @ p @ a.T + 0.1 * torch.eye(4)
        s = h @ p @ h.T + torch.eye(2)
        det = s[:, 0, 0] * s[:, 1, 1] - s[:, 0, 1] * s[:, 1, 0]
        inverse = (
            torch.stack([s[:, 1, 1], -s[:, 0, 1], -s[:, 1, 0], s[:, 0, 0]], -1).view(-1, 2, 2) / det[:, None, None]
        )
        k = p @ h.T @ inverse
        m = m + (k @ (y[:, t] - m @ h.T)[..., None])[..., 0]
        p = p - k @ h @ p
        out.append(m)
    return torch.stack(out, 1)


def normalising_flow(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    log_det = torch.zeros(x.shape[0])
    for i in range(w.shape[0]):
        t = torch.tanh(x @ w[i] + b[i])
        log_det = log_det + torch.log((1 + (1 - t * t) * (w[i] @ u[i])).abs() + 1e-6)
        x = x + t[:, None] * u[i]
    return x, log_det


def coupling_spline(x: Tensor, h: Tensor) -> Tensor:
    widths = F.softmax(h[..., :8], -1)
    knots = F.pad(widths.cumsum(-1), (1, 0))
    place = torch.searchsorted(knots.detach(), x.sigmoid()[..., None].detach()).clamp(1, 8) - 1
    left, wide = knots.gather(-1, place), widths.gather(-1, place)
    return ((x.sigmoid()[..., None] - left) / wide).squeeze(-1)


def gaussian_process(x: Tensor, y: Tensor, log_scale: Tensor) -> Tensor:
    k = torch.exp(-0.5 * (x[:, None] - x[None]).square().sum(-1) / log_scale.exp()) + 0.1 * torch.eye(x.shape[0])
    chol = torch.linalg.cholesky(k)
    z = torch.linalg.solve_triangular(chol, y[:, None], upper=False)
    return 0.5 * z.square().sum() + chol.diagonal().log().sum()


def expectation(x: Tensor, mu: Tensor, log_var: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    d = (x[:, None] - mu) ** 2 / log_var.exp() + log_var
    r = F.softmax(F.log_softmax(w, -1) - 0.5 * d.sum(-1), -1)
    n = r.sum(0)
    return (r.T @ x) / n[:, None], n / len(x)


def iwae(m: Tensor, s: Tensor, e: Tensor) -> Tensor:
    z = m + s.exp() * e
    log_w = (-0.5 * z**2).sum(-1) - (-0.5 * e**2 - s).sum(-1)
    return -(torch.logsumexp(log_w, 0) - math.log(e.shape[0])).mean()


add("kalman by hand", kalman, (16, 12, 2), (4, 4))
add("planar flow", normalising_flow, (256, 16), (6, 16), (6, 16), (6,))
add("spline coupling", coupling_spline, (256, 12), (256, 12, 8))
add("gaussian process", gaussian_process, (60, 4), (60,), ())
add("expectation step", expectation, (800, 6), (10, 6), (10, 6), (10,))
add("importance weighted bound", iwae, (64, 20), (64, 20), of(10, 64, 20, learns=False))
add(
    "student t",
    lambda x, m, s: (
        torch.lgamma(x.new_tensor(3.0)) - 3.0 * torch.log1p(((x - m) / F.softplus(s)) ** 2 / 5) - F.softplus(s).log()
    ).sum(),
    *((400, 16),) * 3,
)
add(
    "beta log density",
    lambda x, a, b: (
        lambda a, b, x: (
            (a - 1) * x.log() + (b - 1) * torch.log1p(-x) + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        )
    )(F.softplus(a) + 0.1, F.softplus(b) + 0.1, x.sigmoid()),
    *((4000,),) * 3,
)
add(
    "diffusion target",
    lambda x, e, t: (lambda a: a.sqrt()[:, None, None, None] * x + (1 - a).sqrt()[:, None, None, None] * e)(
        torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)[t]
    ),
    (16, 3, 32, 32),
    (16, 3, 32, 32),
    Whole(1000, (16,)),
)


# optimizers and quantisation
def adam_lists(*tensors: Tensor) -> list[Tensor]:
    p, g, m, v = (tensors[i::4] for i in range(4))
    out = []
    for a, b, c, d in zip(p, g, m, v):
        c, d = c.lerp(b, 0.1), torch.addcmul(d.abs() * 0.999, b, b, value=0.001)
        out += [a - 1e-3 * (c / 0.1) / ((d / 0.001).sqrt() + 1e-8), c, d]
    return out


def clipped(*grads: Tensor) -> list[Tensor]:
    norm = torch.stack([g.norm() for g in grads]).norm()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    return [g * scale for g in grads]


def muon(g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    m = 0.95 * m + g
    x = (g + 0.95 * m).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.float(), m


def adafactor(p: Tensor, g: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g2 = g * g + 1e-30
    r, c = 0.99 * r.abs() + 0.01 * g2.mean(1), 0.99 * c.abs() + 0.01 * g2.mean(0)
    u = g * ((r / r.mean()).rsqrt()[:, None] * c.rsqrt())
    u = u / (u.square().mean().sqrt() / 1.0).clamp(min=1.0)
    return p - 1e-2 * u, r, c


def int4_groups(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    low, high = (w & 0xF).to(torch.int8) - 8, (w >> 4).to(torch.int8) - 8
    full = torch.stack([low, high], -1).view(w.shape[0], -1)
    return x @ (full.view(w.shape[0], -1, 32).float() * s[..., None]).view(w.shape[0], -1).T


def lsq(x: Tensor, s: Tensor) -> Tensor:
    y = (x / s).clamp(-8, 7)
    return (y + (y.round() - y).detach()) * s


def blockwise(x: Tensor) -> tuple[Tensor, Tensor]:
    b = x.view(-1, 64)
    scale = b.abs().amax(1, keepdim=True)
    code = torch.bucketize(b / scale, torch.linspace(-0.95, 0.95, 15))
    return code.to(torch.uint8), scale


add("adam over lists", adam_lists, *(((40, 30),) * 4 + ((200,),) * 4 + ((16, 8, 3, 3),) * 4) * 2, trains=False)
add("clipped gradients", clipped, *((40, 30), (200,), (16, 8, 3, 3), (64, 64)) * 3, trains=False)
add("muon", muon, (96, 128), (96, 128), trains=False)
add("adafactor", adafactor, (300, 200), (300, 200), (300,), (200,), trains=False)
add("int4 in groups", int4_groups, (8, 256), Whole(256, (192, 128), torch.uint8), (192, 8), trains=False)
add("learned step size", lsq, (256, 200), Of(lambda: torch.tensor(0.1)))
add("blockwise codes", blockwise, (256, 256), trains=False)
add(
    "rows in int8",
    lambda x: (lambda s: ((x / s).round().clamp(-128, 127).to(torch.int8), s))(x.abs().amax(-1, keepdim=True) / 127),
    of(64, 512, dtype=BF16),
    trains=False,
)
add("float8 round trip", lambda x: x.to(torch.float8_e4m3fn).float(), (256, 256), trains=False)


# dtypes, layouts, tiny and large
def lru(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    gate = a.sigmoid()
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = gate * h + (1 - gate * gate).sqrt() * (b * x[:, t])
        out.append(h)
    return torch.stack(out, 1)


add("linear recurrent unit", lru, (8, 40, 64), (64,), (64,))
add("tiny gate", lambda x, w, b: torch.sigmoid(x @ w + b) * x, (1, 8), (8, 8), (8,))
add("tiny loss", lambda x, y: ((x - y) ** 2).mean(), (16, 4), (16, 4))
add("one number", lambda x: x * 2 + 1, ())
add("large gelu", F.gelu, (2048, 2048))
add("large residual and norm", lambda x, y, w: F.layer_norm(x + y, (1024,), w), (1024, 1024), (1024, 1024), (1024,))
add("large softmax, rows of 8192", lambda x: F.softmax(x, -1), (256, 8192))
add("large column sums", lambda x: x.sum(0), (8192, 512))
add("large transposed copy", lambda x: x.T.contiguous() + 1, (1500, 1700))
add("strided sum", lambda x: x[:, ::3].sum(1) + x[:, 1::3].amax(1), (500, 600))
add("transposed norm", lambda x: F.layer_norm(x.transpose(1, 2), (48,)), (8, 48, 200))
add("expanded input", lambda x, y: (x.expand(64, 100, 32) * y).sum(1), (1, 100, 32), (64, 1, 32))
add("permuted attention input", lambda x: F.softmax(x.permute(0, 2, 3, 1), -1) * x.permute(0, 2, 3, 1), (4, 32, 20, 20))
add("double normalised", lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), of(300, 100, dtype=F64))
add("half gelu and norm", lambda x, w: F.layer_norm(F.gelu(x), (256,), w), of(128, 256, dtype=F16), of(256, dtype=F16))
add(
    "bf16 mlp",
    lambda x, a, b: F.silu(x @ a) @ b,
    of(64, 128, dtype=BF16),
    of(128, 256, dtype=BF16),
    of(256, 128, dtype=BF16),
)
add(
    "int32 statistics",
    lambda x: (x.sum(1), x.amax(1), (x % 7 == 3).sum(), x // 3),
    Whole(1000, (300, 200), I32),
    trains=False,
)
add("bools", lambda x, y: ((x > 0) ^ (y > 0)).any(1) & (x < 2).all(1), (400, 100), (400, 100), trains=False)
add(
    "complex gates",
    lambda x, w: (
        lambda z: torch.view_as_real(z * torch.polar(torch.sigmoid(z.abs()) / (z.abs() + 1e-6), torch.zeros(64)))
    )(torch.view_as_complex(x) * torch.view_as_complex(w)),
    (128, 64, 2),
    (64, 2),
)
add(
    "mode relu of complex",
    lambda x: (lambda z: z * F.relu(z.abs() - 0.5) / (z.abs() + 1e-6))(torch.view_as_complex(x)).real,
    (128, 100, 2),
)
add("segment lengths", lambda x, n: torch.stack([c.mean(0) for c in x.split(n)]), (100, 32), [10, 20, 5, 40, 25])
add("packed by mask", lambda x, m: (x * (m > 2)[:, None]).sum(0) / (m > 2).sum(), (500, 64), Whole(10, (500,)))
add(
    "prefix sums of segments",
    lambda x, o: (lambda c: c[o[1:]] - c[o[:-1]])(F.pad(x.cumsum(0), (0, 0, 1, 0))),
    (600, 16),
    Of(lambda: torch.arange(0, 601, 6)),
)
add(
    "dates from hours",
    lambda h: torch.stack([h % 24, h // 24 % 7, h // 168], -1).float() @ torch.tensor([[0.1], [0.2], [0.3]]),
    Whole(10000, (2000,)),
    trains=False,
)
add(
    "embedding of positions",
    lambda i, t, p: F.layer_norm(t[i] + p[: i.shape[1]], (64,)),
    Whole(2000, (8, 50)),
    (2000, 64),
    (128, 64),
)
add("tied head", lambda i, t: F.linear(F.embedding(i, t).mean(1), t), Whole(1000, (16, 12)), (1000, 32))
