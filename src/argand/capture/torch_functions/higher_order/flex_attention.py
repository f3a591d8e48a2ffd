"""`torch.nn.attention.flex_attention`: one node whose score and mask functions are subgraphs.

torch's own Python code is interpreted, with its checks and messages, down to its operator.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.symbolic import SymbolicNumber
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.metadata import meta_tensors
from argand.capture.record.scopes import fixed_sizes, placeholder
from argand.capture.sizes import symbolic_ops, symbolic_tensors
from argand.capture.torch_functions import torch_polyfills
from argand.capture.torch_functions.higher_order import subgraphs
from argand.capture.torch_functions.torch_calls import enter_late
from argand.config import config
from argand.graph.operators import flex

_WHAT = "flex_attention"
_FILE = os.path.join("torch", "nn", "attention", "flex_attention.py")
_NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")


def _refused(explanation: str, hint: str) -> errors.GraphBreak:
    return errors.graph_break(kind=_WHAT, context=_WHAT, explanation=explanation, hints=(hint,))


def _attention(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch's operator, which `flex_attention` calls where it is compiled."""
    given = {**dict(zip(_NAMES, args)), **kwargs}
    if len(args) > len(_NAMES) or set(given) != set(_NAMES):
        raise _refused("It is called with arguments that are not known.", "Call torch's flex_attention.")
    *fields, mask_mod = state.deep_resolve(given["block_mask"])
    own = subgraphs.flatten(state, [*[given[name] for name in _NAMES[:3]], *fields], _WHAT, numbers=True)
    inputs = [state.tensor_info(tensor) for tensor in own.tensors]
    query = inputs[0]
    kind = query.device.type
    fixed = kind != "cpu" or config.triton.on_cpu  # kernels are written for the sizes of the call at hand
    if fixed:
        for info in inputs:
            fixed_sizes(state.graph, info)
    for i, leaf in enumerate(own.leaves):
        if isinstance(leaf, SymbolicNumber):
            own.leaves[i] = leaf.number() if fixed else leaf.hint  # only kernels ask
    if torch.is_autocast_enabled(kind):
        to = torch.get_autocast_dtype(kind)
        if any(each.tensor.dtype is not to for each in inputs[:3]):
            raise _refused(f"Autocast is on, and its tensors are not {to}.", "Convert them before the call.")
    grad = torch.is_grad_enabled() and any(each.tensor.requires_grad for each in inputs[:3])
    scored, new_score = _mod(state, given["score_mod"], query, grad, "score_mod")
    masked, seen = _mod(state, mask_mod, query, None, "mask_mod")
    for info in (*scored.order, *masked.order) if fixed else ():
        _fix(state, info)
    _check(query, inputs, own.leaves, scored, masked, seen)
    bodies = [("score_mod", subgraphs.close(state.graph, scored, [new_score])),
              ("mask_mod", subgraphs.close(state.graph, masked, [seen]))]  # fmt: skip
    flat = list(inputs)
    positions = [[_position(flat, each) for each in scope.order] for scope in (scored, masked)]
    bodies[0][1].meta["call"] = flex.FlexCall(
        tuple([flex.At(leaf.index) if hasattr(leaf, "index") else leaf for leaf in own.leaves[3:]]),
        float(symbolic_ops.plain(given["scale"])),
        bool(state.deep_resolve(given["kernel_options"]).get("OUTPUT_MAX", False)),
        tuple(positions[0]),
        tuple(positions[1]),
    )
    queries, values = (symbolic_tensors.at_probes(state.graph, inputs[i].tensor) for i in (0, 2))
    now, *at_probes = [_results(*pair, grad=_records(inputs, scored)) for pair in zip(queries, values)]
    shown = [(tensor, query.device) for tensor in now]
    results = subgraphs.record(state.graph, flex.flex_attention, bodies, flat, shown)
    if state.graph.dynamics is not None:
        with torch._C.DisableTorchFunction():
            for result, siblings in zip(results, zip(*at_probes)):
                symbolic_tensors.note(state.graph, result, siblings)
    return tuple(results)


def _fix(state: CaptureState, info: TensorInfo) -> None:
    """Make constants of a tensor's sizes, or of a number."""
    if isinstance(info.tensor, torch.Tensor):
        fixed_sizes(state.graph, info)
    elif state.graph.dynamics is not None:
        symbolic_tensors.give_up(state.graph, state.graph.dynamics.table.inputs(info.node.meta["expr"]))


def _position(flat: list[TensorInfo], info: TensorInfo) -> int:
    """Where a tensor is among those of the node, added if it is none of them."""
    at = next((i for i, other in enumerate(flat) if other is info), len(flat))
    if at == len(flat):
        flat.append(info)
    return at


