"""Arithmetic of extreme numbers in fused loops, bit for bit against eager.

Two tensors of all pairs of dtypes hold the least and greatest numbers of their types, zeros of both signs, infinities,
NaN, subnormal and tied numbers; every operation of a table is computed of them, of one of them and a Python number, and
of one of them and a 0-d tensor, at sizes around a vector's, and as operands of other operations in one loop.

    python tests/fuzz/operations/extremes.py --count 200
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import argand

Tensor = torch.Tensor
Operation = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SIZES = (1, 7, 8, 15, 16, 17, 31, 33, 64, 67, 130)
NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 3, -3, 7, 127, -128, 255, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, -1.5, 2.5, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"), True, False)  # fmt: skip

BINARY: dict[str, Operation] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: torch.rsub(a, b),
    "alpha": lambda a, b: torch.add(a, b, alpha=3),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floor divide": lambda a, b: a // b,
    "divide floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    # of integers, eager's kernel ends the process where the least one is divided by -1
    "divide trunc": lambda a, b: torch.div(a.double(), b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: torch.fmod(a, b),
    "maximum": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
    "minimum": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "fmax": lambda a, b: torch.fmax(torch.as_tensor(a), torch.as_tensor(b)),
    "fmin": lambda a, b: torch.fmin(torch.as_tensor(a), torch.as_tensor(b)),
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "logical and": lambda a, b: torch.logical_and(torch.as_tensor(a), torch.as_tensor(b)),
    "logical xor": lambda a, b: torch.logical_xor(torch.as_tensor(a), torch.as_tensor(b)),
    "left": lambda a, b: a << b,
    "right": lambda a, b: a >> b,
    "copysign": lambda a, b: torch.copysign(a, b),
    "where": lambda a, b: torch.where(torch.as_tensor(a) > 0, a, b),
    "clamp least": lambda a, b: torch.clamp(a, min=b),
    "clamp most": lambda a, b: torch.clamp(a, max=b),
    "clamp": lambda a, b: torch.clamp(a, b, b),
    "heaviside": lambda a, b: torch.heaviside(a, torch.as_tensor(b, dtype=a.dtype)),
    "masked": lambda a, b: a.masked_fill(a > 0, b),
    "threshold": lambda a, b: torch.threshold(a, 0, b),
    "xlogy": lambda a, b: torch.xlogy(a, b),
    "nextafter": lambda a, b: torch.nextafter(a, torch.as_tensor(b, dtype=a.dtype)),
    "gcd": lambda a, b: torch.gcd(a, b),
    "lerp": lambda a, b: torch.lerp(a, torch.as_tensor(b, dtype=a.dtype).expand_as(a), 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, a, torch.as_tensor(b), value=2),
    "in place": lambda a, b: a.clone().add_(b),
    "in place product": lambda a, b: a.clone().mul_(b),
    "assigned": lambda a, b: a.clone().fill_(b) if not isinstance(b, Tensor) else a.clone().copy_(b),
}
UNARY: dict[str, Operation] = {
    "neg": lambda a: -a,
    "abs": lambda a: a.abs(),
    "sign": lambda a: a.sign(),
    "sgn": lambda a: a.sgn(),
    "not": lambda a: ~a,
    "logical not": lambda a: torch.logical_not(a),
    "square": lambda a: a.square(),
    "power": lambda a: a**2,
    "cube": lambda a: a**3,
    "relu": lambda a: a.relu(),
    "round": lambda a: a.round(),
    "round to one": lambda a: torch.round(a, decimals=1),
    "floor": lambda a: a.floor(),
    "ceil": lambda a: a.ceil(),
    "trunc": lambda a: a.trunc(),
    "frac": lambda a: a.frac(),
    "reciprocal": lambda a: a.reciprocal(),
    "sqrt": lambda a: a.sqrt(),
    "isnan": lambda a: a.isnan(),
    "isinf": lambda a: a.isinf(),
    "isposinf": lambda a: a.isposinf(),
    "isfinite": lambda a: a.isfinite(),
    "signbit": lambda a: a.signbit() & ~a.isnan(),  # the sign of no number is that of either operand
    "bool": lambda a: a.bool(),
    "float": lambda a: a.float(),
    "double": lambda a: a.double(),
    "half": lambda a: a.half(),
    "bfloat16": lambda a: a.bfloat16(),
    "nan_to_num": lambda a: torch.nan_to_num(a),
    "hardtanh": lambda a: torch.nn.functional.hardtanh(a, -2, 2),
    "relu6": lambda a: torch.nn.functional.relu6(a),
    "leaky": lambda a: torch.nn.functional.leaky_relu(a, 0.5),
    "clamp": lambda a: a.clamp(-1, 1),
    "amax": lambda a: a.amax(-1),
    "amin": lambda a: a.amin(-1),
    "argmax": lambda a: a.argmax(-1),
    "argmin": lambda a: a.argmin(-1),
    "max": lambda a: a.max(-1),
    "min": lambda a: a.min(-1),
    "all": lambda a: a.all(-1),
    "any": lambda a: a.any(-1),
    "integer sum": lambda a: a.sum(-1) if not a.is_floating_point() else a.amax(),
    "integer product": lambda a: a.prod(-1) if not a.is_floating_point() else a.amin(),
    "integer running sum": lambda a: a.cumsum(-1) if not a.is_floating_point() else a.cummax(-1),
    "running most": lambda a: a.cummax(-1),
    "running least": lambda a: a.cummin(-1),
    "count": lambda a: torch.count_nonzero(a, -1),
    "sorted": lambda a: a.sort(-1, stable=True),
    "wider": lambda a: a.to(torch.int64) if not a.is_floating_point() else a,
    "narrower": lambda a: a.to(torch.int8) if not a.is_floating_point() else a,
    "unsigned": lambda a: a.to(torch.uint8) if not a.is_floating_point() else a,
}
INEXACT = ("xlogy", "sqrt", "lerp", "round to one", "alpha", "addcmul")
"""Of these the last bits are no promise of eager's, which rounds halves on the way."""
UNSIGNED = (
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "clamp",
    "amax",
    "amin",
    "max",
    "min",
    "running",
    "hardtanh",
    "relu6",
    "sorted",
)
"""Of these eager says by the length of a tensor which of two zeros it takes."""


