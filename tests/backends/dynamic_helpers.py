"""Dynamic graphs made by hand: what capture delivers, from a function and a list of the dimensions that vary."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from native_helpers import as_module
from tests.helpers import assert_same, collected
from torch import fx

from argand.backends.aot_eager import aot_eager
from argand.backends.native import native
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.symbols import SymbolTable

_EXPR_OPS = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod}
_DEFINED = {operator.truediv: "truediv", operator.pow: "pow", min: "min", max: "max"}

Dims = Mapping[int, Mapping[int, str] | str]


def dynamic_graph(fn: Callable[..., Any], args: Sequence[Any], dims: Dims, *, traced: bool = False) -> fx.GraphModule:
    """`fn` as a graph with symbols.

    Arguments:
        traced: node by node (torch.fx.symbolic_trace), so that numbers have expressions; else one node calls `fn`.
        args: example inputs; their sizes are the hints.
        dims: argument -> {dimension: name of its symbol}, or the name of the symbol that a number is.
    """
    gm = fx.symbolic_trace(fn) if traced else as_module(fn, len(args))
    table = SymbolTable()
    symbols: dict[str, Sym] = {}

    def symbol(name: str, hint: Any) -> Sym:
        if name not in symbols:
            symbols[name] = table.new(name, hint, kind="float" if isinstance(hint, float) else "int")
        return symbols[name]

    env: dict[fx.Node, Any] = {}
    inputs = iter(enumerate(args))
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            index, value = next(inputs)
            node.meta["example_value"] = value
            given = dims.get(index, {})
            if not isinstance(value, torch.Tensor):
                if isinstance(given, str):
                    env[node] = node.meta["expr"] = symbol(given, value)
                continue
            assert isinstance(given, Mapping)
            sizes = tuple([symbol(given[d], n) if d in given else n for d, n in enumerate(value.shape)])
            node.meta["sizes"], node.meta["strides"] = sizes, _strides(value, sizes)
        elif node.op == "call_function":
            _scalar(node, env, table)
    gm.meta["symbols"] = table
    return gm


def _strides(value: torch.Tensor, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """As expressions of the sizes when the tensor is dense; as they are otherwise."""
    made: list[Any] = list(value.stride())
    step: Any = 1
    expected = 1
    for dim in sorted(range(value.dim()), key=lambda d: (value.stride(d), -d)):
        if value.stride(dim) != expected:
            return value.stride()
        made[dim] = step
        step, expected = step * sizes[dim], expected * value.size(dim)
    return tuple(made)


def _scalar(node: fx.Node, env: dict[fx.Node, Any], table: SymbolTable) -> None:
    """Expressions of numbers that are computed from sizes of the inputs."""
    source = node.args[0] if node.args else None
    if node.target is getattr and isinstance(source, fx.Node) and node.args[1] == "shape" and "sizes" in source.meta:
        env[node] = source.meta["sizes"]
        return
    if not all(not isinstance(arg, fx.Node) or arg in env for arg in node.args):
        return
    values = [env[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
    if node.target is operator.getitem and isinstance(values[0], tuple):
        env[node] = values[0][values[1]]
    elif not all(isinstance(value, (int, float, Expr)) for value in values):
        return
    elif node.target in _EXPR_OPS and not any(_is_float(value, table) for value in values):
        env[node] = node.target(*values)
    elif node.target in _DEFINED:
        env[node] = table.define(_DEFINED[node.target], *values)
    elif node.target in _EXPR_OPS:
        env[node] = table.define(node.target.__name__, *values)
    if isinstance(env.get(node), Expr):
        node.meta["expr"] = env[node]


def _is_float(value: Any, table: SymbolTable) -> bool:
    return isinstance(value, float) or (isinstance(value, Sym) and table.kinds[value] == "float")


def check_sizes(
    fn: Callable[..., Any],
    make: Callable[..., Sequence[Any]],
    dims: Dims,
    sizes: Sequence[Sequence[Any]],
    *,
    backend: str = "native",
    general: bool = True,
    exact: bool = False,
    traced: bool = False,
) -> list[Any]:
    """Compile `fn` once, for the first of `sizes`, and compare with eager at all of them; returns the events.

    Arguments:
        make: `make(*sizes[k])` gives the arguments.
        general: one program must serve every size (no fallback to exact sizes).
        exact: results must be equal bit by bit.
    """
    with torch.no_grad(), collected() as seen:
        args = list(make(*sizes[0]))
        gm = dynamic_graph(fn, args, dims, traced=traced)
        compiled = {"native": native, "aot_eager": aot_eager}[backend](gm, args)
        for each in sizes:
            torch.manual_seed(0)
            args = list(make(*each))
            mine = [arg.clone() if isinstance(arg, torch.Tensor) and arg.is_contiguous() else arg for arg in args]
            torch.manual_seed(1)
            want = fn(*args)
            torch.manual_seed(1)
            got = compiled(*mine)
            assert_same(want, got, exact=exact)
            assert_same(
                [a for a in args if isinstance(a, torch.Tensor)], [a for a in mine if isinstance(a, torch.Tensor)]
            )
    by_size = [e for e in seen if e.name == "fallback" and e.data.get("scope") in ("sizes", "graph")]
    assert not general or not by_size, by_size
    traces = [e for e in seen if e.name == "aot_inference_graph"]
    assert not general or len(traces) == 1, f"{len(traces)} programs were made"
    return seen
