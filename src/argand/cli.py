"""The `argand` command: run a script compiled, explain its graph breaks, look at the environment and the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer

import argand
from argand import files
from argand.config import SECRETS, config, default_cache_dir
from argand.debug.commands.doctor import doctor
from argand.debug.commands.late_options import note_late_options
from argand.debug.commands.minify import minify
from argand.debug.frame_records.replay import replay
from argand.errors import ArgandError
from argand.report import command as _report

T = TypeVar("T")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A see-through compiler for PyTorch.",
)
cache_app = typer.Typer(no_args_is_help=True, help="The on-disk cache of compiled kernels.")
app.add_typer(cache_app, name="cache")
app.command("report")(_report.report)

SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def _run_as_main(target: str, arguments: list[str], is_module: bool) -> str:
    """Run a script or module as `python [-m] target arguments...` would; what it raises is shown before this returns.

    Returns:
        How it ended: "finished", "exit code <n>" or the exception's type and text; `_exit_code` has the number.
    """
    if is_module:
        sys.argv = [target, *arguments]
        sys.path.insert(0, os.getcwd())
    else:
        if not Path(target).exists():
            raise typer.BadParameter(f"no such file: {target}", param_hint="SCRIPT")
        if not Path(target).is_dir():
            files.read_script(target)
        sys.argv = [target, *arguments]
        if Path(target).is_file():
            sys.path.insert(0, str(Path(target).resolve().parent))
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        return "finished" if end.code in (None, 0) else _exit_with(end.code)
    except BaseException as error:
        return _show(error, target)
    return "finished"


def _exit_with(code: Any) -> str:
    if not isinstance(code, int):
        typer.echo(code, err=True)
        return "exit code 1"
    return f"exit code {code}"


def _show(error: BaseException, target: str) -> str:
    """Print an exception of the program as Python does, without the frames that started the program."""
    own = (__file__, runpy.__file__)
    step = error.__traceback__
    while step is not None and (step.tb_frame.f_code.co_filename in own or "runpy" in step.tb_frame.f_code.co_filename):
        step = step.tb_next
    if step is None and isinstance(error, (ImportError, FileNotFoundError)):
        typer.echo(f"argand: cannot run {target}: {error}", err=True)
    else:
        sys.excepthook(type(error), error.with_traceback(step), step)
    text = str(error).splitlines()
    return type(error).__name__ + (f": {files.printable(text[0])}" if text else "")


def _exit_code(outcome: str) -> int:
    if outcome == "finished":
        return 0
    return int(outcome.removeprefix("exit code ")) if outcome.startswith("exit code ") else 1


Script = Annotated[str, typer.Argument(help="a Python script that uses torch.compile or argand.compile")]
IsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Output = Annotated[Path | None, typer.Option(help="write the report to this file")]


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Where a report goes: a file, or what this process prints."""
    if output is None:
        yield sys.stdout
        return
    with output.open("w") as file:
        yield file


@app.command(context_settings=SCRIPT)
def run(
    context: typer.Context,
    script: Script,
    backend: Annotated[str, typer.Option(help="the backend where the script names none")] = "native",
    is_module: IsModule = False,
) -> None:
    """Run SCRIPT with torch.compile answered by argand."""
    from argand.api import answer_torch_compile, lookup_backend

    note_late_options(context)
    lookup_backend(backend)
    if any(each.startswith("--torch_compile_backend") for each in context.args):
        from argand.hosts import tell_accelerate

        tell_accelerate()
    with answer_torch_compile(backend=backend):
        outcome = _run_as_main(script, context.args, is_module)
    raise typer.Exit(_exit_code(outcome))


@app.command(context_settings=SCRIPT)
def explain(
    context: typer.Context,
    script: Script,
    as_json: AsJson = False,
    output: Output = None,
    is_module: IsModule = False,
) -> None:
    """Run SCRIPT and list its graphs and graph breaks, with the line and the remedy of each."""
    from argand.api import answer_torch_compile
    from argand.capture.driver.explain import ScriptReport

    note_late_options(context)
    report = ScriptReport()
    with answer_torch_compile(backend="eager", override=True), report.listening():
        report.outcome = _run_as_main(script, context.args, is_module)
    with _opened(output) as file:
        if as_json:
            file.write(json.dumps(report.as_dict(), indent=1) + "\n")
        else:
            report.print_to(file)
    raise typer.Exit(_exit_code(report.outcome))


@app.command(context_settings=SCRIPT)
def bench(
    context: typer.Context,
    script: Script,
    as_json: AsJson = False,
    output: Output = None,
    seconds: Annotated[float, typer.Option(help="how long to measure each function")] = 3.0,
    rows: Annotated[int, typer.Option(help="lines of each table")] = 20,
    functions: Annotated[int, typer.Option(help="measure this many functions, the most called ones")] = 8,
    is_module: IsModule = False,
) -> None:
    """Run SCRIPT, then measure its compiled functions, eager against compiled, kernel by kernel."""
    from argand.api import answer_torch_compile
    from argand.debug.benchmark.bench import Recorder
    from argand.debug.benchmark.bench_text import write_report

    note_late_options(context)
    recorder = Recorder()
    with answer_torch_compile(), recorder.observing():
        outcome = _run_as_main(script, context.args, is_module)
        measured = recorder.measured(functions, seconds) if outcome == "finished" else []
    with _opened(output) as file:
        write_report(measured, recorder, outcome, file, as_json=as_json, rows=rows)
    raise typer.Exit(_exit_code(outcome))


