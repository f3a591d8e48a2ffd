"""Graphs as Python that a person can read and edit, and back.

The text is a `torch.nn.Module` whose forward has one call a line. `graph_of` reads the calls off that text, so that
the graph that fails comes back as it was, not as some capture sees it.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import math
import operator
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand.debug.minify.symbols import description
from argand.errors import ArgandError
from argand.graph.nodes.meta import attribute, user_line
from argand.graph.nodes.printing import Writer
from argand.graph.python_operators import ARITHMETIC, COMPARE, INVERT, NEGATIVE

_PLACES = (
    "torch", "torch._C._nn", "torch.nn.functional", "torch.Tensor", "torch.linalg", "torch.special", "torch.fft",
    "torch._C", "torch._C._linalg", "torch._C._special", "torch._C._fft", "operator", "math",
)  # fmt: skip


class NotCode(ArgandError):
    """A graph refers to an object that has no name by which another process could reach it."""

    stage = "minify"


def resolve(path: str) -> Any:
    """What a dotted path stands for, importing modules on the way.

    Raises:
        AttributeError, ImportError: nothing.
    """
    first, *rest = path.split(".")
    if not rest:
        return getattr(builtins, first)
    resolved: Any = importlib.import_module(first)
    done = first
    for part in rest:
        done = f"{done}.{part}"
        if not hasattr(resolved, part) and inspect.ismodule(resolved):
            importlib.import_module(done)
        resolved = getattr(resolved, part)
    return resolved


def path_of(target: Any) -> str:
    """The dotted path of a function, class or operator.

    Raises:
        NotCode: it has none.
    """
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{target}"
    name = str(getattr(target, "__qualname__", None) or getattr(target, "__name__", ""))
    module = {"_operator": "operator"}.get(getattr(target, "__module__", None) or "", target.__module__ or "")
    short = name.rsplit(".", 1)[-1]
    for path in (f"{module}.{name}" if module not in ("", "builtins") else name, *(f"{p}.{short}" for p in _PLACES)):
        try:
            if path and "<" not in path and not path.startswith("__main__.") and resolve(path) == target:
                return path
        except (AttributeError, ImportError):
            continue
    raise NotCode(f"{target!r} has no name by which another process could reach it")


def literal(value: Any) -> str:
    """A value of a node's arguments as source code.

    Raises:
        NotCode: there is none.
    """
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if value is None or value is Ellipsis or isinstance(value, (bool, int, str, bytes)):
        return "..." if value is Ellipsis else repr(value)
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, pytree.TreeSpec):
        return f"torch.utils._pytree.treespec_loads({pytree.treespec_dumps(value)!r})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f"{f.name}={literal(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        return f"{path_of(type(value))}({', '.join(fields)})"
    if isinstance(value, torch.Tensor) and value.numel() <= 16 and value.layout is torch.strided:
        return f"torch.tensor({literal(value.tolist())}, dtype={value.dtype})"
    if callable(value):
        return path_of(value)
    raise NotCode(f"a graph has an argument of type {type(value).__name__}, which has no source text")


def module_code(gm: fx.GraphModule, name: str = "Repro") -> tuple[str, dict[str, torch.Tensor]]:
    """A graph as the text of a module class, nested ones before it.

    Returns:
        the text, and the tensors that it takes from `state` (parameters, buffers and constants of the graph).

    Raises:
        NotCode: the graph refers to an object that another process could not reach.
    """
    classes: list[str] = []
    state: dict[str, torch.Tensor] = {}
    setup = _attributes(gm, name, classes, state)
    lines = [f"class {name}(torch.nn.Module):"]
    about = {key: value for key, value in gm.meta.items() if key in ("call", "count", "unbacked")}
    varying = description(gm)
    if varying:
        about["varying"] = varying
    if about:
        lines += [f"    graph_meta = {literal(about)}", ""]
    if setup:
        lines += ["    def __init__(self):", "        super().__init__()", *(f"        {line}" for line in setup), ""]
    lines += [f"    def forward({', '.join(['self', *(n.name for n in gm.graph.nodes if n.op == 'placeholder')])}):"]
    lines += [f"        {line}" for line in _ForwardWriter().body(gm.graph)]
    return "\n\n\n".join([*classes, "\n".join(lines)]), state


def _attributes(gm: fx.GraphModule, name: str, classes: list[str], state: dict[str, torch.Tensor]) -> list[str]:
    """Statements of `__init__` for what the graph's nodes name."""
    lines = []
    for path in dict.fromkeys(str(n.target) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")):
        value = attribute(gm, path)
        flat = path.replace(".", "_")
        if isinstance(value, fx.GraphModule):
            nested = f"{name}_{flat}"
            text, inner = module_code(value, nested)
            classes.append(text)
            state.update(inner)
            lines.append(f"self.{flat} = {nested}()")
        elif isinstance(value, torch.nn.Parameter):
            state[f"{name}.{flat}"] = value.detach()
            grad = "" if value.requires_grad else ", requires_grad=False"
            lines.append(f'self.{flat} = torch.nn.Parameter(state["{name}.{flat}"]{grad})')
        elif isinstance(value, torch.Tensor):
            try:
                text = literal(value)
            except NotCode:
                state[f"{name}.{flat}"] = value.detach()
                text = f'state["{name}.{flat}"]'
            lines.append(f"self.{flat} = {text}" + (".requires_grad_()" if value.requires_grad else ""))
        else:
            lines.append(f"self.{flat} = {literal(value) if not isinstance(value, torch.nn.Module) else repr(value)}")
    return lines


class _ForwardWriter(Writer):
    """Prints the statements of a forward, which name nothing that another process could not reach."""

    def __init__(self) -> None:
        super().__init__(comments=False, spelled_out=True)

    def place(self, node: fx.Node) -> list[str]:
        said = user_line(node)
        return [said.replace("\n", " ")] if said else []

    def is_global(self, node: fx.Node) -> bool:
        return False

    def expression(self, node: fx.Node) -> str:
        args = self.arguments(node)
        if node.op == "call_method":
            return f"{args[0]}.{node.target}({', '.join(args[1:])})"
        own = f"self.{str(node.target).replace('.', '_')}"
        if node.op == "call_module":
            return f"{own}({', '.join(args)})"
        return own if node.op == "get_attr" else super().expression(node)

    def value(self, value: Any) -> str:
        return literal(value)

    def _target(self, target: Any) -> str:
        return path_of(target)


# ------------------------------------------------------------------------------- and back


def _parsed(text: str) -> Any:
    return ast.parse(text, mode="eval").body


_OPERATORS: dict[type, Callable[..., Any]] = {
    **{type(_parsed(f"a {op.symbol} b").op): op.native for op in ARITHMETIC.values()},
    **{type(_parsed(f"a {op.symbol} b").ops[0]): op.native for op in COMPARE.values()},
    **{type(_parsed(f"{op.symbol}a").op): op.native for op in (NEGATIVE, INVERT)},
}


def graph_of(module: torch.nn.Module) -> fx.GraphModule:
    """The graph that the text of a module's forward is: a call a line, as `module_code` writes it.

    Operators on values (`a + b`, `x[0]`) are read too, so that the text can be edited.

    Raises:
        NotCode: the text has a statement that is no call.
    """
    if isinstance(module, fx.GraphModule):
        return module
    forward: Any = type(module).forward
    text = textwrap.dedent(inspect.getsource(forward))
    tree = ast.parse(text).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise NotCode("forward is not a function")
    gm = fx.GraphModule(module, _Reader(module, forward.__globals__, text.splitlines()).read(tree))
    gm.meta.update(getattr(type(module), "graph_meta", {}))
    return gm


class _Reader:
    """Makes nodes of the statements of a forward."""

    def __init__(self, module: torch.nn.Module, names: dict[str, Any], lines: list[str]) -> None:
        self.module = module
        self.names = names
        self.lines = lines
        self.line = ""
        self.graph = fx.Graph()
        self.env: dict[str, Any] = {}

    def read(self, tree: ast.FunctionDef) -> fx.Graph:
        for argument in tree.args.args[1:]:
            self.env[argument.arg] = self.graph.placeholder(argument.arg)
        for name, value in inspect.getmembers(self.module, lambda v: isinstance(v, torch.nn.Module)):
            if not isinstance(value, fx.GraphModule) and type(value).__module__ == type(self.module).__module__:
                setattr(self.module, name, graph_of(value))
        for statement in tree.body:
            above = self.lines[statement.lineno - 2].strip()
            if above.startswith("# "):
                self.line = above.removeprefix("# ")
            before = len(self.graph.nodes)
            self._statement(statement)
            for node in list(self.graph.nodes)[before:]:
                if self.line and node.op != "output":
                    node.meta["user_line"] = self.line
        return self.graph

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return) and statement.value is not None:
            self.graph.output(self._value(statement.value))
        elif isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
            if isinstance(statement.value, ast.Constant) and statement.value.value is None:
                return  # a value is let go
            for target in statement.targets:
                assert isinstance(target, ast.Name)
                self.env[target.id] = self._value(statement.value, target.id)
        elif isinstance(statement, ast.Expr):
            self._value(statement.value)
        else:
            raise NotCode(f"line {statement.lineno} of forward is neither a call nor the return")

    def _call(self, name: str, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        return self.graph.create_node(op, target, args, kwargs, name=name or None)

    def _value(self, tree: ast.expr, name: str = "") -> Any:
        if isinstance(tree, ast.Name) and tree.id in self.env:
            return self.env[tree.id]
        if isinstance(tree, (ast.Tuple, ast.List)):
            items = [self._value(item) for item in tree.elts]
            return tuple(items) if isinstance(tree, ast.Tuple) else items
        if isinstance(tree, ast.Dict):
            return {self._value(k): self._value(v) for k, v in zip(tree.keys, tree.values) if k is not None}
        if isinstance(tree, ast.Call) and name:
            return self._read_call(tree, name)
        if not self._has_values(tree):
            return eval(compile(ast.Expression(tree), "<repro>", "eval"), self.names)
        if isinstance(tree, ast.Attribute):
            return self._attribute(tree, name)
        if isinstance(tree, ast.Call):
            return self._read_call(tree, name)
        if isinstance(tree, ast.Subscript):
            return self._call(name, "call_function", operator.getitem, self._values(tree.value, tree.slice), {})
        if isinstance(tree, ast.Slice):
            return slice(*(None if part is None else self._value(part) for part in (tree.lower, tree.upper, tree.step)))
        if isinstance(tree, ast.BinOp):
            return self._operator(name, tree.op, tree.left, tree.right)
        if isinstance(tree, ast.UnaryOp):
            return self._operator(name, tree.op, tree.operand)
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
            return self._operator(name, tree.ops[0], tree.left, tree.comparators[0])
        raise NotCode(f"forward has an expression that is no call: {ast.unparse(tree)}")

    def _operator(self, name: str, op: ast.AST, *operands: ast.expr) -> fx.Node:
        return self._call(name, "call_function", _OPERATORS[type(op)], self._values(*operands), {})

    def _values(self, *trees: ast.expr) -> tuple[Any, ...]:
        return tuple(self._value(tree) for tree in trees)

    def _has_values(self, tree: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and (n.id in self.env or n.id == "self") for n in ast.walk(tree))

    def _attribute(self, tree: ast.Attribute, name: str) -> fx.Node:
        path = ast.unparse(tree)
        if path.startswith("self."):
            return self.graph.create_node("get_attr", path.removeprefix("self."), (), {}, name=name or None)
        return self._call(name, "call_function", getattr, (self._value(tree.value), tree.attr), {})

    def _read_call(self, tree: ast.Call, name: str) -> fx.Node:
        args = self._values(*tree.args)
        kwargs = {keyword.arg: self._value(keyword.value) for keyword in tree.keywords if keyword.arg is not None}
        function = tree.func
        if not self._has_values(function):
            target = eval(compile(ast.Expression(function), "<repro>", "eval"), self.names)
            return self._call(name, "call_function", target, args, kwargs)
        path = ast.unparse(function)
        if path.startswith("self."):
            return self._call(name, "call_module", path.removeprefix("self."), args, kwargs)
        if isinstance(function, ast.Attribute):
            return self._call(name, "call_method", function.attr, (self._value(function.value), *args), kwargs)
        raise NotCode(f"forward calls {path}, which is neither a function nor a method")
