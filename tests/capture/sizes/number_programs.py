"""Random programs of numbers that vary, bit for bit against eager: ints of any size, floats, bools, texts made of them.

    python -m tests.capture.sizes.number_programs [--count 1000] [--seed 0] [--backends eager] [--no-reduce]

A program computes with numbers that it is given, in Python's operators, `math` and the methods of int, float and str, branches
on them, formats them, adds them to tensors and notes everything on the way. It is called seven times, with numbers at the edges
of what an int64 or a double holds among them.
"""

from __future__ import annotations

import linecache
import math
import operator
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fuzz"))

import seeds  # noqa: E402

import argand  # noqa: E402

INTS = (
    0, 1, -1, 2, 3, -3, 7, 10, -10, 255, 256, 1000, -1000, 2**31 - 1, -(2**31), 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64,
    10**20, -(10**20), 5, 6, 8, True, False,
)  # fmt: skip
SMALL = (0, 1, 2, 3, 4, 5, 7, -1, -2, -5, 8, 16)
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 1e10, -1e10, 1e308, -1e308, 1e-320, math.inf, -math.inf, math.nan, 3.0, 2.0**53, 1e16, 7.7, -7.7, 0.3, 2.675,
)  # fmt: skip
TEXTS = (
    "", "a", "abc", "Hello World", "x" * 5, "ß", "İi", "1", "-7", " 12 ", "a,b,c", "%d", "{}", "0x1f", "aXbX", "\t a\n", "é", "nan", "1e5", "_x1",
)  # fmt: skip

