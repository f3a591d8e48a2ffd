"""The command line of fuzzers whose programs follow from a seed: `--count`, `--seed`, `--backends`, `--dynamic`, `--no-reduce`."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

import argand

Trial = Callable[[int, str], str | None]
"""Of a seed and a backend: how the compiled program differs, with the program; None where it does not."""


@contextlib.contextmanager
def calls() -> Iterator[None]:
    """Around the calls of a compiled program: what fails inside argand is an error, and nothing stays compiled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
            yield
    finally:
        argand.reset()


def parser(doc: str | None, count: int, backends: str) -> argparse.ArgumentParser:
    """The options, with these defaults."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=count)
    options.add_argument("--seed", type=int, default=0, help="the first one")
    options.add_argument(
        "--backends", default=backends, help="divided by commas; of each program the first that differs is shown"
    )
    options.add_argument("--dynamic", action="store_true", help="compile with dynamic=True")
    options.add_argument(
        "--no-reduce", action="store_true", help="show programs as they are, not the least part that differs"
    )
    return options


def run(options: argparse.Namespace, trial: Trial) -> int:
    """Try every seed; 1 when programs differ, else 0."""
    torch.set_num_threads(1)
    argand.config.log_level = 40
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        for backend in options.backends.split(","):
            text = trial(seed, backend)
            if text is not None:
                bad += 1
                print(f"=== seed {seed} on {backend}: {text}", flush=True)
                break
    print(f"{options.count} programs, {bad} differences")
    return 1 if bad else 0


def run_programs(
    options: argparse.Namespace, program: Callable[[int], str], difference: Callable[[str, int, str], str | None]
) -> int:
    """`run`, of programs that are texts.

    Arguments:
        program: of a seed.
        difference: how a program, made of a seed and compiled by a backend, differs.
    """

    def trial(seed: int, backend: str) -> str | None:
        text = program(seed)
        how = difference(text, seed, backend)
        if how is None:
            return None
        if not options.no_reduce:
            text = reduced(text, lambda part: difference(part, seed, backend))
            how = difference(text, seed, backend) or how
        return f"{how}\n{text}"

    return run(options, trial)


def run_main(
    doc: str | None,
    count: int,
    program: Callable[[int], str],
    difference: Callable[[str, str, bool | None], str | None],
    longest: int,
) -> int:
    """`run_programs` as its command line says, on "eager" by default.

    Arguments:
        difference: how a program, compiled by a backend with `dynamic`, differs.
        longest: characters of that which are shown.
    """
    options = parser(doc, count, "eager").parse_args()
    dynamic = True if options.dynamic else None

    def differing(text: str, seed: int, backend: str) -> str | None:
        how = difference(text, backend, dynamic)
        return how and how[:longest]

    return run_programs(options, program, differing)


def reduced(text: str, difference: Callable[[str], str | None]) -> str:
    """A program without what its difference does not need: a line with all that is below it, or that line alone.

    The first line, and the last, stay.
    """
    lines = text.rstrip("\n").split("\n")

    def indent(line: str) -> int:
        return len(line) - len(line.lstrip())

    def differs(kept: list[str]) -> bool:
        part = "\n".join(kept) + "\n"
        try:
            compile(part, "<part>", "exec")
            return difference(part) is not None
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for at in range(len(lines) - 2, 0, -1):
            if at >= len(lines) - 1:
                continue
            end = at + 1
            while end < len(lines) and indent(lines[end]) > indent(lines[at]):
                end += 1
            without = lines[:at] + lines[end:]
            moved = lines[:at] + [line[4:] for line in lines[at + 1 : end]] + lines[end:]
            for kept in (without, moved) if end > at + 1 else (without,):
                if differs(kept):
                    lines, changed = kept, True
                    break
    return "\n".join(lines) + "\n"
