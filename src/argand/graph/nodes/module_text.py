"""A torch-level graph as text, as `GraphModule.print_readable` shows it, which imports sympy and DTensor (seconds)."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import fx

from argand.graph.nodes.meta import user_lines
from argand.graph.nodes.printing import describe

_STATEMENT = re.compile(r"    (\w+)( = .*)")
_STRIDES = re.compile(r"(\w+\[[^\]]*\])\[[^\]]*\]")


def module_text(gm: fx.GraphModule, name: str = "GraphModule") -> str:
    """The class of a captured graph: values with their types, the program's lines as comments, subgraphs below.

    Arguments:
        name: of the class.
    """
    lines = [f"class {name}(torch.nn.Module):", *_forward(gm.graph)]
    for child, module in gm.named_children():
        if isinstance(module, fx.GraphModule):
            lines += [f"    {line}" if line else "" for line in module_text(module, child).split("\n")[:-1]]
    return "\n".join(lines) + "\n"


def lazy_forward(gm: fx.GraphModule) -> Callable[..., Any]:
    """`gm.forward`, which asks for that, so has its Python code written, when it is first called."""
    return MethodType(_call_forward, gm)


def settled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`gm.forward` itself where `forward` is a lazy one: a call less each time, two of a stored graph."""
    lazy = isinstance(forward, MethodType) and forward.__func__ is _call_forward
    later = vars(forward).get(SETTLED) if isinstance(forward, FunctionType) else None
    return forward.__self__.forward if lazy else forward if later is None else later()  # type: ignore[attr-defined]


SETTLED: Final = "_argand_settled"
"""Attribute of a function that does more when it is called first: gives what it calls."""


def _call_forward(gm: fx.GraphModule, *args: Any) -> Any:
    return gm.forward(*args)


def _forward(graph: fx.Graph) -> list[str]:
    nodes = {node.name: node for node in graph.nodes}
    params = [_parameter(node) for node in graph.nodes if node.op == "placeholder"]
    lines = [f"    def forward({', '.join(['self', *params])}):"]
    body = graph.python_code("self").src.strip("\n").split("\n")
    start = next((number for number, line in enumerate(body) if line.startswith("def ")), -1) + 1
    seen = "nothing"
    for line in body[start:]:
        statement = _STATEMENT.fullmatch(line)
        node = nodes.get(statement[1]) if statement is not None else None
        if node is None or statement is None or node.op == "placeholder":
            lines += [f"    {line}"] if line.strip() else []
            continue
        place = _place(node)
        if place != seen:
            seen = place
            lines += [""] if len(lines) > 1 else []
            lines.append(f"        # {place or 'No stacktrace found for following nodes'}")
        kind = _kind(node)
        lines.append(f'        {statement[1]}: "{kind}"{statement[2]}' if kind else f"    {line}")
    return [*lines, ""]


def _place(node: fx.Node) -> str:
    where = user_lines(node)
    if not where:
        return ""
    line = where[-1]
    return f"File: {line.filename}:{line.lineno} in {line.function}, code: {line.text}"


def _parameter(node: fx.Node) -> str:
    """A placeholder in the list of arguments."""
    kind = _kind(node)
    default = f" = {node.args[0]!r}" if node.args else ""
    return f'{node.target}: "{kind}"{default}' if kind else f"{node.target}{default}"


def _kind(node: fx.Node) -> str:
    """A node's value in short: "f32[2, 3]", "Parameter(f32[2])"; "" for what is no tensor."""
    value: Any = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.Tensor):
        return ""
    short = _STRIDES.sub(r"\1", describe(value)) if value.layout is torch.strided else f"{value.layout}"
    return f"Parameter({short})" if isinstance(value, torch.nn.Parameter) else short
