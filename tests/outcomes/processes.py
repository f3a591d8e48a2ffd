"""Programs in modules of their own, imported anew where a later process would import them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import argand
from argand import events

STORED = {"program_cache": True, "outcome_cache": True, "verify_ir": False}
NAME = "stored_program"
SQUARE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x
"""
"""A function of the program's own, part of the texts of several tests' modules."""


def asking(kind: str) -> Callable[[ModuleType], None]:
    """A change of a module whose `check` is about what its `WHAT` says."""

    def change(module: ModuleType) -> None:
        module.WHAT = kind  # type: ignore[attr-defined]

    return change


class Program:
    """A module's text, in a folder of the test's."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.reasons: list[str] = []
        """Why outcomes were not stored or loaded."""
        self.write(text)

    def write(self, text: str) -> None:
        """Write the module anew, as an editor does."""
        self.text = text
        (self.folder / f"{NAME}.py").write_text(text)

    def edit(self, old: str, new: str) -> None:
        """Change the module's text."""
        assert old in self.text
        self.write(self.text.replace(old, new))

    @contextlib.contextmanager
    def process(self) -> Iterator[tuple[ModuleType, list[str]]]:
        """The module, and what the cache says of outcomes, as in a process of its own."""
        argand.reset()
        sys.modules.pop(NAME, None)
        importlib.invalidate_caches()
        said: list[str] = []

        def note(event: events.Event) -> None:
            if event.data.get("level") == "outcome":
                said.append(str(event.data["outcome"]))
                self.reasons.append(str(event.data.get("reason")))

        sys.path.insert(0, str(self.folder))
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        remove = events.bus.subscribe(note, ("cache",))
        try:
            yield importlib.import_module(NAME), said
        finally:
            remove()
            sys.dont_write_bytecode = writes
            sys.path.remove(str(self.folder))
            sys.modules.pop(NAME, None)

    def run(self, change: Callable[[ModuleType], Any] | None = None) -> list[str]:
        """Call `main` compiled and eagerly in a process of its own, compare, and say what the cache said.

        Arguments:
            change: what the process does before.
        """
        with self.process() as (module, said):
            if change is not None:
                change(module)
            module.check(argand.compile)
            return said
