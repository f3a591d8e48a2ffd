"""Rules of the house that a reader of the source should be able to rely on (DESIGN.md, ground rules)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "argand"
FILES = sorted(SRC.rglob("*.py"))
TORCH_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "functorch", "sympy")


def imported_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_own_compiler(path: Path) -> None:
    if path.name == "interop.py":
        return
    text = path.read_text()
    tree = ast.parse(text)
    bad = [n for n in imported_names(tree) if any(n == t or n.startswith(t + ".") for t in TORCH_COMPILER)]
    assert not bad, f"{path} imports {bad}"
    calls = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.compile", "torch._dynamo.optimize")
    ]
    assert not calls, f"{path} calls torch's compiler on lines {calls}"


def test_no_torch_headers_in_c_sources() -> None:
    for path in SRC.rglob("*.[ch]"):
        for line in path.read_text().splitlines():
            if line.startswith("#include"):
                assert not any(part in line for part in ("torch/", "ATen/", "c10/")), f"{path}: {line}"


def test_import_is_cheap() -> None:
    """`import argand` pulls in neither torch nor any heavy third party."""
    code = (
        "import sys, argand; heavy = {'torch', 'numpy', 'typer', 'rich', 'jinja2', 'sympy', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_does_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch, argand\n"
        "@argand.compile\n"
        "def f(x):\n    return torch.softmax(x * 2 + 1, -1)\n"
        "f(torch.randn(8, 8))\n"
        "bad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))]\n"
        "print(sorted(bad)[:5])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
