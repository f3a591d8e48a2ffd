"""Kinds of torch calls: what of the arguments, but for tensors' values, decides what a call returns and if it raises.

Two calls of one kind (sizes, strides, dtypes, numbers) give results of the same metadata. A kind can be hashed, and
arguments can be made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.world.native_reads import base_value
from argand.graph.metadata.specs import settings

CPU = torch.device("cpu")
_Tensor = torch.Tensor


class Unknown(Exception):
    """An argument that has no kind: of a layout of its own, a generator, an object of the program's."""


class Sizes(NamedTuple):
    """A tensor argument."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    leaf: bool

    def real(self, fill: int) -> torch.Tensor:
        """A tensor of this kind on the CPU, all its elements `fill`."""
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU).fill_(fill)
        if not self.requires_grad or not torch.is_grad_enabled():
            return tensor
        tensor.requires_grad_()  # whether it may be written to hangs on both
        return tensor if self.leaf else tensor.clone()


Kind: TypeAlias = "Sizes | tuple[Any, ...]"
"""Of an argument: a Sizes, or its type with the kinds of what it holds."""

Call: TypeAlias = tuple[Kind, Kind]
"""Of the positional arguments, and of the keywords."""

_ATOMS = frozenset(
    {int, float, bool, str, complex, type(None), torch.dtype, torch.memory_format, torch.layout, type(...)}
)


def of_call(args: Args, kwargs: Kwargs) -> Call:
    """The kind of a call.

    Raises:
        Unknown: it has none.
    """
    return of(args), (dict, *[(name, of(value)) for name, value in kwargs.items()])


def of(value: Any) -> Kind:
    """The kind of an argument.

    Raises:
        Unknown: it has none.
    """
    cls = type(value)
    if cls in _ATOMS:
        return (cls, value)
    if isinstance(value, _Tensor):
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise Unknown
        try:
            leaf = value.is_leaf
        except RuntimeError:  # of a view that was made without gradients, and written to
            raise Unknown from None
        return Sizes(tuple(value.shape), value.stride(), value.dtype, value.requires_grad, leaf)
    if cls is tuple or cls is list or cls is torch.Size:
        return (cls, *[of(item) for item in value])
    if cls is slice:
        return (cls, value.start, value.stop, value.step)
    if cls is torch.device:
        return (cls, value)
    if issubclass(cls, int | float | str):  # of which a graph gets what it holds
        return of(base_value(value))
    raise Unknown


def rebuilt(kind: Kind, part: Callable[[Kind], object]) -> object:
    """An argument of a kind that is no tensor's; `part` gives what it holds."""
    cls, *parts = kind
    if cls is dict:
        return {name: part(each) for name, each in parts}
    if cls is tuple or cls is list or cls is torch.Size:
        return cls([part(each) for each in parts])
    return slice(*parts) if cls is slice else parts[0]


def elements(kind: Kind) -> int:
    """How many elements the tensors have."""
    if type(kind) is Sizes:
        total = 1
        for size in kind.shape:
            total *= size
        return total
    return sum([elements(part) for part in kind if isinstance(part, tuple)])


def modes() -> tuple[object, ...]:
    """What of this thread's settings decides what torch calls return."""
    autocast: tuple[object, ...] = ()
    if torch._C._is_any_autocast_enabled():
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))
    return torch.is_grad_enabled(), autocast, *settings()
