"""Fixtures for the cache and for compilers that fail; puts this folder's helper modules in reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from argand.config import config
from argand.runtime.kernels import calm

sys.path.insert(0, os.path.dirname(__file__))

from trouble_helpers import HEAD  # noqa: E402


@pytest.fixture(autouse=True)
def nobody_takes_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """From what is timed, that is, and each time is believed, however busy the machine is."""
    monkeypatch.setattr(calm, "taken_away", lambda: 0)
    monkeypatch.setattr(calm, "_ALIKE", float("inf"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=str(tmp_path / "c")):
        yield tmp_path / "c" / "kernels"


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], str]:
    def make(body: str) -> str:
        path = tmp_path / "fake++"
        path.write_text(HEAD + body + "\n")
        path.chmod(0o755)
        return str(path)

    return make
