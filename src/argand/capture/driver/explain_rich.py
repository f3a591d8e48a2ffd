"""How an `Explanation` looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from argand.capture.driver.explain import counted, many, op_name
from argand.errors import BreakReason, UserLine

if TYPE_CHECKING:
    from argand.capture.driver.explain import Explanation


def render(explanation: Explanation) -> Iterator[RenderableType]:
    """The parts of the report, top to bottom."""
    yield Text(explanation.summary, style="bold")
    for number, (reason, count) in enumerate(counted(explanation.break_reasons), 1):
        yield from _reason(number, reason, count)
    if explanation.break_reasons:
        yield Text(explanation.pages_line(), style="dim")
    if explanation.graphs:
        yield _graphs(explanation)
    for recompile in explanation.recompiles:
        yield Text(str(recompile), style="yellow")
    if explanation.compile_times:
        yield Text(explanation._times_line(), style="dim")


def _reason(number: int, reason: BreakReason, count: int) -> Iterator[RenderableType]:
    head = Text(f"{number}. ")
    head.append(f"[{reason.id}] ", style="dim red")
    head.append(reason.kind, style="bold red")
    if count > 1:
        head.append(f" ({count} times)", style="red")
    head.append(f": {reason.explanation}")
    yield head
    for place in reason.where:
        yield Padding(_line(place), (0, 0, 0, 5))
    for lead, hint in zip(("What to do: ", *["        Or: "] * 9), reason.hints):
        yield Padding(Text(lead, style="bold green").append(hint, style="not bold default"), (0, 0, 0, 5))


def _line(place: UserLine) -> Text:
    text = Text(f'File "{place.filename}", line {place.lineno}, in {place.function}\n', style="dim")
    if not place.text:
        return text
    text.append("    ")
    if place.carets:
        text.append(place.text[: place.start], style="not dim")
        text.append(place.text[place.start : place.end], style="not dim bold underline red")
        return text.append(place.text[place.end :], style="not dim")
    return text.append(place.text, style="not dim bold")


def _graphs(explanation: Explanation) -> Table:
    table = Table(title="graphs", title_justify="left")
    for title in ("", "ops", "operations", "guards"):
        table.add_column(title, justify="right" if title in ("", "ops") else "left")
    for number, (ops, guards) in enumerate(zip(explanation.ops_per_graph, explanation.out_guards), 1):
        names = [op_name(op) for op in ops]
        shown = ", ".join(names[:40]) + (f", ... ({len(names) - 40} more)" if len(names) > 40 else "")
        lines = [*guards[:8], *([f"... ({many(len(guards) - 8, 'more guard')})"] if len(guards) > 8 else [])]
        table.add_row(str(number), str(len(ops)), Text(shown), Text("\n".join(lines)))
    return table
