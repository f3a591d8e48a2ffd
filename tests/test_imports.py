"""Modules import one way, and at the top: nothing can be understood, moved or tested by itself in a circle of imports.

A module is looked at as text. An import inside a function, or for type checkers only, counts as any other.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"

PACKAGES = {
    "torch": "parts that torch itself loads late, or torch where a module is also used without",
    "triton": "optional",
    "numpy": "optional",
    "redis": "optional",
    "accelerate": "optional",
    "rich": "heavy: tables and bars of the command line",
    "orjson": "heavy: only who writes or reads traces pays for it",
    "platformdirs": "heavy: only who asks for the default folder pays for it",
}

ALLOWED = {
    "`import argand` costs next to nothing": {
        "config.py: difflib",
    },
    "a setting asks for it": {
        "api.py: argand.debug.audit",
        "api.py: argand.debug.repro_after",
        "api.py: argand.debug.numerics",
        "api.py: argand.runtime.remote",
        "backends/native.py: argand.backends.programs.freezing",
        "debug/directory.py: argand.debug.diagram",
        "debug/directory.py: argand.debug.runnable",
        "debug/sinks.py: argand.debug.directory",
        "debug/sinks.py: argand.debug.frame_records.record",
        "debug/sinks.py: argand.debug.ranks",
        "debug/sinks.py: argand.debug.suppression",
        "report/sinks.py: argand.report.chromium",
        "report/sinks.py: argand.report.writer",
    },
    "most explanations are not shown on a terminal, and rich is heavy": {
        "capture/driver/explain.py: argand.capture.driver.explain_rich",
    },
    "what an earlier process stored needs no compiler": {
        "ahead_of_time.py: argand.capture.driver.frame",
        "capture/driver/entrance.py: argand.capture.driver.frame",
        "capture/driver/lazy_references.py: argand.capture.output.rerun",
        "backends/native.py: argand.backends.programs.generation",
        "backends/programs/rolled_training.py: argand.backends.programs.generation",
        "backends/stored_functions.py: argand.backends.eager_contest",
        "backends/stored_functions.py: argand.backends.late_backward",
        "backends/in_parts/parts.py: argand.backends.native",
    },
    "most graphs do not need it": {
        "backends/common.py: argand.backends.dynamic",
        "backends/common.py: argand.backends.training",
        "backends/programs/generation.py: argand.backends.autotune",
        "backends/programs/preparation.py: argand.backends.layouts",
        "backends/in_parts/choice.py: argand.backends.in_parts.around_checkpoints",
        "backends/in_parts/choice.py: argand.backends.in_parts.cuts",
        "autograd/tracing/trace.py: argand.autograd.tracing.flex",
        "backends/native.py: argand.backends.cudagraphs",
        "backends/native.py: argand.runtime.gpu.device.arena",
        "backends/stored_functions.py: argand.runtime.gpu.cuda_graphs.stored_recordings",
        "backends/targets.py: argand.runtime.gpu.device.target",
        "backends/targets.py: argand.runtime.gpu.operators.blas",
        "codegen/host/kernels.py: argand.codegen.cpp",
        "codegen/host/kernels.py: argand.codegen.triton",
        "codegen/host/kernels.py: argand.runtime.toolchain",
    },
    "a command of `argand` loads what it runs, and `argand --help` does not load torch": {
        "cli.py: argand.api",
        "cli.py: argand.hosts",
        "cli.py: argand.runtime.archive",
        "cli.py: argand.breaks.render",
        "cli.py: argand.capture.driver.explain",
        "cli.py: argand.debug.benchmark.bench",
        "cli.py: argand.debug.benchmark.bench_text",
        "cli.py: argand.debug.benchmark.fallbacks",
        "cli.py: argand.runtime.cache",
        "cli.py: argand.runtime.gpu.device.target",
        "cli.py: argand.runtime.toolchain",
        "debug/commands/doctor.py: argand.debug.doctor.child",
        "debug/commands/doctor.py: argand.debug.doctor.procedure",
        "debug/frame_records/replay.py: argand.debug.frame_records.record_reader",
        "report/command.py: argand.report.html.build",
        "report/command.py: argand.report.html.model",
        "report/command.py: argand.report.html.serve",
    },
    "a process that is to import it at a certain point": {
        "debug/trial/isolation.py: argand.debug.gpus",
    },
}


def _name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted((SRC / "argand").rglob("*.py"))}


@dataclass(frozen=True)
class Imported:
    """An import: of which module, on which line, inside a function or not."""

    target: str
    line: int
    in_function: bool


def targets(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports: `from argand.graph import compat` imports `argand.graph.compat`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in MODULES or full == "argand._core._C" else node.module


def imports(tree: ast.AST, in_function: bool = False) -> Iterator[Imported]:
    """Every import of a module, wherever it stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # none of its own, nor of what is in it
            continue
        for target in targets(node):
            yield Imported(target, getattr(node, "lineno", 0), in_function)
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from imports(node, in_function or function)


