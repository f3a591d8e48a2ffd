"""Operations of ATen that raise because of the values they meet, and not only because of sizes and dtypes.

The table is what torch does: `python -m tests.graph.raising_ops` compares it with every operator, on spoilt data.

Such an operation stays in a graph also where nobody reads its results: eager would raise. It may move, and equal ones
may become one; only what `compat.has_effect` says keeps its place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import fx

from argand.graph import compat


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ON_DATA: Final = _names(
    """
    index _unsafe_index index_put _unsafe_index_put _index_put_impl index_add index_copy index_fill index_reduce
    index_select gather scatter scatter_add scatter_reduce take take_along_dim put masked_scatter embedding
    embedding_bag _embedding_bag _embedding_bag_forward_only embedding_renorm
    nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward nll_loss_nd cross_entropy_loss multi_margin_loss
    multilabel_margin_loss multilabel_margin_loss_forward binary_cross_entropy ctc_loss _ctc_loss
    max_unpool2d max_unpool3d one_hot bincount histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors quantile nanquantile searchsorted repeat_interleave segment_reduce
    _pack_padded_sequence fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask
    cholesky cholesky_inverse cholesky_solve geqrf inverse logdet lu_solve lu_unpack matrix_power ormqr pinverse slogdet
    svd triangular_solve _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_svd nuclear_norm
    """
)
"""Names of overload packets; those of `linalg_` come to these. One that works in place is called as its twin."""

_ONLY_SIZES: Final = _names(
    """
    linalg_vector_norm linalg_cross linalg_diagonal linalg_matmul linalg_multi_dot linalg_vander linalg_vecdot
    """
)
"""Of the names that begin with `linalg_`: sizes and dtypes alone decide whether they raise."""

_OF_INTEGERS: Final = _names("floor_divide remainder fmod div")
"""They raise for integers only, which cannot be divided by zero."""

_NUMBERS_OF_TENSORS: Final = _names("linspace logspace")
"""They take the number out of a tensor, where they are given one."""


def raises_on_data(name: str) -> bool:
    """Whether values can make an operation of this name raise, whatever its dtype."""
    if name.startswith("linalg_"):
        return name.removesuffix("_") not in _ONLY_SIZES
    return name in _ON_DATA or name.removesuffix("_") in _ON_DATA


@functools.cache
def kind(func: Any) -> str:
    """When values make an op overload raise: "always" (that is, for any dtype), "integers" or ""."""
    if not isinstance(func, torch._ops.OpOverload):
        return ""
    if func._schema.name in ("argand::ctc_losses", "argand::numpy_call"):
        return "always"
    if func.namespace != "aten":
        return "always" if func.namespace not in ("prims", "prim", "argand") else ""
    name = func._schema.name.partition("::")[2]
    if raises_on_data(name):
        return "always"
    name = name.removesuffix("_")
    if name in _NUMBERS_OF_TENSORS and any(str(a.type) == "Tensor" for a in func._schema.arguments):
        return "always"
    if name == "div" and not func._overloadname.endswith("_mode"):
        return ""  # of integers it is a number that is not one
    return "integers" if name in _OF_INTEGERS else ""


def may_raise(func: Any, args: Iterable[Any], kwargs: Any = None) -> bool:
    """Whether what tensors hold can make this call of an op overload raise.

    Arguments:
        args, kwargs: as in a node of a graph; of tensors and nodes only the dtype is asked.
    """
    checks = kind(func)
    if checks != "integers":
        return bool(checks)
    given = [*args, *(kwargs or {}).values()]
    if _divides_by_number(given):
        return False
    dtypes = [dtype for each in given if (dtype := _dtype(each)) is not None]
    return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


def _divides_by_number(given: list[Any]) -> bool:
    """A divisor that is written in the program, and not zero: it may be -1, as eager's division does not trap there."""
    return len(given) > 1 and isinstance(given[1], int | float) and given[1] != 0


def _dtype(value: Any) -> torch.dtype | None:
    described = value.meta.get("val") if isinstance(value, fx.Node) else value
    dtype = getattr(described, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def must_stay(node: fx.Node) -> bool:
    """Whether a call of an ATen graph is made even when nobody reads its results."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return compat.has_effect(node.target, node.args, node.kwargs) or may_raise(node.target, node.args, node.kwargs)
