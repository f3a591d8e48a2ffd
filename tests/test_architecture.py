"""docs/architecture.md names things that exist, and its walk of one call is how a call goes."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import argand
from argand._core import _C

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "argand"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", TEXT)))
WALK = TEXT.partition("### A call, room by room")[2].partition("###")[0].partition("For the second time")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@functools.cache
def classes() -> dict[str, list[set[str]]]:
    """The names in each class of the sources, by the class's name."""
    found: dict[str, list[set[str]]] = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                inside = [inner for part in node.body for inner in ast.walk(part)]
                names = {inner.name for inner in inside if isinstance(inner, ast.FunctionDef)}
                names |= {inner.id for inner in inside if isinstance(inner, ast.Name)}
                names |= {inner.attr for inner in inside if isinstance(inner, ast.Attribute)}
                found.setdefault(node.name, []).append(names)
    return found


def value_of(path: str) -> Any:
    """What a dotted path stands for, in argand or in its capture."""
    for start in ("argand", "argand.capture"):
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            try:
                value: Any = importlib.import_module(".".join([start, *parts[:end]]))
            except ModuleNotFoundError:
                continue
            return functools.reduce(getattr, parts[end:], value)
    raise LookupError(path)


def exists(name: str) -> bool:
    """Whether a dotted name of the document is there."""
    first, _, rest = name.partition(".")
    if first in ("torch", "autograd", "re", "sys", "threading"):  # not argand's, but for a folder of argand's
        return first != "autograd" or "." not in rest or value_of(name) is not None
    if first == "argand":
        return functools.reduce(getattr, rest.split("."), argand) is not None
    if first == "config":
        return hasattr(argand.config, rest)
    if first == "_C":
        return hasattr(_C, rest)
    if first in classes():
        return any(rest in names for names in classes()[first])
    if hasattr(_C, first):
        return hasattr(getattr(_C, first), rest)
    return value_of(name) is not None


@pytest.mark.parametrize(
    "name", [name for name in QUOTED if DOTTED.fullmatch(name) and not name.endswith((".py", ".c", ".md"))]
)
def test_names_exist(name: str) -> None:
    assert exists(name)


@pytest.mark.parametrize("name", [name for name in QUOTED if re.fullmatch(r"[\w/]+\.(?:py|c|h|md)|(?:\w+/)+", name)])
def test_files_exist(name: str) -> None:
    places = [ROOT / name, SOURCES / name, SOURCES / "capture" / name]
    assert any(place.exists() for place in places) or any(SOURCES.rglob(name)), name


def test_names_in_recipes_exist() -> None:
    """Of functions, tables, settings and files that CONTRIBUTING.md tells to change: each stands in the sources."""
    recipes = (ROOT / "CONTRIBUTING.md").read_text().partition("## Recipes")[2].partition("\n## ")[0]
    folders = (SOURCES, ROOT / "tests")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".h")]
    words = set(re.findall(r"\w+", " ".join(texts)))
    named = {name for quoted in re.findall(r"`([^`]+)`", recipes) for name in re.findall(r"^@?([A-Za-z_.]+)\b", quoted)}
    assert len(named) > 25
    assert {name for name in named if not set(re.findall(r"\w+", name)) <= words} <= {"pytest", "pyproject.toml"}
    for name in re.findall(r"`((?:src|tests|capture)/[\w/.]+\w)", recipes):
        assert (ROOT / name).exists() or (SOURCES / name).exists(), name


def test_functions_of_the_core_exist() -> None:
    assert "hook_eval_frame" in WALK[2]
    assert "\nhook_eval_frame(" in (SOURCES / "_core/hook/hook.c").read_text()


def doors(text: str) -> list[str]:
    """The functions that a text names by their paths."""
    return [name for name in re.findall(r"`([^`]+)`", text) if name.count(".") >= 2 and DOTTED.fullmatch(name)]


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def called(x: torch.Tensor) -> torch.Tensor:
    return double(x) + 1


def test_a_call_goes_as_the_walk_says(tmp_path: Path) -> None:
    """The doors are gone through in the order in which the walk names them, and at the second call none of them is."""
    names = doors(WALK[0])
    assert len(names) >= 15
    codes: dict[CodeType, str] = {value_of(name).__code__: name for name in names}
    order: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = codes.get(frame.f_code)
        if event == "call" and name is not None and name not in order:
            order.append(name)

    fn = argand.compile(called, backend="native")
    x = torch.linspace(-1, 1, 77)
    for expected in (names, []):
        order.clear()
        with argand.config.patch(cache_dir=str(tmp_path)):
            sys.setprofile(note)
            try:
                result = fn(x)
            finally:
                sys.setprofile(None)
        assert order == expected
        torch.testing.assert_close(result, called(x))
