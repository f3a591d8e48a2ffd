"""The catalogue of graph breaks: every kind has a page, every place that raises a break names a kind, every example is true."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import linecache
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand import errors
from argand.breaks import render
from argand.breaks.catalogue import SUBJECTS, pages
from argand.breaks.kinds import EXPLANATIONS, IDS, REMEDIES, RETIRED
from argand.breaks.page import Page
from helpers import collected

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src" / "argand"

# ---------------------------------------------------------------------- the table


def test_ids_are_unique_and_never_used_again() -> None:
    assert len(set(IDS.values())) == len(IDS)
    assert not RETIRED & set(IDS.values())
    assert all(re.fullmatch(r"AG\d{4}", name) for name in (*IDS.values(), *RETIRED))
    numbers = sorted(int(name[2:]) for name in (*IDS.values(), *RETIRED))
    assert numbers == list(range(1, len(numbers) + 1)), "a kind that goes leaves its id to RETIRED"


def test_each_kind_has_one_page() -> None:
    kinds = [page.kind for _, group in SUBJECTS for page in group]
    assert sorted(kinds) == sorted(IDS) == sorted(REMEDIES)


def test_pages_say_what_why_and_what_to_do() -> None:
    for page in pages().values():
        for text in (page.what, page.why, page.remedy, *([page.unshown] if page.unshown else [])):
            assert text[0].isupper() or text.startswith(("`", "torch ")) or text[0].isdigit(), (page.id, text)
            assert text.endswith("."), (page.id, text)
        assert bool(page.programs) != bool(page.unshown), page.id
        assert not set(page.also) - set(IDS) and page.kind not in page.also, page.id


def test_a_kind_that_is_not_in_the_table_cannot_be_raised() -> None:
    with pytest.raises(errors.InternalError, match="'no such kind' is no kind of graph break"):
        raise errors.graph_break(kind="no such kind", explanation="because")


# ---------------------------------------------------------------------- the places that raise


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _strings(node: ast.expr | None, constants: dict[str, str]) -> list[str | None]:
    """The texts that an expression may be; None for one that is not known here."""
    if isinstance(node, ast.IfExp):
        return _strings(node.body, constants) + _strings(node.orelse, constants)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [constants.get(node.id) if isinstance(node, ast.Name) else None]


def _given(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = {key.arg: key.value for key in call.keywords}
    return named.get(name) or (call.args[position] if len(call.args) > position else None)


def _raised() -> Iterator[tuple[str, str | None]]:
    """Each place that makes a break, and the kind that it names."""
    for path in sorted((SRC / "capture").rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }
        makers = {"graph_break": 0, "BreakReason": 0}  # name: at which place it takes the kind
        handed = set()
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            taken = [arg.arg for arg in function.args.args]
            for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
                kind = _given(call, "kind", 0) if _name(call) in ("graph_break", "BreakReason") else None
                if isinstance(kind, ast.Name) and kind.id in taken:
                    makers[function.name] = taken.index(kind.id)
                    handed.add(call)
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            if _name(call) in makers and call not in handed and (call.args or call.keywords):
                for kind in _strings(_given(call, "kind", makers[_name(call)]), constants):
                    yield f"{path.name}:{call.lineno}", kind


def test_each_place_that_raises_names_a_kind_and_each_kind_is_raised() -> None:
    raised = list(_raised())
    assert len(raised) > 160
    # Handed on by a helper of another module: `natives.breaking`, a loop that goes on, a tensor that needs a value.
    everywhere = {
        node.value
        for path in (SRC / "capture").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for place, kind in raised:
        assert kind in IDS, f"{place}: {kind!r} is not in argand/breaks/kinds.py"
    assert set(IDS) <= everywhere, set(IDS) - everywhere


def test_each_break_is_explained_by_the_place_that_raises_it_or_by_its_kind() -> None:
    unexplained = set()
    for path in (SRC / "capture").rglob("*.py"):
        for call in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]:
            kind = _given(call, "kind", 0)
            if _name(call) == "graph_break" and _given(call, "explanation", 2) is None and kind is not None:
                unexplained.update(_strings(kind, {}))
    assert unexplained == set(EXPLANATIONS)


# ---------------------------------------------------------------------- the examples


def outcome(text: str, name: str, compile: Callable[..., Any]) -> tuple[str, list[errors.BreakReason], list[str]]:
    """What a program prints, its breaks, and errors inside argand."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    argand.reset()
    torch.manual_seed(0)
    random.seed(0)
    module = types.ModuleType("page")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(out):
        patch.setattr(argand, "compile", compile)
        patch.setitem(sys.modules, "page", module)
        warnings.simplefilter("ignore")
        with collected("graph_breaks", "suppressed") as events:
            exec(builtin_compile(text, name, "exec"), vars(module))
    breaks = [event.data["reason"] for event in events if event.name == "graph_breaks"]
    return out.getvalue(), breaks, [event.text() for event in events if event.name == "suppressed"]


