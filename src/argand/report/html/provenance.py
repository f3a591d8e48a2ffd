"""Where every piece of generated code came from: user line ↔ FX node ↔ loop body ↔ kernel statement.

The nodes of the last ATen graph are the common currency: every line of each of the four texts is given the nodes that
it stands for, as argand's artifacts "provenance_lines" say; of torch's texts, as their comments and torch's artifact of
its own say. Nothing is guessed: a line that nothing explains stays unmarked.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, field
from typing import Any

from argand.quick_dataclasses import dataclass
from argand.report.html.graphtext import GraphLine, UserLine, read_graph
from argand.report.html.model import Artifact, Compile
from argand.report.html.reasons import parse_json

GRAPHS = ("inductor_post_grad_graph", "aot_forward_graph", "aot_inference_graph", "aot_backward_graph")
LOOPS = ("ir_post_fusion", "inductor_ir_post_fusion", "ir_pre_fusion")
CODE = ("inductor_output_code", "kernel_code")  # the whole program, library calls included, before the kernels alone
MAPPINGS = "inductor_provenance_tracking_node_mappings"

TABLES = "provenance_lines"  # argand's: artifact -> line -> nodes

# torch's comments in generated code, and where one that is above a statement does not reach.
_FRAGMENT = re.compile(r"#\s+%(\w+)\b")
_SOURCE_TO_ATEN = re.compile(r"#\s+\S+ => ([\w, ]+)$")
_NO_STATEMENT = ("for ", "for(", "alignas", "typedef", "template", "#", "const i64 ")
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")
_CALLS = re.compile(r"^\s*def call\(")
_HOUSEKEEPING = re.compile(r"^\s+(?:del |return\b|arena|assert_size_stride|\w+ = empty\w*\()")
# Triton's positions and masks of a block, which belong to no node; nor do barriers.
_POSITIONS = re.compile(r"^\s+(?:[a-z]\d*|[a-z]?mask\d*) = |^\s+tl\.debug_barrier\(")
_LONGEST_SILENCE = 12  # lines that stand for nothing, before they are folded into one


@dataclass(slots=True)
class Line:
    """A line of one pane, the nodes that it stands for (indices), and its number in the artifact."""

    text: str
    nodes: tuple[int, ...] = ()
    number: int = 0


@dataclass(slots=True)
class Pane:
    """One of the four texts."""

    key: str
    title: str
    artifact: Artifact | None = None
    lines: list[Line] = field(default_factory=list)
    missing: str = ""

    @property
    def linked(self) -> int:
        return sum(1 for line in self.lines if line.nodes)


@dataclass(slots=True)
class Provenance:
    """The four panes of one graph of a compile."""

    title: str
    nodes: list[str]
    panes: list[Pane]


Read = Callable[[Artifact], str]
Tables = dict[str, dict[str, list[Any]]]  # artifact -> line -> nodes


def provenance(compile: Compile, read: Read) -> list[Provenance]:
    """One entry for each graph of the compile that became code: inference, or forward and backward."""
    entries = []
    for attempt in compile.attempts.values():
        groups = _groups(attempt.artifacts)
        for position, group in enumerate(groups):
            entry = _of_group(group, read)
            if entry is not None:
                if len(groups) > 1:
                    entry.title = f"graph {position + 1} of {len(groups)}"
                entries.append(entry)
    return entries[:20]


def _groups(artifacts: list[Artifact]) -> list[list[Artifact]]:
    """Artifacts split into one list per lowered graph: each post-grad graph begins one, an output code ends it."""
    groups: list[list[Artifact]] = []
    current: list[Artifact] = []
    closed = False
    for artifact in artifacts:
        if artifact.title == "inductor_post_grad_graph" and (closed or any(a.title == artifact.title for a in current)):
            groups.append(current)
            current, closed = [], False
        current.append(artifact)
        closed = closed or artifact.title.startswith("inductor_output_code")
    groups.append(current)
    return [group for group in groups if any(a.title.startswith(CODE) or a.title in LOOPS for a in group)]


def _newest(group: list[Artifact], titles: Iterable[str]) -> Artifact | None:
    for title in titles:
        for artifact in reversed(group):
            if artifact.title == title or artifact.title.startswith(f"{title}_"):
                return artifact
    return None


def _of_group(group: list[Artifact], read: Read) -> Provenance | None:
    graph = _newest(group, GRAPHS)
    if graph is None:
        return None
    graph_lines = read_graph(read(graph))
    index = {line.node: 0 for line in graph_lines if line.node}
    index = {name: number for number, name in enumerate(index)}
    panes = [_user_pane(graph_lines, index), Pane("fx", "FX nodes", graph)]
    for number, line in enumerate(graph_lines, 1):
        nodes: tuple[int, ...] = ()
        if line.node:
            nodes = (index[line.node],)
        panes[1].lines.append(Line(line.text, nodes, number))
    tables = line_tables(group, read)
    loops = _newest(group, LOOPS)
    pane = Pane("loop", "Loop bodies", loops)
    if loops is None:
        pane.missing = "The trace has no loop bodies (torch.compile does not record them; argand does)."
    else:
        pane.lines = marked_lines(read(loops), tables.get(loops.title, {}), index)
    panes.append(pane)
    panes.append(_code_pane(group, read, tables, index))
    return Provenance("", list(index), panes)


def _code_pane(group: list[Artifact], read: Read, tables: Tables, index: dict[str, int]) -> Pane:
    code = _newest(group, CODE)
    pane = Pane("kernel", "Kernel statements", code)
    if code is None:
        pane.missing = "The trace has no generated code for this graph."
        return pane
    table = next((tables[name] for name in tables if code.title.startswith(name)), None)
    if table is not None:
        lines = marked_lines(read(code), table, index)
    else:
        mapping = _newest(group, (MAPPINGS,))
        lines = code_lines(read(code), index, kernel_mapping(read(mapping)) if mapping is not None else {})
    pane.lines = folded(lines)
    return pane


def line_tables(group: list[Artifact], read: Read) -> Tables:
    """What argand's artifacts say of the lines of others; an artifact that is damaged says nothing."""
    tables: Tables = {}
    for artifact in group:
        told = parse_json(read(artifact)) if artifact.title == TABLES else None
        for name, lines in told.items() if isinstance(told, dict) else ():
            if isinstance(lines, dict):
                tables[str(name)] = {str(number): nodes for number, nodes in lines.items() if isinstance(nodes, list)}
    return tables


