"""Digests of classes: equal where a later process has the same, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntFlag
from pathlib import Path
from typing import Any

import pytest

import argand
from argand.outcomes.fingerprints import Classes
from outcomes.processes import STORED, Program


def _digest(**members: Any) -> str | None:
    return Classes(set(members)).digest(type("Holder", (), members))


def test_members_of_enumerations_have_names_and_values() -> None:
    Mode = Enum("Mode", {"FAST": "fast", "SLOW": "slow"}, type=str)
    Other = Enum("Mode", {"FAST": "faster", "SLOW": "slow"}, type=str)
    Flags = IntFlag("Flags", ["ONE", "TWO"])
    known = [
        _digest(mode=each) for each in (Mode.FAST, Mode.SLOW, Other.FAST, Flags.ONE, Flags.ONE | Flags.TWO, "fast")
    ]
    assert None not in known and len(set(known)) == len(known)
    Again = Enum("Mode", {"FAST": "fast", "SLOW": "slow"}, type=str)
    assert _digest(mode=Again.FAST) == known[0]


MEMBERS = """
import enum
import torch

class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Net(torch.nn.Module):
    mode = Mode.FAST
    def forward(self, x):
        return x + 1 if self.mode == Mode.FAST else x + 2

def check(compile):
    net, x = Net(), torch.ones(3)
    with torch.no_grad():
        torch.testing.assert_close(compile(net)(x), net(x))
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with argand.config.patch(cache_dir=str(tmp_path / "cache"), **STORED):
        yield Program(tmp_path, MEMBERS)


def test_classes_with_members_of_enumerations_outlive_the_process(program: Program) -> None:
    assert program.run() == ["stored"], program.reasons
    assert program.run() == ["hit"], program.reasons

    def slow(module: Any) -> None:
        module.Net.mode = module.Mode.SLOW

    assert "hit" not in program.run(slow)
