"""Functions whose metadata the tracer cannot tell, takes as long as their data to tell, or tells of what eager refuses.

A rule gets the arguments of a call and returns stand-ins, or raises `Unknown` to leave the call to the tracer: for
anything unusual, and for everything that is an error (so that messages are torch's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
import torch.nn.functional as F

from argand import errors
from argand.capture.metadata.meta_tensors import needs_grad, new
from argand.graph.metadata.strides import iterator_strides
from argand.runtime.kernels.recurrent import FUNCTIONS, recurrence

Rule: TypeAlias = Callable[..., object]

RULES: Final[dict[object, Rule]] = {}


class Unknown(Exception):
    """No rule applies."""


class Misfit(Exception):
    """Eager raises for these arguments, where torch's metadata would not."""


def tensor(value: object) -> torch.Tensor:
    """The argument if it is a tensor; Unknown otherwise."""
    if not isinstance(value, torch.Tensor):
        raise Unknown
    return value


def _like(x: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """What a pointwise operation makes of a tensor."""
    size = tuple(x.shape)
    return new(size, iterator_strides(size, [(size, x.stride())]), x.dtype, requires_grad)


def _in_place(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """An activation that writes. Torch's kernels for stand-ins are decompositions (1 ms), that of `relu_` is none."""
    if inplace is not True or tensor(x).dtype not in (torch.float32, torch.float64):
        raise Unknown
    return torch.relu_(x)


def _hardtanh(x: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> torch.Tensor:
    if not (type(min_val) in (int, float) and type(max_val) in (int, float) and min_val < max_val):
        raise Unknown
    return _in_place(x, inplace)


RULES.update(dict.fromkeys((F.hardswish, F.hardsigmoid, F.relu6, F.mish, F.selu), _in_place))
RULES[F.hardtanh] = _hardtanh


# ---------------------------------------------------------------------- those that look at values


def _fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *rest: int, **more: int
) -> torch.Tensor:
    *axis, low, high = *rest, *(more[key] for key in ("axis", "quant_min", "quant_max") if key in more)
    if len(rest) + len(more) not in (2, 3) or low > high or not tensor(x).dtype.is_floating_point:
        raise Unknown
    if type(zero_point) is int and not low <= zero_point <= high:
        raise Unknown
    if axis and (scale.dtype is not torch.float32 or tuple(scale.shape) != (x.shape[axis[0]],)):
        raise Unknown
    if axis and tuple(zero_point.shape) != tuple(scale.shape):
        raise Unknown
    return _like(x, needs_grad(x, scale, zero_point))


RULES[torch.fake_quantize_per_tensor_affine] = RULES[torch.fake_quantize_per_channel_affine] = _fake_quantize


def _observe(
    x: torch.Tensor, observer_on: torch.Tensor, fake_quant_on: torch.Tensor, running_min: torch.Tensor, *rest: object,
    **more: object,
) -> torch.Tensor:  # fmt: skip
    """What has seen nothing yet resizes what it is given to the channels, which no metadata shows."""
    if running_min.numel():
        raise Unknown
    raise errors.graph_break(
        kind="data-dependent value",
        context="fused_moving_avg_obs_fake_quant",
        explanation="The first call of an observer resizes its buffers (dynamic shape of an argument).",
        hints=("Call the model once before it is compiled.",),
    )


for _name in ("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"):
    _packet = getattr(torch.ops.aten, _name)
    RULES.update(dict.fromkeys((getattr(torch, _name), _packet, _packet.default), _observe))


def _istft(x: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
           window: torch.Tensor | None = None, center: bool = True, normalized: bool = False,
           onesided: bool | None = None, length: int | None = None,
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


def _foobar(x: object, *flags: bool, **more: bool) -> torch.Tensor:
    """ATen's op for trying out errors (docs/minifier.md): it has no meta kernel."""
    if needs_grad(tensor(x)):
        raise Unknown
    return _like(x, False)


if hasattr(torch.ops.aten, "_foobar"):
    RULES[torch.ops.aten._foobar] = RULES[torch.ops.aten._foobar.default] = _foobar


# ---------------------------------------------------------------------- those with a result that is none


def _multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, heads: int, weight: torch.Tensor,
    bias: torch.Tensor, last_weight: torch.Tensor, last_bias: torch.Tensor, mask: torch.Tensor | None = None,
    need_weights: bool = True, *rest: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Without weights the second result is None; on the meta device it is an empty tensor."""
    if need_weights or needs_grad(query, key, value, weight, bias, last_weight, last_bias) or query.ndim != 3:
        raise Unknown
    (batch, length, size), others = query.shape, key.shape[1]
    sizes = [tuple(each.shape) for each in (key, value, weight, bias, last_weight, last_bias)]
    if sizes != [(batch, others, size)] * 2 + [(3 * size, size), (3 * size,), (size, size), (size,)]:
        raise Unknown
    masks = ((length, others), (batch, others), (batch, heads, length, others))
    if size != width or width % heads or (mask is not None and tuple(mask.shape) not in masks):
        raise Unknown
    return new((batch, length, size), (length * size, size, 1), query.dtype, False), None


RULES[torch._native_multi_head_attention] = _multi_head_attention


# ---------------------------------------------------------------------- recurrent layers: as long as the sequence


def _rule(kind: str) -> Rule:
    def apply(*args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        call = recurrence(kind, args, kwargs)
        if call is None:
            raise _unusual(kind, "its arguments are not those of torch.nn's layers")
        try:
            sizes = call.result_sizes()
        except ValueError as error:
            raise _unusual(kind, str(error)) from None
        grad = needs_grad(call.input, *call.states, *call.params)
        return tuple([new(size, stride, call.input.dtype, grad) for size, stride in sizes])

    return apply


def _unusual(kind: str, why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="recurrent layer of unusual arguments",
        context=f"{kind}: {why}",
        explanation=f"What torch.{kind} does with these arguments is not known without running it ({why}).",
    )


RULES.update({function: _rule(kind) for function, kind in FUNCTIONS.items()})
