"""The `argand` command: run a script compiled, explain its graph breaks, look at the environment and the cache."""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A see-through compiler for PyTorch.",
)
cache_app = typer.Typer(no_args_is_help=True, help="The on-disk cache of compiled kernels.")
app.add_typer(cache_app, name="cache")

SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def _run_as_main(script: Path, arguments: list[str]) -> None:
    """Run `script` as `python script arguments...` would."""
    if not script.is_file():
        raise typer.BadParameter(f"no such file: {script}", param_hint="SCRIPT")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


@app.command(context_settings=SCRIPT)
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="a Python script that uses torch.compile or argand.compile")],
    backend: Annotated[str, typer.Option(help="the backend where the script names none")] = "native",
) -> None:
    """Run SCRIPT with torch.compile answered by argand."""
    from argand.api import answer_torch_compile

    with answer_torch_compile(backend=backend):
        _run_as_main(script, context.args)


@app.command(context_settings=SCRIPT)
def explain(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="a Python script that uses torch.compile or argand.compile")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Run SCRIPT and list its graphs and graph breaks, with the line and the remedy of each."""
    from argand.api import answer_torch_compile
    from argand.capture.explain import ScriptReport

    report = ScriptReport()
    with answer_torch_compile(backend="eager", override=True), report.listening():
        _run_as_main(script, context.args)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        from rich.console import Console

        report.print_to(Console())


def environment() -> dict[str, Any]:
    """Versions, compiler, CPU and settings that decide what argand does on this machine."""
    import platform

    import torch

    import argand
    from argand.config import default_cache_dir
    from argand.errors import ArgandError
    from argand.runtime import toolchain

    try:
        compiler: str = toolchain.describe()
    except ArgandError as error:
        compiler = f"none: {error.cause}"
    return {
        "argand": argand.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "compiler": compiler,
        "cache directory": str(default_cache_dir()),
    }


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show versions, the C++ toolchain and every setting with its value."""
    from argand.config import config

    facts = environment()
    settings = {name: (_setting(name), text) for name, _default, text in config.describe()}
    if as_json:
        typer.echo(json.dumps({**facts, "settings": {name: value for name, (value, _) in settings.items()}}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, value in facts.items():
        console.print(f"{name:16s} {value}", highlight=False)
    table = Table(title="settings (argand.config)")
    for title in ("name", "value", "what it does"):
        table.add_column(title)
    for name, (value, text) in settings.items():
        table.add_row(name, repr(value), text)
    console.print(table)


def _setting(dotted: str) -> Any:
    from argand.config import config

    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


@cache_app.command("stats")
def cache_stats() -> None:
    """Where the cache is, how many kernels it holds and how large it is."""
    from argand.runtime import cache

    for key, value in dataclasses.asdict(cache.stats()).items():
        typer.echo(f"{key:12s} {value}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Delete every cached kernel."""
    from argand.runtime import cache

    typer.echo(f"removed {cache.clear()} kernels")


def main() -> None:
    """Entry point of the `argand` command."""
    from argand.errors import ArgandError

    try:
        app()
    except ArgandError as error:
        typer.echo(f"argand: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