def values(dtype: torch.dtype, count: int, chooser: random.Random) -> Tensor:
    if dtype is torch.bool:
        return torch.tensor([chooser.random() < 0.5 for _ in range(count)])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        pool = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -3.0, info.max, info.min, info.tiny, -info.tiny,
                info.tiny / 2, info.eps, 1 + info.eps, float("inf"), float("-inf"), float("nan"), 255.0, 1e4, -7.25]  # fmt: skip
        return torch.tensor([chooser.choice(pool) for _ in range(count)], dtype=torch.float64).to(dtype)
    bounds = torch.iinfo(dtype)
    near = [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        31,
        32,
        63,
        64,
        100,
        bounds.max,
        bounds.max - 1,
        bounds.min,
        bounds.min + 1,
        bounds.max // 2,
    ]
    pool = near + ([-1, -2, -3, -7, -8] if bounds.min else [])
    return torch.tensor([chooser.choice(pool) for _ in range(count)], dtype=dtype)


def outcome(function: Operation, *args: Any) -> Any:
    try:
        return function(*args)
    except (RuntimeError, TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError, AttributeError) as error:
        return type(error)


def flat(result: Any) -> list[Any]:
    return [part for each in result for part in flat(each)] if isinstance(result, tuple | list) else [result]


def same(got: Any, want: Any, exact: bool, signed: bool = True) -> bool:
    if not isinstance(got, Tensor) or not isinstance(want, Tensor):
        return got is want
    if got.dtype is not want.dtype or got.shape != want.shape:
        return False
    if not want.dtype.is_floating_point:
        return torch.equal(got, want)
    if not exact:
        return torch.allclose(got.double(), want.double(), rtol=1e-2, atol=1e-37, equal_nan=True)
    numbers = ~want.isnan()
    if not torch.equal(got.isnan(), want.isnan()) or not torch.equal(got[numbers], want[numbers]):
        return False
    return not signed or torch.equal(got[numbers].signbit(), want[numbers].signbit())


Case = tuple[str, Callable[[Tensor, Tensor, Tensor], Any]]


