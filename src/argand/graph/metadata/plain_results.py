"""Result metadata of frequent ops on plain arguments: what their meta kernels say, without running them.

Torch's meta kernels of these are Python, a decomposition with checks (0.3 to 1 ms a call), and the first that runs in a
process imports sympy (0.3 s).
A rule answers only for tensors that are not empty, of one floating dtype, whose results are contiguous, or have their
channels innermost as the arguments have; for all else it gives None, and the meta kernel judges. Of sizes that do not
fit together it says so (probes of sizes that vary often do not), and eager's own kernel says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from argand.graph.metadata.specs import Spec
from argand.graph.metadata.strides import (
    Ints,
    broadcast_shape,
    channels_last_strides,
    contiguous_strides,
    is_contiguous,
    iterator_strides,
    suggests_channels_last,
)
from argand.graph.operators.aten_names import of_aten

aten = torch.ops.aten

_FLOATING = frozenset((torch.float32, torch.float64))

Result: TypeAlias = "tuple[Ints, torch.dtype] | tuple[Ints, torch.dtype, torch.memory_format] | None"
"""Size and dtype of a tensor, and its memory format where it is not contiguous; None for one that is not asked for."""


class Unfit(Exception):
    """The sizes of the arguments do not fit together: the op raises before it computes anything."""


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
    except Unfit:
        func(*map(_without_memory, args), **kwargs)
        return None
    if results is None:
        return None
    tensors = [None if result is None else _tensor(*result) for result in results]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _tensor(
    size: Ints, dtype: torch.dtype, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)


def _without_memory(value: Any) -> Any:
    """A tensor of this size that takes no memory."""
    return torch.zeros((), dtype=value.dtype).expand(value.size) if value.__class__ is Spec else value


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
    if inner != same:
        raise Unfit
    return (((rows, columns), left.dtype),) if bias.size == (columns,) else None


def _mm(left: Any, right: Any) -> tuple[Result, ...] | None:
    """Of matrices, or of as many of them on both sides."""
    if not _plain(left, right) or len(left.size) not in (2, 3) or len(right.size) != len(left.size):
        return None
    *many, rows, inner = left.size
    *others, same, columns = right.size
    if inner != same or many != others:
        raise Unfit
    return (((*many, rows, columns), left.dtype),)


def _matrices(value: Any, rank: int) -> bool:
    return value.__class__ is Spec and len(value.size) == rank


def _softmax(x: Any, dim: int, half_to_float: bool) -> tuple[Result, ...] | None:
    if not _plain(x) or half_to_float or not _contiguous(x) or not -len(x.size) <= dim < len(x.size):
        return None
    return ((x.size, x.dtype),)


def _sum(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> tuple[Result, ...] | None:
    if not _plain(x) or not _contiguous(x) or not isinstance(dim, Sequence) or not dim or dtype not in (None, x.dtype):
        return None
    size = _reduced(x.size, dim, keepdim)
    return None if size is None else ((size, x.dtype),)


def _reduced(size: Ints, dim: Sequence[int], keepdim: bool) -> Ints | None:
    rank = len(size)
    dims = {place % rank for place in dim if -rank <= place < rank}
    if len(dims) != len(dim):
        return None
    return tuple([1 if place in dims else n for place, n in enumerate(size) if keepdim or place not in dims])


def _embedding(
    weight: Any, indices: Any, padding: int = -1, scale: bool = False, sparse: bool = False
) -> tuple[Result, ...] | None:
    """Rows of a table."""
    if not _plain(weight) or indices.__class__ is not Spec or 0 in indices.size or len(weight.size) != 2 or sparse:
        return None
    if indices.dtype not in (torch.int64, torch.int32):
        return None
    return (((*indices.size, weight.size[1]), weight.dtype),)


def _cat(tensors: Any, dim: int = 0) -> tuple[Result, ...] | None:
    """Contiguous tensors that differ in one size at most."""
    if not tensors or not _plain(*tensors) or not all(map(_contiguous, tensors)):
        return None
    first, rank = tensors[0].size, len(tensors[0].size)
    if not -rank <= dim < rank:
        return None
    place = dim % rank
    if any(len(each.size) != rank or _but(each.size, place) != _but(first, place) for each in tensors):
        return None
    return (((*first[:place], sum(each.size[place] for each in tensors), *first[place + 1 :]), tensors[0].dtype),)


def _but(size: Ints, place: int) -> Ints:
    return (*size[:place], *size[place + 1 :])


def _masked_fill(x: Any, mask: Any, value: Any) -> tuple[Result, ...] | None:
    if not _plain(x) or not _contiguous(x) or mask.__class__ is not Spec or mask.dtype is not torch.bool:
        return None
    if value.__class__ is Spec and (value.size or value.dtype is not x.dtype):
        return None
    return ((x.size, x.dtype),) if broadcast_shape([x.size, mask.size]) == x.size else None


def _triangle(x: Any, diagonal: int = 0) -> tuple[Result, ...] | None:
    return ((x.size, x.dtype),) if _plain(x) and _contiguous(x) and len(x.size) > 1 else None


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Result, ...] | None:
    parameters = [value for value in (weight, bias) if value is not None]
    normalized = tuple(shape)
    if not _plain(x, *parameters) or not _contiguous(x) or not normalized:
        return None
    rank = len(x.size) - len(normalized)
    if x.size[max(rank, 0) :] != normalized:
        raise Unfit
    if any(value.size != normalized for value in parameters):
        return None
    statistics = (*x.size[:rank], *(1 for _ in normalized)), x.dtype
    return (x.size, x.dtype), statistics, statistics


def _var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Result, ...] | None:
    if not _plain(x) or not isinstance(dim, Sequence) or not dim:
        return None
    size = _reduced(x.size, dim, keepdim)
    return None if size is None else ((size, x.dtype), (size, x.dtype))


def _cumsum(x: Any, dim: int) -> tuple[Result, ...] | None:
    if x.__class__ is not Spec or 0 in x.size or not _contiguous(x) or not -len(x.size) <= dim < len(x.size):
        return None
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        return ((x.size, torch.int64),)
    return ((x.size, x.dtype),) if _plain(x) else None


def _stack(tensors: Any, dim: int = 0) -> tuple[Result, ...] | None:
    """Contiguous tensors of one size."""
    if not tensors or not _plain(*tensors) or not all(map(_contiguous, tensors)):
        return None
    size, rank = tensors[0].size, len(tensors[0].size) + 1
    if not -rank <= dim < rank or any(each.size != size for each in tensors):
        return None
    place = dim % rank
    return (((*size[:place], len(tensors), *size[place:]), tensors[0].dtype),)


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> tuple[Result, ...] | None:
    """In two dimensions, of contiguous tensors."""
    parameters = [weight] if bias is None else [weight, bias]
    if not _plain(x, *parameters) or transposed or any(output_padding) or len(x.size) != 4 or len(weight.size) != 4:
        return None
    if not _row_major(x) or not _row_major(weight) or not len(stride) == len(padding) == len(dilation) == 2:
        return None
    channels = weight.size[0]
    if groups < 1 or channels % groups:
        return None
    if x.size[1] != weight.size[1] * groups:
        raise Unfit
    if (bias is not None and bias.size != (channels,)) or min(*stride, *dilation) < 1 or min(padding) < 0:
        return None
    places = zip(x.size[2:], weight.size[2:], stride, padding, dilation)
    sizes = [(n + 2 * pad - apart * (width - 1) - 1) // step + 1 for n, width, step, pad, apart in places]
    return (((x.size[0], channels, *sizes), x.dtype),) if min(sizes) > 0 else None


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> tuple[Result, ...] | None:
    """In two dimensions, of tensors of one format."""
    laid = _format(x) if _plain(grad, x, weight) and len(x.size) == 4 else None
    if laid is None or not laid is _format(grad) is _format(weight):
        return None
    channels = weight.size[1] * groups if transposed else weight.size[0]
    if mask[2] and tuple(bias_size) != (channels,):
        return None
    results: tuple[Result, ...] = (x.size, x.dtype, laid), (weight.size, x.dtype, laid), ((channels,), x.dtype)
    return tuple([result if wanted else None for result, wanted in zip(results, mask)])


def _max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> tuple[Result, ...] | None:
    """In two dimensions, of windows that begin inside."""
    laid = _format(x) if _plain(x) else None
    if laid is None or len(x.size) != 4 or ceil_mode:
        return None
    windows = [_pair(values) for values in (kernel, stride or kernel, padding, dilation)]
    if not all(windows):
        return None
    sizes = []
    for axis, n in enumerate(x.size[2:]):
        width, step, pad, apart = (window[axis] for window in windows)
        span = apart * (width - 1) + 1
        if min(width, step, apart) < 1 or not 0 <= pad <= width // 2 or n + 2 * pad < span:
            return None
        sizes.append((n + 2 * pad - span) // step + 1)
    size = (*x.size[:2], *sizes)
    return (size, x.dtype, laid), (size, torch.int64, laid)


def _max_pool_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Any
) -> tuple[Result, ...] | None:
    results = _max_pool(x, kernel, stride, padding, dilation, ceil_mode) if _plain(grad, x) else None
    if results is None or results[0] is None or not results[0][0] == grad.size == indices.size:
        return None
    return ((x.size, x.dtype, _format(x)),)


def _adaptive_pool(x: Any, size: Any) -> tuple[Result, ...] | None:
    laid = _format(x) if _plain(x) else None
    if laid is None or len(x.size) != 4 or len(size) != 2 or min(size) < 1:
        return None
    return (((*x.size[:2], *size), x.dtype, laid),)


def _adaptive_pool_backward(grad: Any, x: Any) -> tuple[Result, ...] | None:
    laid = _format(x) if _plain(grad, x) else None
    return ((x.size, x.dtype, laid),) if laid is not None and len(grad.size) == len(x.size) == 4 else None


def _pair(values: Any) -> Sequence[int]:
    """A number for each of two dimensions, or one for both; none where they are something else."""
    whole = isinstance(values, Sequence) and len(values) in (1, 2) and all(type(value) is int for value in values)
    return [values[0], values[-1]] if whole else []


def _row_major(spec: Spec) -> bool:
    return _format(spec) is torch.contiguous_format


def _format(spec: Spec) -> torch.memory_format | None:
    """The memory format of a tensor that fits one alone; None for another, and where it is neither of the two."""
    size, stride = spec.size, spec.stride
    if _contiguous(spec):
        return None if suggests_channels_last(size, stride) else torch.contiguous_format
    innermost = len(size) == 4 and stride == channels_last_strides(size) and not is_contiguous(size, stride)
    return torch.channels_last if innermost else None


def _like_all(x: Any, *others: Any) -> tuple[Result, ...] | None:
    """Pointwise, of tensors that look the same, and numbers."""
    specs = [x, *(value for value in others if value.__class__ is Spec)]
    alike = _plain(*specs) and all((spec.size, spec.stride) == (x.size, x.stride) for spec in specs)
    laid = _format(x) if alike else None
    return None if laid is None else ((x.size, x.dtype, laid),)


def _threshold_backward(grad: Any, x: Any, threshold: float) -> tuple[Result, ...] | None:
    """Of a gradient that lies in any way, such as a part of one."""
    if not _plain(grad, x) or grad.size != x.size:
        return None
    stride = iterator_strides(x.size, [(x.size, x.stride), (grad.size, grad.stride)])
    if stride == contiguous_strides(x.size):
        return ((x.size, x.dtype),)
    innermost = len(x.size) == 4 and stride == channels_last_strides(x.size)
    return ((x.size, x.dtype, torch.channels_last),) if innermost else None


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Result, ...] | None:
    """With running statistics. In inference nothing is saved."""
    laid = _normalized(x, weight, bias, mean, var)
    if laid is None or mean is None or var is None:
        return None
    saved = x.size[1:2] if training else (0,)
    return (x.size, x.dtype, laid), (saved, x.dtype), (saved, x.dtype)


def _batch_norm_of_batch(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Result, ...] | None:
    """With the running statistics that come after."""
    results = _batch_norm(x, weight, bias, mean, var, training, momentum, eps) if training else None
    return None if results is None else (*results, results[1], results[1])


def _batch_norm_backward(
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    var: Any,
    saved_mean: Any,
    saved_scale: Any,
    training: bool,
    eps: float,
    mask: Any,
) -> tuple[Result, ...] | None:
    """Of a gradient that is as large as the result."""
    used = (saved_mean, saved_scale) if training else (mean, var)
    laid = _normalized(x, weight, *used)
    if laid is None or None in used or not _plain(grad, x) or grad.size != x.size or not mask[0]:
        return None
    sums = [(x.size[1:2], x.dtype) if wanted else None for wanted in mask[1:]]
    return (x.size, x.dtype, laid), *sums


def _normalized(x: Any, *parameters: Any) -> torch.memory_format | None:
    """The format of what is normalized; None where the arguments are not plain, or a parameter is not one a channel."""
    given = [value for value in parameters if value is not None]
    if not _plain(x, *given) or len(x.size) < 2:
        return None
    return _format(x) if all(value.size == x.size[1:2] for value in given) else None


def _group_norm(
    x: Any, weight: Any, bias: Any, count: int, channels: int, rest: int, groups: int, eps: float
) -> tuple[Result, ...] | None:
    if (
        _normalized(x, weight, bias) is not torch.contiguous_format
        or x.size[:2] != (count, channels)
        or groups < 1
        or channels % groups
    ):
        return None
    if math.prod(x.size[2:]) != rest:
        return None
    return (x.size, x.dtype), ((count, groups), x.dtype), ((count, groups), x.dtype)


_POINTWISE = of_aten(
    "hardswish hardswish_backward hardsigmoid_backward hardtanh hardtanh_backward leaky_relu_backward elu_backward"
)
RULES: Final[MappingProxyType[Any, Rule]] = MappingProxyType(
    {
        aten.addmm.default: _addmm,
        aten.mm.default: lambda left, right: _mm(left, right) if _matrices(left, 2) else None,
        aten.bmm.default: lambda left, right: _mm(left, right) if _matrices(left, 3) else None,
        aten._softmax.default: _softmax,
        aten._log_softmax.default: _softmax,
        aten.sum.dim_IntList: _sum,
        aten.mean.dim: _sum,
        aten.amax.default: _sum,
        aten.amin.default: _sum,
        aten.embedding.default: _embedding,
        aten.masked_fill.Scalar: _masked_fill,
        aten.masked_fill.Tensor: _masked_fill,
        aten.tril.default: _triangle,
        aten.triu.default: _triangle,
        aten.cat.default: _cat,
        aten.native_layer_norm.default: _layer_norm,
        aten.var_mean.correction: _var_mean,
        aten.cumsum.default: _cumsum,
        aten.stack.default: _stack,
        aten.convolution.default: _convolution,
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.native_batch_norm.default: _batch_norm,
        aten._native_batch_norm_legit_functional.default: _batch_norm_of_batch,
        aten.native_group_norm.default: _group_norm,
        aten.convolution_backward.default: _convolution_backward,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten._adaptive_avg_pool2d.default: _adaptive_pool,
        aten._adaptive_avg_pool2d_backward.default: _adaptive_pool_backward,
        aten.native_batch_norm_backward.default: _batch_norm_backward,
        aten.threshold_backward.default: _threshold_backward,
        **dict.fromkeys(_POINTWISE, _like_all),
    }
)
