"""Lines of the program in messages: a line that cannot be read is left out, whatever the reason."""

from __future__ import annotations

import codecs
import linecache
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand import events
from argand.capture.facts import name_tables

SOURCE = """
def f(x, how):
    return x * 2 if how == "double" else x + 1
"""


def program(folder: Path) -> Any:
    """A function whose source nobody has read yet."""
    path = folder / "program.py"
    path.write_text(SOURCE)
    made: dict[str, Any] = {}
    exec(compile(SOURCE, str(path), "exec"), made)
    return made["f"]


@pytest.mark.parametrize("decoder", [[-1], None, 7])
def test_program_that_changes_the_codec_of_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: Any
) -> None:
    """It is compiled again, and the line that the reason is about cannot be read."""
    f = program(tmp_path)
    compiled = argand.compile(f, backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x, "double"), f(x, "double"))
    name_tables._lines.cache_clear()
    reasons: list[str] = []
    leave = events.bus.subscribe(lambda event: reasons.append(event.name), ("recompiles",))
    with monkeypatch.context() as changed:
        changed.setattr(codecs.lookup("utf-8"), "incrementaldecoder", decoder)
        try:
            found = compiled(x, "more")
        finally:
            leave()
    assert reasons == ["recompiles"]
    assert torch.equal(found, f(x, "more"))


def test_line_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.py"
    path.write_text("one\ntwo\n")

    def refuse(*args: Any) -> Any:
        raise RuntimeError("not now")

    with monkeypatch.context() as changed:
        changed.setattr(linecache, "getlines", refuse)
        assert name_tables.source_line(str(path), 2) == ""
    assert name_tables.source_line(str(path), 2) == "two\n"
