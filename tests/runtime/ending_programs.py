"""Forked children of this process that end, each in its way, while something of argand's is under way.

`python ending_programs.py FOLDER COMPILER URL` prints a line for each that does not end as it should.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from trouble_helpers import leftovers, wait_for

import argand
from argand.runtime import toolchain
from argand.runtime.kernels import background_kernels, background_libraries
from argand.runtime.remote import REMOTE
from forks import fork

LAST: list[Callable[[], None]] = []  # done after what argand does at the end
FOLDER, COMPILER, URL = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RUNS = FOLDER / "runs"  # the compiler makes it when it begins, and never ends
SOURCE = 'extern "C" void nothing(void** ptrs, const long long* ints) {}\n'
X = torch.linspace(-2, 2, 96)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 3 + x.exp()).relu()


def g(x: torch.Tensor) -> torch.Tensor:
    return f(x) * 2 + x.tanh()


def compiling() -> None:
    background_libraries.begin(SOURCE, ())
    wait_for(RUNS.exists)


def just_begun() -> None:
    background_libraries.begin(SOURCE, ())


def compiling_several() -> None:
    for number in range(3):
        background_libraries.begin(SOURCE.replace("nothing", f"nothing_{number}"), ())
    wait_for(RUNS.exists)


def compiling_what_nobody_waits_for() -> None:
    background_kernels.compiled("gru", {}, lambda: None, patient=True)
    wait_for(RUNS.exists)


def asking_a_server_that_is_silent() -> None:
    argand.config.remote_cache, argand.config.remote_cache_key = URL, "k" * 32
    REMOTE.offer("a" * 40 + ".so", b"source", b"library")


def forked() -> None:
    """The child compiles for itself, though the parent's thread had begun."""
    compiling()
    child = fork()
    if child == 0:
        argand.config.cpp.cxx = "g++"
        toolchain.reset()
        argand.config.cache_dir = str(FOLDER / "child")
        assert not background_libraries.running(SOURCE, ())
        assert background_libraries.library(SOURCE, ()).address("nothing")
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def capturing() -> None:
    """What ends it comes from a signal handler, as the main thread waits for the compiler."""

    def watch() -> None:
        wait_for(RUNS.exists)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=watch).start()
    argand.compile(g)(X)


def working_at_the_end() -> None:
    """What the program does at its end, behind argand's, it does without threads."""
    compiling_what_nobody_waits_for()

    def last() -> None:
        argand.config.cpp.cxx = "g++"
        toolchain.reset()
        assert torch.allclose(argand.compile(g)(X), g(X))
        (FOLDER / "done").touch()

    LAST.append(last)


PHASES = (
    compiling, compiling_several, compiling, just_begun, compiling_what_nobody_waits_for, asking_a_server_that_is_silent,
    forked, capturing, working_at_the_end,
)  # fmt: skip
ENDS: dict[str, tuple[BaseException | None, int]] = {
    "return": (None, 0),
    "exit": (SystemExit(3), 3),
    "error": (ValueError("x"), 1),
    "interrupt": (KeyboardInterrupt(), -signal.SIGINT),
}


def child(phase: Callable[[], None], error: BaseException | None) -> None:
    """What a child does; raises what it ends with."""
    argand.config.cpp.cxx, argand.config.cache_dir = COMPILER, str(FOLDER / "cache")
    toolchain.reset()
    os.dup2(os.open(FOLDER / "errors", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)

    def end(*_: object) -> None:
        raise error or SystemExit

    signal.signal(signal.SIGUSR1, end)
    phase()
    if error is not None:
        raise error


def commands() -> list[str]:
    """Compilers that run."""
    running = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"ARGAND_COMMANDS=" in path.read_bytes() and str(FOLDER).encode() in path.read_bytes():
                running.append(path.parent.name)
        except OSError:
            continue
    return running


def main() -> None:
    atexit.register(lambda: [do() for do in LAST])  # before what argand registers, so that it runs behind that
    argand.compile(f)(X)
    gc.collect()
    gc.freeze()  # else each child collects all of torch at its end, of which it gets a copy page by page
    for phase, name in (*zip(PHASES, itertools.cycle(ENDS)), (capturing, "error")):
        error, status = ENDS[name]
        RUNS.unlink(missing_ok=True)
        pid = fork()
        if pid == 0:
            child(phase, error)
            sys.exit()
        got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = (FOLDER / "errors").read_text()
        left = [*leftovers(FOLDER / "cache" / "kernels"), *commands()]
        if got != status or "terminate" in said or "Fatal" in said or "Exception ignored" in said or left:
            print(f"{phase.__name__}, {name}: status {got}, left {left}; it said {said}")
    if not (FOLDER / "done").exists():
        print("nothing was compiled at the end")


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
