"""What a graph for many sizes holds beside what a graph for one size holds: metadata with expressions.

A dynamic `AtenProgram` has expressions over size symbols (`sizes.expr`) in node arguments, and a `SymbolicTensor` in
`meta["val"]` of each node whose layout depends on a symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

import torch

from argand.graph.sizes.expr import Const, Expr, Sym
from argand.quick_dataclasses import dataclass

Dim: TypeAlias = "int | Expr"


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicTensor:
    """Metadata of a tensor whose sizes or strides depend on symbols; answers what lowering asks of a meta tensor.

    Arguments:
        example: a meta tensor with the sizes of one assignment; its dtype and rank are right, its sizes an example.
        shape, strides: per dimension, an int or an expression.
        offset: storage offset.
    """

    example: torch.Tensor
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def dtype(self) -> torch.dtype:
        return self.example.dtype

    @property
    def device(self) -> torch.device:
        return self.example.device

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def stride(self) -> tuple[Dim, ...]:
        """One stride per dimension."""
        return self.strides

    def storage_offset(self) -> Dim:
        """Elements before the first."""
        return self.offset

    def __repr__(self) -> str:
        return f"SymbolicTensor({self.shape}, {self.strides}, {self.dtype})"


MetaTensor: TypeAlias = "torch.Tensor | SymbolicTensor"


def is_tensor(value: Any) -> bool:
    """A node's `val` that stands for one tensor."""
    return isinstance(value, (torch.Tensor, SymbolicTensor))


def contiguous_meta(size: Sequence[Dim], dtype: torch.dtype) -> MetaTensor:
    """Metadata of a contiguous tensor."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(size):
        strides.append(step)
        if extent != 0:
            step = step * extent
    return strided_meta(size, strides[::-1], dtype)


def strided_meta(size: Sequence[Dim], stride: Sequence[Dim], dtype: torch.dtype) -> MetaTensor:
    """Metadata of a tensor with these sizes and strides."""
    sizes, strides = plain_dims(size), plain_dims(stride)
    if any(isinstance(n, Expr) for n in (*sizes, *strides)):
        example = torch.empty([2] * len(sizes), dtype=dtype, device="meta")
        return SymbolicTensor(example, sizes, strides)
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


def like_meta(val: MetaTensor, dtype: torch.dtype) -> MetaTensor:
    """Metadata of `torch.empty_like(val, dtype=dtype)`, for a dense `val`."""
    if isinstance(val, SymbolicTensor):
        return SymbolicTensor(val.example.to(dtype), val.shape, val.strides)
    return torch.empty_strided(val.shape, val.stride(), dtype=dtype, device="meta")  # empty_like imports sympy


def plain_dims(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Constant expressions as ints."""
    return tuple([n.value if isinstance(n, Const) else n for n in dims])


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a dynamic program takes with its tensors.

    Arguments:
        sym: its name in expressions.
        source: Python expression over the call's `args`, earlier scalars and `names` that computes it.
        is_float: a double; it stands alone wherever it occurs, never inside an index expression.
        hint: a likely value.
        names: objects that `source` refers to.
    """

    sym: Sym
    source: str
    is_float: bool
    hint: float
    names: dict[str, Any] = field(default_factory=dict)
