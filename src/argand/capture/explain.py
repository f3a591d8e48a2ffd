"""Collects what capture says about graphs and graph breaks, for `argand.explain` and `argand explain script.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from argand.errors import BreakReason
from argand.events import Event, bus

if TYPE_CHECKING:
    from rich.console import Console

Ops = list[Any]


def ops_of(graph: torch.fx.GraphModule) -> Ops:
    """Targets of the call nodes of a graph, in order."""
    return [node.target for node in graph.graph.nodes if node.op.startswith("call")]


@dataclass(slots=True)
class Findings:
    """What was heard while listening, in order of appearance."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[BreakReason] = field(default_factory=list)
    guards: list[list[str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    recompiles: list[str] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        if event.name == "graph" and "graph" in event.data:
            self.graphs.append(event.data["graph"])
        elif event.name == "graph_breaks":
            self.breaks.append(event.data["reason"])
        elif event.name == "guards":
            self.guards.append(list(event.data.get("guards", ())))
        elif event.name == "recompiles":
            self.recompiles.append(event.text())
        elif event.name == "span_end":
            name = event.data["span"]
            self.seconds[name] = self.seconds.get(name, 0.0) + event.data["seconds"]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        remove = bus.subscribe(self.hear)
        try:
            yield
        finally:
            remove()


def counted(reasons: list[BreakReason]) -> list[tuple[BreakReason, int]]:
    """Distinct reasons (same kind at the same user line) with how often each occurred, in order of appearance."""
    found: dict[tuple[object, ...], tuple[BreakReason, int]] = {}
    for reason in reasons:
        key = (reason.kind, reason.explanation, reason.where[-1:] if reason.where else reason.context)
        first, count = found.get(key, (reason, 0))
        found[key] = (first, count + 1)
    return list(found.values())


def reason_text(reason: BreakReason, count: int = 1) -> str:
    """A reason as explain prints it: what, then where (innermost line), then what to do."""
    times = f" ({count} times)" if count > 1 else ""
    lines = [f"{reason.kind}{times}: {reason.explanation}"]
    lines += [f"  {line}" for line in "\n".join(map(str, reason.where)).splitlines()]
    lines += [f"  What to do: {hint}" for hint in reason.hints]
    return "\n".join(lines)


@dataclass(slots=True)
class Explanation:
    """What `argand.explain(fn)(*args)` found.

    Arguments:
        graphs: the captured graphs, in the order in which they were made.
        ops_per_graph: the operations of each.
        break_reasons: one per graph break.
        out_guards: the guards of each captured frame, as text.
        compile_times: seconds per stage.
    """

    graphs: list[torch.fx.GraphModule]
    ops_per_graph: list[Ops]
    break_reasons: list[BreakReason]
    out_guards: list[list[str]]
    compile_times: dict[str, float]

    @classmethod
    def of(cls, findings: Findings) -> Explanation:
        ops = [ops_of(graph) for graph in findings.graphs]
        return cls(findings.graphs, ops, findings.breaks, findings.guards, findings.seconds)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(map(len, self.ops_per_graph))

    @property
    def summary(self) -> str:
        """The first line: how many graphs, breaks and ops."""

        def many(count: int, word: str) -> str:
            return f"{count} {word}{'' if count == 1 else 's'}"

        return (
            f"argand made {many(self.graph_count, 'graph')}, with {many(self.graph_break_count, 'graph break')} "
            f"and {many(self.op_count, 'op')}."
        )

    def __str__(self) -> str:
        lines = [self.summary]
        if self.break_reasons:
            lines.append("Break reasons:")
            for number, (reason, count) in enumerate(counted(self.break_reasons), 1):
                body = reason_text(reason, count).replace("\n", "\n   ")
                lines.append(f"{number}. {body}")
        return "\n".join(lines)

    def __iter__(self) -> Iterator[Any]:
        """Unpacks as (explanation, out_guards, graphs, ops_per_graph, break_reasons, explanation_verbose)."""
        return iter((self.summary, self.out_guards, self.graphs, self.ops_per_graph, self.break_reasons, str(self)))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "ops_per_graph": [[getattr(op, "__name__", str(op)) for op in ops] for ops in self.ops_per_graph],
            "break_reasons": [
                {
                    "kind": reason.kind,
                    "explanation": reason.explanation,
                    "context": reason.context,
                    "hints": list(reason.hints),
                    "count": count,
                    "where": [
                        {"file": w.filename, "line": w.lineno, "function": w.function, "text": w.text}
                        for w in reason.where
                    ],
                }
                for reason, count in counted(self.break_reasons)
            ],
            "guards_per_frame": [list(guards) for guards in self.out_guards],
            "compile_seconds": self.compile_times,
        }


class ScriptReport:
    """Everything heard while a script ran, for `argand explain script.py`."""

    def __init__(self) -> None:
        self.findings = Findings()

    def listening(self) -> contextlib.AbstractContextManager[None]:
        return self.findings.listening()

    def as_dict(self) -> dict[str, Any]:
        return {**Explanation.of(self.findings).as_dict(), "recompiles": self.findings.recompiles}

    def print_to(self, console: Console) -> None:
        from rich.markup import escape
        from rich.table import Table

        explanation = Explanation.of(self.findings)
        console.print(explanation.summary)
        if explanation.break_reasons:
            table = Table(title="graph breaks", show_lines=True)
            table.add_column("count", justify="right")
            table.add_column("what, where and what to do")
            for reason, count in counted(explanation.break_reasons):
                table.add_row(str(count), escape(reason_text(reason)))
            console.print(table)
        for text in self.findings.recompiles:
            console.print(escape(text))
