"""Stand-ins of nested tensors: each is a nested tensor over stand-ins of its values and offsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argand import errors
from argand._core import _C
from argand.capture.facts.classify import is_plain_tensor
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import AttrSource, CallSource, Source
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.sizes import dtensor_vetting, symbolic_policy
from argand.graph import nested_tensors as jagged
from argand.graph.nested_tensors import Jagged


def refused(what: str, why: str) -> errors.GraphBreak:
    """The break for what is not done with nested tensors in a graph."""
    return dtensor_vetting.refused(what, why, "Use the values and offsets of the nested tensor")


# ---------------------------------------------------------------------- inputs


def new_input(state: CaptureState, source: Source, real: Jagged) -> torch.Tensor:
    """The stand-in of a nested tensor that existed before the frame."""
    with torch._C.DisableTorchFunction():
        why = _why_not(state, real)
        if why:
            raise refused(f"{source.friendly()}: NestedTensor", why)
        state.interpreter.note_class(type(real))
        state.guards.add(None, "global_state", ((torch._C._is_torch_function_enabled, True),), label="GLOBAL_STATE")
        state.guards.add(source, "type", type(real))
        state.guards.add(CallSource(source, jagged.traits), "equals", jagged.traits(real), shown=False)
        part = jagged.values_of(real)
        plain = part is real._values
        at: Source = AttrSource(source, "_values") if plain else CallSource(source, jagged.values_of)
        values = _part(state, at, part, real._ragged_idx - 1)
        cache: dict[str, object] = {}
        for name, known in real._metadata_cache.items():
            if name in jagged.LENGTHS:
                cache[name] = _part(state, AttrSource(source, f"_{name}_tensor"), known, 0)
    offsets = state.load_source(AttrSource(source, "_offsets"), real._offsets)
    lengths = None if real._lengths is None else state.load_source(AttrSource(source, "_lengths"), real._lengths)
    with torch._C.DisableTorchFunction(), torch.inference_mode(real.is_inference()):
        stand_in = whole(state, values, offsets, lengths, real._ragged_idx, cache)
    info = state.tensors[id(stand_in)]
    info.source, info.real = source, real
    state.graph.ragged.append((source, real))
    return stand_in


def _why_not(state: CaptureState, real: Jagged) -> str:
    """Why a nested tensor from outside cannot be in a graph; "" where it can."""
    parts = [real._values, real._offsets, real._lengths, *real._metadata_cache.values()]
    for part in parts:
        if part is not None and (type(part) not in (torch.Tensor, torch.nn.Parameter) or not is_plain_tensor(part)):
            return f"one of its parts is a {type(part).__name__} that graphs do not hold"
    if not state.overriding:
        return "torch functions of classes are switched off"
    if real.is_inference() != real._values.is_inference():
        return "it, or what it is made of, comes from inference mode"
    return ""


def _part(state: CaptureState, at: Source, part: torch.Tensor, varying: int) -> torch.Tensor:
    """The stand-in of a part, whose size in a dim varies from the first call on."""
    known = state.inputs_by_real.get(id(part))
    if known is not None:
        return state.load_source(at, part)
    stand_in = state.graph.new_input(at, part)
    state.inputs_by_real[id(part)] = stand_in
    state.keep(part)
    opened: tuple[Sequence[int], Sequence[int]] = ((), ())
    if state.policy is not None:
        dims = state.policy.dims(at, part)
        if not state.policy.history.exact and state.policy.automatic and part.shape[varying] > 1:
            dims.setdefault(varying, None)
        if dims:
            opened = symbolic_policy.tensor_input(state, at, part, dims)
    state.guards.add(at, "tensor", *_C.tensor_guard_args(part, *opened))
    return stand_in


# ---------------------------------------------------------------------- making them


def whole(
    state: CaptureState,
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    ragged: int,
    cache: dict[str, object],
) -> torch.Tensor:
    """The stand-in of the nested tensor with these parts, which are stand-ins."""
    builder = state.graph
    info = state.tensor_info(values)
    others = [offsets] if lengths is None else [offsets, lengths]
    if any(state.tensor_info(part).device != info.device for part in others):
        raise refused("NestedTensor", "its values and offsets are on different devices")
    _settle_sizes(state, values, ragged)
    for part in others:
        _settle_sizes(state, part, 0)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        stand_in: Jagged = jagged.jagged_class()(values, offsets, lengths=lengths, _ragged_idx=ragged)
    stand_in._metadata_cache = cache or {}
    for tensor in (stand_in, values):
        tensor.__dict__.pop("_dynamo_propagated_dynamic_indices", None)  # torch 2.13 sets it
    if not builder.nested:
        builder.nested = True
        state.interpreter.look_into_sizes()
    node = builder.root.call_function(jagged.nested)  # which no operation may have: a graph holds the parts
    builder.register(stand_in, node, info.device)
    for part in others[-1:]:
        builder.ragged_sizes[stand_in._size[ragged].node.nested_int()] = part
        origin = builder.tensors[id(part)]
        if origin.source is not None and origin.real is not None:
            builder.ragged.append((origin.source, origin.real))
    return stand_in


def _settle_sizes(state: CaptureState, part: torch.Tensor, ragged: int) -> None:
    """Sizes besides that in the ragged dim of the values are constants: they are part of the nested tensor's shape."""
    info = state.tensor_info(part)
    if info.dynamic is None:
        return
    shape = state.interpreter.getattr(part, "shape")
    for dim, size in enumerate(shape):
        if type(size) in SYMBOLIC and (dim != ragged - 1):
            size.number()


def guard_raggedness(state: CaptureState) -> None:
    """One guard on which inputs have the same ragged size; called at the end of a capture."""
    inputs = dict(state.graph.ragged)
    if len(inputs) > 1:
        check = jagged.SameRaggedness(jagged.alike(*inputs.values()))
        state.guards.add(None, "python", check, [*inputs], label="TENSOR_SUBCLASS_MATCH", shown=False)


def parts(tensor: Jagged) -> list[torch.Tensor | None]:
    """The stand-ins that transformed code makes a nested tensor of, but for its ragged dim."""
    cache = tensor._metadata_cache
    return [tensor._values, tensor._offsets, tensor._lengths, cache.get("min_seqlen"), cache.get("max_seqlen")]
