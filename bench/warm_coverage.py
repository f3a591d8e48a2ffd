"""What a second process compiles again, though a first one left its cache: programs, and the reasons.

    python bench/warm_coverage.py [REGEX] [--sets breadth,small,libraries] [--mode inference|training|both]
                                  [--part I/N]

Each program runs in two processes (forks of one that has imported torch), which share a cache directory. What the
second captures, traces, lowers or gives to the C++ compiler is listed with the reasons that `cache` events tell, and
last how often each occurs. Exits with 1 when anything is compiled again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import argand
from argand import events

sys.path.insert(0, str(Path(__file__).resolve().parent))

STAGES = ("capture_frame", "trace_inference", "trace_joint", "trace_dynamic", "passes", "lower", "cpp_compile")
Run = Callable[[], Any]

# ------------------------------------------------------------------------------------------------- the programs


def breadth_programs(mode: str) -> Iterator[tuple[str, Run]]:
    from breadth_programs import PROGRAMS
    from worker import leaves

    def run(make: Callable[[], Any]) -> None:
        module, inputs = make()
        compiled = argand.compile(module)
        for _ in range(2):
            if mode == "inference":
                with torch.no_grad():
                    compiled(*inputs)
            else:
                leaves(compiled(*inputs))[0].float().pow(2).mean().backward()

    for name, make in PROGRAMS.items():
        yield name, lambda make=make: run(make)


def small_programs(mode: str) -> Iterator[tuple[str, Run]]:
    from small_programs import PROGRAMS, step

    def run(program: Any) -> None:
        arguments = program.arguments(mode == "training")
        compiled = argand.compile(program.function)
        for _ in range(2):
            step(compiled, arguments, mode == "training")

    for name, program in PROGRAMS.items():
        if mode == "inference" or program.trains:
            yield name, lambda program=program: run(program)


def library_programs(mode: str) -> Iterator[tuple[str, Run]]:
    from libraries import installed, programs, run_steps

    def run(program: Any) -> None:
        run_steps(program, argand.compile)

    for name, program in programs().items():
        if mode == "inference" and installed(program):
            yield name, lambda program=program: run(program)


SETS = {"breadth": breadth_programs, "small": small_programs, "libraries": library_programs}

# ----------------------------------------------------------------------------------------------- in a process


def observed(run: Run) -> dict[str, Any]:
    """What a program compiles, and what cache events say."""
    said: list[list[str]] = []

    def note(event: events.Event) -> None:
        said.append([str(event.data.get("level", "program")), str(event.data.get("outcome")), event.text()])

    events.bus.subscribe(note, ["cache"])
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    try:
        run()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:200]}
    stages = Counter(path[-1] for path, seconds in events.bus.times.items() for _ in seconds)
    return {"stages": {stage: stages[stage] for stage in STAGES if stages[stage]}, "said": said}


def forked(run: Run, limit: int = 100) -> dict[str, Any]:
    """The same in a child of this process."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(limit)
        os.close(read)
        with os.fdopen(write, "w") as stream:
            json.dump(observed(run), stream)
        raise SystemExit(0)  # which waits for what is stored in the background
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": "the process died"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--sets", default="breadth,small")
    parser.add_argument("--mode", default="both", choices=("inference", "training", "both"))
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    modes = ["inference", "training"] if options.mode == "both" else [options.mode]
    number, parts = map(int, options.part.split("/"))
    kinds = [(kind, mode) for kind in options.sets.split(",") for mode in modes]
    jobs = [(f"{kind}: {name}, {mode}", run) for kind, mode in kinds for name, run in SETS[kind](mode)]
    chosen = [(name, run) for name, run in jobs if re.search(options.pattern, name)][number::parts]
    reasons: Counter[str] = Counter()
    again = 0
    argand.config.cache_dir = folder = tempfile.mkdtemp()  # no context manager: the children leave this function, too
    for name, run in chosen:
        cold, warm = forked(run), forked(run)
        again += bool(warm.get("stages"))
        reasons.update(tell(name, cold, warm))
        print(f"{name}: done", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{again} of {len(chosen)} programs compile again")
    for text, count in reasons.most_common():
        print(f"{count:4} {text}")
    return int(again > 0)


def tell(name: str, cold: dict[str, Any], warm: dict[str, Any]) -> set[str]:
    """Print what the second process compiled; returns why."""
    if "failed" in cold or "failed" in warm:
        print(f"{name}: {cold.get('failed')}, {warm.get('failed')}", flush=True)
        return set()
    texts = {f"{level} {what}: {text}" for level, what, text in warm["said"] if what not in ("hit", "stored")}
    texts |= {f"at first, {level} {what}: {text}" for level, what, text in cold["said"] if what == "bypass"}
    if warm["stages"]:
        print(f"{name}: {warm['stages']}", *sorted(texts), sep="\n    ", flush=True)
    return texts if warm["stages"] else set()


if __name__ == "__main__":
    sys.exit(main())
