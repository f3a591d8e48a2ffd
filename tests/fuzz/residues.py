"""Compile, call, reset, again and again: nothing of a compile stays. `python tests/fuzz/residues.py --cycles 10000`."""

from __future__ import annotations

import argparse
import gc
import json
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import argand

SOURCE = """
def program(x, y):
    z = (x * 2 + y).relu()
    print(end="")
    return (z @ y).sum()
"""


def resident() -> int:
    """Bytes of memory that the process has."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Breaks the graph, so that there is a resume function too."""
    z = (x * 2 + y).relu()
    print(end="")
    return (z @ y).sum()


def new_program() -> Any:
    """The same, with code and globals of its own."""
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, "<program>", "exec"), namespace)
    return namespace["program"]


def cycle(backend: str, train: bool, make: Callable[[], Any] = lambda: program, reset: bool = True) -> None:
    """One compile, with everything that it needs, and its end."""
    x = torch.ones(4, 4, requires_grad=train)
    result = argand.compile(make(), backend=backend)(x, torch.ones(4, 4))
    if train:
        result.backward()
    if reset:
        argand.reset()
    argand.metrics(clear=True)


def mortal_program() -> Any:
    """A function that its own globals do not hold."""
    fn = new_program()
    del fn.__globals__["program"]
    return fn


MAKERS: dict[str, Callable[[], Any]] = {"program": lambda: program, "new": new_program, "mortal": mortal_program}


def left_by(backend: str, train: bool, kind: str, cycles: int) -> dict[str, Any]:
    """What cycles leave, once caches are full: numbers, and the classes of which there are more objects than before."""
    reset = kind != "mortal"
    for _ in range(12):
        cycle(backend, train, MAKERS[kind], reset)
    known, before = kinds(), held()
    for _ in range(cycles):
        cycle(backend, train, MAKERS[kind], reset)
    after = held()
    return {**{name: after[name] - before[name] for name in after}, "kinds": (kinds() - known).most_common(8)}


def kinds() -> Counter[str]:
    """How many objects there are of each class."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def held() -> dict[str, int]:
    """How much there is of what a compile could leave behind."""
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "globals": len(globals()),
        "lines": len(linecache.cache),
        "modules": len(sys.modules),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10000)
    parser.add_argument("--backend", default="native")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--new", action="store_true", help="a function with code of its own in each cycle")
    parser.add_argument(
        "--told", metavar="KIND", choices=MAKERS, help="print what few cycles of a function leave, as JSON"
    )
    options = parser.parse_args()
    if options.told:
        print(json.dumps(left_by(options.backend, options.train, options.told, options.cycles)))
        return 0
    make = new_program if options.new else lambda: program
    tenth = max(options.cycles // 10, 1)
    for _ in range(100):
        cycle(options.backend, options.train, make)
    first, memory = held(), resident()
    for number in range(10):
        for _ in range(tenth):
            cycle(options.backend, options.train, make)
        now = held()
        grown = {name: now[name] - first[name] for name in now}
        print(f"{(number + 1) * tenth} cycles: {grown}, {(resident() - memory) / 1024:.0f} KB", flush=True)
    return any(value > options.cycles // 10 for value in grown.values()) or resident() - memory > 20 * 2**20


if __name__ == "__main__":
    raise SystemExit(main())
