"""Where every piece of generated code came from: user line ↔ FX node ↔ loop body ↔ kernel statement.

The nodes of the last ATen graph are the common currency: every line of each of the four texts is given the nodes that
it stands for, as the comments in the texts (and torch's provenance artifacts) say. Nothing is guessed: a line that no
comment explains stays unmarked.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from argand.report.html.graphtext import GraphLine, UserLine, read_graph
from argand.report.html.model import Artifact, Compile

GRAPHS = ("inductor_post_grad_graph", "aot_forward_graph", "aot_inference_graph", "aot_backward_graph")
LOOPS = ("ir_post_fusion", "inductor_ir_post_fusion", "ir_pre_fusion")
CODE = ("inductor_output_code", "kernel_code")  # the whole program, library calls included, before the kernels alone
MAPPINGS = "inductor_provenance_tracking_node_mappings"

_FRAGMENT = re.compile(r"#\s+%(\w+)\b")
_SOURCE_TO_ATEN = re.compile(r"#\s+\S+ => ([\w, ]+)$")
_STATEMENT_ORIGIN = re.compile(r"(?://|#) (?P<node>[A-Za-z_]\w*) = .*$")
_TRAILING = re.compile(r"  # (?P<node>[A-Za-z_]\w*)$")
_BLOCK = re.compile(r"^(\w+): \w*SchedulerNode\(")
_KERNEL = re.compile(r"(?:\bvoid|^def) (\w+)\(")
_NO_STATEMENT = ("for ", "for(", "alignas", "typedef", "template", "#", "const i64 ")
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")
_CALL = re.compile(r"^\s+(?:[\w, ]+ = )?(?:self\.)?(\w+)\(")
_CALLS = re.compile(r"^\s*def call\(")
# Triton's positions and masks of a block, which belong to no node; nor do barriers.
_POSITIONS = re.compile(r"^\s+(?:[a-z]\d*|[a-z]?mask\d*) = |^\s+tl\.debug_barrier\(")
_HOUSEKEEPING = re.compile(r"^\s+(?:del |return\b|arena|assert_size_stride|block\d+ = |\w+ = (?:new|empty)\w*\()")
_LONGEST_SILENCE = 12  # lines that stand for nothing, before they are folded into one
_LIST = re.compile(r"^(?://|#) (?P<nodes>[A-Za-z_]\w*(?:; [A-Za-z_]\w*)*)$")


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


def provenance(compile: Compile, read: Read) -> list[Provenance]:
    """One entry for each graph of the compile that became code: inference, or forward and backward."""
    made = []
    for attempt in compile.attempts.values():
        groups = _groups(attempt.artifacts)
        for position, group in enumerate(groups):
            found = _of_group(group, read)
            if found is not None:
                if len(groups) > 1:
                    found.title = f"graph {position + 1} of {len(groups)}"
                made.append(found)
    return made[:20]


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
    loops = _newest(group, LOOPS)
    pane = Pane("loop", "Loop bodies", loops)
    if loops is None:
        pane.missing = "The trace has no loop bodies (torch.compile does not record them; argand does)."
    else:
        pane.lines = loop_lines(read(loops), index)
    panes.append(pane)
    code = _newest(group, CODE)
    pane = Pane("kernel", "Kernel statements", code)
    if code is None:
        pane.missing = "The trace has no generated code for this graph."
    else:
        mapping = _newest(group, (MAPPINGS,))
        kernels = kernel_mapping(read(mapping)) if mapping is not None else {}
        pane.lines = code_lines(read(code), index, kernels)
        if loops is not None:
            share_kernels(pane.lines, twins(panes[2].lines, index))
        pane.lines = folded(pane.lines)
    panes.append(pane)
    return Provenance("", list(index), panes)


def _user_pane(graph_lines: list[GraphLine], index: dict[str, int]) -> Pane:
    nodes: dict[UserLine, dict[int, None]] = {}
    for line in graph_lines:
        for place in line.user if line.node else ():
            nodes.setdefault(place, {})[index[line.node]] = None
    pane = Pane("user", "Your code")
    file = function = ""
    for place in sorted(nodes, key=lambda place: (bool(_TORCH.search(place.file)), place)):
        if (place.file, place.function) != (file, function):
            file, function = place.file, place.function
            pane.lines.append(Line(f"# {function}, {'/'.join(file.split('/')[-2:])}"))
        pane.lines.append(Line(f"{place.line:>5}  {place.code}", tuple(nodes[place])))
    if not pane.lines:
        pane.missing = "The graph carries no source lines."
    return pane


def loop_lines(text: str, index: dict[str, int]) -> list[Line]:
    """Lines of a loop dump: a statement's trailing comment names its node; a header stands for all its nodes."""
    lines = [Line(line, number=number) for number, line in enumerate(text.split("\n"), 1)]
    block: dict[int, None] = {}
    class_line: Line | None = None
    for line in lines:
        stripped = line.text.strip()
        if not stripped:
            block, class_line = {}, None
            continue
        origin = _STATEMENT_ORIGIN.match(stripped) if stripped.startswith("#") else None
        trailing = _TRAILING.search(line.text)
        if origin and origin["node"] in index:
            line.nodes = (index[origin["node"]],)
            block[index[origin["node"]]] = None
        elif trailing and trailing["node"] in index:
            line.nodes = (index[trailing["node"]],)
            line.text = line.text[: trailing.start()]
            if class_line is not None:
                class_line.nodes = tuple(dict.fromkeys((*class_line.nodes, *line.nodes)))
        elif stripped.startswith("class "):
            class_line = line
            if not stripped.endswith(":") or "_stage" not in stripped:
                line.nodes = tuple(block)
    return lines


