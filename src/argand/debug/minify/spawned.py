"""The new process in which `spawn` has an attempt made."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import mmap
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from argand.debug.minify import isolate
from argand.debug.repro import load_module, program_of


def main(path: Path, folder: Path, memory_limit: int, within: tuple[str, dict[str, Any]] | None) -> None:
    """The new process."""
    faulthandler.enable()
    with open(folder / "stage", "r+b") as file:
        isolate.use_stage(mmap.mmap(file.fileno(), 4096))
    module = load_module(path)
    program = program_of(module.Repro(), module.args)
    isolate.limit_memory(memory_limit)
    attempt: Callable[..., Any] = module.check
    if within is not None:
        name, given = within
        place, _, function = name.partition(":")
        attempt = functools.partial(getattr(importlib.import_module(place), function), module.check, **given)
    outcome = isolate.call(lambda: attempt(program.gm, program.inputs))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