LEAVES = {
    "I": ("n", "m", "k", "n", "m", "x.shape[0]", "len(s)", "0", "1", "2", "5", "-1", "16"),
    "F": ("a", "b", "a", "b", "n", "0.5", "-0.0", "2.0", "c"),
    "C": ("n > m", "a < b", "n == m", "a == b", "a != a", "n", "a", "n > 0", "n is m", "s", "flag"),
    "S": ("s", "t", "s", "t", "'z'"),
}
"""The letters of expressions: an int, a float, a condition, a text."""
EXPRESSIONS = {
    "I": (
        "(I + I)", "(I - I)", "(I * I)", "(I // I)", "(I % I)", "(I & I)", "(I | I)", "(I ^ I)", "(I << (I % 9))", "(I >> (I % 9))", "(I ** (I % 4))", "pow(I, I % 5, I)", "(-I)", "(~I)", "abs(I)", "int(F)", "round(F)", "divmod(I, I)[0]", "divmod(I, I)[1]",
        "max(I, I)", "min(I, I, I)", "(I if C else I)", "math.floor(F)", "math.ceil(F)", "math.isqrt(I)", "math.gcd(I, I)", "int(I / 3)", "(I).bit_length()", "round(I, -1)", "sum(range(I % 7))", "math.trunc(F)", "len(range(I, I, 2))", "int(C)", "operator.index(I)", "(I and I)",
        "(I or I)", "range(I, I)[I]", "(I).bit_count()", "int(str(I))", "math.comb(I % 9, I % 9)", "sorted([I, I, I])[1]", "hash(I)", "(I).conjugate()", "(F).as_integer_ratio()[0]", "int.from_bytes((I % 256).to_bytes(2, 'big'), 'little')", "[10, 20, 30, 40][I]",
        "{1: 5, 2: 6, 0: 7, -1: 8}[I]", "(lambda q, *r, w=I: q + w + len(r))(I, I)", "math.lcm(I % 50, I % 50)", "math.perm(I % 6, I % 6)", "(I).numerator", "sum(j for j in range(I % 5))", "x.size(I)", "x.new_zeros(I % 4).numel()", "x[:I].shape[0]", "x[I:].numel()", "divmod(I, 3)[I]", "int(F // 1)", "max((I, I), default=I)",
    ),
    "F": (
        "(F + F)", "(F - F)", "(F * F)", "(F / F)", "(F // F)", "(F % F)", "(F ** 2)", "(F ** 0.5)", "(F ** -1)", "(F ** 3)", "(F ** b)", "(-F)", "abs(F)", "float(I)", "(I / I)", "round(F, 1)", "round(F, 2)", "round(F, -1)", "round(F, 0)", "math.sqrt(F)", "math.exp(F)", "math.log(F)",
        "math.sin(F)", "math.tanh(F)", "math.fabs(F)", "math.log1p(F)", "math.expm1(F)", "math.cbrt(F)", "math.atan(F)", "math.erf(F)", "math.radians(F)", "divmod(F, F)[0]", "divmod(F, F)[1]", "math.copysign(F, F)", "math.fmod(F, F)", "max(F, F)", "min(F, F)", "(F if C else F)", "float(F)",
        "sum([F, F])", "math.hypot(F, F)", "math.ldexp(F, I % 5)", "math.frexp(F)[0]", "math.modf(F)[1]", "(F or F)", "(F and F)", "math.pow(F, F)", "math.atan2(F, F)", "math.fsum([F, F])", "math.remainder(F, F)", "math.nextafter(F, F)", "math.dist([F], [F])", "+(F)", "(F).real",
        "complex(F, F).imag", "abs(complex(F, F))", "(complex(F, F) * complex(F, 1)).real", "math.log(F, F)", "math.log2(F)", "float(str(F))", "sorted([F, F])[0]", "float.fromhex(float(F).hex())", "(I + 0.0)", "(F * I)", "(I // F)", "(True * F)", "math.ulp(F)", "math.prod([F, I])",
    ),
    "C": (
        "(I < I)", "(I <= I)", "(I == I)", "(I != I)", "(I > I)", "(F < F)", "(F <= F)", "(F == F)", "(F != F)", "(F > F)", "(F == I)", "(not C)", "(C and C)", "(C or C)", "(I < F < I)", "(I in (1, 2, n))", "(F in [a, 0.0])", "math.isnan(F)", "math.isinf(F)", "(F).is_integer()",
        "isinstance(I, bool)", "isinstance(F, float)", "math.isclose(F, F)", "(I in range(I, I))", "((I, F) < (I, F))", "any(q > I for q in (n, m, k))", "all(q for q in (I, F))", "bool(F)", "flag", "(type(I) is int)", "(C is True)", "(C == C)", "(C ^ C)", "bool(I)", "(x.shape == (I,))", "(I in x.shape)",
    ),
    "S": (
        "(S + S)", "(S * (I % 4))", "f'{n:SPEC}'", "f'{a:SPEC}'", "'{0:SPEC}'.format(I)", "'{0:SPEC}'.format(F)", "format(I, 'SPEC')", "('%d|%s|%5.2f' % (I, S, F))", "str(I)", "repr(F)", "hex(I)", "bin(I)", "oct(I)", "chr(I % 200)", "str(C)", "S[I]", "S[I:I]", "S.upper()", "S.title()", "S.strip()",
        "S.swapcase()", "S.capitalize()", "S.casefold()", "S.replace(S, S)", "S.zfill(I % 9)", "S.join([S, S])", "str(S.split(S))", "str(S.find(S))", "str(S.encode())", "S.center(I % 9)", "str(S < S)", "str(S in S)", "str(S.partition(S))", "str(S.isdigit())", "str(int(S))", "str(ord(S))", "str(complex(F, F))",
        "ascii(S)", "f'{n=} {a!r:>8}'", "S.ljust(I % 9, '*')", "str([*map(str, (I, F))])", "(S or S)", "(S if C else S)", "str(float(S))", "f'{n:>{k}}'", "f'{a:{k}.{m}f}'", "str({I: F})", "str((I, F)[I])", "'%x' % I", "'%+.3e' % F", "str(x.shape)", "str([n, m][::I])", "str(divmod(I, I))",
    ),
}  # fmt: skip
FORMATS = (
    "d",
    "5d",
    "<5",
    ">8",
    ",",
    "x",
    "#x",
    "08.3f",
    ".2e",
    "g",
    "+.1f",
    "%",
    "b",
    "_d",
    "^9",
    "s",
    "c",
    "n",
    "e",
    ".0f",
    "010",
    "=+7",
    "",
)
RETURNS = (
    "x * 2, out",
    "out, x + n",
    "x + a, out",
    "out, x.sum()",
    "out, x * c",
    "out, torch.full((2,), a), x",
    "out, x.new_tensor([n, m]), x",
)
HASHES = re.compile(r"hash\([^)]*")


