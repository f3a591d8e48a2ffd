"""Compilers and children that fail, and what tests of trouble ask of them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import argand
from forks import fork

# What a compiler is asked for first; then each fake does what it is for.
HEAD = '#!/bin/sh\ncase "$1" in --version|-dump*|-print*) exec g++ "$@";; esac\n'


OUTPUT = 'for last; do [ "$previous" = -o ] && out="$last"; previous="$last"; done\n'


def run_compiled() -> list[str]:
    """Compile and run two new functions; the warnings that it gives."""
    x = torch.randn(8, 9)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in (1.5, 2.5):

            def function(x: torch.Tensor) -> torch.Tensor:
                return torch.softmax(x * number + 1, -1)

            torch.testing.assert_close(argand.compile(function)(x), function(x))
    return [str(w.message) for w in told]


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".*") if path.name.startswith((".build-", ".new-"))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def in_child(prepare: Callable[[], None], tmp_path: Path) -> tuple[bool, str]:
    """Whether `run_compiled` works in a forked child, and its warnings."""
    answer = tmp_path / "answer"
    answer.write_text(" " * 2000)
    file = os.open(answer, os.O_WRONLY)
    child = fork()
    if child == 0:
        try:
            prepare()
            text = "right\n" + "\n".join(run_compiled())
        except BaseException as error:
            text = f"wrong: {type(error).__name__}: {error}"
        os.pwrite(file, text.encode()[:1990], 0)
        os._exit(0)
    os.close(file)
    wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    text = answer.read_text().strip()
    return text.startswith("right"), text
