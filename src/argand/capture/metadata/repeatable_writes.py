"""Writes to inputs that do not keep a frame from starting again, should the graph raise.

The frame's own code runs from its beginning then, on inputs to which the graph may have written already (rerun.py).
That computes what eager does where the graph writes over elements that nothing has read before, as a cache is filled:
the same is written again. And a small input (a counter) is copied before the graph runs, and put back.
"""

from __future__ import annotations

import torch

from argand.capture.facts.handlers import Args, Function
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.graph.compat import storage_address

_SMALL = 64
"""As many elements are copied in less time than a graph is called."""
_MOST = 128
_OVERWRITES = frozenset(words("copy_ fill_ zero_ index_copy_ index_fill_ __setitem__"))


def repeatable(builder: GraphBuilder, info: TensorInfo, func: Function | None, args: Args) -> bool:
    """Whether a write that is about to be recorded leaves inputs as they have to be for the frame to start again."""
    if builder.on_data.known is None or builder.graph is not builder.root:
        return False
    if len(builder.on_data.saved) + len(builder.on_data.overwrites) >= _MOST:
        return False
    with torch._C.DisableTorchFunction():
        memory = storage_address(info.tensor)
        sharing = [other for other in builder.tensors.values() if storage_address(other.tensor) == memory]
        owner = next((other for other in sharing if other.source is not None), None)
        if owner is None or owner.node.op != "placeholder" or not _alone(builder, owner):
            return False
    if any(kept is owner for kept in builder.on_data.saved):
        return True
    if _is_small(owner):
        builder.on_data.saved.append(owner)
        return True
    overwrites = builder.on_data.overwrites
    if getattr(func, "__name__", "") not in _OVERWRITES or not args or args[0] is not info.tensor:
        return False
    nodes = {other.node for other in sharing}
    if not all(user in nodes or user in overwrites for node in nodes for user in node.users):
        return False  # what it held was read: the second time that is something else
    builder.on_data.overwriting = info.node
    return True


def noted(builder: GraphBuilder, written: torch.fx.Node) -> None:
    """The node of a write was recorded."""
    on_data = builder.on_data
    if on_data.overwriting is not None and on_data.overwriting in written.all_input_nodes:
        on_data.overwrites.add(written)
    on_data.overwriting = None


def _alone(builder: GraphBuilder, owner: TensorInfo) -> bool:
    """Whether no other input is known to lie in an input's memory."""
    real = owner.real
    if real is None or type(real) not in (torch.Tensor, torch.nn.Parameter) or real.layout is not torch.strided:
        return False
    memory = storage_address(real)
    reals = [other.real for other in builder.inputs if other is not owner and isinstance(other.real, torch.Tensor)]
    return not any(other.layout is not torch.strided or storage_address(other) == memory for other in reals)


def _is_small(owner: TensorInfo) -> bool:
    return owner.dynamic is None and owner.real is not None and owner.real.numel() <= _SMALL
