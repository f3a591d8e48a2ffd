"""When no node can be left out: smaller sizes, plainer inputs, simpler numbers, no state."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand.debug.minify.strategies import Strategy
from argand.debug.minify.surgery import Program, rebuilt, values_of
from argand.debug.tensors import clone_strided, fill
from argand.debug.trial.eager import copy_graph
from argand.debug.trial.search import Proposals, Search
from argand.graph.nodes.meta import attribute

_SMALL = (1, 2, 3, 4, 8, 16, 17, 32, 64, 128, 256)
_ARITHMETIC = frozenset((operator.add, operator.sub, operator.mul, operator.truediv, operator.pow))
_PLAIN_DTYPES = {
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int64,
    torch.int16: torch.int64,
    torch.int8: torch.int64,
    torch.uint8: torch.int64,
}


def inline_state(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Parameters and buffers that the graph holds become inputs, whose layout is all that a reader needs."""
    for node in [n for n in search.smallest.calls if n.op == "get_attr"]:
        value = attribute(search.smallest.gm, str(node.target))
        if not isinstance(value, torch.Tensor) or node.name not in {n.name for n in search.smallest.calls}:
            continue
        graph, env = fx.Graph(), {}
        for one in search.smallest.placeholders:
            env[one] = graph.node_copy(one)
        placeholder = graph.placeholder(node.name)
        inputs = [*search.smallest.inputs, clone_strided(value)]
        for one in search.smallest.graph.nodes:
            if one.op == "placeholder":
                continue
            env[one] = (
                placeholder if one.name == node.name else graph.node_copy(one, lambda source, env=env: env[source])
            )
        yield rebuilt(search.smallest, graph, inputs)


