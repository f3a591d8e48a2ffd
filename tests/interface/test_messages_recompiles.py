"""Recompile messages: which guard failed, old and new value, in the program's words, and the remedy."""

from __future__ import annotations

import json
import re
import warnings
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand.capture.driver.recompiles import GuardFailure, Recompile
from helpers import assert_same, collected


def failures_of(fn: Any, *calls: tuple[Any, ...]) -> list[GuardFailure]:
    """Why the last of these calls needed another version."""
    compiled = argand.compile(fn, backend="eager", dynamic=False)
    with collected("recompiles") as events:
        for args in calls:
            compiled(*args)
    assert events, "no recompile"
    recompile = events[-1].data["recompile"]
    assert isinstance(recompile, Recompile)
    assert events[-1].text() == str(recompile) and json.dumps(recompile.as_dict())
    return list(recompile.failures)


def scaled(x, by):
    return x * by


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.scale = 2
        self.names = ["a", "b"]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * self.scale
        return x + len(self.names)


T = torch.ones


def multiplied(x, some):
    return [x * each for each in some]


CASES = [
    ("size", scaled, [(T(2), 2.0), (T(4), 2.0)], "x.size()[0] was 2, is now 4", "mark_dynamic(x, 0)"),
    ("size_1", scaled, [(T(2), 2.0), (T(1), 2.0)], "x.size()[0] was 2, is now 1", "sizes 0 and 1"),
    ("rank", scaled, [(T(2), 2.0), (T(2, 2), 2.0)], "x.dim() was 1, is now 2", "number of dimensions"),
    ("stride", scaled, [(T(3, 2), 2.0), (T(2, 3).t(), 2.0)], "x.stride()[0] was 2, is now 1", "x.contiguous()"),
    (
        "dtype",
        scaled,
        [(T(2), 2.0), (T(2, dtype=torch.float64), 2.0)],
        "x.dtype was torch.float32, is now torch.float64",
        "one dtype",
    ),
    (
        "grad",
        scaled,
        [(T(2), 2.0), (T(2, requires_grad=True), 2.0)],
        "x.requires_grad was False, is now True",
        "x.detach()",
    ),
    ("number", scaled, [(T(2), 2.0), (T(2), 3.0)], "by was 2.0, is now 3.0", "torch.tensor(3.0)"),
    (
        "length",
        multiplied,
        [(T(2), deque(range(n))) for n in (2, 3)],
        "len(some) was 2, is now 3",
        "the length of some",
    ),
    ("type", scaled, [(T(2), T(2)), (T(2), 3.0)], "type(by) was Tensor, is now float", "same type for by"),
]


