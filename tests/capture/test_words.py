"""Lines of the program in messages: a line that cannot be read is left out, whatever the reason."""

from __future__ import annotations

import codecs
import linecache
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.capture import words

SOURCE = """
import argand

def f(x):
    y = x * 2
    argand.graph_break()
    return y + 1
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
    f = program(tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr(codecs.lookup("utf-8"), "incrementaldecoder", decoder)
        found = argand.compile(f, backend="eager")(torch.ones(2))
    assert torch.equal(found, f(torch.ones(2)))


def test_line_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.py"
    path.write_text("one\ntwo\n")

    def refuse(*args: Any) -> Any:
        raise RuntimeError("not now")

    with monkeypatch.context() as changed:
        changed.setattr(linecache, "getlines", refuse)
        assert words.source_line(str(path), 2) == ""
    assert words.source_line(str(path), 2) == "two\n"
