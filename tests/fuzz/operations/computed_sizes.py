"""Random arithmetic on numbers that vary, of which sizes, ends of slices, indices, factors and tensors are made.

Remainders, quotients, shifts, extrema, roundings and functions that flatten, of several numbers, floats and sizes: each
program is compiled once and called with numbers in an order that is drawn, in which graphs for many numbers take calls
where what is computed is 0, 1, negative, or what a trace of theirs has seen. Compared are values, sizes, errors.

    python tests/fuzz/operations/computed_sizes.py --count 200 --backends native,aot_eager
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
from varying import first_difference, loaded

WHOLE = (
    "({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} // {i})", "({i} % {i})", "({i} % {l})", "({i} // {l})", "min({i}, {i})", "max({i}, {i})", "abs({i})", "-{i}", "divmod({i}, {i})[{b}]", "({i} << {b})", "({i} >> 1)", "({i} & {l})", "({i} | {l})", "({i} ^ {i})", "int({f})",
    "round({f})", "math.ceil({f})", "math.floor({f})", "({i} if {i} > {i} else {i})", "sum(({i}, {i}, {l}))", "math.gcd({i}, {i})", "({i} ** 2)", "int({i} > {i})", "len(range({i}, {i}))", "({i}).bit_length()", "math.isqrt(abs({i}))", "math.prod(({i}, {i}))", "int({i} == {i})",
)  # fmt: skip
FLOATS = (
    "({f} + {f})", "({f} * {f})", "({i} / {i})", "({f} / {i})", "math.tanh({f})", "math.exp(-abs({f}))", "math.erf({f})", "math.sqrt(abs({i}))", "math.atan({f})", "min({f}, {f})", "max({f}, {i})", "float({i})", "abs({f})", "({f} % {f})", "({f} // {f})", "math.floor({f}) * 0.5",
    "({i} ** 0.5)", "math.sin({f})", "({f} if {i} > {i} else {f})", "1 / (1 + math.exp(-{f}))", "math.log1p(abs({f}))", "({f} ** 2)", "2.0 ** -abs({i})", "math.fmod({f}, {f})",
)  # fmt: skip
USES = (
    "x[: {i}]", "x[{i} :]", "x[{i} : {i}]", "x[:: max({i}, 1)]", "x[{i} % x.shape[0]]", "x[:, {i} :]", "y.__setitem__(slice(None, {i}), {f})", "y.__setitem__(slice({i}, None), 7.0)", "y.__setitem__((slice(None), slice({i}, {i})), {i})", "torch.arange({s})", "torch.zeros({s}, 2)",
    "torch.full(({s},), {f})", "torch.tensor({f})", "torch.tensor([{i}, {i}])", "torch.tensor({f}, dtype=torch.float64)", "x * {f}", "x + {i}", "x.repeat({s}, 1)", "x.roll({i}, 0)", "torch.nn.functional.pad(x, ({s}, {s}))", "torch.nn.functional.pad(x, ({i}, 1))", "x.tril({i})", "x.narrow(0, {s}, 1)",
    "x.unflatten(0, (-1, max({i}, 1)))", "x.reshape(max({i}, 1), -1)", "x.expand({s}, *x.shape)", "x.split(max({i}, 1))[-1]", "x.chunk(max({i}, 1))[0]", "torch.linspace(0, {f}, {s})", "x.clamp(max={f})", "torch.where(x > {i}, x, {f})", "y.fill_({f})", "y.add_(x, alpha={i})", "torch.eye({s}, 3)", "x.diagonal({i})",
    "x[: {i}].sum()", "x[: {i}].mean()", "torch.cat([x[: {i}], x[{i} :]])", "torch.ones({s}, {s}).triu({i})", "x.flatten()[{i}:{i}].cumsum(0)", "y[: {i}].mul_({f})", "x.index_select(0, torch.arange(min({s}, x.shape[0])))", "torch.arange({i}, {i}, max({i}, 1))", "x.new_full(({s}, 1), {i})", "x.topk(min({s}, x.shape[-1]))[0]",
)  # fmt: skip


def program(seed: int) -> str:
    rng = random.Random(seed)
    whole, floats = ["a", "b", "c", "n", "m"], ["u", "v", "a * 0.5", "n / 3"]

    def filled(template: str, depth: int) -> str:
        parts = {"i": lambda: number(depth - 1), "f": lambda: fraction(depth - 1), "l": lambda: rng.choice("234573"), "b": lambda: rng.choice("01"), "s": lambda: f"min(abs({number(depth - 1)}), 9)"}  # fmt: skip
        for field, draw in parts.items():
            while "{" + field + "}" in template:
                template = template.replace("{" + field + "}", draw(), 1)
        return template

    def number(depth: int) -> str:
        return filled(rng.choice(WHOLE), depth) if depth > 0 and rng.random() < 0.75 else rng.choice([*whole, "2", "1"])

    def fraction(depth: int) -> str:
        return filled(rng.choice(FLOATS), depth) if depth > 0 and rng.random() < 0.75 else rng.choice([*floats, "0.46"])

    lines = ["n, m = x.shape", "out = []"]
    for count in range(rng.randint(2, 5)):
        if rng.random() < 0.3:
            lines.append(f"w{count} = {number(2)}")
            whole.append(f"w{count}")
        caught = rng.random() < 0.6
        use = f"out.append({filled(rng.choice(USES), rng.choice((1, 2, 3)))})"
        errors = "except (RuntimeError, IndexError, ValueError, ArithmeticError) as error:"
        lines += ["try:", f"    {use}", errors, "    out.append(type(error).__name__)"] if caught else [use]
    return "\n".join(["def f(x, y, a, b, c, u, v):", *(f"    {line}" for line in lines), "    return out, y"])


def arguments(rng: random.Random) -> list[Any]:
    n, m = rng.choice((2, 3, 4, 5, 6, 8, 3, 4)), rng.choice((2, 3, 4, 5, 7))
    wholes = [rng.choice((2, 3, 4, 5, 6, 7, 9, 12, 3, 4, 5, 1, 0, -1, -4)) for _ in range(3)]
    floats = [rng.choice((0.5, 1.5, 2.25, 0.1, 3.75, 7.0, -0.5, -2.5, 0.0, 11.3, 1e3)) for _ in range(2)]
    plain = torch.arange(float(n * m)).view(n, m) - 3
    return [plain, plain.clone(), *wholes, *floats]


def seen(fn: Any, seed: int) -> Any:
    given = arguments(random.Random(seed))
    told: list[Any] = []

    def tell(value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                tell(item)
        elif isinstance(value, torch.Tensor):
            told.append([tuple(value.shape), value.dtype, [str(v) if v != v else v for v in value.flatten().tolist()]])
        else:
            told.append(value)

    try:
        tell(fn(*given))
    except Exception as error:
        tell([type(error).__name__])
    tell(given)
    return told


def difference(text: str, seed: int, backend: str) -> str | None:
    """How the compiled program differs in calls with other numbers."""
    space = loaded("import math\n" + text), loaded("import math\n" + text)
    eager, fn = space[0], argand.compile(space[1], backend=backend, dynamic=(None, True)[seed % 2])
    with seeds.calls():
        for call in range(8):
            how = first_difference(*[seen(one, 1000 * seed + call) for one in (eager, fn)])
            if how is not None:
                return f"call {call} {arguments(random.Random(1000 * seed + call))[2:]}: {how}"
    return None


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 200, "native").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
