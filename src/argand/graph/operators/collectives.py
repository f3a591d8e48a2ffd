"""Collectives in ATen graphs: a call of `_c10d_functional`, which starts one, and `argand::received`, which ends it.

torch's functions return memory that other processes' data arrives in later, and read their arguments until then;
`wait_tensor` says when that is over. `received(pending, held)` does the same and names, besides what arrives, what is
read until then: so every rule of order and memory follows from what the two calls read and return. Nothing but
`received` reads what a start returns, and its result takes that memory over. Where what is sent is not needed any
more, the scheduler lets data arrive in its place: the start writes to it then, and `received_in_place(sent)` ends it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from argand.graph.operators.registration import Operators

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
STARTS = frozenset((
    "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce", "all_reduce_coalesced",
    "all_to_all_single", "broadcast", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
))  # fmt: skip
"""Functions of these that start a collective and write to none of their arguments."""

IN_PLACE = frozenset(("all_reduce_", "all_reduce_coalesced_", "broadcast_"))
"""Those that put what arrives in their arguments."""

OF_ONE = {"all_reduce": "all_reduce_", "broadcast": "broadcast_"}
"""Starts that send one tensor -> those that put what arrives in it."""


@functools.cache
def collective_ops() -> Operators:
    """Defines the op, once per process."""
    return Operators({
        "received(Tensor pending, Tensor[] held) -> Tensor": {
            "CompositeExplicitAutograd": _received, "Meta": lambda pending, held: torch.empty_like(pending),
        },
        "received_in_place(Tensor(a) sent) -> Tensor(a)": {
            "CompositeExplicitAutograd": _received_in_place, "Meta": lambda sent: sent,
        },
    })  # fmt: skip


def _received(pending: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
    return _received_in_place(pending)


def _received_in_place(sent: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():  # autograd's kernel of it is Python, and takes 10 us and more
        received: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default(sent)
    return received


def starts(target: Any) -> bool:
    """What a graph calls starts a collective."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
    elif isinstance(target, torch._ops.OpOverloadPacket):
        namespace, _, name = target._qualified_op_name.partition("::")
    else:
        return False
    return namespace in NAMESPACES and (name in STARTS or name in IN_PLACE)
