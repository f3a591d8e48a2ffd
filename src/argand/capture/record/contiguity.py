"""`x.contiguous()` where nobody knows how `x` lies in memory: it returns `x` or a copy, and which one is not seen."""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.metadata import metadata
from argand.capture.metadata.call_targets import target_of
from argand.capture.metadata.special_calls import special
from argand.capture.sizes import symbolic_tensors

_T = torch.Tensor


@special(_T.contiguous)
def _contiguous(builder: GraphBuilder, func: Any, args: Any, kwargs: Any) -> object:
    """One node whose result is contiguous for certain, whatever the layout of its argument turns out to be."""
    tensor = args[0]
    if id(tensor) not in builder.unsure or len(args) != 1 or kwargs:
        return NotImplemented
    infos: list[Any] = []
    nodes = (builder.to_node(tensor, infos),)
    device = metadata.logical_device(func, infos, kwargs)
    copy = {"memory_format": torch.contiguous_format}
    siblings: list[Any] | None = None
    if builder.dynamics is not None and symbolic_tensors.involved(builder, infos, args, copy):
        meta, siblings = builder.compute_dynamic(_T.clone, args, copy, infos, device, None, None)
    else:
        meta = builder.compute(_T.clone, args, copy, infos, device, None, None)
    result = builder.finish_call(target_of(func), nodes, {}, meta, device, False)
    first = builder.maybe_same.get(id(tensor), tensor)
    builder.maybe_same[id(result)] = first
    builder.maybe_same[id(first)] = first
    return result if siblings is None else symbolic_tensors.attach(builder, result, siblings)


def compared(builder: GraphBuilder, a: object, b: object) -> None:
    """`a is b` is asked of two objects.

    Raises:
        GraphBreak: they are a tensor and what `contiguous` made of it, which are one object or two.
    """
    same = builder.maybe_same
    if a is not b and id(a) in same and same[id(a)] is same.get(id(b)):
        raise errors.graph_break(
            kind="data-dependent value",
            context="contiguous",
            explanation="Whether x.contiguous() returned x itself depends on how x lies in memory, which is known only "
            "when the program runs.",
            hints=("Do not compare the two with `is`.",),
        )
