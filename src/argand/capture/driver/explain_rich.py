"""How an `Explanation` looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from argand.capture.driver.explain_text import Ops, many, op_name
from argand.errors import BreakReason, UserLine


def styled(line: str, style: str) -> Text:
    """A line of the report in a colour or weight."""
    return Text(line, style=style)


def reason(number: int, why: BreakReason, count: int) -> Iterator[RenderableType]:
    """A graph break: what, where, what to do."""
    head = Text(f"{number}. ")
    head.append(f"[{why.id}] ", style="dim red")
    head.append(why.kind, style="bold red")
    if count > 1:
        head.append(f" ({count} times)", style="red")
    head.append(f": {why.explanation}")
    yield head
    for place in why.where:
        yield Padding(_line(place), (0, 0, 0, 5))
    for lead, hint in zip(("What to do: ", *["        Or: "] * 9), why.hints):
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


def graphs(ops_per_graph: list[Ops], out_guards: list[list[str]]) -> Table:
    """A row per graph: its operations and its guards."""
    table = Table(title="graphs", title_justify="left")
    for title in ("", "ops", "operations", "guards"):
        table.add_column(title, justify="right" if title in ("", "ops") else "left")
    for number, (ops, guards) in enumerate(zip(ops_per_graph, out_guards), 1):
        names = [op_name(op) for op in ops]
        shown = ", ".join(names[:40]) + (f", ... ({len(names) - 40} more)" if len(names) > 40 else "")
        lines = [*guards[:8], *([f"... ({many(len(guards) - 8, 'more guard')})"] if len(guards) > 8 else [])]
        table.add_row(str(number), str(len(ops)), Text(shown), Text("\n".join(lines)))
    return table
