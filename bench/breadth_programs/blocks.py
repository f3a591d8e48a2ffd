"""Networks of blocks that the other files lack: group norms, convolutions beside attention, experts, bags, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Conformer(nn.Module):
    """Half an MLP, attention, a gated depthwise convolution over time, half an MLP, as in speech recognition."""

    def __init__(self, width: int = 144, heads: int = 4, kernel: int = 31) -> None:
        super().__init__()
        self.first, self.last = (self.mlp(width) for _ in range(2))
        self.norm, self.before, self.end = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gated = nn.Conv1d(width, 2 * width, 1)
        self.along = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    @staticmethod
    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.gated(self.before(x).transpose(1, 2)), 1)
        x = x + self.out(F.silu(self.batch(self.along(y)))).transpose(1, 2)
        found: torch.Tensor = self.end(x + 0.5 * self.last(x))
        return found


class Squeezed(nn.Module):
    """A bottleneck of 1x1, depthwise, squeeze and excitation, 1x1."""

    def __init__(self, ins: int, outs: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = 4 * ins
        self.up = nn.Sequential(nn.Conv2d(ins, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, ins // 4, 1), nn.SiLU(), nn.Conv2d(ins // 4, wide, 1), nn.Sigmoid()
        )
        self.down = nn.Sequential(nn.Conv2d(wide, outs, 1, bias=False), nn.BatchNorm2d(outs))
        self.same = stride == 1 and ins == outs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.up(x))
        y = self.down(y * self.squeeze(y))
        return x + y if self.same else y


class GroupBlock(nn.Module):
    """Two convolutions under group norms, a shortcut."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, ins), nn.GroupNorm(8, outs)
        self.one, self.two = nn.Conv2d(ins, outs, 3, padding=1), nn.Conv2d(outs, outs, 3, padding=1)
        self.skip = nn.Conv2d(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(F.silu(self.first(x)))
        y = self.two(F.silu(self.second(y)))
        found: torch.Tensor = y + self.skip(x)
        return found


class GroupUNet(nn.Module):
    """A U-Net of group norms, strided convolutions and nearest upsampling."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 96)) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(GroupBlock(w, w) for w in widths)
        self.less = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(GroupBlock(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.into(x), []
        for number, block in enumerate(self.down):
            x = block(x)
            kept.append(x)
            x = self.less[number](x) if number < len(self.less) else x
        kept.pop()
        for block in self.up:
            x = block(torch.cat((F.interpolate(x, scale_factor=2.0), kept.pop()), 1))
        found: torch.Tensor = self.out(x)
        return found


class Translator(nn.Module):
    """A bidirectional GRU reads; a GRU cell writes, with additive attention in each step."""

    def __init__(self, width: int = 128, words: int = 2000) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(3 * width, width)
        self.key, self.query, self.score = nn.Linear(2 * width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        heard, last = self.read(self.words(ids))
        keys, h, steps = self.key(heard), last[0] + last[1], []
        for word in self.words(given).unbind(1):
            weights = self.score(torch.tanh(keys + self.query(h)[:, None])).softmax(1)
            h = self.cell(torch.cat((word, (weights * heard).sum(1)), 1), h)
            steps.append(h)
        found: torch.Tensor = self.out(torch.stack(steps, 1))
        return found


class Experts(nn.Module):
    """A mixture of experts: each token goes to its best two of eight, chosen by a softmax."""

    def __init__(self, width: int = 128, count: int = 8) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) * 0.05)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * 0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(0, 1)
        best, chosen = self.route(y).softmax(-1).topk(2, -1)
        weights = torch.zeros(y.shape[0], self.up.shape[0], device=y.device).scatter(1, chosen, best)
        weights = weights / weights.sum(-1, keepdim=True)
        each = torch.einsum("th,ehf->etf", y, self.up)
        each = torch.einsum("etf,efh->eth", F.gelu(each), self.down)
        return x + torch.einsum("eth,te->th", each, weights).view_as(x)


class Retention(nn.Module):
    """Retention with a decay for each head, in its parallel form, a group norm and a gate."""

    def __init__(self, width: int = 192, heads: int = 6, layers: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.qkvg = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.groups = nn.ModuleList(nn.GroupNorm(heads, width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.register_buffer("decay", 1 - 2.0 ** (-5 - torch.arange(heads)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        apart = torch.arange(t, device=x.device)[:, None] - torch.arange(t, device=x.device)
        mask = torch.where(apart >= 0, self.decay[:, None, None] ** apart.clamp(min=0), 0.0)
        for norm, qkvg, group, out in zip(self.norms, self.qkvg, self.groups, self.out):
            q, k, v, g = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in qkvg(norm(x)).chunk(4, -1))
            held = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5 * mask) @ v
            held = group(held.transpose(1, 2).reshape(b * t, c)).view(b, t, c)
            x = x + out(held * F.silu(g.transpose(1, 2).reshape(b, t, c)))
        return x


class Bags(nn.Module):
    """Bags of embeddings, a factorisation machine and a cross network, a loss with logits."""

    def __init__(self, width: int = 16, fields: int = 8) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20000, width, mode="mean") for _ in range(fields))
        wide = fields * width
        self.cross = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(wide, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.out = nn.Linear(wide + 64, 1)

    def forward(self, ids: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        parts = [bag(each) for bag, each in zip(self.bags, ids.unbind(1))]
        first = y = torch.cat(parts, 1)
        for cross in self.cross:
            y = first * cross(y) + y
        stacked = torch.stack(parts, 1)
        pairs = 0.5 * (stacked.sum(1) ** 2 - (stacked**2).sum(1)).sum(1)
        logits = self.out(torch.cat((y, self.deep(first)), 1))[:, 0] + pairs
        return F.binary_cross_entropy_with_logits(logits, clicked)


class Contrast(nn.Module):
    """A small residual encoder of two views, a contrastive loss over the batch; a focal loss beside it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.InstanceNorm2d(2 * width), nn.ELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.project, self.classify = nn.Linear(2 * width, 64), nn.Linear(2 * width, 10)

    def forward(self, one: torch.Tensor, two: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        a, b = self.net(one), self.net(two)
        u, v = F.normalize(self.project(a), dim=-1), F.normalize(self.project(b), dim=-1)
        alike = u @ v.T / 0.1
        matched = torch.arange(alike.shape[0], device=alike.device)
        contrast = 0.5 * (F.cross_entropy(alike, matched) + F.cross_entropy(alike.T, matched))
        surprise = F.cross_entropy(self.classify(a), labels, reduction="none")
        return contrast + ((1 - (-surprise).exp()) ** 2 * surprise).mean()


class Pyramid(nn.Module):
    """Features at several sizes, dilated branches beside a global pool (as in DeepLab), summed and upsampled."""

    def __init__(self, width: int = 64, classes: int = 21) -> None:
        super().__init__()
        self.stem = nn.Sequential(*(self.unit(ins, width, 3, 2) for ins in (3, width, width)))
        self.branches = nn.ModuleList(self.unit(width, width, 3, 1, rate) for rate in (1, 6, 12))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1, bias=False), nn.ReLU())
        self.join = nn.Sequential(self.unit(4 * width, width, 1), nn.Dropout(0.1), nn.Conv2d(width, classes, 1))

    @staticmethod
    def unit(ins: int, outs: int, size: int, stride: int = 1, rate: int = 1) -> nn.Sequential:
        conv = nn.Conv2d(ins, outs, size, stride, rate * (size // 2), rate, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        parts = [branch(y) for branch in self.branches]
        parts.append(F.interpolate(self.pool(y), size=y.shape[2:], mode="bilinear", align_corners=False))
        return F.interpolate(self.join(torch.cat(parts, 1)), size=x.shape[2:], mode="bilinear", align_corners=False)


class GraphAttention(nn.Module):
    """Attention over the edges of a graph: softmax over each node's neighbours."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.values = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.into = nn.Parameter(torch.randn(layers, heads, width // heads) * 0.1)
        self.out = nn.Parameter(torch.randn(layers, heads, width // heads) * 0.1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for values, into, out in zip(self.values, self.into, self.out):
            v = values(x).view(x.shape[0], self.heads, -1)
            scores = F.leaky_relu((v * into).sum(-1)[source] + (v * out).sum(-1)[target], 0.2)
            largest = scores.new_full((x.shape[0], self.heads), -1e9)
            largest = largest.scatter_reduce(0, target[:, None].expand_as(scores), scores, "amax")
            weights = (scores - largest[target]).exp()
            total = torch.zeros_like(largest).index_add(0, target, weights)
            sent = v[source] * (weights / (total[target] + 1e-9))[..., None]
            x = F.elu(torch.zeros_like(v).index_add(0, target, sent).flatten(1)) + x
        return x


PROGRAMS: dict[str, Callable[[], Made]] = {
    "conformer": lambda: (
        nn.Sequential(*(Conformer() for _ in range(3))).eval(),
        (torch.randn(2, 200, 144),),
    ),
    "squeezed": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            Squeezed(24, 40, 3, 2),
            Squeezed(40, 40, 5, 1),
            Squeezed(40, 80, 5, 2),
            Squeezed(80, 80, 3, 1),
            Squeezed(80, 80, 7, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(80, 100),
        ).eval(),
        (torch.randn(4, 3, 128, 128),),
    ),
    "group-norm U-Net": lambda: (GroupUNet().eval(), (torch.randn(2, 3, 64, 64),)),
    "GRU translator": lambda: (
        Translator().eval(),
        (torch.randint(2000, (16, 40)), torch.randint(2000, (16, 24))),
    ),
    "experts": lambda: (nn.Sequential(*(Experts() for _ in range(3))).eval(), (torch.randn(4, 128, 128),)),
    "retention": lambda: (Retention().eval(), (torch.randn(4, 128, 192),)),
    "embedding bags": lambda: (
        Bags().eval(),
        (torch.randint(20000, (512, 8, 10)), torch.randint(2, (512,)).float()),
    ),
    "contrastive loss": lambda: (
        Contrast().eval(),
        (torch.randn(16, 3, 64, 64), torch.randn(16, 3, 64, 64), torch.randint(10, (16,))),
    ),
    "dilated pyramid": lambda: (Pyramid().eval(), (torch.randn(2, 3, 128, 128),)),
    "graph attention": lambda: (GraphAttention().eval(), (torch.randn(1000, 64), torch.randint(1000, (2, 8000)))),
}
