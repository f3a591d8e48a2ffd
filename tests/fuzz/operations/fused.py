"""Long random programs of small operations on tensors laid out in many ways, which become few kernels, against eager.

Loops of one length match in several ways, results lie in other orders than what they are read beside, and reductions,
broadcasts, shifts and products stand between; forward and backward are each a graph of a dozen to a hundred operations.

    python tests/fuzz/operations/fused.py --count 200 --backends native
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

import argand

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import seeds
import snapshots
from varying import loaded

# {v}, {w}: of one shape; {d}: a dimension; {c}: a number
# fmt: off
SAME = (
    "{v} + {w}", "{v} * {w}", "{v} - {w}.tanh()", "{v} / (1.5 + {w}.square())", "torch.where({v} > 0, {w}, {v})", "torch.where({w} > {c}, {v}, {c})", "torch.maximum({v}, {w})", "{v}.lerp({w}, 0.3)", "torch.addcmul({v}, {w}, {w}, value={c})",
    "{v}.masked_fill({w} > {c}, {c})", "({v} > {w}) * {v}", "{v}.sin()", "{v}.sigmoid() * {w}", "{v}.exp().clamp(max=3)", "F.gelu({v})", "F.silu({v}) + {w}", "{v}.relu()", "{v}.abs().sqrt().clamp(min=0.1)", "{v} * {c}", "{v}.clone()", "{v}.tanh()",
    "{v}.softmax({d})", "{v}.log_softmax({d})", "{v} - {v}.mean({d}, keepdim=True)", "{v} * {v}.sum({d}, keepdim=True)", "{v} / (1 + {v}.amax({d}, keepdim=True).abs())", "{v} - {v}.var({d}, keepdim=True)", "F.layer_norm({v}, {v}.shape[-1:])", "{v}.cumsum({d})",
    "{v}.roll(1, {d})", "{v}.flip({d})", "{v}.diff(dim={d}, prepend={v}.narrow({d}, 0, 1))", "torch.cat([{v}.narrow({d}, 1, {v}.shape[{d}] - 1), {w}.narrow({d}, 0, 1)], {d})", "F.pad({v}, (1, 1))[..., 1:-1] + {w}", "{v}.tril()", "{v}.triu(1) + {w}", "{v}.sum() * {w}", "{v}.norm() + {w}",
    "{v}.index_select({d}, torch.arange({v}.shape[{d}] - 1, -1, -1))", "{v}.gather({d}, {w}.argsort({d}))", "torch.stack([{v}, {w}], {d}).sum({d})", "torch.stack([{v}, {w}], -1)[..., 0]", "{v}.cumsum({d}).contiguous()", "({v}.unsqueeze(-1) * {w}.unsqueeze(-2)).mean(-1)", "{v}.repeat(2, 1, 1)[0] if {v}.dim() == 2 else {v} + 1",
)
TURNED = (
    "{v}.transpose(0, -1)", "{v}.mT", "{v}.transpose(0, -1).contiguous()", "{v}.transpose(0, -1).as_strided({v}.transpose(0, -1).shape, {v}.transpose(0, -1).stride())", "{v}.movedim(0, -1)", "{v}.rot90()", "{v}.reshape(-1).flip(0).view({v}.transpose(0, -1).shape)",
    "torch.empty_like({v}.mT).copy_({v}.mT)", "({v}.mT @ {v}.reshape({v}.shape)) * 0.1 + {v}.mT if {v}.shape[-1] == {v}.shape[-2] else {v}.mT", "torch.einsum('...ij->...ji', {v} * 2)",
)
# fmt: on


def program(seed: int) -> str:
    """The text of `f(x, y, z)`, whose arguments have one number of elements; shapes are those of `arguments`."""
    rng = random.Random(seed)
    values = dict(zip("xyz", arguments(seed, False)))
    lines: list[str] = []
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **values}
    for at in range(rng.randint(5, 22)):
        names = list(values)
        v = rng.choice(names[-4:] if rng.random() < 0.6 else names)
        alike = [name for name in names if values[name].shape == values[v].shape]
        template = rng.choice(TURNED if rng.random() < 0.25 else SAME)
        w, d, c = rng.choice(alike), rng.choice((0, -1, 1)), rng.choice((0, 0.5, 2, -0.3))
        line = template.format(v=v, w=w, d=d, c=c)
        try:
            value = eval(line, space)
        except (RuntimeError, IndexError):
            continue
        if value.numel() != values["x"].numel() or not value.isfinite().all() or value.abs().max() > 1e3:
            continue
        values[f"v{at}"] = space[f"v{at}"] = value
        lines.append(f"    v{at} = {line}")
    results = rng.sample(list(values)[3:], min(len(values) - 3, rng.randint(1, 4)))
    return "\n".join(["def f(x, y, z):", *lines, f"    return [{', '.join(dict.fromkeys(results))}]"]) + "\n"


def arguments(seed: int, requires_grad: bool) -> list[torch.Tensor]:
    """Tensors of one shape, or of that turned, laid out in several ways."""
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    n = rng.choice((3, 4, 8, 16, 17, 33, 40))
    shape = rng.choice(((n, n), (n, n), (n, rng.choice((1, 2, 5, 16, 21))), (rng.choice((2, 3)), n, n), (n, n, 2)))
    made = []
    for _ in range(3):
        turned = rng.random() < 0.4
        value = torch.randn(shape[::-1] if turned else shape, generator=g, dtype=torch.float64)
        value = value.transpose(0, -1) if turned and len(shape) == 2 else value.reshape(shape)
        made.append(value.detach().requires_grad_(requires_grad and rng.random() < 0.8))
    return made


def difference(text: str, seed: int, backend: str) -> str | None:
    """How results or gradients differ, with and without gradients."""
    eager, fn = loaded(text), argand.compile(loaded(text), backend=backend)
    with seeds.calls():
        for requires_grad in (False, True):
            told = []
            for run in (eager, fn):
                given = arguments(seed, requires_grad)
                results = run(*given)
                told.append([[one.detach(), one.stride()] for one in results])
                wanted = [one for one in given if one.requires_grad]
                kept = [one for one in results if one.requires_grad]
                if wanted and kept:
                    loss = sum((one.sin() * (0.5 + i)).sum() for i, one in enumerate(kept))
                    told[-1].append(list(torch.autograd.grad(loss, wanted, allow_unused=True)))
            how = snapshots.differing(*told, tolerance=1e-6)
            if how is not None:
                return f"{'with' if requires_grad else 'without'} gradients: {how[:300]}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 200, "native").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
