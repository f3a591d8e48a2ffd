"""Collects what capture says about graphs and graph breaks, for `argand.explain` and `argand explain script.py`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, TextIO

import torch

from argand.capture.driver.explain_text import Ops, counted, many, op_name, ops_of, reason_text
from argand.capture.driver.recompiles import Recompile
from argand.errors import BreakReason
from argand.events import Event, bus
from argand.graph.nodes.module_text import module_text
from argand.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(slots=True)
class Findings:
    """What was heard while listening, in order of appearance.

    Arguments:
        left_to_python: those of the breaks for which a function runs as it is written, with no graph of its own.
        guards: of each graph, as text.
        seconds: per stage; a stage within another one of the same name is not counted twice.
    """

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[BreakReason] = field(default_factory=list)
    left_to_python: list[BreakReason] = field(default_factory=list)
    guards: list[list[str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    recompiles: list[Recompile] = field(default_factory=list)
    shows_breaks: ClassVar[bool] = True  # logs need not say them too

    def hear(self, event: Event) -> None:
        if event.name == "graph" and "graph" in event.data:
            self.graphs.append(event.data["graph"])
        elif event.name == "graph_breaks":
            self.breaks.append(event.data["reason"])
            if event.data.get("frame_skipped"):
                self.left_to_python.append(event.data["reason"])
        elif event.name == "guards" and len(self.graphs) > len(self.guards):
            # Frames without a graph have guards too; a graph whose backend failed has none.
            self.guards += [[] for _ in range(len(self.graphs) - len(self.guards) - 1)]
            self.guards.append(list(event.data.get("guards", ())))
        elif event.name in ("recompiles", "cache_size_limit") and "recompile" in event.data:
            self.recompiles.append(event.data["recompile"])
        elif event.name == "span_end":
            name = event.data["span"]
            self.seconds[name] = self.seconds.get(name, 0.0) + event.data["seconds"]

    def subscribe(self) -> Callable[[], None]:
        """Listen from now on; returns what ends it."""
        return bus.subscribe(self.hear)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        remove = self.subscribe()
        try:
            yield
        finally:
            remove()


@dataclass(slots=True)
class Explanation:
    """What `argand.explain(fn)(*args)` found. `print(explanation)` is plain text; `.print()` is coloured on a terminal.

    Arguments:
        graphs: the captured graphs, in the order in which they were made.
        ops_per_graph: the operations of each.
        break_reasons: one per graph break.
        left_to_python: those of them for which a function runs as it is written.
        out_guards: the guards of each graph, as text: what must hold for the graph to be used.
        compile_times: seconds per stage.
        recompiles: calls of functions that no compiled version fitted.
    """

    graphs: list[torch.fx.GraphModule]
    ops_per_graph: list[Ops]
    break_reasons: list[BreakReason]
    out_guards: list[list[str]]
    compile_times: dict[str, float]
    recompiles: list[Recompile] = field(default_factory=list)
    left_to_python: list[BreakReason] = field(default_factory=list)

    @classmethod
    def of(cls, findings: Findings) -> Explanation:
        ops = [ops_of(graph) for graph in findings.graphs]
        guards = [*findings.guards, *[[] for _ in range(len(ops) - len(findings.guards))]]
        left = findings.left_to_python
        return cls(findings.graphs, ops, findings.breaks, guards, findings.seconds, findings.recompiles, left)

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
            lines.append(self.pages_line())
        if self.graphs:
            lines.append("Graphs:")
            for number, (ops, guards) in enumerate(zip(self.ops_per_graph, self.out_guards), 1):
                lines.append(f"{number}. {many(len(ops), 'op')}, {many(len(guards), 'guard')}: {_ops_line(ops)}")
        if self.recompiles:
            lines += ["Recompiles:", *[str(recompile) for recompile in self.recompiles]]
        if self.compile_times:
            lines.append(self._times_line())
        return "\n".join(lines)

    def pages_line(self) -> str:
        """Where examples of these breaks and their remedies are."""
        return (
            f"(Examples with remedies: argand breaks {' '.join(sorted({reason.id for reason in self.break_reasons}))})"
        )

    def _times_line(self) -> str:
        total = self.compile_times.get("capture_frame", sum(self.compile_times.values()))
        parts = [f"{name} {seconds:.3f}" for name, seconds in self.compile_times.items() if name != "capture_frame"]
        return f"Compile time: {total:.3f} s" + (f" (of it: {', '.join(parts)})" if parts else "") + "."

    def details(self) -> str:
        """`str(self)`, then each graph's operations and guards one by one."""
        lines = [str(self)]
        for number, (graph, guards) in enumerate(zip(self.graphs, self.out_guards), 1):
            lines += ["", f"Graph {number}", module_text(graph).strip(), "Guards:"]
            lines += [f"- {guard}" for guard in guards]
        return "\n".join(lines)

    def print(self, file: TextIO | None = None) -> None:
        """Print: with colours and tables on a terminal, as `str(self)` elsewhere."""
        out = file or sys.stdout
        if not out.isatty():
            out.write(f"{self}\n")
            return
        from rich.console import Console

        Console(file=out).print(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from argand.capture.driver import explain_rich

        yield explain_rich.styled(self.summary, "bold")
        for number, (reason, count) in enumerate(counted(self.break_reasons), 1):
            yield from explain_rich.reason(number, reason, count)
        if self.break_reasons:
            yield explain_rich.styled(self.pages_line(), "dim")
        if self.graphs:
            yield explain_rich.graphs(self.ops_per_graph, self.out_guards)
        for recompile in self.recompiles:
            yield explain_rich.styled(str(recompile), "yellow")
        if self.compile_times:
            yield explain_rich.styled(self._times_line(), "dim")

    def __iter__(self) -> Iterator[object]:
        """Unpacks as (explanation, out_guards, graphs, ops_per_graph, break_reasons, explanation_verbose)."""
        return iter((self.summary, self.out_guards, self.graphs, self.ops_per_graph, self.break_reasons, str(self)))

    def as_dict(self) -> dict[str, object]:
        """JSON-able form; docs/explain.md describes it."""
        return {
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "ops_per_graph": [[op_name(op) for op in ops] for ops in self.ops_per_graph],
            "break_reasons": [_reason_dict(reason, count) for reason, count in counted(self.break_reasons)],
            "guards_per_graph": [list(guards) for guards in self.out_guards],
            "recompiles": [recompile.as_dict() for recompile in self.recompiles],
            "compile_seconds": dict(self.compile_times),
        }


def _ops_line(ops: Ops) -> str:
    names = [op_name(op) for op in ops]
    return ", ".join(names[:12]) + (f", ... ({len(names) - 12} more)" if len(names) > 12 else "")


def _reason_dict(reason: BreakReason, count: int) -> dict[str, object]:
    return {
        "id": reason.id,
        "kind": reason.kind,
        "explanation": reason.explanation,
        "context": reason.context,
        "hints": list(reason.hints),
        "count": count,
        "where": [
            {
                "file": place.filename,
                "line": place.lineno,
                "function": place.function,
                "text": place.text,
                "start": place.start,
                "end": place.end,
            }
            for place in reason.where
        ],
    }


class ScriptReport:
    """Everything heard while a script ran, for `argand explain script.py`.

    Arguments:
        outcome: how the script ended: "finished", "exit code 3" or the exception that it raised.
    """

    def __init__(self) -> None:
        self.findings = Findings()
        self.outcome = "finished"

    def listening(self) -> contextlib.AbstractContextManager[None]:
        return self.findings.listening()

    def explanation(self) -> Explanation:
        return Explanation.of(self.findings)

    def as_dict(self) -> dict[str, object]:
        return {"outcome": self.outcome, **self.explanation().as_dict()}

    def print_to(self, file: TextIO) -> None:
        """Print the report, see `Explanation.print`."""
        if self.outcome != "finished":
            file.write(f"The script ended early ({self.outcome}); this is what was captured until then.\n")
        self.explanation().print(file)
