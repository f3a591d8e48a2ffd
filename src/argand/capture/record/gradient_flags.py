"""`x.requires_grad_()` and `requires_grad_(False)` of a tensor from outside: from then on the graph has another node
for it, a leaf of its own or the tensor without its history, and the tensor itself is told when the graph ends.

With the flag that it came with it is the tensor's own node again. What leaves the graph with a history may not come
from a leaf of the graph's: in eager it comes from the tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import fx

from argand import errors
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import metadata
from argand.capture.record.data_attribute import PLAIN
from argand.graph import histories

_T = torch.Tensor


def refused(explanation: str = "", skip_frame: bool = False) -> errors.GraphBreak:
    """The break for what autograd would know of a tensor that is not the graph's."""
    return errors.graph_break(
        kind="autograd state of an input changed",
        context="requires_grad_",
        explanation=explanation,
        skip_frame=skip_frame,
    )


def _refused_there(builder: GraphBuilder) -> errors.GraphBreak:
    """The same of the instruction at hand, for when it turns out later that it has to be outside of the graph."""
    stop = refused("To autograd, what is returned may come from the tensor, or another one changes with it.")
    stop.sequence = builder.state.interpreter.number
    stop.reason.where = builder.state.user_stack()
    return stop


def set_flag(builder: GraphBuilder, info: TensorInfo, wanted: bool) -> torch.Tensor:
    """The tensor requires gradients from here on, or does not any more; it is a leaf."""
    tensor, real = info.tensor, info.real
    plain = type(tensor) in PLAIN and (tensor.is_floating_point() or tensor.is_complex())
    whole = builder.graph is builder.root and not builder.sharded
    if real is None or not (plain and whole) or real.is_inference():
        raise refused()
    if id(tensor) not in builder.flags and is_replaced(builder, tensor):
        raise refused("Its data was set, too.")
    flags = builder.flags.get(id(tensor), {not wanted: (info, None)})
    if wanted not in flags:
        flags[wanted] = _other(builder, info, wanted), _refused_there(builder)
    builder.flags[id(tensor)] = flags
    builder.tensors[id(tensor)] = flags[wanted][0]
    with torch._C.DisableTorchFunction():
        tensor.requires_grad_(wanted)
        changed = wanted is not real.requires_grad
    builder.state.write_overlay(tensor, "requires_grad", wanted)
    if not changed:
        del builder.state.overlay_names(tensor)["requires_grad"]
    return tensor


def is_replaced(builder: GraphBuilder, tensor: torch.Tensor) -> bool:
    """Whether in the graph another tensor stands for it, over its memory or over what was set as its data."""
    return id(tensor) in builder.flags or any(moved.info.tensor is tensor for moved in builder.moved)


def _other(builder: GraphBuilder, info: TensorInfo, wanted: bool) -> TensorInfo:
    """What the tensor is with the other flag: over the same memory."""
    tensor = info.tensor
    with torch._C.DisableTorchFunction():
        info.node.meta["example_value"] = metadata.stand_in(tensor)
    other = builder.record(_T.detach, (tensor,), {})
    if wanted:
        builder.record(_T.requires_grad_, (other,), {})
    leaf = builder.tensors.pop(id(other))
    return TensorInfo(tensor, leaf.node, info.device, info.source, info.real, dynamic=leaf.dynamic)


def finish(builder: GraphBuilder, outputs: Iterable[object]) -> None:
    """Where the graph returns these.

    Raises:
        GraphBreak: one may have a history that in eager leads to the tensor itself, or this has one: the graph ends
            before.
    """
    if builder.flags:
        _require_apart(builder)
    tensors = [value for value in outputs if isinstance(value, _T)] if builder.flags else []
    with torch._C.DisableTorchFunction():
        recorded = [builder.tensors[id(tensor)].node for tensor in tensors if tensor.requires_grad]
    for flags in builder.flags.values():
        for flag, (info, stop) in flags.items():
            if stop is not None and not info.tensor.is_leaf:  # a write has given it a history
                raise stop
            if not flag or stop is None:
                continue
            users = [user for user in info.node.users if user.target != "requires_grad_"]
            if not users:
                _drop(builder, info.node)
            elif _leads_there(builder, info.node, recorded):
                raise stop


def _require_apart(builder: GraphBuilder) -> None:
    """Guard that no other input is one of these tensors, or a view of one, which to autograd changes too."""
    inputs = [info for info in builder.inputs if info.source is not None and isinstance(info.real, _T)]
    set_here = [info for info in inputs if id(info.tensor) in builder.flags]
    others = [info for info in inputs if type(info.real) is not torch.nn.Parameter and info not in set_here]
    checked = set_here + others
    if not are_apart(len(set_here), *[info.real for info in checked]):
        raise next(stop for flags in builder.flags.values() for _, stop in flags.values() if stop is not None)
    sources = [info.source for info in checked if info.source is not None]
    if len(sources) > 1:
        check = functools.partial(are_apart, len(set_here))
        builder.state.guards.add(None, "python", check, sources, label="NO_ALIASING", shown=False)


def are_apart(count: int, *tensors: torch.Tensor) -> bool:
    """Whether none of these but the first few is one of them, or a view of one."""
    first = {id(tensor) for tensor in tensors[:count]}
    rest = tensors[count:]
    return len(first) == count and not any(id(tensor) in first or id(tensor._base) in first for tensor in rest)


def _drop(builder: GraphBuilder, leaf: fx.Node) -> None:
    """Nothing was computed from the leaf."""
    builder.kept.difference_update(leaf.users)
    for user in leaf.users:
        builder.writing.pop(user, None)


def _leads_there(builder: GraphBuilder, leaf: fx.Node, recorded: list[fx.Node]) -> bool:
    """Whether one of these, or what is written to, may have been computed from the leaf with gradients."""
    if any(leaf in histories.behind(node) for node in recorded):
        return True
    written = [node for node, into in builder.writing.items() if leaf in histories.behind(node) and leaf not in into]
    return bool(written) and (
        bool(recorded) or any(_requires_grad(into) for node in written for into in builder.writing[node])
    )


def _requires_grad(node: object) -> bool:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(value, _T) and value.requires_grad
