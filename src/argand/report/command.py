"""`argand report`: a structured trace as pages in a browser."""

from __future__ import annotations

import contextlib
import tempfile
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from argand.errors import ConfigError

Source = Annotated[Path, typer.Argument(help="a trace file, or the directory that ARGAND_TRACE or TORCH_TRACE names")]


def report(
    source: Source,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="folder to write (with --single-file: file); argand-report/ otherwise"),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="open the report in a browser")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="serve the report on this machine until Ctrl-C")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "--live", help="with --serve: keep reading the trace, pages update themselves")
    ] = False,
    single_file: Annotated[bool, typer.Option("--single-file", help="one self-contained HTML file")] = False,
    port: Annotated[int, typer.Option(help="port for --serve; 0 takes a free one")] = 0,
) -> None:
    """Show a structured trace of argand or torch.compile: stacks, artifacts, breaks, recompiles, provenance, times."""
    if follow:
        serve = True
    if serve and single_file:
        raise typer.BadParameter("--single-file writes a file; --serve and --follow serve a folder")
    if follow:
        _follow(source, output, open_browser, port)
        return
    from argand.report.html import build

    target = output or Path("argand-report.html" if single_file else "argand-report")
    begun = time.perf_counter()
    built = build(source, target, single_file)
    compiles = sum(len(run.compiles) for run in built.runs)
    typer.echo(f"{built.index}: {_count(compiles, 'compile')} in {time.perf_counter() - begun:.1f} s")
    for run in built.runs:
        for what, number in run.problems.items():
            typer.echo(f"  {run.label}: {what}: {number}", err=True)
    if not any(run.compiles or run.artifacts for run in built.runs):
        typer.echo(f"  no record in {source}: is this what ARGAND_TRACE or TORCH_TRACE wrote?", err=True)
    if built.left_out:
        typer.echo(f"  too large for a single file: {', '.join(built.left_out[:20])}", err=True)
    if serve:
        from argand.report.html.serve import Server, serving

        with serving(Server(built.index.parent, port)) as server:
            _wait(server.address, open_browser)
    elif open_browser:
        _open(built.index.resolve().as_uri())


def _follow(source: Path, output: Path | None, open_browser: bool, port: int) -> None:
    from argand.report.html.model import Limits
    from argand.report.html.serve import Follower, News, Server, serving

    if not source.exists():
        raise ConfigError(
            f"there is no structured trace at {source}",
            remedy="create the directory first, then start the program with ARGAND_TRACE set to it",
        )
    with contextlib.ExitStack() as stack:
        if output is None:
            output = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="argand-live-"))) / "report"
        news = News()
        follower = Follower(source, output, Limits(), news)
        stack.callback(follower.stopped.set)
        server = stack.enter_context(serving(Server(output, port, news), follower.run))
        news.wait(0, 10)
        _wait(server.address, open_browser)


def _wait(address: str, open_browser: bool) -> None:
    """Say where the report is, and wait for Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        typer.echo(f"serving on {address} (Ctrl-C ends)")
        if open_browser:
            _open(address)
        while True:
            time.sleep(3600)


def _open(address: str) -> None:
    if not webbrowser.open(address):
        typer.echo(f"no browser could be started; open {address}", err=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
