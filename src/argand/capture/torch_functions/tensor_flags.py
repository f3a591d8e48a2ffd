"""Flags and rarely used state of tensors that stand-ins do not carry: read from the input itself, under guards."""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.sources import AttrSource
from argand.capture.metadata import metadata, refused_writes
from argand.capture.metadata.special_calls import getter, named, special

_BITS = ("is_conj", "is_neg", "is_inference")


@special(*named(torch.Tensor, *_BITS), *named(torch, *_BITS))
def _view_bit(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Stand-ins are made without these bits: an input's are the real tensor's, which its guard compares."""
    return _bit(builder, func, args[0], func.__name__)


def _bit(builder: GraphBuilder, is_set: Function, tensor: torch.Tensor, asked: str) -> bool:
    """Whether a tensor has a bit that `is_set` reads, for a call of `asked`."""
    info = builder.state.tensor_info(tensor)
    with torch._C.DisableTorchFunction():
        if info.source is not None and info.real is not None:
            return bool(is_set(info.real))
        if any(known.real is not None and is_set(known.real) for known in builder.tensors.values()):
            raise errors.graph_break(kind="tensor flag of a result", context=asked)
        if asked == "is_inference":
            return refused_writes.of_inference_mode(builder.tensors, tensor)
        return bool(is_set(tensor))


_RESOLVED = {"resolve_conj": torch.is_conj, "resolve_neg": torch.is_neg}


@special(*named(torch.Tensor, *_RESOLVED), *named(torch, *_RESOLVED))
def _resolve(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """A tensor without the bit is itself; one with it becomes another tensor, as a copy of it does, which the stand-ins
    of backends, that have no such bit, would not."""
    tensor, is_set = (args[0] if args else kwargs["input"]), _RESOLVED[func.__name__]
    with torch._C.DisableTorchFunction():
        carried = is_set(tensor)
    if not carried and _bit(builder, is_set, tensor, func.__name__):
        raise metadata.hidden_state(func)
    return builder.call(torch.clone, (tensor,), {}) if carried else NotImplemented


@special(*(getter(name) for name in ("retains_grad", "_backward_hooks", "_post_accumulate_grad_hooks", "name")))
def _rarely_set(builder: GraphBuilder, func: Any, args: Args, kwargs: Kwargs) -> object:
    """What few tensors have: that an input has it not is guarded."""
    info = builder.state.tensor_info(args[0])
    if info.source is None or info.real is None:
        raise metadata.hidden_state(func)
    with torch._C.DisableTorchFunction():
        flag = func(info.real)
    if flag is not None and flag is not False:
        raise metadata.hidden_state(func)
    builder.state.guard(AttrSource(info.source, func.__self__.__name__), "id", flag)
    return flag
