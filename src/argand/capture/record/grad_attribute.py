"""`tensor.grad`: read under guards, written when the graph ends."""

from __future__ import annotations

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.overlays import UNSET
from argand.capture.facts.sources import AttrSource
from argand.capture.metadata.special_calls import getter, special
from argand.graph.dtensors import is_sharded

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@special(getter("grad"))
def _read(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    state, tensor = builder.state, args[0]
    info = state.tensor_info(tensor)
    if info.source is None or info.real is None:
        return builder.gradients.get(id(tensor))
    written = state.read_overlay(tensor, "grad")
    if written is not UNSET:
        return written
    return state.load_source(AttrSource(info.source, "grad"), info.real.grad)


@special(torch.Tensor.grad.__set__)
def _write(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> None:
    state, (tensor, value) = builder.state, args
    info = state.tensor_info(tensor)
    if not _is_known(tensor) or (value is not None and not _is_known(value)):
        raise _refused("Neither it nor the tensor may be of a subclass.")
    if builder.graph is not builder.root:
        raise _refused("It is set in a function that became a graph of its own.")
    if value is not None:
        other = state.tensor_info(value)
        if info.device != other.device or _sizes(info.dynamic) != _sizes(other.dynamic):
            raise _refused("That the gradient fits the tensor is not known for all calls.")
        try:
            tensor.grad = value  # torch says what it refuses
        finally:
            tensor.grad = None
    if info.source is None or info.real is None:
        builder.gradients[id(tensor)] = value
    else:
        state.write_overlay(tensor, "grad", value)


def _is_known(tensor: torch.Tensor) -> bool:
    return type(tensor) in _PLAIN or is_sharded(type(tensor))


def _sizes(dynamic: object) -> object:
    return getattr(dynamic, "sizes", None)


def _refused(explanation: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="tensor attribute assignment",
        context="grad",
        explanation=f"Setting tensor.grad is not captured here. {explanation}",
    )