builtin_compile = compile


def eagerly(fn: Any = None, **options: Any) -> Any:
    return fn if fn is not None else lambda fn: fn


def compiled(real: Callable[..., Any]) -> Callable[..., Any]:
    def compile(fn: Any = None, **options: Any) -> Any:
        options.setdefault("backend", "eager")
        return real(fn, **options) if fn is not None else functools.partial(real, **options)

    return compile


def runs_here(page: Page) -> bool:
    return sys.version_info >= page.since and all(importlib.util.find_spec(name) for name in page.needs)


SHOWN = [page for page in pages().values() if page.programs]


def test_most_pages_have_examples() -> None:
    assert len(SHOWN) >= len(IDS) - 14


@pytest.mark.parametrize("page", SHOWN, ids=[page.id for page in SHOWN])
def test_examples(page: Page) -> None:
    if not runs_here(page):
        pytest.skip(f"needs {page.condition}")
    real = argand.compile
    counts = []
    for when, text in page.programs.items():
        name, kinds = f"<{page.id} {when}>", {page.kind, *page.also} if when == "before" else set()
        want, _, _ = outcome(text, name, eagerly)
        got, breaks, suppressed = outcome(text, name, compiled(real))
        assert want.strip() and got == want, name
        assert {reason.kind for reason in breaks} == kinds, (name, [str(reason) for reason in breaks])
        assert bool(suppressed) == (page.kind == "compiling failed" and when == "before"), (name, suppressed)
        counts.append(len(breaks))
    assert counts[1] < counts[0]


# ---------------------------------------------------------------------- where they are shown


def branching(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def test_id_in_explain_errors_and_logs(capsys: pytest.CaptureFixture[str]) -> None:
    explained = argand.explain(branching)(torch.ones(3))
    [reason] = explained.break_reasons
    assert reason.id == "AG0001" and explained.as_dict()["break_reasons"][0]["id"] == "AG0001"
    assert "1. [AG0001] data-dependent branch: " in str(explained)
    assert "argand breaks AG0001" in str(explained)
    with pytest.raises(errors.Unsupported) as caught:
        argand.compile(branching, backend="eager", fullgraph=True)(torch.ones(3))
    assert "[AG0001] data-dependent branch: " in caught.value.cause and "argand breaks AG0001" in str(caught.value)
    argand.set_logs(graph_breaks=True)
    argand.reset()
    argand.compile(branching, backend="eager")(torch.ones(3))
    said = capsys.readouterr().err
    assert "Graph Break Reason: [AG0001] data-dependent branch" in said and "argand breaks AG0001" in said


def test_document_is_current() -> None:
    """`python -m argand.breaks.render > docs/graph-breaks.md` writes it."""
    assert (ROOT / "docs" / "graph-breaks.md").read_text() == render.document() + "\n"


def test_pages_are_not_loaded_by_a_capture() -> None:
    code = (
        "import argand, sys, torch\n"
        "argand.compile(lambda x: x if x.sum() > 0 else -x, backend='eager')(torch.ones(3))\n"
        "print([name for name in sys.modules if name.startswith('argand.breaks.')])"
    )
    done = warm.run(["-c", code], check=True)
    assert done.stdout.strip() == "['argand.breaks.kinds']"
