"""Result types under autocast: the policy that eager applies by device, applied to stand-ins.

Autocast acts on the dispatch keys of a device, which stand-ins do not have. The tables name torch's operations by
policy: those that run in the lower precision, those that run in float32, those that take the widest type of their
arguments.
"""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.facts.tensor_info import TensorInfo
from argand.capture.facts.words import words
from argand.capture.metadata import metadata

_LOWER = frozenset(
    words(
        """
    linear matmul __matmul__ __rmatmul__ mm bmm addmm addmv addr baddbmm addbmm mv chain_matmul
    multi_dot linalg_multi_dot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    conv_tbc _convolution convolution scaled_dot_product_attention prelu einsum bilinear lstm_cell
    gru_cell rnn_tanh_cell rnn_relu_cell
    """
    )
)
_CPU_LOWER = _LOWER - {
    "addr",
    "mv",
    "addmv",
    "prelu",
    "bilinear",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
}
_CPU_FLOAT = frozenset(
    words(
        """
    avg_pool3d binary_cross_entropy grid_sampler grid_sample polar prod quantile nanquantile stft cdist
    trace view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve orgqr ormqr pinverse
    max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d replication_pad3d mse_loss cosine_embedding_loss nll_loss
    nll_loss2d hinge_embedding_loss poisson_nll_loss smooth_l1_loss cross_entropy l1_loss huber_loss
    margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss kl_div
    multilabel_margin_loss binary_cross_entropy_with_logits fft_fft fft_ifft geqrf
    """
    )
)
_CUDA_FLOAT = frozenset(
    words(
        """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__
    softplus layer_norm group_norm norm nuclear_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp cross_entropy
    rms_norm upsample_nearest1d upsample_nearest2d upsample_bilinear2d
    """
    )
)
_CUDA_FLOAT_SET = frozenset(["prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum"])
_CPU_WIDEST = frozenset(["stack", "cat", "index_copy"])
_CUDA_WIDEST = frozenset(
    words(
        """
    addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot cat stack
    """
    )
)
_COMPOSED = frozenset(["multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu", "gumbel_softmax"])


def active() -> bool:
    """Whether any autocast is on in this thread."""
    return torch._C._is_any_autocast_enabled()


def compute(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], infos: list[TensorInfo], device: torch.device
) -> Any:
    """`metadata.compute` with the arguments cast as eager would."""
    name = getattr(func, "__name__", "")
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return metadata.compute(func, args, kwargs, infos)
    if name in _COMPOSED:
        raise errors.graph_break(
            kind="composed function under autocast",
            context=name,
            explanation=f"{name} is made of several operations that autocast treats differently.",
            hints=("call it outside autocast",),
        )
    to = _cast_to(name, kind, infos, kwargs)
    if to is not None:
        args = tuple(_cast(arg, to) for arg in args)
        kwargs = {key: _cast(value, to) for key, value in kwargs.items()}
    made = metadata.compute(func, args, kwargs, infos)
    return made


def _cast_to(name: str, kind: str, infos: list[TensorInfo], kwargs: dict[str, Any]) -> torch.dtype | None:
    floats = [info.tensor.dtype for info in infos if info.tensor.dtype.is_floating_point]
    if not floats or "out" in kwargs:
        return None
    lower, full = (_CPU_LOWER, _CPU_FLOAT) if kind == "cpu" else (_LOWER, _CUDA_FLOAT)
    if name in lower:
        return torch.get_autocast_dtype(kind)
    if name in full:
        return torch.float32
    if kind != "cpu" and name in _CUDA_FLOAT_SET and kwargs.get("dtype") is None:
        return torch.float32
    if name in (_CPU_WIDEST if kind == "cpu" else _CUDA_WIDEST):
        return torch.float32 if torch.float32 in floats else None
    return None


def _cast(value: Any, to: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype.is_floating_point and value.dtype is not torch.float64 and value.dtype is not to:
            return value.to(to)
        return value
    if type(value) in (list, tuple):
        return type(value)(_cast(item, to) for item in value)
    return value
