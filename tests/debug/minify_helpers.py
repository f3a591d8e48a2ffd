"""Shared by the tests of the minifier."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import fx

import argand
import warm


class Lines:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.attempts = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def attempt(self, search: Any, outcome: Any) -> None:
        self.attempts += 1

    def shrunk(self, search: Any) -> None:
        pass


def graph_for(fn: Any, *args: Any) -> tuple[fx.GraphModule, list[Any]]:
    """The graph that argand captures of a function, and its inputs."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append((gm, list(inputs)))
        return gm.forward

    argand.compile(fn, backend=keep)(*args)
    return found[0]


def targets(gm: fx.GraphModule) -> list[Any]:
    """What a graph calls."""
    return [node.target for node in gm.graph.nodes if node.op.startswith("call")]


def run_script(folder: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, in `folder`."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return run_file(path, **env)


def run_file(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ARGAND_", "TORCH"))}
    kept |= {k: v for k, v in os.environ.items() if k == "ARGAND_CACHE_DIR"}
    return warm.run([path], cwd=path.parent, env={**kept, **env}, imported="compiler")


def only_run(folder: Path) -> Path:
    """The directory of the one run of the minifier under `folder`."""
    [found] = (folder / "argand_minifier").iterdir()
    return found


def no_relu(gm: fx.GraphModule, inputs: list[Any]) -> None:
    """A check that fails on relu."""
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError(f"cannot do relu of {node.args[0].name}, node {len(gm.graph.nodes)}")
