"""Train a small GPT and a small ResNet with eager and with argand, and draw the loss curves over each other.

    python bench/convergence.py [--steps N] [--seeds N] [--backend NAME] [--out docs/convergence]

Data are synthetic: sequences of a random Markov chain, images of noisy class patterns. Every seed is trained by both;
the table says how far their final losses (means of the last tenth of the steps) are apart, and how far seeds are. Exits
with 1 when argand's mean over seeds differs from eager's by more than the spread of eager's seeds. Writes OUT.png with
matplotlib, else OUT.svg.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
WORDS, LENGTH, CLASSES = 48, 32, 10


class GPTBlock(nn.Module):
    """Causal attention and an MLP, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A language model of two blocks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([GPTBlock(width, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(made + self.short(x))


class ResNet(nn.Module):
    """Three residual blocks on 16 x 16 images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def text_batches(seed: int) -> Batches:
    """Sequences of a Markov chain (the chain is the same for every seed): inputs and the words that follow them."""
    fixed = torch.Generator().manual_seed(1234)
    chain = (torch.randn(WORDS, WORDS, generator=fixed) * 2).softmax(-1)
    drawn = torch.Generator().manual_seed(seed)
    while True:
        words = [torch.randint(WORDS, (16, 1), generator=drawn)]
        for _ in range(LENGTH):
            words.append(torch.multinomial(chain[words[-1][:, 0]], 1, generator=drawn))
        tokens = torch.cat(words, 1)
        yield tokens[:, :-1], tokens[:, 1:]


def image_batches(seed: int) -> Batches:
    """Class patterns (the same for every seed) under noise."""
    patterns = torch.randn(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(1234))
    drawn = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(CLASSES, (16,), generator=drawn)
        yield patterns[labels] + 4 * torch.randn(16, 3, 16, 16, generator=drawn), labels


TASKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches]]] = {
    "GPT": (GPT, text_batches),
    "ResNet": (ResNet, image_batches),
}


def train(task: str, seed: int, steps: int, compiled: Callable[[Any], Any]) -> list[float]:
    """Losses of every step; `compiled` makes the callable that is trained from the model."""
    make, batches = TASKS[task]
    torch.manual_seed(seed)
    model = make()
    call = compiled(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _, (x, y) in zip(range(steps), batches(seed)):
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def final(losses: list[float]) -> float:
    """Mean of the last tenth."""
    return statistics.fmean(losses[-max(len(losses) // 10, 1) :])


def measure(task: str, steps: int, seeds: int, backend: str) -> dict[str, list[list[float]]]:
    """Curves per system, one a seed."""
    import argand

    compiled = {"eager": lambda model: model, "argand": lambda model: argand.compile(model, backend=backend)}
    return {system: [train(task, seed, steps, make) for seed in range(seeds)] for system, make in compiled.items()}


def report(task: str, curves: dict[str, list[list[float]]]) -> bool:
    """Print one line; True when argand's final loss lies within the spread of eager's seeds."""
    ends = {system: [final(curve) for curve in found] for system, found in curves.items()}
    spread = max(ends["eager"]) - min(ends["eager"])
    apart = abs(statistics.fmean(ends["argand"]) - statistics.fmean(ends["eager"]))
    same_seed = max(abs(a - b) for a, b in zip(ends["eager"], ends["argand"]))
    first = statistics.fmean(curve[0] for curve in curves["eager"])
    print(
        f"{task}: loss {first:.3f} -> eager {statistics.fmean(ends['eager']):.4f}, "
        f"argand {statistics.fmean(ends['argand']):.4f}; apart {apart:.4f} (same seed: at most {same_seed:.4f}), "
        f"spread of seeds {spread:.4f}"
    )
    return apart <= spread


def draw(curves: dict[str, dict[str, list[list[float]]]], out: Path) -> Path:
    """Write the plot; returns its path."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        path = out.with_suffix(".svg")
        path.write_text(svg(curves))
        return path
    figure, axes = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 3.5))
    for axis, (task, found) in zip(axes, curves.items()):
        for system, style in (("eager", "-"), ("argand", "--")):
            for number, curve in enumerate(found[system]):
                axis.plot(curve, style, color=f"C{number}", lw=1, label=f"{system}, seed {number}")
        axis.set(title=task, xlabel="step", ylabel="loss")
        axis.legend(fontsize=6)
    figure.tight_layout()
    path = out.with_suffix(".png")
    figure.savefig(path, dpi=110)
    return path


def svg(curves: dict[str, dict[str, list[list[float]]]]) -> str:
    """The plot as SVG: a panel per task, a colour per seed, eager's lines wide and pale, argand's thin and dark."""
    width, height, margin = 460, 300, 44
    pale, dark = ("#9ecae1", "#fdae6b", "#a1d99b"), ("#08519c", "#a63603", "#006d2c")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(curves) * width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, (task, found) in enumerate(curves.items()):
        values = [v for system in found.values() for curve in system for v in curve]
        low, high = min(values), max(values)
        steps = max(len(curve) for curve in found["eager"])
        left, right = panel * width + margin, (panel + 1) * width - 12
        top, bottom = 28, height - margin
        across, down = (right - left) / max(steps - 1, 1), (bottom - top) / ((high - low) or 1)
        for system, colours, line in (("eager", pale, 4), ("argand", dark, 1)):
            for number, curve in enumerate(found[system]):
                points = " ".join(
                    f"{left + x * across:.1f},{bottom - (v - low) * down:.1f}" for x, v in enumerate(curve)
                )
                colour = colours[number % len(colours)]
                parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{line}" points="{points}"/>')
        parts.append(f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>')
        parts.append(
            f'<text x="{left}" y="18">{task}: loss of eager (wide) and argand (thin), a colour per seed</text>'
        )
        for text, y in ((f"{high:.2f}", top + 4), (f"{low:.2f}", bottom)):
            parts.append(f'<text x="{left - 4}" y="{y}" text-anchor="end">{text}</text>')
        parts.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">step {steps}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    ap = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--seeds", type=int, default=3)
    ap.add_argument("--backend", default="native")
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "convergence")
    args = ap.parse_args()
    curves = {task: measure(task, args.steps, args.seeds, args.backend) for task in TASKS}
    reports = [report(task, found) for task, found in curves.items()]
    good = all(reports)
    print(f"plot: {draw(curves, args.out)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
