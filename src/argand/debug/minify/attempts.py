"""Attempts: a check on a program, in a forked child or, where this process cannot be forked, in a new process.

The program goes to a new process as the text that `repro.py` would be.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import fx

from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import Writer, load_module, program_of
from argand.debug.minify.surgery import Program
from argand.debug.trial import process
from argand.debug.trial.fingerprint import Fingerprint
from argand.debug.trial.isolation import Limits, can_fork, run_isolated
from argand.debug.trial.outcome import Outcome
from argand.errors import ArgandError

Check = Callable[[fx.GraphModule, list[Any]], Any]
"""Raises (or crashes, or hangs) where a graph fails on its inputs."""
_NO_BACKWARD = "autograd's threading in combination with fork"
"""What torch raises in a fork of a process with a backend for other devices, once that has run a backward: nothing of
the graph's, and eager would raise it too."""


def plainly(check: Check, gm: fx.GraphModule, inputs: list[Any]) -> Any:
    """The check itself."""
    return check(gm, inputs)


def attempt(
    check: Check, program: Program, limits: Limits, function: Callable[..., Any] = plainly, **given: Any
) -> Outcome:
    """One attempt in another process.

    Arguments:
        function: of a module, is called as `function(check, gm, inputs, **given)`.
        given: plain data.

    Raises:
        ArgandError: where this process cannot be forked: the check is not one that can be written down.
        NotCode: neither can the program.
    """
    if can_fork():
        outcome = run_isolated(
            lambda: function(check, program.gm, program.inputs, **given),
            time_limit=limits.attempt_seconds,
            memory_limit=limits.memory,
        )
        if not (outcome.failed and _NO_BACKWARD in outcome.message + outcome.detail):
            return outcome
    if not isinstance(check, BackendCheck):
        raise ArgandError(
            "this process cannot be forked, and the check cannot be taken to another one",
            remedy="give a BackendCheck, or run where no GPU can be seen (CUDA_VISIBLE_DEVICES='')",
        )
    with tempfile.TemporaryDirectory(prefix="argand-minify-") as folder:
        path = Writer(Path(folder), check, Fingerprint("unknown")).repro(program)
        return run_file(path, limits, process.server_of(os.getpid()), function, **given)


def run_file(
    path: Path,
    limits: Limits,
    server: process.Server | None = None,
    function: Callable[..., Any] = plainly,
    **given: Any,
) -> Outcome:
    """The check of a written file (`repro.py`) in a new process, which may be a fork of the server."""
    job = {"path": str(path.resolve()), "function": process.name_of(function), "given": given}
    return process.run_job((process.name_of(attempt_of_file), job), limits, server)


def attempt_of_file(path: str, function: str, given: dict[str, Any]) -> Callable[[], Any]:
    """In the new process: the attempt, to be called."""
    module = load_module(Path(path))
    program = program_of(module.Repro(), module.args)
    return functools.partial(process.named(function), module.check, program.gm, program.inputs, **given)


def fails_eagerly(check: BackendCheck, program: Program, limits: Limits, outcome: Outcome) -> bool:
    """Whether the graph ends in the same way without the compiler."""
    eager = attempt(check.eagerly(), program, limits)
    return eager.failed and eager.same_end(outcome)
