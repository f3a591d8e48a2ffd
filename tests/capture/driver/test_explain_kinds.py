"""Every graph break says in plain words what, where and what to do."""

from __future__ import annotations

import ast
import copy
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import argand
from argand.breaks.kinds import EXPLANATIONS
from argand.errors import sentence

SRC = Path(__file__).resolve().parents[3] / "src" / "argand"
INTERNAL = re.compile(r"__resume_at|__compiled_fn|_C\.|stand-in|\bmeta\b|__bool__|argand\._core|\.native\b")


def break_calls() -> list[tuple[str, ast.Call]]:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "graph_break" in text else ():
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name == "graph_break" and any(key.arg == "kind" for key in node.keywords):
                    found.append((f"{path.relative_to(SRC)}:{node.lineno}", node))
    return found


def literal(node: ast.expr | None) -> str:
    """The constant text of a string or f-string expression."""
    if node is None:
        return ""
    parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return " ".join(parts)


def faults(call: ast.Call) -> list[str]:
    """What is wrong with the texts of a break."""
    given = {key.arg: key.value for key in call.keywords}
    if "kind" not in given or not ("explanation" in given or literal(given["kind"]) in EXPLANATIONS):
        return ["a break needs a kind and an explanation"]
    found = []
    kind = literal(given["kind"]).replace("__next__", "")  # of a condition
    if re.search(r"__|[.:;]|unsupported bytecode", kind):
        found.append(f"the kind {kind!r}")
    for name in ("kind", "explanation", "hints"):
        if INTERNAL.search(literal(given.get(name))):
            found.append(f"{name} speaks of argand's internals")
    if isinstance(hints := given.get("hints"), ast.Tuple) and not hints.elts:
        found.append("no hint: leave it out, and the kind's remedy is said")
    return found


def test_texts_of_every_break() -> None:
    calls = break_calls()
    assert len(calls) > 50
    assert not [f"{place}: {fault}" for place, call in calls for fault in faults(call)]
    assert not [kind for kind, explanation in EXPLANATIONS.items() if INTERNAL.search(explanation)]


def test_faulty_texts_are_found() -> None:
    (statement,) = ast.parse("graph_break(kind='a.b', explanation='_C.x', hints=())").body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    assert len(faults(statement.value)) == 3
    del statement.value.keywords[0]
    assert len(faults(statement.value)) == 1


def test_sentence() -> None:
    assert sentence("call it outside") == "Call it outside."
    assert sentence("x.f() is it") == "x.f() is it."
    assert sentence("torch.stack instead.") == "torch.stack instead."
    assert sentence("") == ""


def test_a_break_without_hint_says_the_remedy_of_its_kind() -> None:
    found = argand.errors.graph_break(kind="write to an expanded tensor", explanation="because")
    assert found.reason.hints == ("Write to a copy: x.expand(...).clone().",)
    assert found.reason.explanation == "Because."


def test_a_break_without_explanation_says_that_of_its_kind() -> None:
    explained = argand.errors.graph_break(kind="copying an object", context="Odd{}")
    assert explained.reason.explanation == "How Odd{} is copied or pickled is not captured."


X = torch.ones(3)


class Odd:
    def __iter__(self):
        return iter([1, 2])


ARRAY = numpy.arange(3)


def print_it(x):
    print(x + 1)
    return x


def branch(x):
    return x if x.sum() > 0 else -x


def assertion(x):
    assert (x > 0).all()
    return x


def loop(x):
    while (x > 0).all():
        x = x - 1
    return x


def item(x):
    return x * x[0].item()


def to_int(x):
    return range(int(x[0]))


def text_of(x):
    return len(f"{x}") + x


def mask(x):
    return x[x > 0]


def unique(x):
    return torch.unique(x)


def clock(x):
    return x * (time.time() > 0)


def files(x):
    open(__file__).close()
    return x


def dynamic_code(x):
    return eval("x + 1", {"x": x})


