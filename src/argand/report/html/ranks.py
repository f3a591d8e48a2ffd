"""Several ranks side by side: which compiles they have, and in what each differs from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from argand.quick_dataclasses import dataclass
from argand.report.html.compare import GRAPHS, TextDiff, side_by_side
from argand.report.html.graphtext import normal, operations
from argand.report.html.model import Artifact, Compile, Limits, Run
from argand.report.records import TraceId

_MOST_DIFFS = 30
_ACCOUNTED = 5000


@dataclass(slots=True)
class Cell:
    """One compile on one rank."""

    compile: Compile | None
    facts: dict[str, str] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    id: TraceId
    cells: list[Cell]
    differs: list[str] = field(default_factory=list)
    diffs: list[tuple[str, TextDiff]] = field(default_factory=list)


@dataclass(slots=True)
class RankComparison:
    rows: list[Row]
    slowest: int | None
    left_out: int = 0

    @property
    def differing(self) -> list[Row]:
        return [row for row in self.rows if row.differs]


Read = Callable[[Run, Artifact], str]


def facts_of(compile: Compile, run: Run, read: Read) -> dict[str, str]:
    """What is compared of a compile."""
    facts = {"status": compile.status, "function": compile.function}
    metrics = compile.metrics
    for key in ("graph_op_count", "guard_count"):
        if key in metrics:
            facts[key.removesuffix("_count").replace("_", " ") + "s"] = str(metrics[key])
    graph = compile.last(GRAPHS[0])
    if graph is not None:
        facts["graph"] = graph.alike
    for title in ("aot_inference_graph", "aot_joint_graph", "inductor_post_grad_graph"):
        artifact = compile.last(title)
        if artifact is not None:
            facts[title.replace("_", " ")] = artifact.alike
    marks = ", ".join(a.mark for a in compile.artifacts if a.mark)
    if marks:
        facts["cache"] = marks
    facts["graph breaks"] = str(len(compile.breaks))
    facts["recompile reasons"] = "; ".join(sorted(r.cause for r in compile.recompiles))
    called = operations(read(run, graph)) if graph is not None else []
    listed = [op for op in called if "c10d" in op or "all_reduce" in op or "all_gather" in op]
    if listed:
        facts["collectives"] = ", ".join(listed)[:500]
    return facts


def compare_runs(runs: list[Run], limits: Limits, read: Read, weights: Sequence[int] | None = None) -> RankComparison:
    """A row for each compile id of any rank; what the majority does is taken as normal.

    Arguments:
        runs: one for each rank.
        read: gives an artifact's text.
        weights: how many ranks each run stands for; one where nothing is said.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.compiles))
    rows = []
    shown = 0
    for key in keys[:_ACCOUNTED]:
        cells = []
        for run in runs:
            compile = run.compiles.get(key)
            cells.append(Cell(compile, facts_of(compile, run, read) if compile is not None else {}))
        row = Row(key, cells)
        _mark(row, weights or [1] * len(runs))
        if row.differs and shown < _MOST_DIFFS:
            row.diffs = list(_diffs(row, runs, limits, read))
            shown += len(row.diffs)
        rows.append(row)
    seconds = [run.seconds for run in runs]
    slowest = max(range(len(runs)), key=seconds.__getitem__) if any(seconds) else None
    return RankComparison(rows, slowest, max(len(keys) - _ACCOUNTED, 0))


def _mark(row: Row, weights: Sequence[int]) -> None:
    """Say in which facts the cells differ, and which cells are in the minority."""
    if any(cell.compile is None for cell in row.cells):
        row.differs.append("missing on some")
    names = list(dict.fromkeys(name for cell in row.cells for name in cell.facts))
    present = [cell for cell in row.cells if cell.compile is not None]
    for name in names:
        values: Counter[str] = Counter()
        for cell, weight in zip(row.cells, weights):
            if cell.compile is not None:
                values[cell.facts.get(name, "")] += weight
        if len(values) > 1:
            row.differs.append(name)
            usual = values.most_common(1)[0][0]
            for cell in present:
                if cell.facts.get(name, "") != usual:
                    cell.differs.append(name)


def _diffs(row: Row, runs: list[Run], limits: Limits, read: Read) -> Iterator[tuple[str, TextDiff]]:
    """The captured graph of the first rank against that of the first rank which has another."""
    present = [(run, cell.compile) for run, cell in zip(runs, row.cells) if cell.compile is not None]
    first_run, first = present[0]
    left = first.last(GRAPHS[0])
    for run, compile in present[1:]:
        right = compile.last(GRAPHS[0])
        if left is None or right is None or left.alike == right.alike:
            continue
        lines, note = side_by_side(normal(read(first_run, left)), normal(read(run, right)), limits.diff_lines)
        if lines:
            yield f"{first_run.label} → {run.label}", TextDiff(GRAPHS[0], left, right, lines, note)
            return