@pytest.mark.parametrize("fn, calls, what, remedy", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_changed(fn: Any, calls: list[tuple[Any, ...]], what: str, remedy: str) -> None:
    failure = failures_of(fn, *calls)[0]
    assert str(failure) == what
    assert remedy in failure.remedy and failure.remedy.endswith(".")


def test_attributes_of_modules() -> None:
    model = Model()
    compiled = argand.compile(model, backend="eager", dynamic=False)
    x = torch.ones(2, 3)
    compiled(x)
    changes = [
        (lambda: setattr(model, "scale", 3), "self.scale was 2, is now 3"),
        (lambda: model.layers[1].weight.requires_grad_(False), "self.layers[1].weight.requires_grad was True, is now"),
        (lambda: model.names.append("c"), "len(self.names) was 2, is now 3"),
    ]
    for change, what in changes:
        change()
        with collected("recompiles") as events:
            assert_same(model(x), compiled(x))
        assert what in events[0].text(), events[0].text()


def test_global_state_and_globals() -> None:
    compiled = argand.compile(scaled, backend="eager")
    compiled(T(2, requires_grad=True), 2.0)
    with collected("recompiles") as events, torch.no_grad():
        compiled(T(2, requires_grad=True), 2.0)
    assert "torch.is_grad_enabled() was True, is now False" in events[0].text()


def test_text() -> None:
    compiled = argand.compile(scaled, backend="eager", dynamic=False)
    compiled(T(2), 2.0)
    with collected("recompiles") as events:
        compiled(T(5), 2.0)
    text = events[0].text().replace(__file__, "FILE")
    assert re.sub(r":\d+", ":N", re.sub(r"line \d+", "line N", text)) == (
        "Recompiling scaled (FILE:N), compiled once so far:\n"
        "  x.size()[0] was 2, is now 5    [local 'x' TENSOR_MATCH]\n"
        '    needed by File "FILE", line N, in scaled\n'
        "        return x * by\n"
        "  What to do: argand.mark_dynamic(x, 0) before the first call, or argand.compile(..., dynamic=True)."
    )
    assert events[0].data["reasons"] == ["x.size()[0] was 2, is now 5"]


def test_equal_reasons_are_told_once() -> None:
    compiled = argand.compile(scaled, backend="eager", dynamic=False)
    for n in (2, 3, 4):
        compiled(T(n), 2.0)
    with collected("recompiles") as events:
        compiled(T(4), "no number" if False else 5.0)
    labels = [failure.guard for failure in events[0].data["recompile"].failures]
    assert len(labels) == len(set(zip(labels, events[0].data["reasons"])))


def test_function_after_a_break_keeps_its_name() -> None:
    def f(x, n):
        y = x + 1
        print(end="")
        return y * n

    compiled = argand.compile(f, backend="eager", dynamic=False)
    compiled(T(2), 2.5)
    with collected("recompiles") as events:
        compiled(T(2), 3.5)
    assert events and all("__resume" not in event.text() for event in events)
    assert events[-1].data["function"] == "f"


# ---------------------------------------------------------------------- the limit


def test_warning_at_the_limit() -> None:
    compiled = argand.compile(scaled, backend="eager", dynamic=False)
    with argand.config.patch(cache_size_limit=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with collected("cache_size_limit") as events:
            for n in range(2, 8):
                assert_same(T(n) * 2.0, compiled(T(n), 2.0))
    [warning] = [w for w in caught if "cache_size_limit" in str(w.message)]
    line = scaled.__code__.co_firstlineno
    assert warning.filename == __file__ and warning.lineno == line
    text = str(warning.message).replace(__file__, "FILE")
    assert text.splitlines()[:3] == [
        "argand hit config.cache_size_limit (2): calls that no compiled version fits now run eagerly.",
        f"   function: scaled (FILE:{line})",
        "   last reason: x.size()[0] was 3, is now 4 [local 'x' TENSOR_MATCH]",
    ]
    assert "what to do: argand.mark_dynamic(x, 0)" in text
    assert len(events) == 1 and events[0].data["function"] == "scaled"


def test_recompile_limit_is_the_same_setting() -> None:
    with argand.config.patch(recompile_limit=3):
        assert argand.config.cache_size_limit == 3 == argand.config.recompile_limit
    argand.config.recompile_limit = 5
    assert argand.config.cache_size_limit == 5


# ---------------------------------------------------------------------- CompileProfiler


def profiled() -> argand.CompileProfiler:
    def my_model(x):
        y = torch.relu(x) + 1
        print(end="")
        return y * 2

    with argand.CompileProfiler() as prof:
        model = argand.compile(my_model, backend=prof)
        for n in range(2, 7):
            assert_same(torch.full((n,), 4.0), model(T(n)))
    return prof


def test_profiler_report() -> None:
    text = profiled().report().replace(__file__, "FILE")
    breaks, recompiles = text.index("Graph breaks"), text.index("Recompiles")
    assert breaks < recompiles
    assert re.search(r"1  \[AG0023\] print: print\(\) writes to the terminal", text[breaks:recompiles])
    assert 'print(end="")' in text[breaks:recompiles] and "What to do" in text[breaks:recompiles]
    assert re.search(r"    4  \S*my_model \(FILE:\d+\)", text[recompiles:])
    assert "4  x.size()[0] was 2, is now 3, 4, 5, 6    [local 'x' TENSOR_MATCH]" in text[recompiles:]
    assert "cache_size_limit" in text[recompiles:]


def test_profiler_compiles_each_function_once() -> None:
    prof = profiled()
    assert prof.frame_count == 2 and prof.op_count == 3
    found = prof.as_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["recompiles"][0]["count"] == 4 and found["graph_breaks"][0]["count"] == 1


def test_profiler_of_a_steady_program() -> None:
    with argand.CompileProfiler() as prof:
        model = argand.compile(lambda x: x + 1, backend=prof)
        for _ in range(4):
            model(T(2))
    assert "No graph breaks." in prof.report() and "No recompiles" in prof.report()
    argand.compile(lambda x: x - 1, backend="eager")(T(2))
    assert len(prof.findings.graphs) == 1  # it hears nothing after its block


# ---------------------------------------------------------------------- compile_times


def test_compile_times() -> None:
    assert argand.compile_times() == "argand has compiled nothing yet."
    with torch.no_grad():
        argand.compile(lambda x: torch.relu(x) + 1)(T(4, 4))
        argand.compile(lambda x: x * 2, backend="eager")(T(4, 4))
    text = argand.compile_times()
    assert isinstance(text, str) and text.splitlines()[0].split()[0] == "stage"
    rows = {row["stage"]: row for row in argand.compile_times(repr="dict")}
    assert rows["capture_frame"]["count"] == 2 == len(rows["capture_frame"]["seconds"])
    inner = [row["total"] for stage, row in rows.items() if re.fullmatch(r"capture_frame/\w+", stage)]
    assert 0 <= rows["capture_frame"]["own"] <= rows["capture_frame"]["total"] - sum(inner) + 1e-9
    assert any(stage.endswith("/lower") for stage in rows) and "\n      lower" in text
    argand.reset()
    assert argand.compile_times() == "argand has compiled nothing yet."


def test_compile_times_csv() -> None:
    argand.reset()
    argand.compile(lambda x: x * 2, backend="eager")(T(4, 4))
    header, rows = argand.compile_times(repr="csv", aggregate=True)
    assert header == ["stage", "count", "total", "own"]
    stages = ["capture_frame", "capture_frame/trace_frame", "capture_frame/backend"]
    assert [row[:2] for row in rows] == [[stage, "1"] for stage in stages]
    header, rows = argand.compile_times(repr="csv")
    assert header[-1] == "seconds" and rows[0][-1] == rows[0][2]


def test_spans_are_timed_and_told() -> None:
    from argand.events import bus, span

    with collected("span_end") as events, span("outer", "test"), span("inner", "test"):
        pass
    assert [event.data["span"] for event in events] == ["inner", "outer"]
    assert len(bus.times["outer",]) == 1 and len(bus.times["outer", "inner"]) == 1


# ---------------------------------------------------------------------- dynamic sizes and numbers


def depends(x, n):
    if x.shape[0] % 4 == 0:
        return x + 1
    return x * n


@pytest.mark.parametrize(
    "calls, what, remedy",
    [
        ([(T(3), 2), (T(5), 2), (T(4), 2)], "x.size()[0] was 5, is now 4", "compiled once for each outcome"),
        ([(T(3), 2), (T(5), 2), (T(1), 2)], "x.size()[0] was 5, is now 1", "sizes 0 and 1"),
    ],
)
def test_conditions_on_dynamic_sizes(calls: list[tuple[Any, ...]], what: str, remedy: str) -> None:
    compiled = argand.compile(depends, backend="eager")
    with collected("recompiles") as events:
        for args in calls:
            assert_same(depends(*args), compiled(*args))
    failure = events[-1].data["recompile"].failures[0]
    assert str(failure) == what and remedy in failure.remedy, failure
    assert "L['" not in events[-1].text(), events[-1].text()


def test_many_versions_are_told_shortly() -> None:
    compiled = argand.compile(depends, backend="eager", dynamic=False)
    with collected("recompiles") as events:
        for n in range(2, 9):
            compiled(T(n), 2)
    assert events[-1].text().count("[local 'x' TENSOR_MATCH]") == 3
    assert "... and 3 more reasons, of older versions" in events[-1].text()
