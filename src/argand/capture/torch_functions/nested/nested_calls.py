"""Functions of torch.nested whose Python looks at the process, at data, or at what only its own compiler has."""

from __future__ import annotations

import contextlib
import sys

import torch
from torch.fx.operator_schemas import normalize_function

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource
from argand.capture.torch_functions.nested import stand_ins
from argand.capture.torch_functions.torch_calls import Handler, enter_late, handler, instead
from argand.graph import nested_tensors as jagged
from argand.graph.nested_tensors import Jagged, is_jagged
from argand.graph.operators.jagged_ops import jagged_ops

_NESTED = "nested._internal.nested_tensor."
_OPS = "nested._internal.ops."


@handler(normalize_function)
def _normalized(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Arguments by name: their values are not looked at."""
    return state.interpreter.unread(fn, *args, **kwargs)


def _plain_context(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return state.interpreter.call(contextlib.nullcontext, ())


def _is_nested_int(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return is_a(args[0], torch.SymInt)


def _make(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`NestedTensor(values, offsets, ...)`, as the operations on nested tensors call it."""
    names = ("values", "offsets")
    given: Kwargs = {
        "lengths": None,
        "_ragged_idx": 1,
        "_metadata_cache": None,
        **dict(zip(names, args)),
        **kwargs,
    }
    if len(args) > 2 or len(given) > 5 or not all(is_a(given.get(name), torch.Tensor) for name in names):
        raise stand_ins.refused("NestedTensor", "it is called as torch's own functions do not call it")
    plain = state.interpreter.shadow
    cache: Jagged = plain(given["_metadata_cache"])
    with torch._C.DisableTorchFunction():
        return stand_ins.whole(
            state, given["values"], given["offsets"], given["lengths"], given["_ragged_idx"], cache or {}
        )


def _no_dummy(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The nested tensor that means nothing, by which torch finds the dispatch of operations on plain tensors."""
    return None


def _dispatched(name: str) -> Handler:
    """An operation that makes nested tensors of plain ones: what the dispatch of nested tensors does."""

    def call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        own = vars(sys.modules["torch.nested._internal.ops"])[f"{name}_default"]
        return state.interpreter.call(own, (getattr(torch.ops.aten, name).default, *args), kwargs)

    return call


def _to_copy(
    func: Function, inp: Jagged, dtype: object = None, layout: object = None, device: object = None, **rest: object
) -> Jagged:
    """Interpreted in place of torch's: offsets on the same device are the same offsets."""
    values = func(inp._values, dtype=dtype, device=device, **rest)
    cls: Jagged = jagged.jagged_class()
    return cls(
        values,
        inp._offsets,
        lengths=inp._lengths,
        _ragged_idx=inp._ragged_idx,
        _metadata_cache=inp._metadata_cache,
    )


def _is_contiguous(func: object, inp: Jagged, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """Interpreted in place of torch's, which asks for a number that may be symbolic."""
    if inp._lengths is not None:
        return False
    return memory_format is torch.preserve_format or inp._values.is_contiguous(memory_format=memory_format)


def _padded(
    values: torch.Tensor, offsets: list[torch.Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> torch.Tensor:
    """`aten._jagged_to_padded_dense_forward` as operations that have derivatives."""
    starts = offsets[0][:-1].unsqueeze(1)
    places = torch.arange(max_lengths[0], device=values.device).unsqueeze(0)
    inside = places < offsets[0].diff().unsqueeze(1)
    rows = torch.where(inside, starts + places, 0)
    if values.size(0) == 0:
        return values.new_full((starts.size(0), max_lengths[0], values.size(1)), padding_value)
    return torch.where(inside.unsqueeze(2), values[rows], padding_value)


def _unpadded(dense: torch.Tensor, offsets: list[torch.Tensor], total_L: int) -> torch.Tensor:
    """`aten._padded_dense_to_jagged_forward` as operations that have derivatives."""
    rows = torch.arange(total_L, device=dense.device)
    pieces = torch.searchsorted(offsets[0], rows, right=True) - 1
    places = rows - offsets[0][pieces]
    inside = places < dense.size(1)
    return torch.where(inside.unsqueeze(1), dense[pieces, torch.where(inside, places, 0)], 0)


def _attention(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Of queries, keys and values that are ragged in the dim of positions: one operation. All others are dense."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given: Kwargs = {"dropout_p": 0.0, "is_causal": False, "scale": None, **dict(zip(names, args)), **kwargs}
    whole: list[Jagged] = [given.get(name) for name in names[:3]]
    what = "scaled_dot_product_attention"
    if torch._C._is_any_autocast_enabled():
        raise stand_ins.refused(what, "what autocast does with nested tensors depends on the kernel")
    if not all(is_jagged(type(tensor)) for tensor in whole) or given.get("attn_mask") is not None:
        return NotImplemented  # torch raises
    query, key, value = whole
    if query._ragged_idx == 1 and all(len(tensor._size) > 3 for tensor in whole):
        return NotImplemented
    batch, heads, size = query._size[0], query._size[1], query._size[-1]
    like = all(len(each._size) == 4 and each._ragged_idx == 2 and each._lengths is None for each in whole)
    like = like and all((each._size[0], each._size[1]) == (batch, heads) for each in whole) and key._size[-1] == size
    if not like or key._size[2] != value._size[2] or given["dropout_p"] != 0 or type(given["is_causal"]) is not bool:
        raise stand_ins.refused(what, "of these sizes, or with dropout, it depends on the kernel that eager takes")
    jagged_ops()
    return state.interpreter.call(_attend, (query, key, value, given["is_causal"], given["scale"]))


def _attend(query: Jagged, key: Jagged, value: Jagged, is_causal: bool, scale: float | None) -> Jagged:
    from torch.nested._internal.sdpa import _validate_sdpa_input

    _validate_sdpa_input(query, key, value)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if query.is_cuda:
        shortest, longest = torch.zeros(query._get_min_seqlen(), 0), torch.zeros(query._get_max_seqlen(), 0)
    else:
        shortest, longest = query._min_seqlen_tensor, query._max_seqlen_tensor
        plain = query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
        if is_causal or not plain or not torch.backends.cuda.math_sdp_enabled():
            raise RuntimeError("No viable backend for scaled_dot_product_attention was found.")
    values = torch.ops.argand.jagged_attention(
        query._values, key._values, value._values, query._offsets, key._offsets, is_causal, scale
    )
    known = {}
    if shortest is not None:
        known["min_seqlen"] = shortest
    if longest is not None:
        known["max_seqlen"] = longest
    cls: Jagged = type(query)
    return cls(values, query._offsets, _metadata_cache=known).transpose(1, 2)


def _softmax(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Over the ragged dim eager's backward takes another dim of the values, whose gradient no operation here has."""
    inp: Jagged = args[1]
    recorded = torch.is_grad_enabled() and inp._values.requires_grad
    if recorded and args[2] % len(inp._size) == inp._ragged_idx:
        raise stand_ins.refused("softmax", "eager's gradient over the ragged dim is its own")
    return NotImplemented


def _refused(name: str, why: str) -> Handler:
    def refuse(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        raise stand_ins.refused(name, why)

    return refuse


def _known_length(name: str) -> Handler:
    def ask(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        """The length of the longest, or shortest, piece, of offsets that came in: found out before the graph runs."""
        tensor: Jagged = args[0]
        if tensor._metadata_cache.get(name) is not None:
            return NotImplemented
        ragged = tensor._offsets if tensor._lengths is None else tensor._lengths
        info = state.tensor_info(ragged)
        if tensor._lengths is not None or info.source is None or info.real is None or id(ragged) in state.graph.mutated:
            return NotImplemented
        find = jagged.LENGTHS[name]
        with torch._C.DisableTorchFunction():
            now = find(info.real)
        at = CallSource(info.source, find)
        if state.policy is not None and state.policy.automatic:
            state.policy.history.varying.add(f"{at.name()}: int")
        length = state.load_source(at, now)
        rows = state.interpreter.call(torch.zeros, (length, 0))
        tensor._metadata_cache[name] = rows
        if state.tensors[id(tensor)].source is not None:
            state.extra_effects.append((jagged.note_length, [tensor, name, rows], {}))
        return length

    return ask


def _native(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Looks at which operation it is, and at classes and dims of nested tensors."""
    with torch._C.DisableTorchFunction():
        return state.interpreter.unread(fn, *args, **kwargs)


for _name in ("_nested_view_from_jagged", "_nested_from_padded_tensor"):
    handler(getattr(torch, _name))(_dispatched(_name))
handler(torch.ops.aten._jagged_to_padded_dense_forward)(instead(_padded))
handler(torch.ops.aten._padded_dense_to_jagged_forward)(instead(_unpadded))
enter_late(
    {
        "fx.experimental.proxy_tensor.maybe_enable_thunkify": _plain_context,
        "fx.experimental.symbolic_shapes.is_nested_int": _is_nested_int,
        _NESTED + "NestedTensor": _make,
        _NESTED + "_nt_view_dummy": _no_dummy,
        _NESTED + "_get_max_seqlen": _known_length("max_seqlen"),
        _NESTED + "_get_min_seqlen": _known_length("min_seqlen"),
        _OPS + "to_copy_default": instead(_to_copy),
        _OPS + "sym_is_contiguous_general": instead(_is_contiguous),
        _OPS + "unbind_int": _refused("unbind", "how long the pieces are is known only when the program runs"),
        "nested._internal.sdpa.jagged_scaled_dot_product_attention": _attention,
        _OPS + "_softmax_default": _softmax,
        _OPS + "lookup_jagged": _native,
        _OPS + "check_schema": _native,
    }
)
