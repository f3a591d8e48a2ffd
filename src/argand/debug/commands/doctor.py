"""`argand doctor`: what is wrong with a compiled script, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from argand import files
from argand.debug.commands.late_options import note_late_options


def doctor(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="a Python script that uses torch.compile or argand.compile")],
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m")] = False,
    output: Annotated[Path, typer.Option(help="where the reproduction is written")] = Path(),
    time_limit: Annotated[float, typer.Option(help="seconds after which one run of SCRIPT counts as hung")] = 120.0,
    memory_limit: Annotated[int, typer.Option(help="MiB that one run may take; 0 is no limit")] = 0,
    torchs: Annotated[bool, typer.Option("--torch", help="SCRIPT's torch.compile is torch's own")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
    quiet: Annotated[bool, typer.Option(help="do not say what is being tried")] = False,
) -> None:
    """Find out which stage, and which operation, makes SCRIPT fail, go wrong or run slowly when compiled.

    SCRIPT is run eagerly and compiled, in child processes with limits; what its compiled functions return is compared.
    The last line printed is the path of a file that fails in the same way by itself.
    """
    if not is_module:
        files.read_script(script)
    from argand.debug.doctor.child import Allowed, Script, one_thread
    from argand.debug.doctor.procedure import Doctor

    note_late_options(context)

    def say(text: str) -> None:
        if not quiet and not as_json:
            print(f"  {files.printable(text)}", file=sys.stderr, flush=True)

    path = script if is_module else str(Path(script).resolve())
    examined = Doctor(
        Script(path, tuple(context.args), is_module),
        output.resolve(),
        Allowed(time_limit, memory_limit << 20, one_thread()),
        say,
        torchs,
    )
    verdict = examined.examine()
    if as_json:
        typer.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        typer.echo(verdict.text)
        if verdict.repro:
            typer.echo(verdict.repro)
    raise typer.Exit(1 if verdict.faulty else 0)
