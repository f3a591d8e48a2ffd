"""FX graphs as text: Python that runs (and is what runs), and a table of nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import caller_line, user_line
from argand.graph.operators.aten_names import operator_path
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.symbolic import SymbolicTensor

_DTYPE_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def target_name(target: Any) -> str:
    """A node's target as one would write it: "aten.add.Tensor", "torch.relu", "operator.getitem"."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    module = {"_operator": "operator", "builtins": ""}.get(module, module)
    return f"{module}.{name}" if module else str(name)


def describe(value: Any) -> str:
    """A node's `val` in short: "f32[2, 3][3, 1]cpu" without the device for meta tensors."""
    if isinstance(value, (torch.Tensor, SymbolicTensor)):
        dtype = _DTYPE_SHORT.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    return repr(value)


def graph_source(
    graph: fx.Graph, name: str = "forward", *, comments: bool = True, spelled_out: bool = False
) -> tuple[str, dict[str, Any]]:
    """The graph as a Python function of its placeholders, and the objects that its text names.

    The text is what runs: names of operators are bound in the returned namespace. Values are dropped after their last
    use. With `comments`, each line shows the value's type and, where it changes, the user's line. With `spelled_out`,
    operators are written as anybody can call them (`torch.ops.aten.neg.default`): the namespace then holds only what
    cannot be (and `torch`, `operator`, `math`, `inf`, `nan`).
    """
    writer = Writer(comments, spelled_out)
    params = [node.name for node in graph.nodes if node.op == "placeholder"]
    lines = [f"    {line}" for line in writer.body(graph)]
    return "\n".join([f"def {name}({', '.join(params)}):", *(lines or ["    pass"])]) + "\n", writer.names


def _spelling(target: Any) -> str:
    """How a program that imports torch, operator and math calls this target; "" when it cannot."""
    if isinstance(target, torch._ops.OpOverload):
        return operator_path(target)
    text = target_name(target)
    root = {"torch": torch, "operator": operator, "math": math}.get(text.split(".", 1)[0])
    try:
        return text if operator.attrgetter(text.split(".", 1)[1])(root) is target else ""
    except (AttributeError, IndexError):
        return ""


def graph_function(graph: fx.Graph, constants: dict[str, Any], name: str = "forward") -> Callable[..., Any]:
    """The graph as a function of its placeholders that calls every node's target eagerly."""
    source, names = graph_source(graph, name, comments=False)
    namespace = {**names, **constants}
    exec(compile(source, f"<argand {name}>", "exec"), namespace)
    return namespace[name]


def readable(graph: fx.Graph, name: str = "forward") -> str:
    """The graph as commented Python text."""
    return graph_source(graph, name, spelled_out=True)[0]


def table(graph: fx.Graph) -> str:
    """One row per node: opcode, name, target, arguments."""
    rows = [("opcode", "name", "target", "args", "kwargs")]
    rows += [(n.op, n.name, str(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values (placeholders included) that nobody reads after it."""
    done: set[fx.Node] = set()
    last_uses: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(nodes):
        if node.op == "output":
            done.update(node.all_input_nodes)
            continue
        if node.op == "placeholder":
            continue
        if node.op == "get_attr":
            continue
        ending = [arg for arg in node.all_input_nodes if arg not in done and arg.op != "get_attr"]
        if node not in done:
            ending.append(node)  # computed for its effect alone
        done.update(ending)
        if ending:
            last_uses[node] = ending
    return last_uses


class Writer:
    """Prints nodes; collects the objects that the text names."""

    def __init__(self, comments: bool, spelled_out: bool = False) -> None:
        self.comments = comments
        self.spelled_out = spelled_out
        self.names: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
        if spelled_out:
            self.names.update(operator=operator, math=math)
        self._targets: dict[Any, str] = {}

    def body(self, graph: fx.Graph) -> Iterator[str]:
        """The statements of a function of the graph's placeholders; each value is let go of after its last use."""
        nodes = list(graph.nodes)
        last_use = _last_uses(nodes)
        seen: list[str] = []
        for node in nodes:
            if node.op == "placeholder":
                continue
            if (place := self.place(node)) and place != seen:
                yield from (f"# {part}" for part in place)
                seen = place
            if node.op == "output":
                yield f"return {self.value(node.args[0])}"
            elif node.op != "get_attr" or not self.is_global(node):
                dead = last_use.get(node, ())
                yield self.statement(node, dead if self.spelled_out else ())
                if dead and not self.spelled_out:
                    yield f"del {', '.join(n.name for n in dead)}"

    def place(self, node: fx.Node) -> list[str]:
        """The user's lines that are shown above a node, innermost last."""
        if not self.comments or not (line := user_line(node)):
            return []
        return [line] if not (caller := caller_line(node)) else [caller, line]

    def is_global(self, node: fx.Node) -> bool:
        """Whether an attribute of the graph goes by its own name."""
        return node.name == str(node.target).replace(".", "_")

    def statement(self, node: fx.Node, dead: Iterable[fx.Node] = ()) -> str:
        """One node; `dead` values are let go of on the same line."""
        text = f"{node.name} = {self.expression(node)}"
        if gone := [n.name for n in dead]:
            text += f";  {' = '.join(gone)} = None"
        if self.comments and "val" in node.meta:
            text += f"  # {describe(node.meta['val'])}"
        return text

    def expression(self, node: fx.Node) -> str:
        """What a node computes."""
        if node.op == "get_attr":
            return str(node.target).replace(".", "_")
        if node.target is operator.getitem:
            return f"{self.value(node.args[0])}[{self.value(node.args[1])}]"
        return f"{self._target(node.target)}({', '.join(self.arguments(node))})"

    def arguments(self, node: fx.Node) -> list[str]:
        """What a node is given."""
        return [
            *map(self.value, node.args),
            *(f"{key}={self.value(value)}" for key, value in node.kwargs.items()),
        ]

    def _target(self, target: Any) -> str:
        if self.spelled_out and (text := _spelling(target)):
            return text
        name = self._targets.get(target)
        if name is None:
            base = target_name(target).replace(".", "_").replace("<", "").replace(">", "")
            name = base
            while name in self.names:
                name += "_"
            self._targets[target] = name
            self.names[name] = target
        return name

    def value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, (int, str, type(None), torch.dtype, torch.memory_format, torch.layout)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if value == value else "nan"
        if isinstance(value, Expr):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.{value!r}"
        if isinstance(value, tuple):
            return "(" + self._items(value) + ("," if len(value) == 1 else "") + ")"
        if isinstance(value, list):
            return "[" + self._items(value) + "]"
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.value(v)}" for k, v in value.items()) + "}"
        return self._object(value)

    def _items(self, values: Iterable[Any]) -> str:
        return ", ".join(self.value(item) for item in values)

    def _object(self, value: Any) -> str:
        if isinstance(value, complex):
            return f"complex({self.value(value.real)}, {self.value(value.imag)})"
        name = f"_object{len(self.names)}"
        self.names[name] = value
        return name