def _mod(
    state: CaptureState, function: Function, query: TensorInfo, score_grad: bool | None, name: str
) -> tuple[Scope, torch.Tensor]:
    """A function of one score, captured with scalars.

    Arguments:
        score_grad: whether the score requires grad; None for a function that takes no score.

    Raises:
        GraphBreak: it does what a graph of one score cannot do.
    """
    what = f"{_WHAT}: {name}"
    device = query.device
    with subgraphs.scope(state, what) as scope:
        given = []
        if score_grad is not None:
            given.append(_scalar(state, scope, "score", query.tensor.dtype, device, score_grad))
        for place in ("batch", "head", "query_index", "key_index"):
            given.append(_scalar(state, scope, place, torch.int64, device, False))
        result = state.interpreter.call(torch_polyfills.flex_mod, (function, *given), {})
        flat = subgraphs.flatten(state, result, what)
    if len(flat.leaves) != 1 or len(flat.tensors) != 1 or flat.tensors[0].dim() or result is not flat.tensors[0]:
        raise _refused(f"Its {name} does not return one scalar tensor.", "Return one from it.")
    if subgraphs.has_effects(state.graph, scope):
        raise _refused(f"Its {name} draws random numbers.", "Draw them before the call and look them up.")
    return scope, flat.tensors[0]


def _scalar(
    state: CaptureState, scope: Scope, name: str, dtype: torch.dtype, device: torch.device, grad: bool
) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        scalar = torch.empty((), dtype=dtype, device="meta", requires_grad=grad)
    return state.graph.register(scalar, placeholder(scope.graph, name), device)


def _check(
    query: TensorInfo, inputs: list[TensorInfo], leaves: list[object], scored: Scope, masked: Scope, seen: torch.Tensor
) -> None:
    """Refuse what torch refuses when the operator runs."""
    if _needs_grad(masked.order):
        raise _refused("Its mask_mod reads a tensor that requires grad.", "Detach the tensor.")
    if seen.dtype is not torch.bool:
        raise _refused("Its mask_mod does not return a bool.", "Return a comparison.")
    if any(info.device != query.device for info in _tensors(*inputs, *scored.order, *masked.order)):
        raise _refused("Its tensors are on several devices.", "Move them to one device.")
    if not leaves[3:] or query.tensor.numel() == 0 or inputs[1].tensor.numel() == 0:
        raise _refused("A tensor is empty.", "Call it with elements.")
    without_queries = len(leaves) > 10 and leaves[10] is None  # q_indices, which its backward asks for
    if without_queries and _records(inputs, scored):
        raise _refused("Its block mask has no q_indices.", "Make it with compute_q_blocks=True.")


def _tensors(*infos: TensorInfo) -> list[TensorInfo]:
    """Those that are no numbers."""
    return [info for info in infos if isinstance(info.tensor, torch.Tensor)]


def _needs_grad(infos: Sequence[TensorInfo]) -> bool:
    return any(info.tensor.requires_grad for info in _tensors(*infos))


def _records(inputs: list[TensorInfo], scored: Scope) -> bool:
    return torch.is_grad_enabled() and _needs_grad((*inputs[:3], *scored.order))


def _results(query: torch.Tensor, value: torch.Tensor, grad: bool) -> list[torch.Tensor]:
    """Stand-ins of the result, the logarithms of the rows' sums, and their greatest scores."""
    with torch._C.DisableTorchFunction():
        rows = tuple(query.shape[:3])
        size = (*rows, value.shape[-1])
        work = flex.working_dtype(query)
        result = meta_tensors.new(size, flex.strides_like(size, query.stride()), query.dtype, grad)
        return [result, *[meta_tensors.new(rows, None, work, needs) for needs in (grad, False)]]


def _in_torchs_function(state: CaptureState) -> bool:
    """Whether the code that calls is that of torch's module."""
    frames = state.interpreter.frames
    return bool(frames) and frames[-1].code.co_filename.endswith(_FILE)


def _mark_static(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A note to torch's own compiler: in torch's function it is nothing to a program."""
    return None if _in_torchs_function(state) else NotImplemented


def _annotate(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Another one, around the code that makes block masks."""
    if not _in_torchs_function(state):
        return NotImplemented
    return state.interpreter.call(torch_polyfills.nothing, (), {})


def _mask_of_everything(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The block mask where the program gives none."""
    from torch.nn.attention.flex_attention import BlockMask

    if kwargs or len(args) != 2 or not isinstance(args[0], torch.Tensor):
        return NotImplemented
    device = state.tensor_info(args[0]).device
    return state.interpreter.call(torch_polyfills.flex_mask_of_everything, (BlockMask, device), {})


enter_late({
    "nn.attention.flex_attention._create_empty_block_mask": _mask_of_everything,
    "_higher_order_ops.flex_attention.FlexAttentionHOP": _attention,
    "_dynamo.decorators.mark_static": _mark_static,
    "fx.traceback.annotate": _annotate,
})  # fmt: skip
