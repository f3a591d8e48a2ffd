"""Metadata rules for normalisation, attention, embedding and dropout (see shapes)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from argand.capture.metadata import layouts
from argand.capture.metadata.layouts import Unknown, contiguous, needs_grad, new
from argand.capture.metadata.shapes import RULES, layout_of, tensor
from argand.graph.metadata.strides import is_channels_last

_Tensor = torch.Tensor
_BOOL = torch.bool

# ---------------------------------------------------------------------- normalisation


def _norm_weights(x: torch.Tensor, *weights: Any) -> None:
    for weight in weights:
        if weight is not None and (not isinstance(weight, _Tensor) or weight.dtype is not x.dtype):
            raise Unknown


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    shape = tuple(tensor(x).shape)
    inner = tuple(normalized_shape)
    if not inner or shape[-len(inner) :] != inner or not x.dtype.is_floating_point or 0 in shape:
        raise Unknown
    _norm_weights(x, weight, bias)
    if any(w is not None and tuple(w.shape) != inner for w in (weight, bias)):
        raise Unknown
    return new(shape, None, x.dtype, needs_grad(x, weight, bias))


RULES[F.layer_norm] = RULES[torch.layer_norm] = _layer_norm


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
    shape = tuple(tensor(x).shape)
    if x.stride() != contiguous(shape):
        raise Unknown
    return _layer_norm(x, normalized_shape, weight)


RULES[F.rms_norm] = _rms_norm


def _group_norm(x: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    shape = tuple(tensor(x).shape)
    if len(shape) < 2 or type(num_groups) is not int or num_groups <= 0 or shape[1] % num_groups or 0 in shape:
        raise Unknown
    if (
        not x.dtype.is_floating_point
        or x.stride() != contiguous(shape)
        or layouts.numel(shape) // (shape[0] * num_groups) <= 1
    ):
        raise Unknown
    _norm_weights(x, weight, bias)
    if any(w is not None and tuple(w.shape) != (shape[1],) for w in (weight, bias)):
        raise Unknown
    return new(shape, None, x.dtype, needs_grad(x, weight, bias))


RULES[F.group_norm] = _group_norm


def _batch_norm(x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
                training: bool = False, momentum: Any = 0.1, eps: float = 1e-5) -> torch.Tensor:  # fmt: skip
    shape = tuple(tensor(x).shape)
    if training or len(shape) < 2 or running_mean is None or running_var is None or 0 in shape:
        raise Unknown  # training mutates the running statistics: torch's own kernel does that on meta too
    if needs_grad(running_mean, running_var):
        raise Unknown  # eager refuses to differentiate by them
    parts = (running_mean, running_var, weight, bias)
    _norm_weights(x, *parts)
    if any(p is not None and tuple(p.shape) != (shape[1],) for p in parts) or not x.dtype.is_floating_point:
        raise Unknown
    strides = x.stride()
    if strides != contiguous(shape) and not is_channels_last(shape, strides):
        raise Unknown
    return new(shape, strides, x.dtype, needs_grad(x, weight, bias))


RULES[F.batch_norm] = _batch_norm


# ---------------------------------------------------------------------- attention, embedding, losses


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
               scale: Any = None, enable_gqa: bool = False) -> torch.Tensor:  # fmt: skip
    """Eager's flash kernel on CPU lays the result out as the query."""
    q, k, v = tuple(tensor(query).shape), tuple(tensor(key).shape), tuple(tensor(value).shape)
    if len(q) != 4 or len(k) != 4 or len(v) != 4 or 0 in q + k + v or not query.dtype.is_floating_point:
        raise Unknown
    if query.dtype is not key.dtype or key.dtype is not value.dtype or q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        raise Unknown
    if q[1] != k[1] and not (enable_gqa and q[1] % k[1] == 0):
        raise Unknown
    if attn_mask is not None:
        mask = tuple(tensor(attn_mask).shape)
        if is_causal or layouts.broadcast((mask, (*q[:3], k[2]))) != (*q[:3], k[2]):
            raise Unknown
        if attn_mask.dtype is not _BOOL and attn_mask.dtype is not query.dtype:
            raise Unknown
    shape = (*q[:3], v[3])
    grad = needs_grad(query, key, value, attn_mask)
    if _cpu_flash(query, key, value, attn_mask, dropout_p):
        return new(shape, layouts.preserved(q, query.stride()), query.dtype, grad)
    return new(shape, None, query.dtype, grad)


