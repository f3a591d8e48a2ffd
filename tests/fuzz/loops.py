"""Random loops over time steps against eager: states, masks, products, early parts, strides of steps, nested loops.

`python tests/fuzz/loops.py --count 200 [--seed N]` compares results and gradients, in float64, and prints what differs.
"""

from __future__ import annotations

import argparse
import random

import torch

import argand
from argand import events

BATCH, WIDTH = 3, 5


def terms(draw: random.Random) -> list[str]:
    """What the new state may be made of."""
    pieces = [
        "x[:, {t}]", "x[:, {t}] @ w", "h @ u", "torch.addmm(b, h, u)", "c", "h * a", "torch.sigmoid(c) * h",
        "torch.cat([h[:, 2:], c[:, :2]], 1) @ w", "m[:, {t}].unsqueeze(1) * h", "y[{t}] @ u.t()", "x[:, 0]",
        "(x * h.unsqueeze(1)).sum(1)", "torch.softmax(h @ w, -1)", "torch.bmm(x, h.unsqueeze(2)).squeeze(2) @ v",
        "torch.where(m[:, {t}].unsqueeze(1) > 0, c, h)", "x[:, {t}:{t} + 1].squeeze(1)", "F.linear(h, w, b)",
    ]  # fmt: skip
    return draw.sample(pieces, draw.randint(1, 4))


def program(seed: int) -> str:
    """A function of `x, y, m, h, w, u, v, a, b`."""
    draw = random.Random(seed)
    index = draw.choice(["t", "t", "t", "T - 1 - t", "2 * t % T", "t // 2", "(t * 3 + 1) % T"])
    rounds = draw.choice(["range(T)", "range(T)", "reversed(range(T))", "range(2, T)", "range(0, T, 2)"])
    lines = ["def f(x, y, m, h, w, u, v, a, b):", "    T, outs, c = x.shape[1], [], h * 0.5"]
    lines.append("    kept = torch.zeros_like(x)")
    if draw.random() < 0.3:
        lines.append("    h = torch.tanh(x.mean(1) @ w)")
    lines.append(f"    for t in {rounds}:")
    update = "torch.tanh(" + " + ".join(terms(draw)).format(t=index) + ")"
    if draw.random() < 0.2:
        lines += ["        for _ in range(2):", f"            h = {update}"]
    else:
        lines.append(f"        h{draw.choice(['', ', c'])} = {update}".replace("h, c =", "h, c = c,"))
    if draw.random() < 0.5:
        lines.append("        c = 0.5 * c + " + " + ".join(terms(draw)).format(t=index) + " * 0.1")
    if draw.random() < 0.15:
        lines.append(f"        if t == {draw.randint(0, 20)}: h = h * 2")
    if draw.random() < 0.15:
        lines.append(f"        h = h + t * {draw.random():.2f}")
    ends = ["outs.append(h)", "outs.append(h @ w)", "outs.append(c.unsqueeze(1))", "kept[:, t] = h", "pass"]
    ends.append("outs.insert(0, h)")
    lines.append("        " + draw.choice(ends))
    joins = "torch.cat(outs, 1) if outs and outs[0].ndim == 3 else torch.stack(outs, {}) if outs else h"
    lines.append(f"    return h, {draw.choice(['c', 'c.sum()', 'h + c'])}, kept, {joins.format(draw.randint(0, 2))}")
    return "\n".join(lines)


def compare(seed: int) -> tuple[str, int]:
    """What differs, "" for nothing, and how many loops there were."""
    torch.manual_seed(seed)
    draw = random.Random(seed + 1)
    text, space = program(seed), {"torch": torch, "F": torch.nn.functional}
    exec(text, space)  # the program was drawn above
    function, steps = space["f"], draw.choice([13, 26, 40])
    sizes = [(BATCH, steps, WIDTH), (steps, BATCH, WIDTH), (BATCH, steps), (BATCH, WIDTH), (WIDTH, WIDTH)]
    sizes += [(WIDTH, WIDTH), (steps, WIDTH), (WIDTH,), (WIDTH,)]
    args = [torch.randn(size, dtype=torch.float64) / 2 for size in sizes]
    wanted = [arg.requires_grad_() for arg in args if draw.random() < 0.7] if draw.random() < 0.6 else []
    found: list[str] = []
    stop = events.bus.subscribe(lambda event: found.append(event.text()), ["loop"])
    try:
        with argand.config.patch(verify_ir=True):
            results = [run(*args) for run in (argand.compile(function, dynamic=False), function)]
            torch.testing.assert_close(*results)
            if wanted:
                sums = [sum((each * each).sum() for each in result) for result in results]
                if sums[1].requires_grad:
                    torch.testing.assert_close(*(torch.autograd.grad(s, wanted, allow_unused=True) for s in sums))
    except Exception as error:  # whatever it is, it is told with the program
        return f"seed {seed}, {steps} steps: {type(error).__name__}: {str(error)[:600]}\n{text}\n", len(found)
    finally:
        stop()
        argand.reset()
    return "", len(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    differences = loops = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        text, count = compare(seed)
        loops += count
        differences += bool(text)
        if text:
            print(text, flush=True)
    print(f"{asked.count} programs, {loops} loops, {differences} differences")


if __name__ == "__main__":
    main()
