"""What differs between two compiles of one frame: failed guards, graphs, guards, numbers."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from argand.quick_dataclasses import dataclass
from argand.report.html.graphtext import normal, operations
from argand.report.html.model import Artifact, Attempt, Reason

GRAPHS = (
    "dynamo_output_graph",
    "aot_joint_graph",
    "aot_inference_graph",
    "aot_forward_graph",
    "inductor_post_grad_graph",
)
_ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{9,}\b")
_NUMBERS = (
    "entire_frame_compile_time_s", "backend_compile_time_s", "inductor_compile_time_s", "code_gen_time_s",
    "guard_count", "shape_env_guard_count", "graph_op_count", "graph_node_count", "graph_input_count", "cache_size",
    "accumulated_cache_size", "fail_type",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a side-by-side comparison: " " equal, "-" only left, "+" only right, "~" changed, "…" left out."""

    sign: str
    left: str = ""
    right: str = ""
    left_number: int = 0
    right_number: int = 0


@dataclass(slots=True)
class TextDiff:
    """Two texts of one name side by side."""

    title: str
    left: Artifact | None
    right: Artifact | None
    rows: list[Row] = field(default_factory=list)
    note: str = ""

    @property
    def changed(self) -> int:
        return sum(1 for row in self.rows if row.sign in "+-~")


@dataclass(slots=True)
class Comparison:
    """Everything that differs between two compiles, the earlier one on the left."""

    left: str
    right: str
    reasons: list[Reason]
    graphs: list[TextDiff]
    guards: TextDiff | None
    operations: list[tuple[str, int, int]]
    numbers: list[tuple[str, Any, Any]]
    sizes: list[tuple[str, Any, Any]]


Read = Callable[[Artifact], str]


def side_by_side(left: list[str], right: list[str], limit: int) -> tuple[list[Row], str]:
    """Rows of a line comparison with three equal lines around changes, and a note when the texts were cut."""
    note = ""
    if len(left) > limit or len(right) > limit:
        note = f"Only the first {limit} lines of each were compared."
        left, right = left[:limit], right[:limit]
    rows: list[Row] = []
    matcher = difflib.SequenceMatcher(None, left, right)
    for group in matcher.get_grouped_opcodes(3):
        if rows or group[0][1] or group[0][3]:
            rows.append(Row("…"))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                rows += [Row(" ", left[i], right[j], i + 1, j + 1) for i, j in zip(range(i1, i2), range(j1, j2))]
                continue
            for step in range(max(i2 - i1, j2 - j1)):
                i, j = i1 + step, j1 + step
                here, on_right = i < i2, j < j2
                sign = "~" if here and on_right else "-" if here else "+"
                rows.append(
                    Row(sign, left[i] if here else "", right[j] if on_right else "", here * (i + 1), on_right * (j + 1))
                )
    return rows, note


def _newest(attempt: Attempt, title: str) -> Artifact | None:
    return next((a for a in reversed(attempt.artifacts) if a.title == title), None)


def _text_diff(
    title: str, left: Artifact | None, right: Artifact | None, read: Read, limit: int, lines: Callable[[str], list[str]]
) -> TextDiff:
    diff = TextDiff(title, left, right)
    if left is not None and right is not None and left.digest == right.digest:
        diff.note = "Identical."
        return diff
    before = lines(read(left)) if left is not None else []
    after = lines(read(right)) if right is not None else []
    diff.rows, diff.note = side_by_side(before, after, limit)
    if not diff.rows and not diff.note:
        diff.note = "Equal."
    return diff


def guard_lines(text: str) -> list[str]:
    """The checks of a guard tree, without object addresses and without the places that they came from."""
    checks = []
    for line in text.split("\n"):
        bare = line.lstrip("| ").removeprefix("+- ")
        if not bare or bare.startswith(("GuardManager", "RootGuardManager", "TREE_GUARD", "Guard latency")):
            continue
        bare = bare.partition("  # ")[0].rstrip()
        checks.append(_ADDRESS.sub("…", bare))
    return checks


def _differing(left: dict[str, Any], right: dict[str, Any], keys: list[str]) -> list[tuple[str, Any, Any]]:
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def compare(left: Attempt, right: Attempt, reasons: list[Reason], read: Read, limit: int) -> Comparison:
    """Compare two attempts or compiles of one frame.

    Arguments:
        reasons: why the later one was made.
        read: gives an artifact's text.
        limit: the most lines compared.
    """
    graphs = []
    for title in GRAPHS:
        before, after = _newest(left, title), _newest(right, title)
        if before is not None or after is not None:
            graphs.append(_text_diff(title, before, after, read, limit, normal))
    before, after = _newest(left, "dynamo_cpp_guards_str"), _newest(right, "dynamo_cpp_guards_str")
    guards = None
    if before is not None or after is not None:
        guards = _text_diff("guards", before, after, read, limit, guard_lines)
    first_left, first_right = _newest(left, GRAPHS[0]), _newest(right, GRAPHS[0])
    counts_left = Counter(operations(read(first_left))) if first_left else Counter[str]()
    counts_right = Counter(operations(read(first_right))) if first_right else Counter[str]()
    changed = [
        (name, counts_left[name], counts_right[name])
        for name in sorted({*counts_left, *counts_right})
        if counts_left[name] != counts_right[name]
    ]
    metrics_left, metrics_right = _metrics(left), _metrics(right)
    return Comparison(
        str(left.id),
        str(right.id),
        reasons,
        graphs,
        guards,
        changed,
        _differing(metrics_left, metrics_right, list(_NUMBERS)),
        _differing(left.sizes, right.sizes, list(dict.fromkeys([*left.sizes, *right.sizes]))[:500]),
    )


def _metrics(attempt: Attempt) -> dict[str, Any]:
    return next((r.values for r in reversed(attempt.metrics) if r.kind == "compilation_metrics"), {})
