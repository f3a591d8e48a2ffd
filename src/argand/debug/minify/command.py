"""`argand minify`: make a failing graph small, from a script or from what an earlier run wrote."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    if not launcher.is_file():
        raise typer.BadParameter(f"no such file: {launcher}", param_hint="TARGET")
    if launcher.name == "minifier_launcher.py":
        sys.path.insert(0, str(launcher.parent.resolve()))
        runpy.run_path(str(launcher.resolve()), run_name="__main__")
        return
    # A process of its own, whose settings are there from the start.
    settings = {"ARGAND_REPRO_AFTER": after, "ARGAND_REPRO_LEVEL": str(level)}
    command = [sys.executable, "-m", "argand.cli", "run", "--backend", backend, str(target), *context.args]
    raise typer.Exit(subprocess.run(command, env={**os.environ, **settings}, check=False).returncode)
