"""The table of lowering rules, keyed by ATen overload; families in `lower.lowerings` fill it at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from argand.errors import InternalError
from argand.quick_dataclasses import dataclass

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


class NoLowering(Exception):
    """Raised by a rule that does not cover its arguments: the node becomes an ExternNode, with this reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule and what the driver must know of it.

    Arguments:
        rule: called as `rule(ctx, *args, **kwargs)`, tensors given as `lower.tensor.Tensor`; returns a Tensor, or a
            tuple or list of them (and None).
        is_view: its result reads nothing but its first argument, and strides can often express it.
    """

    rule: Rule
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class ExternKernel:
    """An op that is meant to run as an ATen kernel (matrix products, convolution, attention).

    Arguments:
        out_variant: name of the callable that takes `out=`, e.g. "torch.mm"; None when there is none.
    """

    out_variant: str | None = None


class Registry:
    """Rules and kernels by overload; registering twice raises. An op has both where its rule covers some calls."""

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self.kernels: dict[Any, ExternKernel] = {}
        self._added: dict[Any, Entry] = {}
        self._own = True  # whether all of these are argand's

    def add(self, op: Any, entry: Entry) -> None:
        if op in self.entries or op in self.kernels:
            raise InternalError(f"{op} has two lowering rules")
        self.entries[op] = self._added[op] = entry
        self._own &= str(getattr(entry.rule, "__module__", "")).startswith("argand.")

    def altered(self) -> bool:
        """Whether a rule is not argand's, or not the one that was added."""
        return not self._own or self.entries != self._added

    def add_kernel(self, op: Any, kernel: ExternKernel) -> None:
        if op in self.entries or op in self.kernels:
            raise InternalError(f"{op} has two lowering rules")
        self.kernels[op] = kernel


REGISTRY = Registry()


def overloads(op: Any) -> list[Any]:
    """The functional overloads of a packet; an overload stands for itself."""
    if not isinstance(op, torch._ops.OpOverloadPacket):
        return [op]
    return [getattr(op, name) for name in op.overloads() if "out" not in name and name not in _OTHER_OVERLOADS]


# overloads that never reach an ATen graph (TorchScript's scalar versions, named tensors, lists of scalars)
_OTHER_OVERLOADS = frozenset(
    ["int", "float", "complex", "bool", "Dimname", "names_dim", "str", "int_float", "float_int", "t"]
)


def lowers(
    *ops: Any, view: bool = False, else_kernel: bool = False, out_variant: str | None = None
) -> Callable[[F], F]:
    """Register the decorated rule for overloads (or all functional overloads of packets).

    Arguments:
        else_kernel: what the rule refuses is meant to run as an ATen kernel.
        out_variant: of that kernel.
    """

    def register(rule: F) -> F:
        for op in ops:
            for overload in overloads(op):
                REGISTRY.add(overload, Entry(rule, view))
                if else_kernel:
                    REGISTRY.kernels[overload] = ExternKernel(out_variant)
        return rule

    return register
