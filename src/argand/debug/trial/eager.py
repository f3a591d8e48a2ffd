"""A graph run eagerly, in its dtypes and in float64, and what a compiler made of it compared with that."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from argand.debug import gpus
from argand.debug.accuracy import AccuracyError, compare
from argand.debug.tensors import clone_inputs, tensors_in
from argand.graph.nodes.meta import attribute

_WIDER = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
_WIDER_METHODS = {"float": "double", "half": "double", "bfloat16": "double"}


def copy_graph(graph: fx.Graph, change: Callable[[Any], Any], only: fx.Node | None = None) -> fx.Graph:
    """A graph with `change` applied to what the calls in it (or `only` one) are given, at any depth."""
    copied = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        twin = env[node] = copied.node_copy(node, env.__getitem__)
        if node.op not in ("placeholder", "output") and (only is None or only is node):
            twin.args, twin.kwargs = fx.node.map_aggregate((twin.args, twin.kwargs), change)
    return copied


class _Keeper(fx.Interpreter):
    """Runs a graph and keeps the values of its nodes, as they are when they come into being."""

    def __init__(self, gm: fx.GraphModule, wanted: frozenset[str] | None, keep: Callable[[Any], Any]) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.wanted = wanted
        self.keep = keep
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output" and (self.wanted is None or n.name in self.wanted):
            self.values[n.name] = self.keep(value)
        return value


def values_of_nodes(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    wanted: Iterable[str] | None = None,
    keep: Callable[[Any], Any] = lambda value: value,
) -> dict[str, Any]:
    """What the nodes of these names (all, when None) are when the graph runs eagerly, by name.

    Arguments:
        keep: what is kept of a value; a copy, where the graph may write to it.
    """
    keeper = _Keeper(gm, None if wanted is None else frozenset(wanted), keep)
    keeper.run(*inputs)
    return keeper.values


def in_float64(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph computing in float64: its dtype arguments, casts, parameters and constants."""
    graph = copy_graph(gm.graph, lambda value: _WIDER.get(value, value) if isinstance(value, torch.dtype) else value)
    for node in graph.nodes:
        if node.op == "call_method":
            node.target = _WIDER_METHODS.get(node.target, node.target)
    root = {str(n.target): attribute(gm, str(n.target)) for n in graph.nodes if n.op in ("get_attr", "call_module")}
    for name, value in root.items():
        if isinstance(value, fx.GraphModule):
            root[name] = in_float64(value)
        elif isinstance(value, torch.Tensor):
            root[name] = widened(value)
        elif isinstance(value, torch.nn.Module):
            root[name] = copy.deepcopy(value).double()
    return fx.GraphModule(root, graph)


def widened(value: Any) -> Any:
    """A tensor in float64, or a plain value as it is; leaves that require gradients stay such."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
        return value
    wide = torch.empty_strided(value.shape, value.stride(), dtype=torch.float64, device=value.device)
    if all(stride or n < 2 for n, stride in zip(value.shape, value.stride())):
        wide.copy_(value.detach())
    else:
        wide = value.detach().double()
    return wide.requires_grad_(value.requires_grad)


def run_forward_backward(
    function: Callable[..., Any], inputs: Sequence[Any], *, gradients: bool = True, at: Callable[[str], Any] = str
) -> tuple[Any, list[torch.Tensor | None]]:
    """Call a function, and differentiate a sum over its results where they require gradients.

    Arguments:
        inputs: tensors (leaves where they require gradients) or plain values; they may be written to.
        gradients: also run the backward.
        at: told "run" and "backward".

    Returns:
        the result and, for each input, its gradient (None where it has none).
    """
    at("run")
    result = function(*inputs)
    leaves = [part for part in tensors_in(result) if part.requires_grad]
    wanted = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad and v.is_leaf]
    if not gradients or not leaves or not wanted:
        return result, [None for _ in inputs]
    at("backward")
    total: Any = 0.0
    for number, leaf in enumerate(leaves):
        value = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        # weights that differ from element to element, so that what is swapped or missed shows
        weights = torch.linspace(0.5, 1.5, max(1, value.numel()), dtype=torch.float64, device=value.device)
        total = total + (value * weights.to(value.dtype)[: value.numel()].reshape(value.shape)).sum() * (number + 1)
    of_leaves = torch.autograd.grad(total, wanted, allow_unused=True)
    by_id = {id(value): gradient for value, gradient in zip(wanted, of_leaves)}
    return result, [by_id.get(id(value)) if isinstance(value, torch.Tensor) else None for value in inputs]


def compare_with_eager(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    written: Sequence[Any],
    actual: tuple[Any, list[torch.Tensor | None]],
    gradients: bool = True,
    tolerance: float = 0.0,
) -> None:
    """Compare a compiled graph's results, gradients and writes to its inputs with eager's, in its dtypes and float64.

    Arguments:
        gm: the graph.
        inputs: what both ran on (not written to).
        written: the compiled run's inputs, after it.
        actual: its results and gradients (`run_forward_backward`).

    Raises:
        AccuracyError: they differ.
    """
    arguments = clone_inputs(inputs)
    torch.manual_seed(0)
    expected = run_forward_backward(gm.forward, arguments, gradients=gradients)
    wide, wide_arguments = _in_float64(gm, inputs, gradients)
    tol = tolerance or None
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    results: Any = gm.graph.output_node().args[0]
    flat = isinstance(results, (tuple, list)) and isinstance(expected[0], (tuple, list))
    for number, part in enumerate(expected[0] if flat else [expected[0]]):
        got = actual[0][number] if flat else actual[0]
        arbiter = None if wide is None else wide[0][number] if flat else wide[0]
        mismatch = compare(part, got, arbiter, tol=tol, strides=True)
        if mismatch is not None:
            node = results[number] if flat else results
            raise AccuracyError(mismatch, getattr(node, "name", str(number)))
    for number, name in enumerate(names):
        arbiter = wide_arguments[number] if wide_arguments else None
        mismatch = compare(arguments[number], written[number], arbiter, tol=tol)
        if mismatch is not None:
            raise AccuracyError(mismatch, name)
        arbiter = None if wide is None else wide[1][number]
        mismatch = compare(expected[1][number], actual[1][number], arbiter, tol=tol)
        if mismatch is not None:
            raise AccuracyError(mismatch, f"gradient of {name}")


def _in_float64(gm: fx.GraphModule, inputs: Sequence[Any], gradients: bool) -> tuple[Any, list[Any] | None]:
    """Eager's results, gradients and written inputs in float64; None where the graph cannot run so."""
    if not any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs):
        return None, None
    arguments = [widened(value) for value in inputs]
    arguments = [a.clone() if a is b and isinstance(a, torch.Tensor) else a for a, b in zip(arguments, inputs)]
    try:
        torch.manual_seed(0)
        with gpus.autocast_as({}):
            return run_forward_backward(in_float64(gm).forward, arguments, gradients=gradients), arguments
    except Exception:  # an op without a float64 kernel, a dtype that the program insists on
        return None, None
