"""More programs of `small_programs.py`, as papers' code is written: reinforcement learning, decoding, attention,
losses, recommendation, graphs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from small_program_list import Of, Whole, add, of, small

BF16 = torch.bfloat16
_heads = ((2, 4, 64, 32),) * 3


# reinforcement learning
def advantages(rewards: Tensor, values: Tensor, dones: Tensor) -> tuple[Tensor, Tensor]:
    steps = rewards.shape[0]
    result = torch.zeros_like(rewards)
    last = torch.zeros_like(rewards[0])
    for t in reversed(range(steps)):
        alive = 1.0 - dones[t]
        delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
        last = delta + 0.99 * 0.95 * alive * last
        result[t] = last
    return result, result + values[:-1]


def v_trace(behaviour: Tensor, target: Tensor, rewards: Tensor, values: Tensor) -> Tensor:
    ratios = torch.exp(target - behaviour)
    clipped = ratios.clamp(max=1.0)
    deltas = clipped * (rewards + 0.99 * values[1:] - values[:-1])
    last, out = torch.zeros_like(rewards[0]), []
    for t in range(rewards.shape[0] - 1, -1, -1):
        last = deltas[t] + 0.99 * clipped[t] * last
        out.append(last)
    return torch.stack(out[::-1]) + values[:-1]


def ppo(logits: Tensor, actions: Tensor, old: Tensor, advantage: Tensor, value: Tensor, returns: Tensor) -> Tensor:
    log_probs = F.log_softmax(logits, -1)
    taken = log_probs.gather(1, actions[:, None]).squeeze(1)
    ratio = (taken - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return policy + 0.5 * F.smooth_l1_loss(value, returns) - 0.01 * entropy


def double_q(q: Tensor, online: Tensor, target: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    best = online.argmax(1, keepdim=True)
    goal = rewards + 0.99 * target.gather(1, best).squeeze(1)
    return F.huber_loss(q.gather(1, actions[:, None]).squeeze(1), goal.detach())


def distributional(p: Tensor, target: Tensor, rewards: Tensor) -> Tensor:
    support = torch.linspace(-10, 10, 51)
    moved = (rewards[:, None] + 0.99 * support).clamp(-10, 10)
    b = (moved + 10) / 0.4
    low, high = b.floor().long(), b.ceil().long()
    t = F.softmax(target, -1)
    m = torch.zeros_like(t)
    m = m.scatter_add(1, low.clamp(0, 50), t * (high.float() - b)).scatter_add(
        1, high.clamp(0, 50), t * (b - low.float())
    )
    return -(m.detach() * F.log_softmax(p, -1)).sum(1).mean()


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    log_std = torch.clamp(log_std, -20, 2)
    u = mean + log_std.exp() * noise
    log_prob = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    log_prob = log_prob - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
    return torch.tanh(u), log_prob


add(
    "advantages, backwards",
    advantages,
    (64, 32),
    (65, 32),
    Of(lambda: (torch.rand(64, 32) < 0.05).float(), False),
    trains=False,
)
add("v-trace", v_trace, *((40, 16),) * 3, (41, 16))
add("ppo", ppo, (512, 6), Whole(6, (512,)), of(512, learns=False), of(512, learns=False), (512,), of(512, learns=False))
add(
    "double q",
    double_q,
    (256, 18),
    of(256, 18, learns=False),
    of(256, 18, learns=False),
    Whole(18, (256,)),
    of(256, learns=False),
)
add("distributional q", distributional, (64, 51), of(64, 51, learns=False), of(64, learns=False))
add("squashed gaussian", squashed_gaussian, (256, 8), (256, 8), of(256, 8, learns=False))


# decoding and sampling
def repetition(logits: Tensor, tokens: Tensor) -> Tensor:
    scores = logits.gather(1, tokens)
    scores = torch.where(scores < 0, scores * 1.2, scores / 1.2)
    return F.softmax(logits.scatter(1, tokens, scores) / 0.8, -1)


def nucleus(logits: Tensor) -> Tensor:
    ordered, places = torch.sort(logits, descending=True)
    remove = F.softmax(ordered, -1).cumsum(-1) > 0.9
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    return logits.masked_fill(remove.scatter(1, places, remove), float("-inf"))


def beams(scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = scores[:, :, None] + F.log_softmax(logits, -1)
    best, place = total.flatten(1).topk(logits.shape[1], dim=1)
    return best, place // logits.shape[-1], place % logits.shape[-1]


def speculative(p: Tensor, q: Tensor, tokens: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    p, q = F.softmax(p, -1), F.softmax(q, -1)
    ratio = p.gather(-1, tokens[..., None]) / q.gather(-1, tokens[..., None])
    accepted = (u < ratio.squeeze(-1)).int().cumprod(-1).sum(-1)
    rest = (p - q).clamp_min(0)
    return accepted, rest / rest.sum(-1, keepdim=True).clamp_min(1e-9)


def viterbi(emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    score, back = emission[:, 0], []
    for t in range(1, emission.shape[1]):
        best, place = (score[:, :, None] + transition).max(1)
        score = best + emission[:, t]
        back.append(place)
    return score.max(1)[0], torch.stack(back, 1)


def forward_algorithm(emission: Tensor, transition: Tensor) -> Tensor:
    score = emission[:, 0]
    for t in range(1, emission.shape[1]):
        score = torch.logsumexp(score[:, :, None] + transition, 1) + emission[:, t]
    return torch.logsumexp(score, 1).mean()


add("repetition penalty", repetition, (4, 8000), Whole(8000, (4, 64)), trains=False)
add("nucleus masks", nucleus, (4, 8000), trains=False)
add("beam step", beams, (8, 4), (8, 4, 2000), trains=False)
add(
    "speculative acceptance",
    speculative,
    (4, 5, 4000),
    (4, 5, 4000),
    Whole(4000, (4, 5)),
    Of(lambda: torch.rand(4, 5)),
    trains=False,
)
add("viterbi", viterbi, (16, 24, 12), (12, 12), trains=False)
add("crf partition", forward_algorithm, (16, 24, 12), (12, 12))
add(
    "min p",
    lambda x: (lambda p: x.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), -math.inf))(F.softmax(x, -1)),
    (8, 16000),
    trains=False,
)
add("greedy with log probabilities", lambda x: F.log_softmax(x, -1).max(-1), (4, 32000), trains=False)


# attention
def rotary_half(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.arange(q.shape[2])[:, None] * (10000 ** (-torch.arange(0, q.shape[3], 2) / q.shape[3]))
    cos, sin = torch.cat([t.cos()] * 2, -1), torch.cat([t.sin()] * 2, -1)
    turn = lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)  # noqa: E731
    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


def latent(x: Tensor, down: Tensor, up_k: Tensor, up_v: Tensor, wq: Tensor) -> Tensor:
    b, t, _ = x.shape
    c = F.rms_norm(x @ down, (down.shape[1],))
    q, k, v = ((y).view(b, t, 4, 16).transpose(1, 2) for y in (x @ wq, c @ up_k, c @ up_v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    state, out = q.new_zeros(q.shape[0], q.shape[2], v.shape[2]), []
    k = F.normalize(k, dim=-1)
    for t in range(q.shape[1]):
        seen = torch.einsum("bk,bkv->bv", k[:, t], state)
        state = state + torch.einsum("bk,bv->bkv", k[:, t], beta[:, t, None].sigmoid() * (v[:, t] - seen))
        out.append(torch.einsum("bk,bkv->bv", q[:, t], state))
    return torch.stack(out, 1)


def axial(x: Tensor) -> Tensor:
    rows = F.scaled_dot_product_attention(x, x, x)
    columns = x.transpose(1, 2)
    return rows + F.scaled_dot_product_attention(columns, columns, columns).transpose(1, 2)


def performer(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    features = lambda x: torch.exp(x @ w - x.square().sum(-1, keepdim=True) / 2 - 3) / 8  # noqa: E731
    q, k = features(q * 0.3), features(k * 0.3)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None] + 1e-6)


def sinkhorn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 5
    for _ in range(4):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores.exp() @ v


add("rotary halves", rotary_half, (2, 8, 128, 64), (2, 8, 128, 64))
add("latent attention", latent, (4, 48, 64), small(64, 24), small(24, 64), small(24, 64), small(64, 64))
add("delta rule", delta_rule, (8, 24, 16), (8, 24, 16), (8, 24, 16), (8, 24))
add("axial attention", axial, (2, 24, 24, 32))
add("random features of attention", performer, *_heads, (32, 64))
add("sinkhorn attention", sinkhorn, *_heads)
add(
    "squared relu attention",
    lambda q, k, v: (lambda a: (a / (a.sum(-1, keepdim=True) + 1e-6)) @ v)(F.relu(q @ k.mT).square().tril()),
    *_heads,
)
add(
    "padded keys",
    lambda q, k, v, n: F.scaled_dot_product_attention(
        q, k, v, attn_mask=(torch.arange(64) < n[:, None, None, None] + 1)
    ),
    *_heads,
    Whole(63, (2,)),
)
add(
    "t5 buckets",
    lambda w: w[
        ((torch.arange(80) - torch.arange(80)[:, None]).abs().clamp_min(1).float().log() * 4).long().clamp_max(15)
    ].permute(2, 0, 1),
    (16, 8),
)
add(
    "entmax of two classes of power",
    lambda x: (x - (x.sort(-1, descending=True)[0].cumsum(-1)[..., -1:] - 1) / x.shape[-1]).clamp_min(0).square(),
    (64, 40),
)
add(
    "attention of half precision",
    lambda q, k, v: F.softmax((q @ k.mT).float() / 5.6, -1).to(BF16) @ v,
    *(of(2, 4, 64, 32, dtype=BF16),) * 3,
)


# norms, gates, losses
def vicreg(a: Tensor, b: Tensor) -> Tensor:
    std = lambda z: F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()  # noqa: E731
    a0, b0 = a - a.mean(0), b - b.mean(0)
    cov = lambda z: ((z.T @ z / (len(z) - 1)).fill_diagonal_(0) ** 2).sum() / z.shape[1]  # noqa: E731
    return 25 * F.mse_loss(a, b) + 25 * (std(a) + std(b)) + cov(a0) + cov(b0)


def barlow(a: Tensor, b: Tensor) -> Tensor:
    a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
    c = a.T @ b / len(a)
    on = (torch.diagonal(c) - 1).pow(2).sum()
    return on + 0.005 * (c.flatten()[:-1].view(len(c) - 1, len(c) + 1)[:, 1:].pow(2)).sum()


def giou(a: Tensor, b: Tensor) -> Tensor:
    a, b = (torch.cat([t[:, :2], t[:, :2] + t[:, 2:].abs() + 0.1], 1) for t in (a, b))
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])  # noqa: E731
    inner = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    outer = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    union = area(a) + area(b) - inner
    return (1 - inner / union + (outer - union) / outer).mean()


def nms_matrix(boxes: Tensor, scores: Tensor) -> Tensor:
    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs()], 1)
    boxes = boxes[scores.argsort(descending=True)]
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    inner = (high - low).clamp_min(0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    iou = (inner / (area[:, None] + area - inner + 1e-9)).triu(1)
    return torch.exp(-(iou**2 - iou.amax(0)[:, None] ** 2) / 0.5).amin(0)


def soft_dtw(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, :, None] - b[:, None]).square().sum(-1)
    rows = [d[:, 0].cumsum(1)]
    for i in range(1, d.shape[1]):
        row = [rows[-1][:, 0] + d[:, i, 0]]
        for j in range(1, d.shape[2]):
            near = torch.stack([rows[-1][:, j], row[-1], rows[-1][:, j - 1]])
            row.append(d[:, i, j] - torch.logsumexp(-near, 0))
        rows.append(torch.stack(row, 1))
    return rows[-1][:, -1].mean()


add("vicreg", vicreg, (128, 96), (128, 96))
add("barlow twins", barlow, (128, 96), (128, 96))
add("giou of boxes", giou, (500, 4), (500, 4))
add("matrix nms", nms_matrix, (150, 4), (150,), trains=False)
add("soft dynamic time warping", soft_dtw, (8, 7, 3), (8, 8, 3))
add(
    "dora",
    lambda x, w, a, b, m: F.linear(x, (lambda v: m[:, None] * v / v.norm(dim=1, keepdim=True))(w + b @ a)),
    (64, 96),
    of(80, 96, learns=False),
    (4, 96),
    (80, 4),
    (80,),
)
add(
    "geglu",
    lambda x, w, b, o: (lambda h: (h[..., :128] * F.gelu(h[..., 128:])) @ o)(F.linear(x, w, b)),
    (4, 32, 64),
    small(256, 64),
    (256,),
    small(128, 64),
)
add(
    "label smoothing of words",
    lambda x, t: F.cross_entropy(x.view(-1, 1000), t.view(-1), label_smoothing=0.1, ignore_index=3),
    (8, 32, 1000),
    Whole(1000, (8, 32)),
)
add(
    "chunked cross entropy",
    lambda h, w, t: sum(F.cross_entropy(c @ w.T, d, reduction="sum") for c, d in zip(h.chunk(4), t.chunk(4))) / 256,
    (256, 64),
    small(2000, 64),
    Whole(2000, (256,)),
)
add(
    "z loss",
    lambda x, t: (lambda z: (z - x.gather(1, t[:, None])[:, 0]).mean() + 1e-4 * z.square().mean())(x.logsumexp(-1)),
    (256, 1000),
    Whole(1000, (256,)),
)
add(
    "triplets of all",
    lambda x, y: (
        lambda d: (lambda p, n: F.relu(p[:, :, None] - n[:, None] + 0.2).mean())(
            d * (y[:, None] == y), d * (y[:, None] != y)
        )
    )(torch.cdist(x, x)),
    (32, 16),
    Whole(5, (32,)),
)
add(
    "weight standardised convolution",
    lambda x, w: F.conv2d(
        x, (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5), padding=1
    ),
    (4, 16, 20, 20),
    (24, 16, 3, 3),
)
add(
    "film",
    lambda x, c, w: (lambda p: x * (1 + p[:, :16, None, None]) + p[:, 16:, None, None])(c @ w),
    (4, 16, 30, 30),
    (4, 20),
    (20, 32),
)


# recommendation
def deep_fm(ids: Tensor, table: Tensor, linear: Tensor) -> Tensor:
    e = table[ids]
    pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(-1)
    return torch.sigmoid(linear[ids].sum((1, 2)) + pairs)


def cross_network(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x
    for i in range(w.shape[0]):
        y = x * (y @ w[i] + b[i]) + y
    return y


def dot_interaction(x: Tensor) -> Tensor:
    z = x @ x.mT
    rows, columns = torch.tril_indices(x.shape[1], x.shape[1], -1)
    return torch.cat([x[:, 0], z[:, rows, columns]], 1)


def interest(history: Tensor, target: Tensor, mask: Tensor, w: Tensor, v: Tensor) -> Tensor:
    t = target[:, None].expand_as(history)
    a = torch.cat([history, t, history - t, history * t], -1)
    s = (F.prelu(a @ w, torch.tensor(0.2)) @ v).squeeze(-1).masked_fill(mask < 3, -1e9)
    return (F.softmax(s, 1)[..., None] * history).sum(1)


add("factorisation machine", deep_fm, Whole(5000, (256, 20)), (5000, 16), (5000, 1))
add("cross network", cross_network, (256, 64), small(3, 64, 64), (3, 64))
add("dot interactions", dot_interaction, (128, 20, 16))
add("interest in a history", interest, (32, 20, 16), (32, 16), Whole(10, (32, 20)), small(64, 24), small(24, 1))
add(
    "bayesian ranking",
    lambda u, i, j, a, b: (
        -F.logsigmoid((a[u] * b[i]).sum(1) - (a[u] * b[j]).sum(1)).mean() + 1e-3 * a[u].square().sum()
    ),
    Whole(900, (256,)),
    Whole(700, (256,)),
    Whole(700, (256,)),
    (900, 32),
    (700, 32),
)
add("quotient and remainder tables", lambda i, a, b: a[i // 50] * b[i % 50], Whole(2500, (512,)), (50, 32), (50, 32))


# graphs
def gat(x: Tensor, edges: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    h = (x @ w).view(-1, 4, 8)
    s, d = edges
    e = F.leaky_relu((h * a).sum(-1)[s] + (h * b).sum(-1)[d], 0.2)
    e = (e - e.max()).exp()
    total = torch.zeros(x.shape[0], 4).index_add_(0, d, e)
    return torch.zeros_like(h).index_add_(0, d, h[s] * (e / (total[d] + 1e-9))[..., None]).flatten(1)


def schnet(x: Tensor, p: Tensor, edges: Tensor, w: Tensor) -> Tensor:
    s, d = edges
    r = ((p[s] - p[d]).square().sum(-1) + 1e-6).sqrt()
    basis = torch.exp(-10 * (r[:, None] - torch.linspace(0, 5, 20)) ** 2)
    return torch.zeros_like(x).index_add(0, d, x[s] * F.softplus(basis @ w))


def egnn(h: Tensor, p: Tensor, edges: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s, d = edges
    r = p[s] - p[d]
    m = F.silu(torch.cat([h[s], h[d], r.square().sum(1, keepdim=True)], 1) @ w)
    moved = p.index_add(0, d, r * (m @ v), alpha=0.01)
    return h + torch.zeros_like(h).index_add(0, d, m), moved


def gcn(x: Tensor, edges: Tensor, w: Tensor) -> Tensor:
    s, d = edges
    degree = torch.bincount(d, minlength=x.shape[0]).float().clamp_min(1).rsqrt()
    return F.relu(torch.zeros(x.shape[0], w.shape[1]).index_add(0, d, (x @ w)[s] * (degree[s] * degree[d])[:, None]))


_edges = Whole(200, (2, 1200))
add("graph attention by hand", gat, (200, 16), _edges, small(16, 32), (4, 8), (4, 8))
add("continuous filters", schnet, (200, 32), (200, 3), _edges, small(20, 32))
add("equivariant messages", egnn, (200, 16), (200, 3), _edges, small(33, 16), small(16, 1))
add("normalised graph convolution", gcn, (200, 16), _edges, small(16, 24))
add(
    "maximum over neighbours",
    lambda x, e: torch.full((200, 16), -1e9).scatter_reduce(0, e[1][:, None].expand(-1, 16), x[e[0]], "amax"),
    (200, 16),
    _edges,
)
add(
    "page rank",
    lambda e: (
        [r := torch.full((200,), 1 / 200)]
        and [r := 0.15 / 200 + 0.85 * torch.zeros(200).index_add(0, e[1], r[e[0]] * 0.16) for _ in range(10)][-1]
    ),
    _edges,
    trains=False,
)
