"""Result metadata of frequent ops on plain arguments: what their meta kernels say, without running them.

Torch's meta kernels of these are Python, a decomposition with checks (0.3 to 1 ms a call, more in a process's first).
A rule answers only for tensors that are not empty, of one floating dtype, whose results are contiguous; for all else it
gives None, and the meta kernel judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from argand.graph.metadata.specs import Spec
from argand.graph.metadata.strides import Ints, contiguous_strides

aten = torch.ops.aten

_FLOATING = frozenset((torch.float32, torch.float64))

Result: TypeAlias = "tuple[Ints, torch.dtype]"
"""Size and dtype of a contiguous tensor."""

Rule: TypeAlias = "Callable[..., tuple[Result, ...] | None]"


def plain_results(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results as meta tensors, as the op returns them; None where its meta kernel must answer."""
    rule = RULES.get(func)
    if rule is None:
        return None
    try:
        results = rule(*args, **kwargs)
    except TypeError:  # a call in another form
        return None
    if results is None:
        return None
    tensors = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in results]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _plain(*values: Any) -> bool:
    """Whether these are tensors of one floating dtype that are not empty, and no lazy views."""
    first = values[0]
    return first.__class__ is Spec and first.dtype in _FLOATING and all(
        value.__class__ is Spec
        and value.dtype is first.dtype
        and not value.conj
        and not value.neg
        and 0 not in value.size
        for value in values
    )  # fmt: skip


def _contiguous(spec: Spec) -> bool:
    return spec.stride == contiguous_strides(spec.size)


def _addmm(bias: Any, left: Any, right: Any) -> tuple[Result, ...] | None:
    if not _plain(bias, left, right) or len(left.size) != 2 or len(right.size) != 2:
        return None
    (rows, inner), (same, columns) = left.size, right.size
    return (((rows, columns), left.dtype),) if inner == same and bias.size == (columns,) else None


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Result, ...] | None:
    parameters = [value for value in (weight, bias) if value is not None]
    normalized = tuple(shape)
    if not _plain(x, *parameters) or not _contiguous(x) or not normalized:
        return None
    rank = len(x.size) - len(normalized)
    if x.size[max(rank, 0) :] != normalized or any(value.size != normalized for value in parameters):
        return None
    statistics = (*x.size[:rank], *(1 for _ in normalized)), x.dtype
    return (x.size, x.dtype), statistics, statistics


def _var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Result, ...] | None:
    if not _plain(x) or not isinstance(dim, Sequence) or not dim:
        return None
    rank = len(x.size)
    dims = {place % rank for place in dim if -rank <= place < rank}
    if len(dims) != len(dim):
        return None
    size = tuple([1 if place in dims else n for place, n in enumerate(x.size) if keepdim or place not in dims])
    return (size, x.dtype), (size, x.dtype)


def _cumsum(x: Any, dim: int) -> tuple[Result, ...] | None:
    if x.__class__ is not Spec or 0 in x.size or not _contiguous(x) or not -len(x.size) <= dim < len(x.size):
        return None
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        return ((x.size, torch.int64),)
    return ((x.size, x.dtype),) if _plain(x) else None


RULES: Final[MappingProxyType[Any, Rule]] = MappingProxyType(
    {
        aten.addmm.default: _addmm,
        aten.native_layer_norm.default: _layer_norm,
        aten.var_mean.correction: _var_mean,
        aten.cumsum.default: _cumsum,
    }
)
