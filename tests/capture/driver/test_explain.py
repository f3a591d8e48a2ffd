"""`argand.explain`: its text, its JSON, and what it says of a program that breaks in known places."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from rich.console import Console

import argand
from argand.capture.driver.explain import Explanation, Findings
from helpers import assert_same


def toy(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


def repeated(x):
    for _ in range(3):
        x = helper(x)
    return x


def helper(x):
    x = x + 1
    print("again")
    return x * 2


def explain_toy() -> Explanation:
    return argand.explain(toy)(torch.randn(10), torch.ones(10))


def normalised(text: str) -> str:
    text = text.replace(__file__, "FILE")
    return re.sub(r"\d+\.\d{3}", "T", re.sub(r"line \d+", "line N", text))


GOLDEN = """\
argand made 3 graphs, with 2 graph breaks and 6 ops.
Break reasons:
1. [AG0023] print: print() writes to the terminal, which must happen at each call.
     File "FILE", line N, in toy
         print("woo")
     What to do: Move print out of the compiled function, or print the result after it.
2. [AG0001] data-dependent branch: Which way the program goes (if, while, and, or, not, assert) depends on the value of a \
tensor, which is known only when the program runs.
     File "FILE", line N, in toy
         if b.sum() < 0:
            ^^^^^^^^^^^
     What to do: Compute both sides and choose with torch.where(condition, a, b), or use torch.cond.
             Or: If the condition does not change, decide outside the compiled function and pass a bool.
