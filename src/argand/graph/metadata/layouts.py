"""Where torch's meta kernels and eager's CPU kernels disagree on a result's layout, the corrections.

`RULES` maps an op to `rule(result, *meta_args, **kwargs)`, which returns `result` re-laid; `PROBED` ops are tried out
on zeros when an argument is not contiguous. `tests/autograd/opdb_layouts.py` compares every op that op_db reaches with
eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.graph import compat
from argand.graph.metadata.strides import (
    Ints,
    contiguous_strides,
    iterator_strides,
    preserved_strides,
    suggests_channels_last,
)
from argand.graph.operators.aten_names import of_aten

aten = torch.ops.aten

Rule = Callable[..., Any]


def relaid(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A meta tensor like `tensor` with these strides."""
    return torch.empty_strided(tensor.shape, tuple(stride), dtype=tensor.dtype, device="meta")


def in_format(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """A meta tensor like `tensor`, dense in a memory format."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=memory_format)


# ---------------------------------------------------------------------- elementwise ops (TensorIterator)


def operand(value: torch.Tensor | None) -> tuple[Ints, Ints] | None:
    """What `iterator_strides` takes for a tensor, or for a number (None)."""
    return None if value is None else (tuple(value.shape), value.stride())


def elementwise(result: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Re-lay the result of a pointwise op as its iterator does."""
    if not isinstance(result, torch.Tensor):
        return result
    if func is aten.pow.Scalar:  # whose result is made before its iterator
        return in_format(result, torch.contiguous_format)
    operands: list[tuple[Ints, Ints] | None] = []
    wrapped = func._opname in _NUMBER_IS_OPERAND
    common = _common_dtype(result, args)
    for argument, value in zip(func._schema.arguments, args):
        if isinstance(value, torch.Tensor):
            converted = common not in (None, value.dtype) and argument.name in ("self", "other")
            operands.append(_converted(value) if converted else operand(value))
        elif isinstance(value, (int, float, complex)) and (
            str(argument.type) == "Tensor" or _number(argument, wrapped)
        ):
            operands.append(None)
    operands += [operand(value) for value in kwargs.values() if isinstance(value, torch.Tensor)]
    if not any(operands):
        return result
    stride = iterator_strides(tuple(result.shape), operands)
    return result if stride == result.stride() else relaid(result, stride)


def _common_dtype(result: torch.Tensor, args: Sequence[Any]) -> torch.dtype | None:
    """What the operands of a binary operation are converted to; None where they are not."""
    tensors = [value for value in args[:2] if isinstance(value, torch.Tensor)]
    if len(tensors) < 2:
        return None
    common = torch.result_type(*tensors)
    floating = result.dtype.is_floating_point or result.dtype.is_complex
    return common if common.is_floating_point or common.is_complex or not floating else result.dtype


def _converted(value: torch.Tensor) -> tuple[Ints, Ints]:
    """An operand of another dtype is copied first, which leaves no holes."""
    size = tuple(value.shape)
    return size, preserved_strides(size, value.stride())


def _number(argument: Any, wrapped: bool) -> bool:
    return wrapped and argument.name in ("self", "other")


_NUMBER_IS_OPERAND = frozenset((
    "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "floor_divide", "rsub",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "__and__", "__or__",
    "__xor__", "__lshift__", "__rshift__", "xlogy", "special_xlog1py", "special_zeta", "copysign", "where",
    "true_divide",
))  # fmt: skip

# Pointwise by their tag, but not by one iterator over all tensor arguments.
NOT_ITERATED = frozenset(of_aten(
    "_to_copy copy clone masked_fill.Scalar masked_fill.Tensor fill.Scalar fill.Tensor mvlgamma "
    "threshold_backward "  # its arguments in the other order
    # these make a tensor like their argument, then write there
    "deg2rad frexp.Tensor hardtanh angle isinf ldexp.Tensor nan_to_num rad2deg"
))  # fmt: skip

ITERATED = frozenset((aten.floor_divide.default, aten.floor_divide.Scalar, aten.complex.default, aten.polar.default))


def is_elementwise(func: Any) -> bool:
    """The op's result is laid out by `iterator_strides`."""
    return func in ITERATED or (func not in NOT_ITERATED and compat.has_tag(func, "pointwise"))


_UNTAGGED = frozenset(of_aten(
    "hardswish hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward "
    "mish_backward softplus_backward"
))  # fmt: skip
"""Pointwise ops that torch does not tag as such."""


def is_pointwise(func: Any) -> bool:
    """Each element of the op's result is computed from one of each argument, whatever their layouts are."""
    return func in ITERATED or func in _UNTAGGED or compat.has_tag(func, "pointwise")


# ---------------------------------------------------------------------- memory formats


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format that a tensor's strides resemble, ambiguous ones counting as contiguous."""
    if not suggests_channels_last(tensor.shape, tensor.stride()):
        return torch.contiguous_format
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _convolution(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Channels last when the input or the weight is; a 1-d one is a 2-d one of height 1 of a contiguous input."""
    flat = x.dim() == 3
    if flat:
        x, weight, out = in_format(x, torch.contiguous_format).unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
    formats = {suggested_format(x), suggested_format(weight)} - {torch.contiguous_format}
    chosen = formats.pop() if formats else torch.contiguous_format
    laid = in_format(out, chosen)
    return laid.squeeze(2) if flat else laid


def _device_convolution(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """cuDNN's: as on the CPU, but for doubles."""
    if torch.float64 in (x.dtype, weight.dtype) or not torch.backends.cudnn.enabled:
        return in_format(out, torch.contiguous_format)
    return _convolution(out, x, weight)


def _device_convolution_backward(gradients: Any, grad: Any, x: torch.Tensor, weight: torch.Tensor, *args: Any) -> Any:
    """Both gradients are laid out as the result of the forward."""
    grad_x, grad_weight, grad_bias = gradients
    laid = [None if one is None else _device_convolution(one, x, weight) for one in (grad_x, grad_weight)]
    return (*laid, grad_bias)


def convolution_is_unclear(x: torch.Tensor, weight: torch.Tensor, transposed: bool, groups: int) -> bool:
    """Which kernel, and so layout, depends on sizes: of empty, and of 3-d, transposed or grouped channels-last ones."""
    if x.numel() == 0 or any(t.is_contiguous() and t.stride() != contiguous_strides(t.shape) for t in (x, weight)):
        return True  # strides of sizes of 1 may fit every format
    if x.dim() == 3:
        if weight.numel() == weight.shape[0]:
            return True  # one input channel, width 1: its strides fit every format
        x, weight = in_format(x, torch.contiguous_format).unsqueeze(2), weight.unsqueeze(2)
    if x.dim() == 4 and not transposed and groups == 1:
        return False
    return {suggested_format(x), suggested_format(weight)} != {torch.contiguous_format}


def may_read_padding_only(
    size: Sequence[object], window: Sequence[object], padding: Sequence[object], dilation: Sequence[object]
) -> bool:
    """Whether some window of a convolution may read nothing but zeros: then oneDNN's kernels for channels that lie
    innermost call what they have not made (signal 11), so that only programs that have it so may call them.

    Arguments:
        size: of the images, without batch and channels; what is no int may be any size, here and below.
        window: of the weight, likewise.
    """
    if not len(size) == len(window) == len(padding) == len(dilation):
        return True  # one number for all sides
    for n, side, pad, apart in zip(size, window, padding, dilation):
        if pad == 0:
            continue
        if not (isinstance(side, int) and isinstance(pad, int) and isinstance(apart, int)):
            return True
        if pad > apart * (side - 1) or (apart > 1 and (not isinstance(n, int) or n < apart)):
            return True
    return False


def _copied_with_gaps(result: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """The copy of a tensor that is not expanded lies in memory as it does."""
    if any(not step and size > 1 for size, step in zip(x.shape, x.stride())):
        return _preserved(result, x)
    return relaid(result, x.stride())


def _preserved(result: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """All results are laid out as the argument, without its holes."""
    stride = preserved_strides(tuple(x.shape), x.stride())
    return relaid(result, stride) if isinstance(result, torch.Tensor) else tuple(relaid(one, stride) for one in result)


def _sort(result: Any, *args: Any, **kwargs: Any) -> Any:
    return _preserved(result, args[0] if args else kwargs["self"])


def _matrix_exp(result: torch.Tensor, x: torch.Tensor) -> Any:
    """Of matrices of one element, their exponentials."""
    return relaid(result, iterator_strides(tuple(x.shape), [operand(x)])) if x.shape[-1] == 1 else result


def _by_columns(matrices: torch.Tensor) -> torch.Tensor:
    """As LAPACK stores them. What has no columns is what was not asked for."""
    *batch, rows, columns = (1, *matrices.shape) if matrices.dim() < 2 else matrices.shape
    *outer, column, row = contiguous_strides((*batch, columns, rows))
    return relaid(matrices, (*outer, row, column)[-matrices.dim() :])


def _like(result: torch.Tensor, x: torch.Tensor, *args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
    """A new tensor of the argument's size, in its layout unless told otherwise."""
    return _preserved(result, x) if memory_format in (None, torch.preserve_format) else result


def _loss(result: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """As the argument when nothing is reduced."""
    return _preserved(result, x) if result.shape == x.shape and x.dim() else result


def _contiguous(result: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return in_format(result, torch.contiguous_format)


def _vector_norm(
    result: torch.Tensor, x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Any:
    """The meta kernel of torch 2.11 keeps dims of one element that are counted from the end."""
    gone = {d % x.dim() for d in dim or range(x.dim())} if x.dim() else set()
    sizes = [1 if d in gone else size for d, size in enumerate(x.shape) if keepdim or d not in gone]
    return torch.empty(sizes, dtype=result.dtype, device="meta")


def _resized(result: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In the memory format of the argument."""
    return in_format(result, suggested_format(x))


def _all_contiguous(results: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple(in_format(one, torch.contiguous_format) for one in results)


def _statistics_dtype(x: torch.Tensor, *parameters: Any) -> torch.dtype:
    """Of saved means: the tensor's own, or the parameters' when they are wider."""
    given = next((p.dtype for p in parameters if p is not None), x.dtype)
    return x.dtype if given is x.dtype else torch.float32


def _batch_norm(
    results: Any,
    x: torch.Tensor,
    weight: Any = None,
    bias: Any = None,
    mean: Any = None,
    var: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    out, *saved = results
    dtype = _statistics_dtype(x, weight, bias, mean, var)
    statistics = [one.to(dtype) for one in saved[:2]] + saved[2:]
    return (in_format(out, _normalized_format(x, weight, bias)), *statistics)


def _normalized_format(x: torch.Tensor, *parameters: Any) -> torch.memory_format:
    """The first format that a dense tensor fits, even where its strides resemble another."""
    if all(one is None or one.is_contiguous() for one in parameters):
        for memory_format in (torch.contiguous_format, torch.channels_last_3d, torch.channels_last):
            if x.is_contiguous(memory_format=memory_format):
                return memory_format
    return suggested_format(x)


def _batch_norm_legacy(results: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In inference the saved statistics are empty."""
    out, mean, scale = _batch_norm(results, x, *args[:4])
    training = args[4] if len(args) > 4 else kwargs.get("training", False)
    if training:
        return (out, mean, scale)
    return (out, mean.new_empty((0,)), scale.new_empty((0,)))


def _first_resized(results: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return (_resized(results[0], x), *results[1:])


def _layer_norm(results: Any, x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, *args: Any) -> Any:
    out, mean, scale = results
    dtype = _statistics_dtype(x, weight, bias)
    return out, mean.to(dtype), scale.to(dtype)


def _dropout_backward(grad_x: torch.Tensor, grad: torch.Tensor, mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return relaid(grad_x, iterator_strides(tuple(grad_x.shape), (operand(grad), operand(mask))))


def _iterated(*order: int) -> Rule:
    """Pointwise: one iterator over the tensors at these positions."""

    def rule(result: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(result, torch.Tensor) or len(args) <= max(order):
            return result
        return relaid(result, iterator_strides(tuple(result.shape), [operand(args[position]) for position in order]))

    return rule


def _contiguous_results(results: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple(None if one is None else in_format(one, torch.contiguous_format) for one in results)


def _batch_norm_backward(gradients: Any, grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    grad_x, *others = gradients
    return (None if grad_x is None else in_format(grad_x, suggested_format(x)), *others)


RULES: dict[Any, Rule] = {
    **dict.fromkeys(of_aten(
        "softplus_backward gelu_backward silu_backward mish_backward sigmoid_backward tanh_backward hardtanh_backward "
        "leaky_relu_backward hardswish_backward hardsigmoid_backward hardshrink_backward softshrink_backward "
        "logit_backward"
    ), _iterated(0, 1)),
    aten.elu_backward.default: _iterated(0, 5),
    aten.threshold_backward.default: _iterated(1, 0),
    aten.rsub.Tensor: _iterated(1, 0),
    aten.native_layer_norm_backward.default: _contiguous_results,
    **dict.fromkeys(of_aten("native_batch_norm_backward batch_norm_backward"), _batch_norm_backward),
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm_legacy,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: lambda results, x, *args, **kwargs: _batch_norm(results, x, *args[:2]),
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_group_norm.default: _first_resized,
    aten.native_dropout_backward.default: _dropout_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.log_sigmoid_forward.default: _all_contiguous,
    aten.linalg_matrix_exp.default: _matrix_exp,
    aten._linalg_svd.default: lambda results, *_, **__: (_by_columns(results[0]), results[1], _by_columns(results[2])),
    aten.linalg_eig.default: lambda results, *_: (results[0], _by_columns(results[1])),
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    **dict.fromkeys(of_aten(
        "empty_like zeros_like ones_like full_like rand_like randn_like randint_like randint_like.low_dtype"
    ), _like),
    **dict.fromkeys(of_aten(
        "_prelu_kernel deg2rad rad2deg hardtanh nan_to_num fill.Scalar fill.Tensor flip frexp.Tensor "
        "index_fill.int_Scalar index_fill.int_Tensor index_put _unsafe_index_put _unsafe_masked_index_put_accumulate"
    ), _preserved),
    **dict.fromkeys(
        (aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default), _copied_with_gaps
    ),
    **dict.fromkeys(of_aten(
        "_log_softmax masked_fill.Scalar masked_fill.Tensor diag_embed normal.Tensor_Tensor normal.float_Tensor "
        "poisson _standard_gamma tril triu sum.dim_IntList "
        "prod.dim_int amax amin im2col isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor "
        "rrelu_with_noise var.correction glu_backward _log_softmax_backward_data "
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward"
    ), _contiguous),
    **dict.fromkeys(of_aten(
        "upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_trilinear3d"
    ), _resized),
    **dict.fromkeys((aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim), _vector_norm),
    aten.aminmax.default: _all_contiguous,
    aten.rrelu_with_noise_functional.default: _all_contiguous,
    aten.var_mean.correction: _all_contiguous,
    aten.binary_cross_entropy.default: _loss,
}  # fmt: skip

DEVICE_RULES: dict[Any, Rule] = {
    aten.convolution.default: _device_convolution,
    aten.convolution_backward.default: _device_convolution_backward,
}
"""For tensors that are not on the CPU."""

PROBED = frozenset(of_aten(
    "_embedding_bag_forward_only _embedding_bag _fft_c2r channel_shuffle roll native_channel_shuffle "
    "max_unpool2d nll_loss2d_forward nonzero_static pixel_shuffle pixel_unshuffle reflection_pad1d "
    "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _fft_r2c mvlgamma "
    "reflection_pad2d_backward reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward "
    "_fft_c2c angle binary_cross_entropy_with_logits glu huber_loss isinf ldexp.Tensor rot90"
))  # fmt: skip

# Of these the meta kernel is wrong for contiguous arguments too.
ALWAYS_PROBED = frozenset(of_aten(
    "_embedding_bag_forward_only _embedding_bag nonzero_static _fft_r2c"
))  # fmt: skip
