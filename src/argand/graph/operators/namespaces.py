"""Whose operators are whose: what torch's and argand's do depends on versions alone, others may change unseen."""

from __future__ import annotations

from typing import Any, Final

import torch

from argand.graph.operators.collectives import NAMESPACES

OWN_OPERATIONS: Final = frozenset({"aten", "argand", "prims", *NAMESPACES})
"""Namespaces of operations that programs are stored with."""
_OF_TORCH: Final = OWN_OPERATIONS | {
    "prim", "profiler", "quantized", "_quantized", "quantized_decomposed", "quantization", "mkldnn", "mkl", "onednn",
    "mkldnn_prepacked", "sparse", "symm_mem", "c10d", "fsdp", "inductor", "inductor_prims", "rngprims", "debugprims",
    "export", "_dtensor", "_native", "higher_order",
}  # fmt: skip
OPERATORS: Final = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def is_others(namespace: str) -> bool:
    """Whether the operators of a namespace are neither torch's nor argand's."""
    return namespace not in _OF_TORCH


def is_theirs(operator: Any) -> bool:
    """Whether one of `OPERATORS` is neither torch's nor argand's."""
    return is_others(name_of(operator).partition("::")[0])


def name_of(operator: Any) -> str:
    """`namespace::operator` of one of `OPERATORS`, without its overload."""
    packet = operator.overloadpacket if type(operator) is torch._ops.OpOverload else operator
    return str(packet._qualified_op_name)
