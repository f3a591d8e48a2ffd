"""Leaves that a graph makes: tensors of its own that require grad, as the noise of an attack or a new parameter does.

The compiled function gets an empty tensor for each as an input, so that autograd accumulates a gradient in it, and that
very tensor becomes what the program made, once the graph has computed its data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from argand.errors import AutogradError
from argand.graph import histories
from argand.graph.nodes.program import AtenProgram, InputSpec, LeafSpec, OutputSpec
from argand.graph.sizes.expr import Expr


def is_leaf(tensor: torch.Tensor) -> bool:
    """The tensor requires grad by itself: neither an operation nor what it is a view of makes it."""
    if not tensor.requires_grad or not tensor.is_leaf:
        return False
    base = tensor._base
    return base is None or not base.requires_grad


def refuse_hooks(tensor: torch.Tensor) -> None:
    """A hook of a leaf sees the sum of what all graphs give, which no single graph has."""
    if getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise AutogradError("the graph returns a tensor that requires grad, made inside the graph, with hooks on it")


def reached_leaves(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Every leaf that a gradient of `tensors` would be accumulated in."""
    try:
        return histories.leaves([tensor.grad_fn for tensor in tensors])
    except RuntimeError as error:  # a view that was made without gradients, and written to with them
        raise AutogradError(f"a result of the graph has no history: {error}") from error


def refuse_separate_histories(tensors: Iterable[torch.Tensor], ends: Iterable[Any]) -> None:
    """Results that share no operation may be differentiated one after the other, with a leaf's gradient in between:
    one autograd function for all of them has freed what it saved by then.

    Arguments:
        ends: nodes of autograd that stand for inputs of the graph.
    """
    apart: list[set[Any]] = []
    outside = set(ends)
    for tensor in tensors:
        nodes = {node for node in histories.nodes([tensor.grad_fn]) if not hasattr(node, "variable")} - outside
        touching = [other for other in apart if other & nodes]
        apart = [other for other in apart if not other & nodes] + [nodes.union(*touching)]
    if len(apart) > 1:
        raise AutogradError("the graph makes a leaf, and its results can be differentiated one after the other")


def data_of_results(leaves: Iterable[LeafSpec]) -> list[tuple[int, int]]:
    """(position of the input, result of the graph) for leaves whose data is a result by itself."""
    return [(leaf.input, leaf.data.index) for leaf in leaves if leaf.data is not None and leaf.data.kind == "value"]


def maker_lines(program: AtenProgram, names: dict[str, Any], inputs: list[str]) -> list[str]:
    """Lines of the runtime wrapper that make the empty leaves; their names take their places among `inputs`."""
    lines: list[str] = []
    for leaf in program.leaves:
        spec = program.inputs[leaf.input]
        data = leaf.data
        name = inputs[leaf.input] = f"i{leaf.input}"
        if data is not None and data.kind == "alias_of_input" and data.view is not None and not data.view.chain:
            view = data.view
            base = f"{inputs[data.index]}.detach()"
            own = ".detach()" if data.detached else ""
            offset = f"{inputs[data.index]}.storage_offset()" + (f" + {view.offset}" if view.offset else "")
            lines.append(f"    {name} = as_strided({base}, {view.size}, {view.stride}, {offset}){own}.requires_grad_()")
            continue
        names["empty_leaf"] = empty_leaf
        names[f"dtype{spec.index}"], names[f"device{spec.index}"] = spec.spec.dtype, spec.spec.device
        size, stride = _dims(spec)
        lines.append(f"    {name} = empty_leaf({size}, {stride}, dtype{spec.index}, device{spec.index})")
    return lines


def _dims(spec: InputSpec) -> tuple[str, str]:
    def text(dims: tuple[int | Expr, ...]) -> str:
        return f"({' '.join(f'{n},' for n in dims)})"

    return text(spec.spec.size), text(spec.spec.stride)


def empty_leaf(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor that requires grad, whose data comes later."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device).requires_grad_()


def needs_data(data: OutputSpec | None) -> bool:
    """Whether the leaf gets its data after the graph ran."""
    return data is not None and (data.kind != "alias_of_input" or data.view is None or bool(data.view.chain))
