"""Versions of programs over sizes and numbers that vary, argand's beside torch.compile's, backend "eager" both.

    python bench/recompiles.py [--part 0/8] [--seeds 0,1] [--only TEXT] [--no-torch] [--backend eager]

Each program is called six times: with an even seed by sizes and numbers above 1, with an odd one by 0, 1, equal and
negative ones too. Results, errors and what became of objects must be eager's. Prints the programs that argand compiles
more often or breaks more often than torch.compile, those that differ, and the sums. Exits with 1 when one differs.
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import enum
import functools
import itertools
import linecache
import logging
import math
import operator
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

import argand
from argand.capture.driver.explain import Findings
from recompile_blocks import BLOCKS
from recompile_expressions import FLOATS, INTS, USES

ARGUMENTS = (
    "x",
    "a",
    "b",
    "u",
    "v",
    "k",
    "o",
    "c",
    "fr",
    "md",
    "kd",
    "ns",
    "nf",
    "t0",
    "sz",
    "lst",
    "lf",
    "d",
    "bf",
    "kwv",
    "lst2",
    "d2",
    "w",
)
SHAPES = ((3, 4), (4, 4), (5, 6), (6, 3), (2, 5), (8, 8), (1, 4), (0, 3), (7, 2), (4, 1), (9, 4), (5, 5))
WHOLE = (
    (2, 3),
    (3, 3),
    (4, 2),
    (5, 1),
    (1, 4),
    (0, 2),
    (-1, 2),
    (-2, -1),
    (6, 0),
    (3, 7),
    (7, 3),
    (2, 2),
    (5, 4),
    (4, 6),
    (8, 2),
)
REAL = (
    (0.5, 0.25),
    (0.75, 0.5),
    (0.5, 0.5),
    (1.5, 2.5),
    (0.0, 1.0),
    (1.0, 0.0),
    (-0.5, 0.5),
    (2.0, 3.25),
    (0.125, 0.75),
    (-1.5, -0.25),
    (0.3, 0.1),
    (3.7, 1.2),
)
COUNTS = (1, 2, 3, 4, 2, 5, 3, 1, 2, 6, 3, 4)
Call = tuple[tuple[int, int], tuple[int, int], tuple[float, float], int]


class Mode(enum.IntEnum):
    A = 2
    B = 3
    C = 5


class Kind(enum.Enum):
    LOW = 2
    MID = 3
    HIGH = 5


@dataclasses.dataclass
class Conf:
    k: int = 2
    p: float = 0.5
    dims: tuple[int, ...] = (2, 3)


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: int = 2
    p: float = 0.5


class Obj:
    """What programs change."""

    def __init__(self) -> None:
        self.step = self.count = self.last = 0
        self.best, self.lr, self.ema, self.flag = 10, 1.0, 0.5, False
        self.hist: list[Any] = []
        self.table: dict[Any, Any] = {}
        self.cache = self.kv = None
        self.state, self.groups = {"step": 0}, [{"lr": 0.5}]
        self.t = torch.arange(96.0).view(12, 8)
        self.k, self.f = 2, 0.5


def helper(x: torch.Tensor, k: int = 1, p: float = 0.5) -> torch.Tensor:
    return x[:k] * p


def kw(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return x * options.get("k", 1) + options["p"]


def va(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    return x.new_zeros(sizes)


def bodies() -> Iterator[str]:
    """All programs' bodies; each sets `r`."""
    for text, uses in (
        (INTS, ("x[:int({})]", "x * ({})", "torch.zeros(min(abs(int({})), 9), m)")),
        (FLOATS, ("x * ({})", "x.clamp(max={})")),
        (USES, ("{}",)),
    ):
        for part in text.split(";;"):
            yield from (f"r = {use.replace('{}', part.strip())}" for use in uses)
    yield from BLOCKS.strip().split("\n\n")


def loaded(body: str) -> Callable[..., Any]:
    """The program, as a function that was not compiled before."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    text = f"def f({', '.join(ARGUMENTS)}):\n    n, m = x.shape\n{lines}    return r\n"
    space = {
        "collections": collections, "dataclasses": dataclasses, "enum": enum, "functools": functools, "math": math,
        "itertools": itertools, "operator": operator, "np": numpy, "torch": torch, "F": torch.nn.functional,
        "Mode": Mode, "Kind": Kind, "Conf": Conf, "Frozen": Frozen, "helper": helper, "kw": kw, "va": va,
    }  # fmt: skip
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), space)
    return space["f"]  # type: ignore[return-value]


def calls(seed: int) -> list[Call]:
    """Six calls' numbers."""
    rng = random.Random(seed)
    shapes, whole, real, counts = [*SHAPES], [*WHOLE], [*REAL], [*COUNTS]
    if seed % 2 == 0:
        shapes, whole = [pair for pair in shapes if min(pair) > 1], [pair for pair in whole if min(pair) > 1]
        real = [pair for pair in real if min(pair) > 0 and 1.0 not in pair]
        counts = [count for count in counts if count > 1]
    return list(zip(*(rng.sample(values, 6) for values in (shapes, whole, real, counts))))  # type: ignore[arg-type]


