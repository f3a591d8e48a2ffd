"""Every pointwise operation with every pair of dtypes, Python numbers among them, at lengths around that of a vector, natively.

python tests/backends/operators/pointwise_sweep.py [--seed N] [--pairs N]: all 100 pairs of dtypes (an hour on two cores) or some;
prints what does not compile or differs from eager. `make test` runs a fraction (test_pointwise_types.py).
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import itertools
import random
import sys
import warnings
from typing import Any

import torch

import argand

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
UNARY = "abs neg bitwise_not logical_not sign sgn ceil floor trunc round frac sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfinv reciprocal square isnan isinf isfinite isposinf isneginf signbit relu positive lgamma digamma logit deg2rad rad2deg angle real nan_to_num i0 sinc".split()
FUNCTIONAL = "silu gelu elu selu celu hardtanh hardsigmoid hardswish leaky_relu softplus mish logsigmoid tanhshrink softsign hardshrink softshrink relu6".split()
BINARY = "add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign xlogy logaddexp logaddexp2 heaviside nextafter gcd lcm ldexp rsub float_power".split()
NUMBERS = [True, False, 2, -3, 0, 2.5, -0.5]
LENGTHS = (1, 7, 8, 9, 64)


def value(dt, n, seed):
    g = torch.Generator().manual_seed(seed)
    if dt is torch.bool:
        return torch.randint(0, 2, (n,), generator=g).bool()
    if dt.is_floating_point:
        return (torch.randn(n, generator=g) * 2).to(dt)
    lo = 0 if dt is torch.uint8 else -5
    return torch.randint(lo, 6, (n,), generator=g).to(dt)


def programs(a, b, m=None):
    for u in UNARY:
        yield (u, lambda x, y, m, f=getattr(torch, u): f(x))
    for u in FUNCTIONAL:
        yield (u, lambda x, y, m, f=getattr(torch.nn.functional, u): f(x))
    for o in BINARY:
        f = getattr(torch, o)
        yield (o, lambda x, y, m, f=f: f(x, y))
        for s in NUMBERS:
            yield (f"{o}({s})", lambda x, y, m, f=f, s=s: f(x, s))
    for o in (
        "pow",
        "sub",
        "remainder",
        "where",
        "bitwise_left_shift",
        "true_divide",
        "floor_divide",
        "xlogy",
        "float_power",
    ):
        f = getattr(torch, o)
        if o == "where":
            continue
        for s in NUMBERS:
            yield (f"{o}({s}, x)", lambda x, y, m, f=f, s=s: f(s, x))
    for dt in DTYPES:
        yield (f"to {dt}", lambda x, y, m, dt=dt: x.to(dt))
        yield (f"to {dt} add", lambda x, y, m, dt=dt: x.to(dt) + y)
    yield ("where", lambda x, y, m: torch.where(m, x, y))
    yield ("where2", lambda x, y, m: torch.where(x > y, x, y))
    for s, t in itertools.product(NUMBERS, NUMBERS):
        yield (f"where {s} {t}", lambda x, y, m, s=s, t=t: torch.where(m, s, t))
    for s in NUMBERS:
        yield (f"where x {s}", lambda x, y, m, s=s: torch.where(m, x, s))
        yield (f"where {s} x", lambda x, y, m, s=s: torch.where(m, s, x))
        yield (f"masked_fill {s}", lambda x, y, m, s=s: x.masked_fill(m, s))
        yield (f"clamp {s}", lambda x, y, m, s=s: x.clamp(s))
        yield (f"clamp max {s}", lambda x, y, m, s=s: x.clamp(max=s))
        yield (f"full_like {s}", lambda x, y, m, s=s: torch.full_like(x, s))
        yield (f"add alpha {s}", lambda x, y, m, s=s: torch.add(x, y, alpha=s))
        yield (f"threshold {s}", lambda x, y, m, s=s: torch.nn.functional.threshold(x, s, s))
        yield (f"lerp {s}", lambda x, y, m, s=s: torch.lerp(x, y, s))
        yield (f"addcmul {s}", lambda x, y, m, s=s: torch.addcmul(x, y, x, value=s))
        yield (f"fill chain {s}", lambda x, y, m, s=s: torch.where(x == s, y, s))
    for s, t in ((True, False), (False, False), (True, True), (1, 0), (2.5, True)):
        yield (
            f"where0 {s} {t}",
            lambda x, y, m, s=s, t=t: (
                torch.where(m.any(), s, t) & m
                if isinstance(s, bool) and isinstance(t, bool)
                else torch.where(m.any(), s, t) * x
            ),
        )
        yield (f"where m0 {s} {t}", lambda x, y, m, s=s, t=t: torch.where(m & m.all(), s, t))
        yield (f"where cmp {s} {t}", lambda x, y, m, s=s, t=t: torch.where(x.max() > x, s, t))
        yield (
            f"where nest {s} {t}",
            lambda x, y, m, s=s, t=t: torch.where(m, torch.where(x > 0, s, t), torch.where(m.all(), t, s)),
        )
    yield (
        "where bcast",
        lambda x, y, m: (
            torch.where(m.any(), x, y),
            torch.where(m, x.max(), y),
            torch.where(m, x, y.min()),
            torch.where(m.all(), x.max(), y),
            torch.where(x.max() > 0, m, ~m),
        ),
    )
    yield (
        "bool bcast",
        lambda x, y, m: (
            m & m.any(),
            m | m.all(),
            m ^ m.all(),
            m == m.any(),
            m != m.all(),
            m.any() < m,
            ~m.all() | m,
            (x > y) & m.any(),
            m.all() & (x.max() > y.min()),
        ),
    )
    yield (
        "bcast arith",
        lambda x, y, m: (
            x + y.max(),
            x.min() * y,
            torch.maximum(x, y.max()),
            x == y.max(),
            x.max() > y,
            m.any() * x,
            m.any() + y,
            m * x,
            m + y,
            x.masked_fill(m.any(), 1),
        ),
    )
    yield (
        "2d",
        lambda x, y, m: (
            x[:, None] + y[None],
            torch.where(m[:, None], x[None], y[:, None]),
            torch.where(m[:, None] & m, True, False),
            torch.where(m[:, None], True, m[None]),
        ),
    )
    yield (
        "bool store",
        lambda x, y, m: (
            m.to(torch.uint8) + x.bool(),
            x.bool().to(y.dtype),
            (x > y).to(x.dtype),
            torch.logical_not(m.any()).expand(9),
            torch.full_like(m, True) ^ m,
        ),
    )
    yield ("clamp t", lambda x, y, m: torch.clamp(x, x.min(), y.max()))
    yield ("any", lambda x, y, m: x.bool() & m | ~m)
    yield ("cumlogic", lambda x, y, m: torch.where(m & (x > 0), m, False) | torch.where(m, True, m))
    yield ("isin", lambda x, y, m: torch.where(torch.logical_not(x), y, 1))
    yield (
        "sum bool",
        lambda x, y, m: (
            torch.where(m, True, False).sum(),
            torch.where(m, 1, 0).sum(),
            x.sum(),
            (x * 2).sum(),
            x.any(),
            x.all(),
            (x > 1).sum(),
        ),
    )
    yield ("minmax", lambda x, y, m: (x.amax(), x.amin(), (x == y).all(), x.argmax()))
    yield ("mean", lambda x, y, m: (x.to(torch.float32).mean(), x.prod()))


def leaves(v):
    return [z for i in v for z in leaves(i)] if isinstance(v, (tuple, list)) else [v]


def same(e, g):
    for p, q in zip(leaves(e), leaves(g)):
        if p.dtype != q.dtype or p.shape != q.shape:
            return f"dtype {p.dtype} {q.dtype}"
        if p.dtype.is_floating_point:
            tol = {torch.float16: 0.002, torch.bfloat16: 0.016, torch.float32: 2e-05, torch.float64: 1e-09}[p.dtype]
            if not torch.allclose(p.double(), q.double(), rtol=tol, atol=tol, equal_nan=True):
                return f"{p.tolist()} {q.tolist()}"[:300]
        elif not torch.equal(p, q):
            return f"{p.tolist()} {q.tolist()}"[:300]
    return ""


def valid(a: torch.dtype, b: torch.dtype, chooser: random.Random) -> tuple[list[Any], list[Any]]:
    """(name, program, which length) that eager accepts for operands of these dtypes, and the operands."""
    operands = [[value(dtype, n, seed) for n in LENGTHS] for seed, dtype in ((1, a), (2, b), (3, torch.bool))]
    found = []
    for name, program in programs(a, b, None):
        i = chooser.randrange(len(LENGTHS))
        try:
            program(*[one[i] for one in operands])
        except Exception:
            continue
        found.append((name, program, i))
    chooser.shuffle(found)
    return found, operands


def failures(chosen: list[Any], operands: list[Any]) -> list[str]:
    """What differs from eager, or does not compile, of programs that are compiled as one graph."""

    def all_of_them(*given: Any) -> list[Any]:
        return [program(*[one[i] for one in given]) for _, program, i in chosen]

    argand.reset()
    try:
        got = argand.compile(all_of_them, fullgraph=True)(*operands)
    except argand.ArgandError as error:
        if len(chosen) == 1:
            return [f"{chosen[0][0]} of {LENGTHS[chosen[0][2]]} elements: {str(error)[:300]}"]
        half = len(chosen) // 2
        return failures(chosen[:half], operands) + failures(chosen[half:], operands)
    compared = [(name, i, same(e, g)) for (name, _, i), e, g in zip(chosen, all_of_them(*operands), got)]
    return [f"{name} of {LENGTHS[i]} elements: {difference}" for name, i, difference in compared if difference]


def main() -> int:
    """The sweep as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=0, help="how many pairs of dtypes (0: all)")
    given = parser.parse_args()
    chooser = random.Random(given.seed)
    pairs = list(itertools.product(DTYPES, DTYPES))
    bad = 0
    for a, b in chooser.sample(pairs, given.pairs) if given.pairs else pairs:
        found, operands = valid(a, b, chooser)
        for start in range(0, len(found), 120):
            for text in failures(found[start : start + 120], operands):
                bad += 1
                print(f"{a}, {b}: {text}", flush=True)
        print(f"{a}, {b}: {len(found)} programs", flush=True)
    print(f"{bad} differences")
    return bool(bad)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
