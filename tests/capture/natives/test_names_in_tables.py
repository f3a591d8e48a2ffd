"""Tables of handlers name what is there: in this Python and torch, or in another that argand supports."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import argand
import argand.capture.driver.substitutes
import argand.capture.interp.handlers  # noqa: F401  (fills the tables)
import warm
from argand.bytecode.opcodes import SUPPORTED_VERSIONS
from argand.capture.facts import handlers
from argand.capture.facts.handlers import names_here
from argand.capture.torch_functions import torch_calls
from argand.errors import InternalError

ROOT = Path(__file__).resolve().parents[3]
TORCH = Path(torch.__file__).parent
_MARK = re.compile(r"[\w.]+\[(python|torch)(<|>=)(\d+)\.(\d+)\]")


def versions() -> dict[str, list[tuple[int, ...]]]:
    """The Pythons and torches that argand supports."""
    bounds = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert bounds is not None
    return {"python": list(SUPPORTED_VERSIONS), "torch": [(2, minor) for minor in range(*map(int, bounds.groups()))]}


def test_every_path_leads_somewhere() -> None:
    """One that is another version's says so: `name[python>=3.12]`, `name[torch<2.13]`."""
    assert handlers.ABSENT == []


def test_marks_tell_supported_versions_apart() -> None:
    """A mark that holds for none of them is a name that nobody has; one that holds for all says nothing."""
    known = versions()
    for path in (ROOT / "src").rglob("*.py"):
        for what, side, major, minor in _MARK.findall(path.read_text()):
            older = [version < (int(major), int(minor)) for version in known[what]]
            assert len(set(older)) == 2, f"{path.name}: [{what}{side}{major}.{minor}]"


def test_marks_are_heeded() -> None:
    assert names_here("a b[python>=3.11] c[python<3.11] d[torch>=99.0] e[torch<99.0]") == ["a", "b", "e"]


def names_in(code: types.CodeType) -> Iterator[str]:
    """What is defined in a module, at any depth: plain and qualified names."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from (part.co_name, part.co_qualname)
            yield from names_in(part)


def definitions(file: Path) -> set[str]:
    return set(names_in(compile(file.read_text(), str(file), "exec")))


def test_names_of_late_modules_are_defined_there() -> None:
    """They are asked for by module and name: torch says that they are there, or has them made by a function there."""
    late = [path for path in torch_calls.NAMED if "." in path]
    code = (
        "import importlib, sys\n"
        "for path in sys.argv[1:]:\n"
        "    module, _, name = path.rpartition('.')\n"
        "    where = importlib.import_module(module)\n"
        "    value = getattr(where, name, None)\n"
        "    owners = [vars(one) for one in vars(where).values() if isinstance(one, type)]\n"
        "    print(path, getattr(value, '__module__', None) == module or any(name in own for own in owners))"
    )
    done = warm.run(["-c", code, *late], check=True)
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert set(answers) == set(late)
    renamed = [
        path for path in late if path.endswith(("._resolve_group", "._resolve_group_name"))
    ]  # in torch 2.13, and before
    assert len(renamed) == 2 and any(answers[path] == "True" for path in renamed)
    for path in (path for path, is_there in answers.items() if is_there == "False" and path not in renamed):
        module, _, name = path.rpartition(".")
        assert name in definitions(TORCH.parent / (module.replace(".", "/") + ".py")), path


def test_names_of_codes_are_defined_in_a_file_of_torch() -> None:
    for place in torch_calls.CODES:
        file, _, name = place.partition(":")
        assert any(name in definitions(path) for path in TORCH.rglob(file)), place


def test_one_handler_a_name() -> None:
    """Which of two holds would depend on the order of imports."""
    table = {"a": 1}
    handlers.enter(table, "a", table["a"])
    with pytest.raises(InternalError):
        handlers.enter(table, "a", 2)


def test_no_row_fills_a_registry_past_enter() -> None:
    """`METHODS[...] = handler` would hide a handler that is there; `setdefault` is for what has none."""
    registries = {"METHODS", "CLASS_METHODS", "CALLABLE_OBJECTS", "NAMED", "SPECIAL"}
    capture = Path(handlers.__file__).parents[1]
    for path in capture.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(name in text for name in registries) else ():
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
                name = ast.unparse(target.value).rpartition(".")[2]
                assert name not in registries, f"{path.name}:{node.lineno}"


def test_a_question_to_a_module_that_torch_imports_late_is_answered() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.onnx.is_in_onnx_export() else x + 1

    assert torch.equal(argand.compile(asks, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))