def expression(rng: random.Random, kind: str, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.15:
        return rng.choice(LEAVES[kind])
    template = rng.choice(EXPRESSIONS[kind]).replace("SPEC", rng.choice(FORMATS))
    return re.sub(r"\b[IFCS]\b", lambda letter: expression(rng, letter[0], depth - 1), template)


def program(seed: int) -> str:
    """The text of `f`, which compiles as Python."""
    rng = random.Random(seed)
    while True:
        lines = ["def f(x, n, m, k, a, b, s, t, flag, c, out):"]
        for _ in range(rng.choice((1, 2, 3))):
            statement = rng.choice((
                "n = I; out.append(n)", "a = F; out.append(a)", "s = S; out.append(s)", "out.append(C)", "x = x + I; out.append(x)", "x = x * F; out.append(x)", "x = x - I; out.append(x)", "out.append((I, F))",
                "x = torch.where(x > F, x, I); out.append(x)", "x = x.clamp(max=F); out.append(x)", "x[I % 2] = F", "k += I; out.append(k)", "out.append(torch.tensor(F))", "out.append(torch.tensor(I))",
            ))  # fmt: skip
            lines.append(
                "    "
                + re.sub(r"\b[IFCS]\b", lambda letter: expression(rng, letter[0], 2 + (letter[0] != "S")), statement)
            )
            if rng.random() < 0.15:
                lines.append("    argand.graph_break()")
        text = "\n".join([*lines, f"    return {rng.choice(RETURNS)}"]) + "\n"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, "<numbers>", "exec")
            return text
        except SyntaxError:
            continue


def arguments(rng: random.Random, wide: bool) -> list[Any]:
    ints, pick = INTS if wide else SMALL, rng.choice
    numbers = [pick(ints), pick(ints), pick(SMALL), pick(FLOATS), pick(FLOATS)]
    return [
        torch.arange(1.0, 1 + pick((3, 3, 4, 2))),
        *numbers,
        pick(TEXTS),
        pick(TEXTS),
        pick((True, False)),
        pick((1.5, 2, True, 3.5)),
    ]


def plain(value: Any) -> Any:
    """Types and texts of all; a list of tensors' numbers beside what they are."""
    if isinstance(value, torch.Tensor):
        return ["tensor", value.dtype, tuple(value.shape), value.tolist()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    return [type(value).__name__, repr(value)]


def seen(fn: Any, given: list[Any]) -> Any:
    out: list[Any] = []
    x = given[0].clone()
    try:
        return plain([fn(x, *given[1:], out), x])
    except Exception as error:
        return ["raised", type(error).__name__, str(error)[:200], plain([out, x])]


def same(want: Any, got: Any, exact: bool) -> bool:
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(same(*pair, exact) for pair in zip(want, got))
    if isinstance(want, float) and isinstance(got, float):
        if want != want or got != got:
            return want != want and got != got
        return (want, math.copysign(1, want)) == (got, math.copysign(1, got)) or (
            not exact and math.isclose(want, got, rel_tol=1e-5)
        )
    return bool(want == got)


def loaded(text: str) -> Any:
    space: dict[str, Any] = {"math": math, "argand": argand, "torch": torch, "operator": operator}
    linecache.cache["<numbers>"] = (len(text), None, text.splitlines(True), "<numbers>")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "<numbers>", "exec"), space)
    return space["f"]


def difference(text: str, seed: int, backend: str) -> str | None:
    rng = random.Random(seed)
    eager, fn = (
        loaded(text),
        argand.compile(loaded(text), backend=backend, dynamic=rng.choice((None, None, True, False))),
    )
    wide = rng.random() < 0.5
    with seeds.calls(), argand.config.patch(cache_size_limit=64):
        for call in range(7):
            given = arguments(rng, wide)
            want, got = seen(eager, given), seen(fn, given)
            if not same(want, got, backend == "eager") and not _by_address(text, given):
                return f"call {call} with {given}:\n  eager    {want}\n  compiled {got}"
    return None


def _by_address(text: str, given: list[Any]) -> bool:
    """Whether a NaN may have been hashed: two of them have two hashes."""
    return "hash(" in text and any(value != value for value in given[1:6]) or ("hash(" in text and "inf" in repr(given))


def main() -> int:
    return seeds.run_programs(seeds.parser(__doc__, 1000, "eager").parse_args(), program, difference)


if __name__ == "__main__":
    sys.exit(main())
