"""Run random programs eagerly and compiled, and compare everything that a caller can see.

    python tests/fuzz/differential.py [--count 10000] [--seed 0] [--jobs 2] [--backend eager] [--dynamic] [--raising] [--keep DIR]

    python tests/fuzz/differential.py --mutate [--count 20000] [--backend mixed]     changes between the calls (see mutated.py)
    python tests/fuzz/differential.py --mutate --backend native --stored DIR         with stored outcomes; twice: cold, then warm
    python tests/fuzz/differential.py --reduce SEED                                  a small program of a difference of --mutate

Each program is called with the sizes of `ROWS` in turn, so that sizes become symbols (from the first call with --dynamic).
Prints each difference with its program, then the counts; exits with 1 when there is any difference.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import itertools
import linecache
import logging
import multiprocessing
import pkgutil
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mutated
import processes
import programs
import reduction
from worlds import World

import argand

_numbers = itertools.count()


def load(source: str) -> types.ModuleType:
    """The program as a module of its own, with its lines visible to tracebacks."""
    name = f"<fuzz {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("fuzz_program")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


ROWS = (3, 3, 5, 2, 7)
"""Rows of the tensor arguments, call by call."""


def arguments(module: types.ModuleType, seed: int) -> list[Any]:
    g = torch.Generator().manual_seed(seed)
    rows = ROWS[seed % len(ROWS)]
    x, y = torch.randn(rows, 4, generator=g), torch.randn(rows, 4, generator=g)
    return [x, y, 3, True, [1, 2], {"k": 5}, module.Box(2)]


def shape_of(value: Any, seen: dict[int, int]) -> Any:
    """A value as plain data: what it is, what it holds, and which containers in it are the same object."""
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            seen.setdefault(id(value), len(seen)),
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            value.detach().clone(),
        )
    if isinstance(value, (list, dict, set, tuple)) or type(value).__name__ == "Box":
        if id(value) in seen:
            return ("seen", seen[id(value)])
        number = seen.setdefault(id(value), len(seen))
        inside: Any = value.__dict__ if type(value).__name__ == "Box" else value
        if isinstance(inside, dict):
            inside = [(shape_of(k, seen), shape_of(v, seen)) for k, v in inside.items()]
        else:
            inside = [shape_of(v, seen) for v in (sorted(inside, key=repr) if isinstance(inside, set) else inside)]
        return (type(value).__name__, number if not isinstance(value, tuple) else None, inside)
    return (type(value).__name__, repr(value))


def differing(a: Any, b: Any, path: str = "") -> str | None:
    """None when two shapes are equal, else the first place where they are not."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        equal = a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        return None if equal else f"{path}: eager {a.tolist()}, compiled {b.tolist()}"
    if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
        return next((found for i, (p, q) in enumerate(zip(a, b)) if (found := differing(p, q, f"{path}.{i}"))), None)
    return None if a == b else f"{path}: eager {a!r:.300}, compiled {b!r:.300}"


def observe(module: types.ModuleType, fn: Any, seed: int) -> Any:
    """Everything visible of one call: outcome, arguments afterwards, globals afterwards."""
    args = arguments(module, seed)
    module.LOG.clear()
    module.COUNTER = 0
    keep = list(args)
    try:
        outcome: Any = ("returned", fn(*args))
    except Exception as error:
        outcome = ("raised", type(error).__name__, str(error))
    seen: dict[int, int] = {}
    return shape_of((outcome, keep, module.LOG, module.COUNTER, torch.is_grad_enabled()), seen)


def difference(source: str, backend: str = "eager", calls: int = 3, dynamic: bool | None = None) -> str | None:
    """None when eager and compiled agree on `calls` calls with different inputs, else what differs."""
    eager, compiled = load(source), load(source)
    fn = argand.compile(compiled.f, backend=backend, dynamic=dynamic)
    try:
        for call in range(calls):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
                want = observe(eager, eager.f, call)
                try:
                    got = observe(compiled, fn, call)
                except BaseException as error:
                    return f"call {call}: {type(error).__name__}: {error}"
            found = differing(want, got)
            if found is not None:
                return f"call {call}: {found}"
        return None
    finally:
        argand.reset()


def check_seed(seed: int, options: argparse.Namespace) -> tuple[int, str, str | None]:
    """(seed, program, difference or None)."""
    source = programs.program(random.Random(seed).randrange, options.size, raising=options.raising)
    dynamic = True if options.dynamic else None
    return seed, source, difference(source, options.backend, options.calls, dynamic)


def quiet() -> None:
    """One thread, and no line for each of the many graph breaks."""
    torch.set_num_threads(1)
    argand.config.log_level = logging.ERROR
    load_all()


def alone(stored: str | None = None) -> None:
    """What a process of `--mutate` begins with.

    Arguments:
        stored: where outcomes are kept; None: nowhere.
    """
    quiet()
    argand.config.program_cache = argand.config.outcome_cache = stored is not None
    if stored is not None:
        argand.config.cache_dir = stored
    mutated.bound_memory()