def to_numpy(x):
    return (x + 1).numpy()


def pointer(x):
    return (x + 1).data_ptr()


def asked(x):
    y = x + 1
    argand.graph_break()
    return y * 2


@argand.disable(reason="it is slow")
def never(x):
    return x


def calls_disabled(x):
    return never(x + 1)


def saves(x):
    return torch.save(x, "/nonexistent/place")


def sets_threads(x):
    torch.set_num_threads(torch.get_num_threads())
    return x + 1


def raises(x):
    return x + torch.ones(7)


PROGRAMS: list[tuple[Callable[..., Any], str, str]] = [
    (print_it, "print", "print(x + 1)"),
    (branch, "data-dependent branch", "return x if x.sum() > 0 else -x"),
    (loop, "data-dependent branch", "while (x > 0).all():"),
    (item, "data-dependent value", "return x * x[0].item()"),
    (to_int, "data-dependent value", "return range(int(x[0]))"),
    (text_of, "data-dependent text", 'return len(f"{x}") + x'),
    (mask, "dynamic output shape", "return x[x > 0]"),
    (unique, "data-dependent value", "return torch.unique(x)"),
    (files, "input or output", "open(__file__).close()"),
    (dynamic_code, "frame looked at", 'return eval("x + 1", {"x": x})'),
    (pointer, "data-dependent value", "return (x + 1).data_ptr()"),
    (asked, "graph break on request", "argand.graph_break()"),
    (calls_disabled, "call of a function that is not to be compiled", "return never(x + 1)"),
    (sets_threads, "torch function with outside effects", "torch.set_num_threads(torch.get_num_threads())"),
    (raises, "torch call raises an exception", "return x + torch.ones(7)"),
]


@pytest.mark.parametrize("program, kind, line", PROGRAMS, ids=[program.__name__ for program, _, _ in PROGRAMS])
def test_reason_of(program: Callable[..., Any], kind: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from helpers import collected

    with collected("graph_breaks") as events:
        try:
            argand.compile(program, backend=lambda gm, _: gm.forward)(copy.deepcopy(X))
        except (RuntimeError, OSError):
            pass
    reasons = [event.data["reason"] for event in events]
    assert reasons, "no break"
    reason = reasons[0]
    assert reason.kind == kind, reason
    assert reason.where and reason.where[-1].text == line, reason
    assert reason.where[-1].function == program.__name__
    assert reason.hints and all(hint.endswith(".") for hint in reason.hints)
    for text in (reason.kind, reason.explanation, *reason.hints):
        assert not INTERNAL.search(text), text
    assert reason.explanation.endswith(".") and ".." not in reason.explanation.replace("...", "")


def test_an_assertion_on_data_is_no_break() -> None:
    explained = argand.explain(assertion)(X)
    assert explained.break_reasons == () or explained.break_reasons == []
    with pytest.raises(AssertionError):
        argand.compile(assertion, backend="eager")(-X)


def test_disabled_says_why() -> None:
    [reason] = argand.explain(calls_disabled)(X).break_reasons
    assert "it is slow" in reason.explanation


def test_function_after_a_break_has_its_own_name() -> None:
    """Regression: the rest of a function after a break was called __resume_at_<offset>_<n> in messages."""

    def two(x):
        y = x + 1
        print("one")
        y = y * 2
        print("two")
        return y - 1

    reasons = argand.explain(two)(X).break_reasons
    assert [place.function for reason in reasons for place in reason.where] == ["two", "two"]


def test_break_that_cannot_be_split_names_the_break() -> None:
    """Regression: a frame given up because of where it breaks hid what broke it, and where."""

    def handler(x):
        try:
            raise ValueError
        except ValueError:
            y = x + 1
            print("handled")
        return y

    reasons = argand.explain(handler)(X).break_reasons
    assert any("print()" in reason.explanation and reason.where[-1].text == 'print("handled")' for reason in reasons)