def cases(chooser: random.Random, a: Tensor, b: Tensor, zero_dim: Tensor) -> Iterator[Case]:
    """Operations that eager allows, each with what it is called."""
    made: list[Case] = []
    for name, function in BINARY.items():
        number, left = chooser.choice(NUMBERS), chooser.random() < 0.3
        made.append((name, lambda x, y, z, f=function: f(x, y)))
        made.append((f"{name} of {number!r}", lambda x, y, z, f=function, n=number: f(x, n)))
        if left:
            made.append((f"{number!r} {name}", lambda x, y, z, f=function, n=number: f(n, x)))
        made.append((f"{name} of 0-d", lambda x, y, z, f=function: f(x, z)))
        made.append((f"0-d {name}", lambda x, y, z, f=function: f(z, x)))
    for name, function in UNARY.items():
        made.append((name, lambda x, y, z, f=function: f(x)))
    for _ in range(10):  # one operation of another's result
        (first, inner), (last, outer) = chooser.choice(made), chooser.choice(list(UNARY.items()))
        made.append((f"{last}, a function of {first}", lambda x, y, z, f=inner, g=outer: g(f(x, y, z))))
        then, of_two = chooser.choice(list(BINARY.items()))
        made.append((f"{then} of {first}", lambda x, y, z, f=inner, g=of_two: g(f(x, y, z), y)))
    for name, program in made:
        if "alpha" in name and any(t.is_floating_point() for t in (a, b, zero_dim)):
            continue  # eager rounds once, or twice, or is infinite on the way
        if all(isinstance(part, Tensor) for part in flat(outcome(program, a, b, zero_dim))):
            yield name, program


def unsafe(program: Callable[..., Any], a: Tensor, b: Tensor, zero_dim: Tensor) -> bool:
    """Whether eager gives its own result another value for tensors of one element: what C++ leaves undefined."""
    whole = flat(outcome(program, a, b, zero_dim))
    if any(part.dim() and part.shape != a.shape for part in whole if isinstance(part, Tensor)):
        return False
    places = [outcome(program, a[i : i + 1], b[i : i + 1], zero_dim) for i in range(len(a))]
    rows = [flat(place) for place in places]
    if any(not isinstance(part, Tensor) for row in rows for part in row):
        return False
    return any(
        part.shape == a.shape and not same(torch.cat([row[k].reshape(1) for row in rows]), part, True)
        for k, part in enumerate(whole)
    )


def differences(seed: int, backend: str = "native") -> Iterator[str]:
    """What differs for one pair of dtypes and one size."""
    chooser = random.Random(seed)
    first, second = (chooser.choice(FLOATS + INTEGERS) for _ in range(2))
    size = chooser.choice(SIZES)
    a, b = values(first, size, chooser), values(second, size, chooser)
    # eager rounds a wider number beside halves first, or does not: that depends on the operation and its side
    others = (second, torch.float32, torch.int64) if first.itemsize > 2 or not first.is_floating_point else (first,)
    zero_dim = values(chooser.choice((first, *others)), 1, chooser)[0]
    chosen = list(cases(chooser, a, b, zero_dim))
    chooser.shuffle(chosen)
    chosen = chosen[:60]

    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Any]:
        return [function(x, y, z) for _, function in chosen]

    compiled = argand.compile(program, backend=backend, dynamic=chooser.choice((None, None, True)))
    want, got = program(a, b, zero_dim), compiled(a, b, zero_dim)
    for (name, function), expected, result in zip(chosen, want, got):
        how = not any(word in name for word in INEXACT), not any(word in name for word in UNSIGNED)
        pairs = list(zip(flat(result), flat(expected), strict=True))
        if all(same(one, other, *how) for one, other in pairs) or unsafe(function, a, b, zero_dim):
            continue
        one, other = next((x, y) for x, y in pairs if not same(x, y, *how))
        at = ""
        if one.shape == other.shape and one.dtype is other.dtype and one.dim():
            wrong = [i for i in range(one.numel()) if not same(one.flatten()[i], other.flatten()[i], *how)][:2]
            rows = [
                (a[i].item(), b[i].item(), one.flatten()[i].item(), other.flatten()[i].item())
                for i in wrong
                if i < size
            ]
            at = f": (a, b, got, eager) {rows}"
        yield f"seed {seed}, {first} and {second}, 0-d {zero_dim.dtype} {zero_dim.item()}, size {size}: {name}: {one.dtype} {other.dtype}{at}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="native")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        for text in differences(seed, options.backend):
            bad += 1
            print(text, flush=True)
        argand.reset()
    print(f"{options.count} programs, {bad} differences")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