@app.command(context_settings=SCRIPT)
def fallbacks(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="a Python script that uses torch.compile or argand.compile")
    ] = None,
    zoo: Annotated[bool, typer.Option("--zoo", help="the models of bench/models.py instead; names may follow")] = False,
    as_json: AsJson = False,
    output: Output = None,
    above: Annotated[float, typer.Option(help="only operations with this share of a step, in percent")] = 0.0,
    seconds: Annotated[float, typer.Option(help="how long to measure each function")] = 1.0,
    functions: Annotated[int, typer.Option(help="measure this many functions, the most called ones")] = 64,
    is_module: IsModule = False,
) -> None:
    """Run SCRIPT, and list the operations of its compiled functions that run as eager's kernels, with their share."""
    from argand.api import answer_torch_compile
    from argand.debug.benchmark.fallbacks import FallbackWatch, write_fallbacks
    from argand.debug.benchmark.fallbacks import zoo as zoo_programs

    if script is None and not zoo:
        raise typer.BadParameter("a script, or --zoo", param_hint="SCRIPT")
    watch = FallbackWatch()
    steps, outcome = [], "finished"
    with answer_torch_compile(), watch.observing():
        if zoo:
            for program in zoo_programs([*([script] if script else []), *context.args], argand.compile):
                program()
        elif script is not None:
            note_late_options(context)
            outcome = _run_as_main(script, context.args, is_module)
        if outcome == "finished":
            steps = watch.steps(functions, seconds)
    with _opened(output) as file:
        write_fallbacks(steps, watch, outcome, file, as_json=as_json, above=above)
    raise typer.Exit(_exit_code(outcome))


def environment() -> dict[str, Any]:
    """Versions, compiler, CPU and settings that decide what argand does on this machine."""
    import torch

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
        **_gpus(),
        "cache directory": str(default_cache_dir()),
    }


def _gpus() -> dict[str, str]:
    """The GPUs, what compiles for them, and why nothing does."""
    import torch

    from argand.runtime.gpu.device.target import gpu_problem, triton_version

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    facts = {"GPUs": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"}
    facts["triton"] = triton_version().partition("+")[0] or "none"
    problem = gpu_problem("cuda") if names else None
    return {**facts, "GPU kernels": f"none: {problem}"} if problem is not None else facts


@app.command()
def breaks(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="such as AG0001, or the name of a kind")
    ] = None,
) -> None:
    """Show what the graph breaks with these ids mean, with an example before and after; without an id, list all."""
    from argand.breaks import render

    pages = [(name, render.find(name)) for name in ids or ()]
    unknown = [name for name, page in pages if page is None]
    if unknown:
        raise typer.BadParameter(f"no graph break {', '.join(unknown)}: `argand breaks` lists them", param_hint="ID")
    texts = [render.terminal(page) for _, page in pages if page is not None]
    typer.echo(f"\n{'-' * 100}\n\n".join(texts) if texts else render.listing(), nl=False)


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show versions, the C++ toolchain and every setting with its value."""
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
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return "(set)" if dotted in SECRETS and value else value


@cache_app.command("stats")
def cache_stats() -> None:
    """Where the cache is, what it holds, and why functions were not stored for later processes, by how often."""
    from argand.runtime import cache

    for key, value in dataclasses.asdict(cache.stats()).items():
        typer.echo(f"{key:12s} {value}")
    reasons = cache.counted(cache.UNSTORED)
    if reasons:
        typer.echo("functions captured by each process, and why:")
    for reason, times in reasons:
        typer.echo(f"{times:6d}  {reason}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Delete every cached kernel."""
    from argand.runtime import cache

    typer.echo(f"removed {cache.clear()} kernels")


@cache_app.command("export")
def cache_export(archive: Path) -> None:
    """Write the cache's entries, signed with ARGAND_REMOTE_CACHE_KEY, to an archive."""
    from argand.runtime import archive as archives

    typer.echo(f"wrote {_or_exit(archives.write, archive)} entries to {archive}")


@cache_app.command("import")
def cache_import(archive: Path) -> None:
    """Put the entries of an archive into the cache; those without a valid signature are left out."""
    from argand.runtime import archive as archives

    taken, refused = _or_exit(archives.read, archive)
    typer.echo(f"took {taken} entries" + (f", left out {refused} without a valid signature" if refused else ""))
    if refused:
        raise typer.Exit(1)


def _or_exit(do: Callable[[Path], T], path: Path) -> T:
    """`do(path)`; what cannot be done ends the command with a sentence."""
    try:
        return do(path)
    except (ArgandError, OSError) as error:
        typer.echo(f"argand: {error}", err=True)
        raise typer.Exit(1) from None


app.command(context_settings=SCRIPT)(minify)
app.command(context_settings=SCRIPT)(doctor)
app.command()(replay)


def main() -> None:
    """Entry point of the `argand` command."""
    try:
        app()
    except (ArgandError, OSError) as error:  # the program's own are shown by `_run_as_main`
        typer.echo(f"argand: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