def marked_lines(text: str, table: dict[str, list[Any]], index: dict[str, int]) -> list[Line]:
    """Lines of a text, with the nodes that a table gives them, less the comment at the end that names the node."""
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        names = [str(name) for name in table.get(str(number), ())]
        for name in names[:1]:
            line = line.removesuffix(f"  # {name}")
        lines.append(Line(line, tuple(index[name] for name in names if name in index), number))
    return lines


def _user_pane(graph_lines: list[GraphLine], index: dict[str, int]) -> Pane:
    nodes: dict[UserLine, dict[int, None]] = {}
    for line in graph_lines:
        for place in line.user if line.node else ():
            nodes.setdefault(place, {})[index[line.node]] = None
    pane = Pane("user", "Your code")
    file = function = ""
    for place in sorted(nodes, key=lambda place: (bool(_TORCH.search(place.file)), astuple(place))):
        if (place.file, place.function) != (file, function):
            file, function = place.file, place.function
            pane.lines.append(Line(f"# {function}, {'/'.join(file.split('/')[-2:])}"))
        pane.lines.append(Line(f"{place.line:>5}  {place.code}", tuple(nodes[place])))
    if not pane.lines:
        pane.missing = "The graph carries no source lines."
    return pane


def kernel_mapping(text: str) -> dict[str, list[str]]:
    """Kernel → nodes of the post-grad graph, from torch's provenance artifact."""
    try:
        told = json.loads(text)
        table = told.get("cppCodeToPost", {})
        nodes_of: dict[str, list[str]] = {}
        for kernel, nodes in table.items():
            name = str(kernel).rpartition(":")[0] or str(kernel)
            nodes_of.setdefault(name, []).extend(str(node) for node in nodes)
        return nodes_of
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def code_lines(text: str, index: dict[str, int], kernels: dict[str, list[str]]) -> list[Line]:
    """Lines of torch's generated code: a comment stands for the statements below it, up to the next one or a brace."""
    lines: list[Line] = []
    current: tuple[int, ...] = ()  # what the next statement stands for
    gathered: dict[int, None] = {}  # by the comment lines directly above
    kernel: tuple[int, ...] = ()  # by torch's table, for the text of a kernel
    calling = False  # inside the function that calls kernels and libraries
    for number, text_line in enumerate(text.split("\n"), 1):
        stripped = text_line.strip()
        nodes: tuple[int, ...] = ()
        calling = bool(_CALLS.match(text_line)) or (calling and text_line[:1] in ("", " ", "\t"))
        if calling and _HOUSEKEEPING.match(text_line):
            current, gathered = (), {}
        elif stripped.startswith(("//", "#")) and not stripped.startswith("#include"):
            nodes = _comment_nodes(stripped, index)
            if "Source Nodes:" in stripped:
                gathered = {}
            gathered.update(dict.fromkeys(nodes))
            current = tuple(gathered)
        elif not stripped or stripped[0] in "{}@" or stripped.startswith("'''") or _POSITIONS.match(text_line):
            current, gathered = (), {}
            if text_line.startswith(("}", "@")) or stripped.startswith("'''"):
                kernel = ()
        else:
            named = next((name for name in kernels if f"{name}(" in text_line or f"{name} =" in text_line), "")
            if named:
                nodes = tuple(index[node] for node in kernels[named] if node in index)
                kernel = nodes if " = " in text_line else ()
            elif not stripped.startswith(_NO_STATEMENT):
                nodes = current or kernel
        lines.append(Line(text_line, nodes, number))
    return lines


def folded(lines: list[Line]) -> list[Line]:
    """`lines` with every long run of those that stand for nothing (a prelude) as one line."""
    short: list[Line] = []
    for linked, group in itertools.groupby(lines, lambda line: bool(line.nodes)):
        run = list(group)
        if not linked and len(run) > _LONGEST_SILENCE:
            first, last = 3 if short else 0, len(run) - 4
            run[first:last] = [Line(f"⋯ {last - first} lines", (), run[first].number)]
        short += run
    return short


def _comment_nodes(comment: str, index: dict[str, int]) -> tuple[int, ...]:
    fragment = _FRAGMENT.match(comment)
    if fragment and fragment[1] in index:
        return (index[fragment[1]],)
    mapped = _SOURCE_TO_ATEN.match(comment)
    if mapped:
        return tuple(index[name.strip()] for name in mapped[1].split(",") if name.strip() in index)
    return ()
