"""`argand replay FILE`: captures one recorded frame again, by itself."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from argand.config import config


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a record that config.replay_record_enabled wrote")],
    backend: Annotated[str, typer.Option(help="what compiles the captured graph")] = "eager",
    trust: Annotated[bool, typer.Option("--trust", help="run the code in FILE although it is not yours alone")] = False,
    show: Annotated[bool, typer.Option("--show", help="only say what FILE is a record of; runs nothing")] = False,
) -> None:
    """Capture the frame in FILE again: nothing else of the program runs. The failure shows as it did."""
    from argand.debug.frame_records.record_reader import open_record

    record = open_record(file)
    typer.echo(record.describe(), err=True)
    if show:
        if record.source:
            typer.echo(record.source)
        return
    _run(record, backend, trust)
    typer.echo("captured: the frame does not fail any more", err=True)


def replay_record(file: Path, *, backend: str = "eager", trust: bool = False) -> Any:
    """Run a recorded frame under capture.

    Arguments:
        backend: what compiles its graph.
        trust: the file may come from anybody: its code is run.

    Returns:
        what the frame returned.

    Raises:
        RecordError: the file is no record, or may not be run.
        ArgandError: capture fails, as it did.
    """
    from argand.debug.frame_records.record_reader import open_record

    return _run(open_record(file), backend, trust)


def _run(record: Any, backend: str, trust: bool) -> Any:
    import torch

    from argand.debug.frame_records.record_reader import call_of, rebuild

    function, raw = rebuild(record, trust=trust)
    compiled = importlib.import_module("argand.api").compile(function, backend=backend, fullgraph=True)
    with torch.set_grad_enabled(record.data["grad"]), config.patch(suppress_errors=False, replay_record_enabled=False):
        return call_of(function, raw)(compiled)