def _cpu_flash(query: Any, key: Any, value: Any, mask: Any, dropout: float) -> bool:
    """Whether eager on CPU takes the flash kernel rather than the composed one."""
    if not torch.backends.cuda.flash_sdp_enabled() or dropout != 0.0:
        return False
    if query.shape[3] != value.shape[3] or query.shape[3] == 0:
        return False
    if mask is not None and mask.requires_grad:
        return False
    if query.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return False
    if any(t.stride(-1) != 1 for t in (query, key, value)):
        return False
    return not (mask is not None and mask.dim() not in (2, 4))


RULES[F.scaled_dot_product_attention] = _attention


def _embedding(ids: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
               scale_grad_by_freq: bool = False, sparse: bool = False) -> torch.Tensor:  # fmt: skip
    if max_norm is not None or tensor(weight).dim() != 2 or tensor(ids).dtype not in (torch.int64, torch.int32):
        raise Unknown
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise Unknown
    return new((*ids.shape, weight.shape[1]), None, weight.dtype, needs_grad(weight))


RULES[F.embedding] = _embedding


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or inplace or not isinstance(p, float | int) or not 0.0 < p < 1.0:
        raise Unknown  # without training the very same tensor comes back
    if not tensor(x).dtype.is_floating_point:
        raise Unknown
    return new(*layout_of(x), x.dtype, needs_grad(x))


RULES[F.dropout] = _dropout


def _glu(x: Any, dim: Any = -1) -> torch.Tensor:
    shape = list(tensor(x).shape)
    dim = layouts.normalize_dim(dim, len(shape))
    if (
        not shape
        or shape[dim] % 2
        or 0 in shape
        or x.stride() != contiguous(tuple(shape))
        or not x.dtype.is_floating_point
    ):
        raise Unknown
    shape[dim] //= 2
    return new(tuple(shape), None, x.dtype, needs_grad(x))


RULES[F.glu] = _glu


def _fake_quantize(x: Any, scale: Any, zero_point: Any, *rest: int, **more: int) -> torch.Tensor:
    *axis, low, high = *rest, *(more[key] for key in ("axis", "quant_min", "quant_max") if key in more)
    if len(rest) + len(more) not in (2, 3) or low > high or not tensor(x).dtype.is_floating_point:
        raise Unknown
    if type(zero_point) is int and not low <= zero_point <= high:
        raise Unknown
    if axis and (scale.dtype is not torch.float32 or tuple(scale.shape) != (x.shape[axis[0]],)):
        raise Unknown
    if axis and tuple(zero_point.shape) != tuple(scale.shape):
        raise Unknown
    return new(*layout_of(x), x.dtype, needs_grad(x, scale, zero_point))


RULES[torch.fake_quantize_per_tensor_affine] = RULES[torch.fake_quantize_per_channel_affine] = _fake_quantize


def _istft(x: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
           normalized: bool = False, onesided: Any = None, length: Any = None,
           return_complex: bool = False) -> torch.Tensor:  # fmt: skip
    *batch, bins, frames = tensor(x).shape
    hop = n_fft // 4 if hop_length is None else hop_length
    size = n_fft if win_length is None else win_length
    if not x.dtype.is_complex or len(batch) > 1 or 0 in x.shape or not 0 < hop <= size <= n_fft:
        raise Unknown
    if bins != (n_fft // 2 + 1 if (bins != n_fft if onesided is None else onesided) else n_fft):
        raise Unknown
    if window is not None and (tuple(window.shape) != (size,) or (window.dtype.is_complex and not return_complex)):
        raise Unknown
    samples = n_fft + hop * (frames - 1) - (n_fft // 2 * 2 if center else 0) if length is None else length
    if samples <= 0:
        raise Unknown
    dtype = x.dtype if return_complex else x.dtype.to_real()
    return new((*batch, samples), None, dtype, needs_grad(x, window))


RULES[torch.istft] = RULES[torch.Tensor.istft] = _istft


def _foobar(x: Any, *flags: bool, **more: bool) -> torch.Tensor:
    """ATen's op for trying out errors (docs/minifier.md): it has no meta kernel."""
    if needs_grad(tensor(x)):
        raise Unknown
    return new(*layout_of(x), x.dtype, False)


if hasattr(torch.ops.aten, "_foobar"):
    RULES[torch.ops.aten._foobar] = RULES[torch.ops.aten._foobar.default] = _foobar
