"""`argand minify`: make a failing graph small, from a script or from what an earlier run wrote."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from argand import files
from argand.debug.commands.late_options import note_late_options
from argand.errors import ConfigError

Target = Annotated[
    Path,
    typer.Argument(
        metavar="TARGET", help="a directory or minifier_launcher.py that argand wrote, or a script that fails"
    ),
]


def minify(
    context: typer.Context,
    target: Target,
    after: Annotated[str, typer.Option(help='for a script: "dynamo" (any backend) or "aot" (native)')] = "dynamo",
    level: Annotated[
        int, typer.Option(help="for a script: 2 exceptions, 3 crashes and hangs too, 4 wrong results")
    ] = 2,
    backend: Annotated[str, typer.Option(help="for a script: the backend where it names none")] = "native",
) -> None:
    """Find the smallest graph that fails as TARGET does. An interrupted search goes on where it was."""
    launcher = target / "minifier_launcher.py" if target.is_dir() else target
    source = files.read_script(launcher)
    if launcher.name == "minifier_launcher.py":
        sys.path.insert(0, str(launcher.parent.resolve()))
        _run_launcher(launcher.resolve(), source)
        return
    note_late_options(context)
    # A process of its own, whose settings are there from the start.
    settings = {"ARGAND_REPRO_AFTER": after, "ARGAND_REPRO_LEVEL": str(level)}
    command = [sys.executable, "-m", "argand.cli", "run", "--backend", backend, str(target), *context.args]
    raise typer.Exit(subprocess.run(command, env={**os.environ, **settings}, check=False).returncode)


def _run_launcher(path: Path, source: bytes) -> None:
    """Run what argand wrote.

    Raises:
        ConfigError: it is damaged.
    """
    remedy = "copy it again from where it was written, or let the program fail again"
    if b"minify_main(" not in source:
        raise ConfigError(f"{path} is damaged, or argand did not write it", remedy=remedy)
    try:
        compile(source, str(path), "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy=remedy) from error
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        if step is None or step.tb_frame.f_code.co_filename != str(path):
            raise
        raise ConfigError(f"{path} is damaged: {type(error).__name__}: {error}", remedy=remedy) from error
