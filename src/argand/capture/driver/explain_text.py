"""The words of an explanation: what its plain and its coloured form share."""

from __future__ import annotations

import torch

from argand.errors import BreakReason

Ops = list[object]


def ops_of(graph: torch.fx.GraphModule) -> Ops:
    """Targets of the call nodes of a graph, in order."""
    return [node.target for node in graph.graph.nodes if node.op.startswith("call")]


def op_name(op: object) -> str:
    """How a call target is shown."""
    return str(getattr(op, "__name__", op))


def many(count: int, word: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def counted(reasons: list[BreakReason]) -> list[tuple[BreakReason, int]]:
    """Distinct reasons (same kind at the same user line) with how often each occurred, in order of appearance."""
    counts: dict[tuple[object, ...], tuple[BreakReason, int]] = {}
    for reason in reasons:
        key = (reason.kind, reason.explanation, reason.where[-1:] if reason.where else reason.context)
        first, count = counts.get(key, (reason, 0))
        counts[key] = (first, count + 1)
    return list(counts.values())


def reason_text(reason: BreakReason, count: int = 1) -> str:
    """A reason as explain prints it: what, then where (the stack, innermost line last), then what to do."""
    times = f" ({count} times)" if count > 1 else ""
    lines = [f"[{reason.id}] {reason.kind}{times}: {reason.explanation}"]
    lines += [f"  {line}" for line in "\n".join(map(str, reason.where)).splitlines()]
    lines += [f"  {lead} {hint}" for lead, hint in zip(("What to do:", *["        Or:"] * 9), reason.hints)]
    return "\n".join(lines)