def arguments(o: Obj, call: Call) -> dict[str, Any]:
    (n, m), (a, b), (u, v), k = call
    x = torch.arange(float(n * m)).reshape(n, m) / 4 - 1
    o.k, o.f = a, u
    length, member = 1 + k % 3, (2, 3, 5)[k % 3]
    values = [
        x, a, b, u, v, k, o, Conf(a, u, (abs(a), abs(b))), Frozen(a, u), Mode(member), Kind(member), numpy.int64(k),
        numpy.float64(u), torch.tensor(k), torch.Size((k, n)), [a, b, k][:length], [u, v, u * 2][:length],
        {"n": a, "f": u}, bool(k % 2), a, [*range(8)], {1: x + 1, 2: x + 2, 3: x + 3}, [1.0, 2.0, 3.0],
    ]  # fmt: skip
    return dict(zip(ARGUMENTS, values))


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        numbers = [str(n) if n != n else n for n in value.detach().flatten().tolist()]
        return value.dtype, tuple(value.shape), value.stride() if value.numel() else (), value.requires_grad, numbers
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(told, value))
    if isinstance(value, dict):
        return [(told(key), told(item)) for key, item in value.items()]
    return type(value).__name__, repr(value)


def near(want: Any, got: Any) -> bool:
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(want) == len(got) and all(map(near, want, got))
    if isinstance(want, float) and isinstance(got, float):
        return want == got or abs(want - got) <= 1e-4 * max(1, abs(want))
    return bool(want == got)


def outcomes(body: str, numbers: list[Call], compiled: Callable[[Any], Any]) -> list[Any]:
    """What each call gives, and leaves behind."""
    fn, o, results = compiled(loaded(body)), Obj(), []
    for call in numbers:
        given = arguments(o, call)
        torch.manual_seed(0)
        try:
            result = told(fn(**given))
        except Exception as error:
            result = ["raised", type(error).__name__]
        results.append(copy.deepcopy([result, told(given["x"]), told(given["lst"]), told(vars(o))]))
    return results


def argand_counts(body: str, numbers: list[Call], backend: str) -> tuple[list[Any], int, int]:
    """(outcomes, graphs, breaks)."""
    argand.reset()
    findings = Findings()
    with findings.listening():
        results = outcomes(body, numbers, lambda fn: argand.compile(fn, backend=backend))
    argand.reset()
    return results, len(findings.graphs), len(findings.breaks)


def torch_counts(body: str, numbers: list[Call]) -> tuple[list[Any], int, int]:
    """The same of torch.compile."""
    graphs = 0

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return gm.forward

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    results = outcomes(body, numbers, lambda fn: torch.compile(fn, backend=backend))
    return results, graphs, sum(torch._dynamo.utils.counters["graph_break"].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1", help="which of how many parts of the programs")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--only", default="", help="programs with this text")
    parser.add_argument("--no-torch", action="store_true", help="argand only")
    parser.add_argument("--backend", default="eager", help="argand's backend")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    argand.config.log_level = 40
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    sums: collections.Counter[str] = collections.Counter()
    for index, body in enumerate(bodies()):
        for seed in map(int, options.seeds.split(",") if index % parts == part and options.only in body else ()):
            numbers = calls(seed + 2 * index)
            want = outcomes(body, numbers, lambda fn: fn)
            results, graphs, breaks = argand_counts(body, numbers, options.backend)
            differ = [i for i, pair in enumerate(zip(want, results)) if not near(*pair)]
            sums.update(programs=1, graphs=graphs, breaks=breaks, different=bool(differ))
            verdict = f"DIFFERS {[numbers[i] for i in differ]}" if differ else ""
            if not options.no_torch:
                theirs, their_graphs, their_breaks = torch_counts(body, numbers)
                more = max(graphs - their_graphs, 0) if near(want, theirs) else 0
                sums.update(torch_graphs=their_graphs, torch_breaks=their_breaks, behind=bool(more), more=more)
                if more or breaks > their_breaks:
                    verdict += f" {graphs} graphs and {breaks} breaks, torch.compile {their_graphs} and {their_breaks}"
            if verdict:
                print(f"[{index}:{seed}] {verdict.strip()}: {body!r}", flush=True)
    print(dict(sums))
    return 1 if sums["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
