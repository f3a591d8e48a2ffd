"""Nested tensors of the jagged layout: a batch of pieces of different lengths, one after the other in one tensor.

A graph knows nothing of them. It computes with their values, and with the offsets at which pieces begin; here is what
transformed code, and guards, take of nested tensors, and how results become nested tensors again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from argand.graph.version_counters import counted_as

_MODULE = "torch.nested._internal.nested_tensor"
Jagged: TypeAlias = Any
"""torch's class is imported by programs that use it, not here."""


def jagged_class() -> Any:
    """The class, where it is imported."""
    module = sys.modules.get(_MODULE)
    return None if module is None else vars(module).get("NestedTensor")


def is_jagged(cls: type) -> bool:
    """Whether tensors of a class are nested tensors of the jagged layout."""
    return cls.__name__ == "NestedTensor" and cls.__module__ == _MODULE and cls is jagged_class()


def among(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call is given a nested tensor."""
    for value in (*args, *kwargs.values()):
        if is_jagged(type(value)):
            return True
        if isinstance(value, (list, tuple)) and any(is_jagged(type(item)) for item in value):
            return True
    return False


def traits(tensor: Jagged) -> tuple[object, ...]:
    """What a guard compares of a nested tensor besides its parts."""
    with torch._C.DisableTorchFunctionSubclass():
        known = sorted(tensor._metadata_cache)
        return tensor.requires_grad, tensor.is_leaf, tensor._ragged_idx, tensor._lengths is None, *known


def values_of(tensor: Jagged) -> torch.Tensor:
    """What a graph gets for the values of a nested tensor: a gradient goes to the nested tensor, and nowhere else."""
    with torch._C.DisableTorchFunctionSubclass():
        values: torch.Tensor = tensor._values
        if tensor.requires_grad:
            return torch._nested_get_values(tensor)
        if torch.is_grad_enabled():
            return counted_as(tensor, values.detach())
        return values.detach() if values.requires_grad else values


def _lengths(tensor: torch.Tensor) -> torch.Tensor:
    """Of the pieces of a nested tensor, or of those between offsets."""
    whole: Jagged = tensor
    if not is_jagged(type(tensor)):
        return tensor.diff()
    return whole._offsets.diff() if whole._lengths is None else whole._lengths


def longest(tensor: torch.Tensor) -> int:
    """The length of the longest piece of a nested tensor, which is not told to it, or between offsets."""
    with torch._C.DisableTorchFunctionSubclass():
        return int(_lengths(tensor).max())


def shortest(tensor: torch.Tensor) -> int:
    """The length of the shortest piece of a nested tensor, which is not told to it, or between offsets."""
    with torch._C.DisableTorchFunctionSubclass():
        return int(_lengths(tensor).min())


LENGTHS = {"min_seqlen": shortest, "max_seqlen": longest}
"""What a nested tensor may know of the lengths of its pieces -> who finds it out."""


def note_length(tensor: Jagged, name: str, length: torch.Tensor) -> None:
    """Have a nested tensor know what it was asked for: what is done with it may depend on that."""
    tensor._metadata_cache[name] = length


def nested(
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    shortest: torch.Tensor | None,
    longest: torch.Tensor | None,
    ragged: int,
) -> Jagged:
    """The nested tensor of what a graph gave.

    Arguments:
        shortest, longest: what is known of the lengths of its pieces, each as a tensor of that many rows of nothing.
        ragged: the dim that the pieces differ in.
    """
    if values.requires_grad and torch.is_grad_enabled():
        from torch.nested._internal.nested_tensor import _nt_view_dummy

        return torch._nested_view_from_jagged(values, offsets, _nt_view_dummy(), lengths, ragged, shortest, longest)
    cache = {"min_seqlen": shortest, "max_seqlen": longest}
    whole = jagged_class()(values, offsets, lengths=lengths, _ragged_idx=ragged)
    whole._metadata_cache = {name: known for name, known in cache.items() if known is not None}
    return counted_as(values, whole)


def ragged_size(source: torch.Tensor) -> torch.SymInt:
    """The number that stands for the sizes in the ragged dim of all nested tensors with these offsets, or lengths."""
    from torch.nested._internal.nested_tensor import get_tensor_symint

    size: torch.SymInt = get_tensor_symint(source)
    return size


def _raggedness(tensor: torch.Tensor) -> object:
    if is_jagged(type(tensor)):
        whole: Jagged = tensor
        return whole._size[whole._ragged_idx].node.nested_int()
    module: Any = sys.modules[_MODULE]
    size = module._tensor_symint_registry.get(tensor)
    return ("tensor", id(tensor)) if size is None else size.node.nested_int()


def alike(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Which of some nested tensors, and tensors that are offsets, have the same ragged size: equal numbers do."""
    with torch._C.DisableTorchFunction():
        numbers: dict[object, int] = {}
        return tuple([numbers.setdefault(_raggedness(tensor), len(numbers)) for tensor in tensors])


class SameRaggedness:
    """The guard on which inputs have the same ragged size.

    Arguments:
        groups: what `alike` said when the graph was captured.
    """

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.groups = groups

    def __call__(self, *tensors: torch.Tensor) -> bool:
        return alike(*tensors) == self.groups