def load_all() -> None:
    """argand and torch import parts of themselves when they first need them, and programs look at `sys.modules`."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    for found in pkgutil.walk_packages(argand.__path__, "argand."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    for backend in ("eager", "native"):
        argand.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    argand.reset()


def checked(options: argparse.Namespace) -> Iterator[tuple[int, str, str | None]]:
    """`check_seed` of every seed, over `--jobs` processes."""
    seeds = range(options.seed, options.seed + options.count)
    if options.jobs == 1:
        yield from (check_seed(seed, options) for seed in seeds)
        return
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, initializer=quiet) as pool:
        yield from pool.imap(functools.partial(check_seed, options=options), seeds, chunksize=10)


def made_up(seed: int, options: argparse.Namespace) -> bool:
    """Make up the program of a seed, which runs it eagerly only."""
    mutated.generate(seed, options)
    return True


def mutated_cases(options: argparse.Namespace) -> Iterator[mutated.Verdict]:
    """`mutated.check_seed` of every seed, over `--jobs` processes; a crash or a hang is a difference."""
    seeds = range(options.seed, options.seed + options.count)
    if options.jobs == 1:
        yield from (mutated.check_seed(seed, options) for seed in seeds)
        return
    check = functools.partial(mutated.check_seed, options=options)
    begin = functools.partial(alone, options.stored)
    for found in processes.results(check, seeds, options.jobs, begin, mutated.SECONDS + 60):
        if not isinstance(found, processes.Ended):
            yield found
            continue
        eager = functools.partial(made_up, options=options)
        (again,) = processes.results(eager, [found.seed], 1, begin, mutated.SECONDS)
        case = mutated.Case(found.seed, World())
        if isinstance(again, processes.Ended):  # a crash of CPython's, numpy's or torch's own
            yield mutated.Verdict(case, dropped=f"eagerly too {again.why}")
        else:
            yield mutated.Verdict(case, found.why)


def mutate(options: argparse.Namespace) -> int:
    """Programs whose worlds change between calls; prints each difference, then the figures."""
    total: collections.Counter[str] = collections.Counter()
    bad = dropped = 0
    for done, verdict in enumerate(mutated_cases(options)):
        if done and done % 500 == 0:
            print(f"{done} programs so far, {bad} differences, {dropped} dropped", file=sys.stderr, flush=True)
        dropped += bool(verdict.dropped)
        total.update(verdict.counts)
        if verdict.dropped and options.verbose:
            print(f"=== seed {verdict.case.seed} dropped: {verdict.dropped}", flush=True)
        if verdict.difference is not None:
            bad += 1
            print(
                f"=== seed {verdict.case.seed} on {verdict.case.backend}: {', '.join(verdict.parts)}\n{verdict.difference}\n",
                flush=True,
            )
    print(mutated.report(total, options.count, dropped))
    print(f"{options.count} programs, {bad} differences")
    return 1 if bad else 0


def reduce(options: argparse.Namespace) -> int:
    """Print a small program of the difference that a seed of `--mutate` shows."""
    options.seed = options.reduce
    case, _ = mutated.generate(options.seed, options)
    if reduction.differs(case) is None:
        print(f"the case of seed {options.seed} does not differ")
        return 0
    print(reduction.script(reduction.reduce(case)))
    return 1


def main() -> int:
    ap = argparse.ArgumentParser()
    ap.add_argument("--count", type=int, default=10000)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--jobs", type=int, default=1, help="processes")
    ap.add_argument(
        "--backend",
        help='"eager" unless told otherwise; with --mutate "mixed": 85 %% eager, 10 %% aot_eager, 5 %% native',
    )
    ap.add_argument("--dynamic", action="store_true", help="compile with dynamic=True")
    ap.add_argument("--raising", action="store_true", help="programs with operations whose values make them raise")
    ap.add_argument("--calls", type=int, help="calls of each program: 3, with --mutate 6")
    ap.add_argument("--mutate", action="store_true", help="change what a program reads between its calls")
    ap.add_argument(
        "--reduce", type=int, metavar="SEED", help="print a small program of the difference of a seed of --mutate"
    )
    ap.add_argument(
        "--stored",
        metavar="DIR",
        help="with --mutate, keep outcomes there; a second run over the same seeds loads them",
    )
    ap.add_argument("--verbose", action="store_true", help="with --mutate, name the cases that are dropped too")
    ap.add_argument("--size", type=int, default=10)
    ap.add_argument("--keep", help="write the programs that differ into this directory")
    options = ap.parse_args()
    mutating = options.mutate or options.reduce is not None
    options.backend = options.backend or ("mixed" if mutating else "eager")
    options.calls = options.calls or (6 if mutating else 3)
    alone(options.stored) if mutating else quiet()
    if mutating:
        return mutate(options) if options.reduce is None else reduce(options)
    bad = 0
    for seed, source, found in checked(options):
        if found is not None:
            bad += 1
            print(f"=== seed {seed}\n{source[len(programs.PRELUDE) :]}\n{found}\n", flush=True)
            if options.keep:
                Path(options.keep).mkdir(parents=True, exist_ok=True)
                (Path(options.keep) / f"seed_{seed}.py").write_text(source)
    print(f"{options.count} programs, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
