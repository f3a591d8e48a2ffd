"""Writes to inputs that do not keep a frame from starting again, should the graph raise.

The frame's own code runs from its beginning then, on inputs to which the graph may have written already (rerun.py).
That computes what eager does where the graph writes over elements that nothing has read before, as a cache is filled:
the same is written again. A small input (a counter) is copied before the graph runs, and put back. Of others argand's
own backends say, when they raise, that they have not written yet (or have put back what they had written,
`graph.nodes.undone_writes`); for other backends these are copied too.
"""

from __future__ import annotations

import torch

from argand.capture.facts.handlers import Args, Function
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata.meta_tensors import needs_grad
from argand.graph.compat import storage_address

_SMALL = 64
"""As many elements are copied in less time than a graph is called."""
_MOST = 128
_OVERWRITES = frozenset(words("copy_ fill_ zero_ index_copy_ index_fill_ __setitem__"))


def repeatable(builder: GraphBuilder, info: TensorInfo, func: Function | None, args: Args) -> bool:
    """Whether a write that is about to be recorded leaves inputs as they have to be for the frame to start again."""
    if builder.on_data.known is None or builder.graph is not builder.root:
        return False
    on_data = builder.on_data
    with torch._C.DisableTorchFunction():
        memory = storage_address(info.tensor)
        owners = builder.memories.inputs.get(memory)
        if not owners or not all(other.node.op == "placeholder" and _is_plain(other.real) for other in owners):
            return False
    small = all(map(_is_small, owners)) and len(on_data.saved) < _MOST
    overwrites = func is not None and getattr(func, "__name__", "") in _OVERWRITES and args and args[0] is info.tensor
    with torch._C.DisableTorchFunction():
        fills = overwrites and not small and builder.memories.is_alone(owners[0])
        fills = fills and not _is_read(builder, owners, memory)
    if fills:
        on_data.overwriting = info.node
        return True
    if needs_grad(info.tensor, *args):
        return False  # what autograd knows of it is not put back
    for owner in owners:
        if owner not in on_data.saved and owner not in on_data.undone:
            (on_data.saved if small else on_data.undone)[owner] = None
    return True


def _is_read(builder: GraphBuilder, owners: list[TensorInfo], memory: int) -> bool:
    """Whether what lies in this memory, which is theirs, was read: the second time that is something else."""
    nodes = {node: None for owner in owners for node in (owner.node, builder.tensors[id(owner.tensor)].node)}
    views = list(nodes)
    for node in views:  # and views of it, as they come
        for user in node.users:
            info = builder.tensors.get(id(user.meta.get("example_value")))
            is_view = info is not None and info.node is user and storage_address(info.tensor) == memory
            if is_view and user not in nodes:
                nodes[user] = None
                views.append(user)
            elif not is_view and user not in builder.on_data.overwrites:
                return True
    return False


def noted(builder: GraphBuilder, written: torch.fx.Node) -> None:
    """The node of a write was recorded."""
    on_data = builder.on_data
    if on_data.overwriting is not None and on_data.overwriting in written.all_input_nodes:
        on_data.overwrites.add(written)
    on_data.overwriting = None


def _is_plain(real: torch.Tensor | None) -> bool:
    """Whether what a tensor holds can be copied, and put back, past what its class does."""
    untouched = torch._C._disabled_torch_dispatch_impl
    return real is not None and type(real).__torch_dispatch__ is untouched and real.layout is torch.strided


def _is_small(owner: TensorInfo) -> bool:
    with torch._C.DisableTorchFunction():
        return owner.dynamic is None and owner.real is not None and owner.real.numel() <= _SMALL
