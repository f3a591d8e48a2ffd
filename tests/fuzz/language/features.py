"""Random programs of Python's own classes and libraries around tensors: dataclasses, enums, descriptors, matches, containers, numbers.

    python tests/fuzz/language/features.py [--count 1000] [--seed 0] [--backends eager] [--dynamic] [--no-reduce]

Each program is a few of `feature_parts.PARTS` in blocks, functions and generators, which log what they computed. Every seed is
in a module of its own, whose globals change in between.
"""

from __future__ import annotations

import collections
import random
import sys
import types
from pathlib import Path
from typing import Any

import torch
from feature_parts import BLOCKS, MATCHES, PARTS, PARTS_312, PRELUDE, PRELUDE_312, SUBJECTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import control  # noqa: E402
import seeds  # noqa: E402

import argand  # noqa: E402

NEW = sys.version_info >= (3, 12)
LINES = [line for line in (PARTS + PARTS_312 * NEW).strip().split("\n") if line]
NUMBERS = ("n", "3", "n + 1", "n * 2", "x.shape[0]", "n % 2", "(n or 1)", "5", "len(str(n))")


def part(rng: random.Random) -> list[str]:
    """The lines of one part, with its numbers chosen."""
    if rng.random() < 0.06:
        text = MATCHES.strip().replace("SUBJECT", rng.choice(SUBJECTS))
    else:
        text = rng.choice(LINES)
        text += next(("\n" + more for begin, more in BLOCKS.items() if text.startswith(begin)), "")
        if text.startswith("def local"):
            text += "\nr = (local(x), local.__type_params__ != ())"
    number = rng.choice(NUMBERS)
    return ["K = " + number, *text.split("\n")]


def block(rng: random.Random, name: str) -> list[str]:
    """A part, and that what it computed is logged, perhaps in something around it."""
    lines = [*part(rng), "LOG.append(seen(r)); x = x + 1"]
    kind = rng.randrange(12)
    shared = any("global " in line for line in lines)

    def inside(first: str, *more: str) -> list[str]:
        return [first, *("    " + line for line in lines), *more]

    if kind < 3:
        return inside(
            "try:", "except Exception as error:", "    LOG.append(seen(error))", "else: LOG.append('went on')"
        )
    if kind == 3:
        return inside("with managed('block'):")
    if kind == 4 and not shared:
        return [*inside(f"def {name}(x, n, r=None):", "    return x"), f"x = {name}(x, n) + 1"]
    if kind == 5 and not shared:
        return [*inside(f"def {name}(x, r=None):", "    yield x"), f"for x in {name}(x): LOG.append('yielded')"]
    if kind == 6:
        return inside("for again in range(2):")
    if kind == 7:
        return inside("if x.shape[0] > n:", "else: LOG.append('not')")
    if kind == 8:
        return inside("with torch.no_grad():")
    if kind == 9:
        return inside("if x.sum() > 0:")
    return lines


def program(seed: int) -> str:
    """The text of `f(x, n)`."""
    while True:
        rng = random.Random(seed)
        seed += 1_000_003
        lines = [line for at in range(rng.choice((1, 2, 3, 4))) for line in block(rng, f"inner{at}")]
        outer = sorted({line.split(";")[0].strip() for line in lines if line.strip().startswith("global ")})
        lines = [line.replace("global RATE; ", "").replace("global TABLE; ", "") for line in lines]
        text = "\n    ".join(["def f(x, n):", *outer, "r = None", *lines, "return x * 2"]) + "\n"
        try:
            compile(text, "<control>", "exec")
        except SyntaxError:
            continue
        return text


def plain(value: Any, depth: int = 0) -> Any:
    """What a value is, as text and numbers that can be compared: types, signs of zero and order included."""
    if depth > 8:
        return "deep"
    if isinstance(value, torch.Tensor):
        return control.plain(value)
    if isinstance(value, BaseException):
        return plain(control.chain(value), depth + 1)
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, *(plain(one, depth + 1) for one in list(value))]
    if isinstance(value, dict):
        return [type(value).__name__, *([plain(k, depth + 1), plain(v, depth + 1)] for k, v in list(value.items()))]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, *sorted(repr(one) for one in value)]
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else f"{type(value).__name__} {text}"


def loaded(text: str) -> dict[str, Any]:
    space = vars(sys.modules.setdefault("language_world", types.ModuleType("language_world"))).copy()
    space["seen"] = argand.disable(plain)
    exec(compile(PRELUDE + PRELUDE_312 * NEW, "<prelude>", "exec"), space)
    exec(compile(text, "<control>", "exec"), space)
    return space


def call(space: dict[str, Any], fn: Any, at: int) -> Any:
    """What the call number `at` gives, logs and leaves; from the fourth on, globals have changed."""
    x = torch.randn((3, 3, 5, 1)[at % 4], generator=torch.Generator().manual_seed(at))
    space["LOG"].clear()
    space["RATE"] = 2 + (at > 2)
    space["SPACE"].k = at // 3
    space["SHARED"].v = at
    vars(space["SHARED"]).pop("half", None)
    try:
        result: Any = fn(x, (0, 3, 4, 2)[at % 4])
    except Exception as error:
        result = error
    return [plain(result), [plain(one) for one in space["LOG"]], plain(x), torch.is_grad_enabled()]


def difference(text: str, backend: str, dynamic: bool | None) -> str | None:
    eager, again, compiled = loaded(text), loaded(text), loaded(text)
    fn = argand.compile(compiled["f"], backend=backend, dynamic=dynamic)
    try:
        with seeds.calls():
            for at in (0, 1, 2, 1, 3, 0):
                want = call(eager, eager["f"], at)
                if want != call(again, again["f"], at):
                    return None
                try:
                    got = call(compiled, fn, at)
                except Exception as error:
                    return f"call {at}: {type(error).__name__}: {error}"
                if (how := control.differing(at, want, got)) is not None:
                    return how
        return None
    finally:
        torch.set_grad_enabled(True)


def main() -> int:
    return seeds.run_main(__doc__, 1000, program, difference, 2500)


if __name__ == "__main__":
    sys.exit(main())
