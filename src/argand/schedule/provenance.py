"""Which torch-level nodes, ATen nodes, user lines, kernels and lines of texts belong together, as tables for traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import statements_of
from argand.quick_dataclasses import dataclass

_CLOSING = ("}", "{", "@", "'''")  # what a comment above says is not said of what follows
_NO_STATEMENT = ("for ", "for(", "alignas", "typedef", "template", "#", "const i64 ")
_HOUSEKEEPING = ("del ", "return", "arena", "block", "args.clear")  # of the function that calls kernels and libraries


def provenance(graph: fx.Graph, schedule: Schedule) -> dict[str, Any]:
    """Tables between the stages of one compiled graph.

    Arguments:
        graph: the ATen graph after all passes.
        schedule: what was made of it.

    Returns:
        "pre_to_post": torch-level node → ATen nodes; "kernels": kernel → its ATen nodes, with their code and user line;
        "extern": calls of ATen's own kernels → the same.
    """
    pre_to_post: dict[str, list[str]] = {}
    for node in graph.nodes:
        source = getattr(node.meta.get("origin"), "source_node", "")
        if source and node.op == "call_function":
            pre_to_post.setdefault(source, []).append(node.name)
    kernels: dict[str, list[dict[str, str]]] = {}
    extern: dict[str, list[dict[str, str]]] = {}
    for step in schedule.steps:
        into = kernels if isinstance(step, KernelPlan) else extern
        name = step.name if isinstance(step, KernelPlan) else str(step.target)
        told = into.setdefault(name, [])
        for origin in step.origins:
            row = {"node": origin.fx_node, "code": origin.fx_code, "user_line": origin.user_line}
            if origin.caller:
                row["caller"] = origin.caller
            if row not in told:
                told.append(row)
    return {"pre_to_post": pre_to_post, "kernels": kernels, "extern": extern}


def loop_lines(text: str, schedule: Schedule) -> dict[str, list[str]]:
    """Line of the loop bodies' text ("ir_post_fusion") -> the ATen nodes that it stands for.

    A statement ends with the name of its node, a class stands for what its statements do.
    """
    comments = _comments(schedule)
    names = {name for nodes in comments.values() for name in nodes}
    lines: dict[str, list[str]] = {}
    heading: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        nodes: list[str] = []
        if line.startswith("# "):
            nodes = comments.get(line.removeprefix("# "), [])
        elif line.startswith("class "):
            nodes = heading = []
        elif line.rpartition("  # ")[2] in names:
            nodes = [line.rpartition("  # ")[2]]
            heading += [name for name in nodes if name not in heading]
        lines[str(number)] = nodes
    return {number: nodes for number, nodes in lines.items() if nodes}


def code_lines(text: str, schedule: Schedule) -> dict[str, list[str]]:
    """Line of generated code -> the ATen nodes that it stands for.

    A comment that code generation wrote stands for the statements below it, up to the next one or to a brace.
    """
    return {str(number): nodes for number, nodes in enumerate(_code_lines(text, schedule), 1) if nodes}


def _code_lines(text: str, schedule: Schedule) -> Iterator[list[str]]:
    comments, kernels = _comments(schedule), _kernels(schedule)
    calls = {name: iter(kernel.calls) for name, kernel in kernels.items()}
    lists = {"; ".join(kernel.twins): kernel for kernel in kernels.values()}
    twins: dict[str, list[str]] = {}  # of the kernel that the line is in
    current: list[str] = []  # what the next statement stands for
    above = calling = False  # the line before is a comment; inside the function that calls kernels and libraries
    for line in text.split("\n"):
        stripped = line.strip()
        comment = stripped.removeprefix("// ").removeprefix("# ") if stripped.startswith(("// ", "# ")) else ""
        head = stripped.partition("(")[0].rpartition(" ")[2]
        calling = line == "def call(args):" or (calling and line[:1] in ("", " "))
        if comment in lists:
            nodes, current, twins = list(lists[comment].twins), [], lists[comment].twins
        elif comment:
            nodes = comments.get(comment, [])
            current = [*current, *nodes] if above else nodes
        elif calling and head in calls:
            nodes, current = next(calls[head], []), []
        elif head in kernels and stripped.startswith(('extern "C" void ', "def ")):
            nodes, current, twins = list(kernels[head].twins), [], kernels[head].twins
        elif not stripped or stripped.startswith(_CLOSING) or _positions(stripped) or (calling and _keeps(stripped)):
            nodes, current = [], []
            twins = {} if line.startswith(_CLOSING) else twins
        else:
            nodes = [] if stripped.startswith(_NO_STATEMENT) else current
        above = bool(comment)
        yield list(dict.fromkeys(twin for node in nodes for twin in twins.get(node, [node])))


def _comments(schedule: Schedule) -> dict[str, list[str]]:
    """What a comment says -> the node that it names."""
    origins = [origin for step in schedule.steps for origin in step.origins]
    for plan in schedule.kernels():
        origins += [v.origin for stage in plan.stages for v in statements_of(stage.body) if v.origin is not None]
    return {origin.comment.rstrip("\\ "): [origin.fx_node] for origin in origins}


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that one step calls, or several: its text names the nodes of the first call.

    Arguments:
        calls: nodes of each call.
        twins: node of the first call -> the nodes in its place in every call.
    """

    calls: list[list[str]]
    twins: dict[str, list[str]]


def _kernels(schedule: Schedule) -> dict[str, _Kernel]:
    calls: dict[str, list[list[str]]] = {}
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            calls.setdefault(step.name, []).append(list(dict.fromkeys(origin.fx_node for origin in step.origins)))
    table = {}
    for name, every in calls.items():
        same = [nodes for nodes in every if len(nodes) == len(every[0])]
        twins = {node: list(dict.fromkeys(nodes[at] for nodes in same)) for at, node in enumerate(every[0])}
        table[name] = _Kernel(every, twins)
    return table


def _keeps(statement: str) -> bool:
    """Whether a statement of `call` makes room or frees it."""
    return statement.startswith(_HOUSEKEEPING) or " = new" in statement or " = empty" in statement


def _positions(statement: str) -> bool:
    """Whether a statement of a Triton function computes the positions or masks of a block, or is a barrier."""
    name, equals, _ = statement.partition(" = ")
    letters = name.rstrip("0123456789")
    if not equals:
        return statement.startswith("tl.debug_barrier(")
    return letters in ("mask", "xmask", "ymask", "rmask") or (len(letters) == 1 and letters.isalpha())