(Examples with remedies: argand breaks AG0001 AG0023)
Graphs:
1. 3 ops, 2 guards: abs, add, truediv
2. 2 ops, 1 guard: sum, lt
3. 1 op, 2 guards: mul
Compile time: T s (of it: trace_frame T, backend T)."""


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert normalised(str(explain_toy())) == GOLDEN
    assert capsys.readouterr().out == "woo\n"


def test_outputs_of_the_reference() -> None:
    explanation, out_guards, graphs, ops_per_graph, break_reasons, verbose = explain_toy()
    assert explanation == "argand made 3 graphs, with 2 graph breaks and 6 ops."
    assert out_guards[1] == ["local 'b' TENSOR_MATCH"]
    assert len(graphs) == 3 and all(isinstance(graph, torch.fx.GraphModule) for graph in graphs)
    assert [op.__name__ if callable(op) else op for op in ops_per_graph[0]] == ["abs", "add", "truediv"]
    assert [reason.kind for reason in break_reasons] == ["print", "data-dependent branch"]
    assert [reason.where[-1].function for reason in break_reasons] == ["toy", "toy"]
    assert normalised(verbose) == GOLDEN


def test_arguments_at_once() -> None:
    assert argand.explain(toy, torch.randn(10), torch.ones(10)).graph_count == 3


WHERE = {"file": str, "line": int, "function": str, "text": str, "start": int, "end": int}
REASON = {"id": str, "kind": str, "explanation": str, "context": str, "hints": list, "count": int, "where": list}
SCHEMA = {
    "graph_count": int,
    "graph_break_count": int,
    "op_count": int,
    "ops_per_graph": list,
    "break_reasons": list,
    "guards_per_graph": list,
    "recompiles": list,
    "compile_seconds": dict,
}


def conforms(value: dict[str, object], schema: dict[str, type]) -> None:
    assert {key: type(item) for key, item in value.items()} == schema


def test_json_schema() -> None:
    found = json.loads(json.dumps(explain_toy().as_dict()))
    conforms(found, SCHEMA)
    for reason in found["break_reasons"]:
        conforms(reason, REASON)
        assert reason["hints"]
        for where in reason["where"]:
            conforms(where, WHERE)
    where = found["break_reasons"][1]["where"][-1]
    assert where["text"][where["start"] : where["end"]] == "b.sum() < 0"
    assert len(found["guards_per_graph"]) == found["graph_count"] == len(found["ops_per_graph"])


def test_equal_reasons_are_counted() -> None:
    explanation = argand.explain(repeated)(torch.ones(2))
    text = str(explanation)
    assert text.count("print() writes to the terminal") == 1, text
    [reason] = [r for r in explanation.as_dict()["break_reasons"] if r["kind"] == "print"]
    assert reason["count"] == explanation.graph_break_count or reason["count"] >= 2


def test_callee_is_shown_with_its_caller() -> None:
    def outer(x):
        return helper(x) + 1

    reason = argand.explain(outer)(torch.ones(2)).break_reasons[0]
    assert [place.function for place in reason.where] == ["outer", "helper"]
    assert [place.text for place in reason.where] == ["return helper(x) + 1", 'print("again")']
    assert reason.where[0].carets == "       ^^^^^^^^^"


def test_wide_characters_before_the_break() -> None:
    def f(x):
        return "ä€𝄞" if bool(x.sum() > 0) else "ö"

    [reason] = argand.explain(f)(torch.ones(2)).break_reasons
    place = reason.where[-1]
    assert place.text[place.start : place.end] == "bool(x.sum() > 0)"


def test_prints_plain_when_piped_and_coloured_on_a_terminal() -> None:
    explanation = explain_toy()
    piped = io.StringIO()
    explanation.print(piped)
    assert piped.getvalue() == f"{explanation}\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    explanation.print(terminal)
    for part in ("data-dependent branch", "b.sum() < 0", "What to do", "TENSOR_MATCH", "truediv"):
        assert part in terminal.getvalue()
    recorded = Console(record=True, file=io.StringIO(), width=100)
    recorded.print(explanation)
    assert 'print("woo")' in recorded.export_text()


def test_details_list_operations_and_guards() -> None:
    text = explain_toy().details()
    assert "Graph 3" in text and "- local 'a' TENSOR_MATCH" in text and "torch.abs" in text


def test_nothing_to_compile() -> None:
    explanation = argand.explain(lambda x: 5)(torch.ones(2))
    assert explanation.graph_count == 0 and "0 graphs" in str(explanation)


def test_recompiles_within_are_listed() -> None:
    inner = argand.compile(lambda x: x * 2, backend="eager", dynamic=False)

    @argand.disable(recursive=False)
    def f(x):
        return inner(x), inner(torch.cat([x, x]))

    explanation = argand.explain(f)(torch.ones(3))
    assert "x.size()[0] was 3, is now 6" in str(explanation)
    assert explanation.as_dict()["recompiles"][0]["failures"][0]["what"] == "x.size()[0]"


def test_explaining_leaves_no_trace() -> None:
    """Compiled code made for explain is not used by, and does not count for, the program's own compilation."""
    from helpers import CountingBackend

    explain_toy()
    backend = CountingBackend()
    argand.compile(toy, backend=backend)(torch.randn(10), torch.ones(10))
    assert len(backend.graphs) == 3


def innermost(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")
    return y * 2


def between(x: torch.Tensor) -> torch.Tensor:
    return innermost(x * 3) - 1


def outermost(x: torch.Tensor) -> torch.Tensor:
    return between(x.sin()) + 1


def test_a_break_in_what_is_called_is_told_once() -> None:
    """It ends the graph of each function that the call is in; what is captured anew later tells of it again."""
    compiled = argand.compile(outermost, backend="eager")
    told = []
    for sizes in ((3,), (3,), (3, 3)):
        findings = Findings()
        with findings.listening():
            assert_same(compiled(torch.ones(sizes)), outermost(torch.ones(sizes)))
        told.append([(reason.kind, len(reason.where)) for reason in findings.breaks])
    assert told == [[("print", 3)], [], [("print", 3)]]
    alone = argand.explain(between)(torch.ones(2, 2, 2))
    assert [len(reason.where) for reason in alone.break_reasons] == [2]