@functools.cache
def all_imports() -> dict[str, tuple[Imported, ...]]:
    """Those of each module."""
    return {name: tuple(imports(ast.parse(path.read_text()))) for name, path in MODULES.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected groups of more than one node (Tarjan's algorithm, without recursion)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    open_nodes: set[str] = set()
    found = []
    for start in graph:
        path = [(start, iter(sorted(graph[start])))] if start not in number else []
        while path:
            node, rest = path[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                stack.append(node)
                open_nodes.add(node)
            unseen = None
            for other in rest:
                if other not in number:
                    unseen = other
                    break
                if other in open_nodes:
                    lowest[node] = min(lowest[node], lowest[other])
            if unseen is not None:
                path.append((unseen, iter(sorted(graph[unseen]))))
                continue
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == number[node]:
                group = stack[stack.index(node) :]
                del stack[stack.index(node) :]
                open_nodes.difference_update(group)
                if len(group) > 1:
                    found.append(sorted(group))
    return found


def graph_of(modules: dict[str, tuple[Imported, ...]]) -> dict[str, set[str]]:
    return {name: {one.target for one in found if one.target in modules} for name, found in modules.items()}


def test_modules_import_one_way() -> None:
    found = circles(graph_of(all_imports()))
    assert not found, (
        f"circles of imports: {found}. Move what both sides need below them, hand what is called upward in as an "
        "argument, or ask for it through an interface that stands below (capture/facts/interfaces.py)"
    )


def test_headers_include_one_way() -> None:
    texts = {path.name: path.read_text() for path in SRC.rglob("*.h")}
    included = {
        name: set(re.findall(r'^#include "(?:.*/)?([^/"]+)"', text, re.M)) & set(texts) for name, text in texts.items()
    }
    assert any(included.values()) and not circles(included)


def rooms_of(package: str) -> dict[str, set[str]]:
    """Which modules and rooms of a package import which."""
    depth = package.count(".") + 2
    rooms: dict[str, set[str]] = {}
    for name, targets in graph_of(all_imports()).items():
        if name.startswith(f"{package}."):
            here = {".".join(target.split(".")[:depth]) for target in targets if target.startswith(f"{package}.")}
            room = ".".join(name.split(".")[:depth])
            rooms.setdefault(room, set()).update(here - {room})
    return rooms


def test_rooms_import_one_way() -> None:
    """A room is above or below what stands beside it, as a whole: else it is no room."""
    packages = {name.rpartition(".")[0] for name in MODULES} - {"", "argand"}
    both_ways = {package: circles(rooms_of(package)) for package in sorted(packages)}
    assert not any(both_ways.values()), both_ways


def test_imports_stand_at_the_top() -> None:
    """An import inside a function hides what a module needs: it has a reason, which is one of `ALLOWED`, or none."""
    allowed = {place for places in ALLOWED.values() for place in places}
    found = {
        f"{MODULES[name].relative_to(SRC / 'argand').as_posix()}: {one.target}": one.line
        for name, ones in all_imports().items()
        for one in ones
        if one.in_function and one.target.partition(".")[0] not in PACKAGES
    }
    assert not set(found) - allowed, f"imports inside functions: { {k: found[k] for k in set(found) - allowed} }"
    assert not allowed - set(found), f"no longer there: {allowed - set(found)}"


LOGGERS = {"argand.capture.symbolic"}
"""Names of loggers that are no modules."""


def test_modules_that_are_named_in_texts_exist() -> None:
    """A module that moves leaves no name of it behind, which nothing would find."""
    named = re.compile(r"argand(?:\.[a-z_]+)+\.?")
    gone = [
        f"{path.relative_to(SRC)}:{node.lineno}: {node.value!r}"
        for path in MODULES.values()
        if re.search(rf"""["']{named.pattern}["']""", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
        if node.value.count(".") > 1 and node.value not in LOGGERS and not is_module(node.value.rstrip("."))
    ]
    assert not gone


def is_module(name: str) -> bool:
    """Whether there is a module of this name, or a function or class of a module."""
    return name in MODULES or name.rpartition(".")[0] in MODULES


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    made = {
        "a": "from b import one\nimport d",
        "b": "def f():\n    import c",
        "c": "if TYPE_CHECKING:\n    from a import two",
        "d": "import e",
        "e": "",
    }
    found = {name: {one.target for one in imports(ast.parse(text))} for name, text in made.items()}
    assert circles(found) == [["a", "b", "c"]]
