"""`tensor.data = other` in captured code: from then on the tensor is the other's memory, in the graph and outside."""

from __future__ import annotations

import torch
from torch import fx

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.values.tensor_info import Moved, TensorInfo
from argand.capture.metadata.special_calls import special
from argand.capture.record import constants
from argand.graph import compat

_T = torch.Tensor
PLAIN = (_T, torch.nn.Parameter)


def _refused(sequence: int | None = None, why: str = "") -> errors.GraphBreak:
    why = why or "The graph sets the data of leaves to tensors like them, where no gradient of the graph reads them."
    stop = errors.graph_break(kind="tensor attribute assignment", context="data", explanation=why)
    stop.sequence = sequence
    return stop


@special(_T.data.__set__)
def _set_data(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> None:
    """`module.to(dtype)` that changes nothing sets the data of each parameter to that parameter."""
    tensor, value = args
    if tensor is value:
        return
    info, other = builder.state.tensor_info(tensor), builder.state.tensor_info(value)
    with torch._C.DisableTorchFunction():
        plain = type(tensor) in PLAIN and type(value) in PLAIN and tensor.is_leaf
        like, its = [(t.shape, t.stride(), t.dtype, t.is_inference(), t.is_conj(), t.is_neg()) for t in (tensor, value)]
        places = {(compat.storage_address(t), t.storage_offset()) for t in (tensor, value)}
    fixed = info.dynamic is None and other.dynamic is None and info.device == other.device
    if fixed and like == its and len(places) == 1 and type(tensor) in PLAIN and type(value) in PLAIN:
        return  # `w.data = w.data.to(device)`
    outside = info.source is not None and info.real is not None
    whole = builder.graph is builder.root and not builder.sharded and id(tensor) not in builder.flags
    if not (plain and like == its and fixed and outside and whole):
        stop = _refused()
        # What the graph has saved of a result for its backward is not the result itself, as with eager's autograd.
        stop.skip_frame = not outside and not tensor.is_leaf
        raise stop
    data = builder.record(_T.data.__get__, (value,), {})
    with torch._C.DisableTorchFunction():
        before = compat.storage_address(tensor)
        tensor.data = value
        memory = compat.storage_address(tensor)
    builder.memories.move(tensor, before, memory)
    constants.forget(builder, info)
    node = builder.tensors[id(data)].node
    now = TensorInfo(tensor, node, info.device, info.source, info.real)
    builder.mutated[id(tensor)] = builder.tensors[id(tensor)] = now
    builder.moved.append(Moved(now, info, memory, builder.state.interpreter.number))
    builder.state.write_overlay(tensor, "data", value)


def _is_counted(builder: GraphBuilder, moved: Moved) -> bool:
    """Whether the version of the tensor is another one anyway: it was written to before."""
    return any(moved.before.node in builder.writing.get(user, ()) for user in moved.before.node.users)


def _recorded(builder: GraphBuilder, moved: Moved) -> dict[fx.Node, None]:
    """What was computed from the tensor as it was and has a history. A `backward()` since then has used that up; one
    that is still to come would compute, in eager, with what the tensor is by then."""
    users = [user for user in moved.before.node.users if user < moved.info.node]
    recorded = {user: None for user in users if _records(builder, moved.info.tensor, user)}
    for node in builder.graph.nodes if recorded else ():
        result = node.meta.get("example_value")
        history = not isinstance(result, _T) or (result.requires_grad and not result.is_leaf)
        if history and node < moved.info.node and any(each in recorded for each in node.all_input_nodes):
            recorded[node] = None
    return recorded


def _is_differentiated(builder: GraphBuilder, moved: Moved) -> bool:
    """Whether what was recorded is used since, with gradients."""
    later = {user for node in _recorded(builder, moved) for user in node.users if moved.info.node < user}
    return any(not isinstance(v := user.meta.get("example_value"), _T) or v.requires_grad for user in later)


def _has_history(builder: GraphBuilder, info: TensorInfo) -> bool:
    """Whether an operation with gradients reads the tensor: one of the tensor's own, or it may have saved it."""
    own = info.tensor.requires_grad
    users = [user for user in info.node.users if own or getattr(user.target, "__name__", user.target) not in _ADDITIVE]
    return any(_records(builder, info.tensor, user) for user in users)


_ADDITIVE = frozenset(("add", "sub", "rsub", "iadd", "isub", "neg", "cat", "stack"))  # of which autograd saves nothing


def _records(builder: GraphBuilder, tensor: torch.Tensor, user: fx.Node) -> bool:
    result = user.meta.get("example_value")
    if isinstance(result, _T):
        return result is not tensor and result.requires_grad
    written = [node.meta.get("example_value") for node in builder.writing.get(user, ()) if isinstance(node, fx.Node)]
    # Only where no gradients are recorded may a leaf be written to that has some.
    return not written or not all(isinstance(each, _T) and (each.is_leaf or not each.requires_grad) for each in written)


def check_end(state: CaptureState) -> None:
    """Where the graph ends.

    Raises:
        GraphBreak: a tensor whose data was set has been written to since, which would raise the version of another, or
            gradients are recorded that in eager are computed from what the tensor is by then: the graph ends before.
    """
    builder = state.graph
    for moved in builder.moved:
        info = moved.info
        recorded = _has_history(builder, info)
        written = any(user in builder.writing for user in info.node.users)
        if recorded or (written and not _is_counted(builder, moved)) or _is_differentiated(builder, moved):
            raise _refused(moved.sequence)


def check_leaving(builder: GraphBuilder, info: TensorInfo, memory: int) -> None:
    """Where the graph returns a tensor, which has this memory.

    Raises:
        GraphBreak: it is a view of new data: eager counts the writes to that tensor apart from those to the tensor that
            it has its memory of. Or its history is one of a tensor whose data was set.
    """
    for moved in builder.moved:
        if moved.memory == memory and moved.info.node < info.node:  # else it is the data itself
            raise _refused(moved.sequence, "Memory that was set as the data of a tensor is returned by a view.")
        if info.tensor.requires_grad and info.node in _recorded(builder, moved):
            raise _refused(moved.sequence)
