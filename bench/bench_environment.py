"""Processes that are measured: their environment, their cores, and what they say."""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import queue
import subprocess
from typing import Any


@functools.cache
def _write_bytecode() -> None:
    """Of argand's modules, as pip does where it installs: in a new clone the first process would compile them."""
    spec = importlib.util.find_spec("argand")
    for folder in (spec and spec.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=2)


def environment(cache: str) -> dict[str, str]:
    """This process's, with all compilers' caches in one directory, and modules' bytecode kept, as users keep it."""
    _write_bytecode()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "ARGAND_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONWARNINGS": "ignore"}


def threads_of(count: int) -> dict[str, str]:
    """Variables that give a process so many threads; none for 0."""
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)} if count else {}


def lanes(together: int, threads: int) -> queue.Queue[str]:
    """Cores for as many processes at once, `threads` for each; "", which is any, where there is one."""
    places: queue.Queue[str] = queue.Queue()
    for number in range(together):
        first = number * threads
        places.put(f"{first}-{first + threads - 1}" if together > 1 else "")
    return places


def result_of(command: list[str], env: dict[str, str], cores: str, limit: int) -> dict[str, Any]:
    """What a process prints as JSON behind "RESULT ", or an "error".

    Arguments:
        cores: that it is pinned to; "" is any.
        limit: seconds that it may take.
    """
    pinned = ["taskset", "-c", cores, *command] if cores else command
    try:
        done = subprocess.run(pinned, env=env, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {limit} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    return {"error": f"exit code {done.returncode}: {''.join(done.stderr.strip().splitlines()[-1:])[:300]}"}