def constant_sizes(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Sizes that may vary become constants."""
    if "symbols" in search.smallest.gm.meta:
        graph = copy_graph(search.smallest.graph, lambda value: value)
        yield Program(fx.GraphModule(search.smallest.gm, graph), search.smallest.inputs)


def reduce_shapes(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Make sizes smaller: one number at a time, wherever it stands (in inputs' shapes and in arguments)."""
    numbers = {n for v in search.smallest.inputs if isinstance(v, torch.Tensor) for n in v.shape}
    numbers |= {n for node in search.smallest.calls for n in _plain_parts(node) if type(n) is int and n > 16}
    for number in sorted((n for n in numbers if n > 1), reverse=True):
        for smaller in (n for n in _SMALL if n < number):
            candidate = resized(search.smallest, number, smaller)
            if candidate is not None and (yield candidate):
                break


def resized(program: Program, number: int, smaller: int) -> Program | None:
    """The program with every size `number` replaced; None when it does not run eagerly then."""

    graph = copy_graph(program.graph, lambda value: smaller if type(value) is int and value == number else value)
    for wrapped in (False, True):
        inputs = [_cut(v, number, smaller, wrapped) if isinstance(v, torch.Tensor) else v for v in program.inputs]
        candidate = rebuilt(program, graph, inputs)
        if _runs(candidate):
            return candidate
    return None


def _runs(program: Program) -> bool:
    try:
        values_of(program, ())
    except Exception:  # sizes that do not fit together
        return False
    return True


def _cut(value: torch.Tensor, number: int, smaller: int, wrapped: bool) -> torch.Tensor:
    """The first elements along dimensions of that size, laid out as before; integers as indices of what is left."""
    if number not in value.shape and not (wrapped and not value.is_floating_point()):
        return value
    part = value.detach()[tuple(slice(0, smaller) if n == number else slice(None) for n in value.shape)]
    order = sorted(range(part.dim()), key=lambda dim: -value.stride(dim))
    stride, step = [0] * part.dim(), 1
    for dim in reversed(order):
        if value.stride(dim) != 0:
            stride[dim] = step
            step *= part.shape[dim]
    smaller_part = part.new_empty(step).as_strided(part.shape, stride)
    fill(smaller_part, part)
    if wrapped and not value.is_floating_point() and value.dtype is not torch.bool and not value.is_complex():
        smaller_part = smaller_part.clamp(max=smaller - 1)
    return smaller_part.requires_grad_(value.requires_grad)


def plain_dtypes(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Compute in float32 and int64."""
    for old, new in _PLAIN_DTYPES.items():
        candidate = _with(
            search.smallest,
            functools.partial(_dtype, old=old, new=new),
            functools.partial(_converted, old=old, new=new),
        )
        if candidate is not None and _runs(candidate):
            yield candidate


def _dtype(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    return new if value is old else value


def _converted(value: torch.Tensor, old: torch.dtype, new: torch.dtype) -> torch.Tensor:
    return value.detach().to(new).requires_grad_(value.requires_grad) if value.dtype is old else value


def plain_inputs(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Contiguous inputs that require no gradients."""
    changes: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda v: v.detach().clone(memory_format=torch.contiguous_format).requires_grad_(v.requires_grad),
        lambda v: v.detach(),
    )
    for change in changes:
        candidate = _with(search.smallest, lambda value: value, change)
        if candidate is not None:
            yield candidate


def simple_numbers(search: Search[Program], granularity: int) -> Proposals[Program]:
    """Numbers in arguments become 1 (or 2)."""
    for name in [node.name for node in search.smallest.calls]:
        for new in (1, 2):
            candidate = _with_number(search.smallest, name, new)
            if candidate is not None and _runs(candidate) and (yield candidate):
                break


def _with_number(program: Program, name: str, new: int) -> Program | None:
    """The program with the numbers among the arguments of one node replaced; None when there are none."""
    [node] = (node for node in program.calls if node.name == name)
    graph = copy_graph(program.graph, functools.partial(_simple, node=node, new=new), node)
    candidate = rebuilt(program, graph, program.inputs)
    return None if candidate.key == program.key else candidate


def _simple(value: Any, node: fx.Node, new: int) -> Any:
    if type(value) is float and value not in (0.0, 1.0):
        return float(new)
    scalar = node.target in _ARITHMETIC or str(node.target).endswith(".Scalar")
    return new if type(value) is int and scalar and value not in (0, 1) else value


def _with(
    program: Program, change: Callable[[Any], Any], convert: Callable[[torch.Tensor], torch.Tensor]
) -> Program | None:
    """The program with arguments and inputs changed; None when neither is."""
    inputs = [convert(v) if isinstance(v, torch.Tensor) else v for v in program.inputs]
    candidate = rebuilt(program, copy_graph(program.graph, change), inputs)
    return None if candidate.key == program.key else candidate


def _plain_parts(node: fx.Node) -> list[Any]:
    """What a node is given, at any depth."""
    parts: list[Any] = pytree.tree_leaves((node.args, node.kwargs))
    return parts


def oddness(program: Program) -> int:
    """How much there is to explain about inputs and numbers: what these strategies make less."""
    odd = int("symbols" in program.gm.meta)
    for value in program.inputs:
        if isinstance(value, torch.Tensor):
            odd += int(not value.is_contiguous()) + int(value.requires_grad) + int(value.dtype in _PLAIN_DTYPES)
    for node in program.calls:
        for number in _plain_parts(node):
            odd += 0 if type(number) not in (int, float) or number in (0, 1) else 1 if number == 2 else 2
        odd += sum(text in str((node.args, node.kwargs)) for text in ("float64", "float16", "int32", "int16"))
    return odd


SIMPLIFICATIONS = (
    Strategy("Constant sizes", constant_sizes),
    Strategy("Inline state", inline_state),
    Strategy("Reduce shapes", reduce_shapes),
    Strategy("Plain dtypes", plain_dtypes),
    Strategy("Plain inputs", plain_inputs),
    Strategy("Simple numbers", simple_numbers),
)