def twins(loops: list[Line], index: dict[str, int]) -> dict[str, dict[int, tuple[int, ...]]]:
    """Kernel → node → the nodes in its place wherever that kernel is called.

    Equal loops share one kernel, whose text names the nodes of the first call; the loop dump lists the nodes of every
    call, in the same order.
    """
    calls: dict[str, list[list[str]]] = {}
    current: list[str] = []
    names = list(index)
    for line in loops:
        head = _BLOCK.match(line.text)
        if head:
            current = []
            calls.setdefault(head[1], []).append(current)
        elif line.nodes and _STATEMENT_ORIGIN.match(line.text):
            current.append(names[line.nodes[0]])
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for kernel, lists in calls.items():
        same = [nodes for nodes in lists if [_bare(n) for n in nodes] == [_bare(n) for n in lists[0]]]
        if len(same) > 1:
            found[kernel] = {
                index[node]: tuple(dict.fromkeys(index[nodes[place]] for nodes in same))
                for place, node in enumerate(lists[0])
            }
    return found


def _bare(node: str) -> str:
    return re.sub(r"_\d+$", "", node)


def share_kernels(code: list[Line], shared: dict[str, dict[int, tuple[int, ...]]]) -> None:
    """Give the statements of a kernel that is called several times the nodes of every call."""
    table: dict[int, tuple[int, ...]] = {}
    for number, line in enumerate(code):
        head = _KERNEL.search(line.text)
        if head and head[1] in shared:
            table = shared[head[1]]
            if number and code[number - 1].nodes:
                _widen(code[number - 1], table)
        if table:
            _widen(line, table)
        if line.text.startswith(("}", "@", "'''")):
            table = {}


def _widen(line: Line, table: dict[int, tuple[int, ...]]) -> None:
    if line.nodes:
        line.nodes = tuple(dict.fromkeys(twin for node in line.nodes for twin in table.get(node, (node,))))


def kernel_mapping(text: str) -> dict[str, list[str]]:
    """Kernel → nodes of the post-grad graph, from torch's provenance artifact."""
    try:
        told = json.loads(text)
        table = told.get("cppCodeToPost", {})
        found: dict[str, list[str]] = {}
        for kernel, nodes in table.items():
            name = str(kernel).rpartition(":")[0] or str(kernel)
            found.setdefault(name, []).extend(str(node) for node in nodes)
        return found
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def code_lines(text: str, index: dict[str, int], kernels: dict[str, list[str]]) -> list[Line]:
    """Lines of generated code. A comment stands for the statements below it, up to the next comment or brace."""
    lines: list[Line] = []
    current: tuple[int, ...] = ()  # what the next statement stands for
    gathered: dict[int, None] = {}  # by the comment lines directly above
    kernel: tuple[int, ...] = ()  # by torch's table, for the text of a kernel
    listed = False  # the comment above names the nodes of a whole kernel: it stands for the kernel's first line
    calls: dict[str, tuple[int, ...]] = {}  # kernel -> nodes, for the lines that call it
    calling = False  # inside the function that calls kernels and libraries
    for number, text_line in enumerate(text.split("\n"), 1):
        stripped = text_line.strip()
        nodes: tuple[int, ...] = ()
        calling = bool(_CALLS.match(text_line)) or (calling and text_line[:1] in ("", " ", "\t"))
        called = _CALL.match(text_line) if calling else None
        if called and called[1] in calls:
            nodes, current, gathered = calls[called[1]], (), {}
        elif calling and _HOUSEKEEPING.match(text_line):
            current, gathered = (), {}
        elif stripped.startswith(("//", "#")) and not stripped.startswith("#include"):
            nodes = _comment_nodes(stripped, index)
            if _STATEMENT_ORIGIN.match(stripped) or "Source Nodes:" in stripped:
                gathered = {}
            gathered.update(dict.fromkeys(nodes))
            current = tuple(gathered)
            listed = bool(nodes) and bool(_LIST.match(stripped))
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
            if listed:
                head = _KERNEL.search(text_line)
                if head:
                    calls[head[1]] = nodes
                current, gathered, listed = (), {}, False
        lines.append(Line(text_line, nodes, number))
    return lines


def folded(lines: list[Line]) -> list[Line]:
    """`lines` with every long run of those that stand for nothing (a prelude) as one line."""
    made: list[Line] = []
    for linked, group in itertools.groupby(lines, lambda line: bool(line.nodes)):
        run = list(group)
        if not linked and len(run) > _LONGEST_SILENCE:
            first, last = 3 if made else 0, len(run) - 4
            run[first:last] = [Line(f"⋯ {last - first} lines", (), run[first].number)]
        made += run
    return made


def _comment_nodes(comment: str, index: dict[str, int]) -> tuple[int, ...]:
    origin = _STATEMENT_ORIGIN.match(comment)
    if origin and origin["node"] in index:
        return (index[origin["node"]],)
    listed = _LIST.match(comment)
    if listed:
        return tuple(index[node] for node in listed["nodes"].split("; ") if node in index)
    fragment = _FRAGMENT.match(comment)
    if fragment and fragment[1] in index:
        return (index[fragment[1]],)
    mapped = _SOURCE_TO_ATEN.match(comment)
    if mapped:
        return tuple(index[name.strip()] for name in mapped[1].split(",") if name.strip() in index)
    return ()
