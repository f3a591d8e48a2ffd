"""What a call writes to: its first argument or `out`, as its name tells (`call_targets.Target`), or others.

ATen's schemas say which others, but not of statistics and of embeddings that a norm bounds; and what has moved the
version of a stand-in has written to it, whatever schemas say.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

import torch
from torch.nn import functional

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import metadata
from argand.graph.compat import overloads
from argand.graph.operators.aten_names import operator_name

_Place = tuple[int | None, str]  # position, None for a keyword alone, and name
_STATISTICS = frozenset(
    words("batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _batch_norm_impl_index")
)
"""Functions of ATen's that, in training, write to the statistics."""
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_TRAINING = ("training", "use_input_stats", "train")
_TRAINING_PLACE = 5
_BOUNDED: dict[Function, tuple[_Place, ...]] = {
    functional.embedding: ((1, "weight"),),
    functional.embedding_bag: ((0, "input"), (1, "weight")),
}
_MAX_NORM_PLACE = {functional.embedding: 3, functional.embedding_bag: 3}


def written(func: Function, args: Args, kwargs: Kwargs, mutates: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call writes to: the first argument and `out`, and those behind it.

    Arguments:
        mutates: the first argument or `out`, as the function's name says; of an operator, its schemas say which.
    """
    places = _places(func, args, kwargs)
    first = [tensor for place in places if _is_first(place) for tensor in _tensors(_given(place, args, kwargs))]
    behind = [tensor for place in places if not _is_first(place) for tensor in _tensors(_given(place, args, kwargs))]
    if mutates and not isinstance(func, _OPERATORS):
        first += _tensors(kwargs.get("out", args[0] if args else None))
    return first, behind


def _is_first(place: _Place) -> bool:
    return place[0] == 0 or place[1] == "out"


def _places(func: Function, args: Args, kwargs: Kwargs) -> tuple[_Place, ...]:
    statistics = _statistics(func)
    if statistics:
        told = [kwargs[name] for name in _TRAINING if name in kwargs]
        training = args[_TRAINING_PLACE] if len(args) > _TRAINING_PLACE else told[0] if told else True
        return () if training is False else statistics
    bounded = _BOUNDED.get(func)
    if bounded is not None:
        at = _MAX_NORM_PLACE[func]
        norm = args[at] if len(args) > at else kwargs.get("max_norm")
        return () if norm is None else bounded
    return _declared(func)


@functools.lru_cache(maxsize=8192)
def _statistics(func: Function) -> tuple[_Place, ...]:
    first = 1 if func in (functional.batch_norm, functional.instance_norm) else 3
    return ((first, "running_mean"), (first + 1, "running_var")) if operator_name(func) in _STATISTICS else ()


@functools.lru_cache(maxsize=8192)
def _declared(func: Function) -> tuple[_Place, ...]:
    """What the schemas of a function say that it writes to."""
    if isinstance(func, torch._ops.OpOverload):
        variants = [func]
    elif isinstance(func, torch._ops.OpOverloadPacket):
        variants = list(overloads(func))
    elif str(getattr(func, "__module__", None) or "torch").startswith("torch"):
        packet = getattr(torch.ops.aten, operator_name(func), None)
        variants = list(overloads(packet)) if isinstance(packet, torch._ops.OpOverloadPacket) else []
        # The others are TorchScript's, of its lists: `sort` of one writes to it.
        variants = [variant for variant in variants if torch._C._dispatch_has_kernel(variant.name())]
    else:
        variants = []
    whole = isinstance(func, _OPERATORS)
    return tuple(dict.fromkeys(place for variant in variants for place in _of_schema(variant, whole)))


def _of_schema(variant: torch._ops.OpOverload, whole: bool) -> Iterator[_Place]:
    """What a schema marks as written to; not `whole`: only what names do not tell."""
    for position, argument in enumerate(variant._schema.arguments):
        by_name = argument.name == "out" or (position == 0 and operator_name(variant).endswith("_"))
        if argument.alias_info is not None and argument.alias_info.is_write and (whole or not by_name):
            yield (None if argument.kwarg_only else position), argument.name


def _given(place: _Place, args: Args, kwargs: Kwargs) -> object:
    position, name = place
    return args[position] if position is not None and position < len(args) else kwargs.get(name)


def _tensors(value: object) -> list[torch.Tensor]:
    items = value if isinstance(value, tuple | list) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def versions(infos: list[TensorInfo]) -> list[int | None]:
    """The counts of in-place changes of a call's tensors."""
    return [metadata.version(info.tensor) for info in infos]


def moved(infos: list[TensorInfo], before: list[int | None], noted: Collection[int]) -> list[torch.Tensor]:
    """The tensors whose count is another than before the call, without those of these ids."""
    return [
        info.tensor
        for info, count in zip(infos, before)
        if count is not None and metadata.version(info.tensor) != count and id(info.tensor) not in noted
    ]
