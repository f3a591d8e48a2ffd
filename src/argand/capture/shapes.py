"""Fast metadata rules for the operations that models are made of; everything else asks torch's meta kernels.

torch's meta kernels for many pointwise operations are Python, cost 50 to 900 µs a call and import torch's own compiler.
A rule gets the call's arguments and returns the result's meta tensor, or raises `Unknown` to leave the call to
torch: for anything unusual, and for everything that is an error (so that messages are torch's).
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from argand.capture import layouts
from argand.capture.layouts import Unknown, contiguous, needs_grad, new
from argand.capture.words import words

Rule: TypeAlias = Callable[..., Any]

RULES: dict[Any, Rule] = {}

_Tensor = torch.Tensor
_BOOL = torch.bool


def rule(
    *names: str, methods: tuple[str, ...] | None = None, functional: tuple[str, ...] = ()
) -> Callable[[Rule], Rule]:
    """Register for `torch.<name>`, `Tensor.<name>` (or `methods`), and `F.<name>` for names in `functional`."""

    def register(fn: Rule) -> Rule:
        for name in names:
            found = getattr(torch, name, None)
            if found is not None:
                RULES[found] = fn
        for name in names if methods is None else methods:
            found = getattr(_Tensor, name, None)
            if found is not None:
                RULES[found] = fn
        for name in functional:
            found = getattr(F, name, None)
            if found is not None:
                RULES[found] = fn
        return fn

    return register


def _tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, _Tensor):
        raise Unknown
    return value


def _number(value: Any) -> bool:
    return type(value) in (int, float, bool, complex)


def _layout(*operands: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return layouts.pointwise_layout(tuple([(tuple(t.shape), t.stride()) for t in operands if isinstance(t, _Tensor)]))


def _pair(a: Any, b: Any) -> torch.dtype:
    """Common dtype of two operands, one of them a tensor."""
    if isinstance(a, _Tensor):
        if isinstance(b, _Tensor):
            if a.dtype is b.dtype:
                return a.dtype
        elif not _number(b):
            raise Unknown
    elif not isinstance(b, _Tensor) or not _number(a):
        raise Unknown
    return torch.result_type(a, b)


# ---------------------------------------------------------------------- pointwise, two operands


@rule("add", "sub", "subtract", methods=("add", "sub", "subtract", "__add__", "__sub__", "__radd__", "__rsub__"))
def _add(a: Any, b: Any, *, alpha: Any = 1) -> torch.Tensor:
    dtype = _pair(a, b)
    if alpha != 1 or (dtype is _BOOL):
        raise Unknown
    return new(*_layout(a, b), dtype, needs_grad(a, b))


@rule("mul", "multiply", methods=("mul", "multiply", "__mul__", "__rmul__"))
def _mul(a: Any, b: Any) -> torch.Tensor:
    return new(*_layout(a, b), _pair(a, b), needs_grad(a, b))


@rule("maximum", "minimum", "fmax", "fmin", "remainder", "floor_divide", methods=(
    "maximum", "minimum", "remainder", "floor_divide", "__mod__", "__floordiv__"))  # fmt: skip
def _same_kind(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_complex or dtype is _BOOL:
        raise Unknown
    if isinstance(a, _Tensor) and not dtype.is_floating_point and type(b) is int and b == 0:
        raise Unknown
    return new(*_layout(a, b), dtype, needs_grad(a, b))


@rule(
    "div",
    "divide",
    "true_divide",
    methods=("div", "divide", "true_divide", "__truediv__", "__div__", "__rtruediv__", "__rdiv__"),
)
def _div(a: Any, b: Any, *, rounding_mode: Any = None) -> torch.Tensor:
    dtype = _pair(a, b)
    if rounding_mode is None and not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    elif rounding_mode is not None and (rounding_mode not in ("floor", "trunc") or dtype is _BOOL or dtype.is_complex):
        raise Unknown
    return new(*_layout(a, b), dtype, needs_grad(a, b))


@rule("pow", methods=("pow", "__pow__"))
def _pow(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if not (dtype.is_floating_point or dtype.is_complex) and not (type(b) is int and b >= 0):
        raise Unknown
    return new(*_layout(a, b), dtype, needs_grad(a, b))


@rule("eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", methods=(
    "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))  # fmt: skip
def _compare(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_complex:
        raise Unknown
    return new(*_layout(a, b), _BOOL)


@rule("logical_and", "logical_or", "logical_xor")
def _logical(a: Any, b: Any) -> torch.Tensor:
    return new(*_layout(_tensor(a), _tensor(b)), _BOOL)


@rule("bitwise_and", "bitwise_or", "bitwise_xor", methods=(
    "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "__rand__", "__ror__"))  # fmt: skip
def _bitwise(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_floating_point or dtype.is_complex:
        raise Unknown
    return new(*_layout(a, b), dtype)


@rule("where", methods=("where",))
def _where(*operands: Any) -> torch.Tensor:
    if len(operands) != 3:
        raise Unknown
    condition, a, b = operands
    if not isinstance(condition, _Tensor):
        raise Unknown
    if not isinstance(a, _Tensor) and not isinstance(b, _Tensor):
        raise Unknown
    dtype = _pair(a, b)
    if condition.dtype is not _BOOL:
        raise Unknown
    return new(*_layout(condition, a, b), dtype, needs_grad(a, b))


RULES[_Tensor.where] = lambda self, condition, other: _where(condition, self, other)


@rule("masked_fill")
def _masked_fill(x: Any, mask: Any, value: Any) -> torch.Tensor:
    if not (isinstance(mask, _Tensor) and mask.dtype is _BOOL):
        raise Unknown
    if not (_number(value) or (isinstance(value, _Tensor) and value.dim() == 0 and value.dtype is x.dtype)):
        raise Unknown
    if type(value) is complex or (type(value) is float and not x.dtype.is_floating_point):
        raise Unknown
    shape = layouts.broadcast((tuple(x.shape), tuple(mask.shape)))
    if 0 in shape:
        raise Unknown
    if shape == tuple(x.shape):  # a clone of x, filled in place
        return new(shape, layouts.preserved(shape, x.stride()), x.dtype, needs_grad(x, value))
    return new(shape, _expanded_clone(x, shape), x.dtype, needs_grad(x, value))


def _expanded_clone(x: torch.Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a clone of `x.expand(shape)` (torch's `expand_outplace` then `clone(contiguous)`)."""
    del x
    return contiguous(shape)


# ---------------------------------------------------------------------- pointwise, one operand

_FLOAT_UNARY = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf erfc erfinv sigmoid reciprocal lgamma digamma deg2rad rad2deg
    """
)
_SAME_UNARY = words(
    """
    neg negative positive square floor ceil trunc round frac sign sgn relu bitwise_not
    """
)


@rule(*_FLOAT_UNARY)
def _float_unary(x: Any) -> torch.Tensor:
    dtype = _tensor(x).dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return new(*_layout(x), dtype, needs_grad(x))


@rule(*_SAME_UNARY, methods=(*_SAME_UNARY, "__neg__"))
def _same_unary(x: Any) -> torch.Tensor:
    dtype = _tensor(x).dtype
    if dtype.is_complex or dtype is _BOOL:
        raise Unknown
    return new(*_layout(x), dtype, needs_grad(x))


@rule("bitwise_not", methods=("bitwise_not", "__invert__"))
def _invert(x: Any) -> torch.Tensor:
    dtype = _tensor(x).dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise Unknown
    return new(*_layout(x), dtype)


@rule("abs", "absolute", methods=("abs", "absolute", "__abs__"))
def _abs(x: Any) -> torch.Tensor:
    if _tensor(x).dtype.is_complex or x.dtype is _BOOL:
        raise Unknown
    return new(*_layout(x), x.dtype, needs_grad(x))


@rule("logical_not", "isnan", "isinf", "isfinite", methods=("logical_not", "isnan", "isinf"))
def _to_bool(x: Any) -> torch.Tensor:
    if x.dtype.is_complex:
        raise Unknown
    return new(*_layout(_tensor(x)), _BOOL)


def _float_only(x: Any) -> torch.Tensor:
    if not _tensor(x).dtype.is_floating_point:
        raise Unknown
    return new(*_layout(x), x.dtype, needs_grad(x))


def _activation(x: Any, inplace: bool = False) -> torch.Tensor:
    if inplace:
        raise Unknown
    return _float_only(x)


for _fn in (F.silu, F.mish, F.selu, F.relu6, F.hardswish, F.hardsigmoid):
    RULES[_fn] = _activation
for _fn in (F.softplus, F.softsign, F.logsigmoid, F.tanhshrink):
    RULES[_fn] = lambda x: _float_only(x)
RULES[F.relu] = lambda x, inplace=False: _raise() if inplace else _same_unary(x)
RULES[F.gelu] = lambda x, approximate="none": _float_only(x) if approximate in ("none", "tanh") else _raise()
RULES[F.leaky_relu] = lambda x, negative_slope=0.01, inplace=False: _activation(x, inplace)
RULES[F.elu] = lambda x, alpha=1.0, inplace=False: _activation(x, inplace)
RULES[F.hardtanh] = lambda x, min_val=-1.0, max_val=1.0, inplace=False: _activation(x, inplace)
RULES[F.sigmoid] = RULES[F.tanh] = lambda x: _float_unary(x)


def _raise() -> Any:
    raise Unknown


@rule("clamp", "clip")
def _clamp(x: Any, min: Any = None, max: Any = None) -> torch.Tensor:
    dtype = _tensor(x).dtype
    for bound in (min, max):
        if bound is None:
            continue
        if not _number(bound) or (type(bound) is not int and not dtype.is_floating_point):
            raise Unknown
    if (min is None and max is None) or dtype.is_complex or dtype is _BOOL:
        raise Unknown
    return new(*_layout(x), dtype, needs_grad(x))


RULES[_Tensor.clamp_min] = RULES[torch.clamp_min] = lambda x, min: _clamp(x, min)
RULES[_Tensor.clamp_max] = RULES[torch.clamp_max] = lambda x, max: _clamp(x, None, max)


@rule("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", methods=())
def _like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, layout: Any = None,
          pin_memory: bool = False, memory_format: Any = torch.preserve_format) -> torch.Tensor:  # fmt: skip
    if requires_grad or layout not in (None, torch.strided) or memory_format is not torch.preserve_format:
        raise Unknown
    return new(tuple(x.shape), layouts.preserved(tuple(x.shape), _tensor(x).stride()), dtype or x.dtype)


@rule("full_like", methods=())
def _full_like(
    x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> torch.Tensor:
    if not _number(fill_value):
        raise Unknown
    return _like(x, dtype=dtype, requires_grad=requires_grad)


# ---------------------------------------------------------------------- reductions


def _reduce(x: torch.Tensor, dim: Any, keepdim: Any, dtype: torch.dtype, grad: bool = True) -> torch.Tensor:
    if type(keepdim) is not bool:
        raise Unknown
    shape = tuple(x.shape)
    dims = layouts.normalize_dims(dim, len(shape))
    strides = layouts.reduction_strides(shape, x.stride(), dims, keepdim)
    return new(layouts.reduced_shape(shape, dims, keepdim), strides, dtype, grad and needs_grad(x))


@rule("sum")
def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    return _reduce(_tensor(x), dim, keepdim, dtype)


@rule("mean")
def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise Unknown
    return _reduce(_tensor(x), dim, keepdim, dtype)


@rule("amax", "amin")
def _amax(x: Any, dim: Any = (), keepdim: bool = False) -> torch.Tensor:
    if _tensor(x).dtype.is_complex:
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("any", "all")
def _any(x: Any, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    dtype = torch.uint8 if _tensor(x).dtype is torch.uint8 else _BOOL
    return _reduce(x, dim, keepdim, dtype, False)


@rule("var", "std")
def _var(x: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = 1) -> torch.Tensor:
    if not _tensor(x).dtype.is_floating_point or type(dim) is bool:
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("norm", methods=("norm",))
def _norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    if dtype is not None or not _tensor(x).dtype.is_floating_point or p not in ("fro", 1, 2):
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("logsumexp")
def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> torch.Tensor:
    if not _tensor(x).dtype.is_floating_point:
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


def _rowwise(x: torch.Tensor, dim: Any, dtype: Any) -> torch.Tensor:
    if dtype is None:
        dtype = x.dtype
    if not dtype.is_floating_point or not x.dtype.is_floating_point:
        raise Unknown
    layouts.normalize_dim(dim, x.dim())
    shape = tuple(x.shape)
    if 0 in shape or x.stride() != contiguous(shape):
        raise Unknown
    return new(shape, None, dtype, needs_grad(x))


@rule("softmax", "log_softmax")
def _softmax(x: Any, dim: Any, dtype: Any = None) -> torch.Tensor:
    return _rowwise(_tensor(x), dim, dtype)


RULES[F.softmax] = RULES[F.log_softmax] = lambda x, dim=None, _stacklevel=3, dtype=None: _rowwise(
    _tensor(x), dim, dtype
)


@rule("cumsum", "cumprod")
def _cumsum(x: Any, dim: Any, *, dtype: Any = None) -> torch.Tensor:
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    layouts.normalize_dim(dim, x.dim())
    return new(*_layout(_tensor(x)), dtype, needs_grad(x))


@rule("tril", "triu")
def _tril(x: Any, diagonal: Any = 0) -> torch.Tensor:
    if _tensor(x).dim() < 2 or type(diagonal) is not int:
        raise Unknown
    shape = tuple(x.shape)
    if x.stride() != contiguous(shape):
        raise Unknown
    return new(shape, None, x.dtype, needs_grad(x))


@rule("roll", "flip")
def _roll(x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    values = [*args, *kwargs.values()]
    shape = tuple(_tensor(x).shape)
    if 0 in shape or x.stride() != contiguous(shape) or any(isinstance(v, _Tensor) for v in values):
        raise Unknown
    for value in values:
        for n in value if isinstance(value, tuple | list) else (value,):
            if type(n) is not int:
                raise Unknown
    _check_roll(len(shape), args, kwargs)
    return new(shape, None, x.dtype, needs_grad(x))


def _check_roll(rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Only `roll(shifts, dims)` and `flip(dims)` with dims in range; all else is torch's to judge."""
    dims = kwargs.get("dims", args[-1] if args and ("shifts" in kwargs or len(args) in (1, 2)) else None)
    shifts = kwargs.get("shifts", args[0] if len(args) == 2 else None)
    if dims is None:
        raise Unknown
    found = layouts.normalize_dims(dims, rank)
    if shifts is not None:
        count = len(shifts) if isinstance(shifts, tuple | list) else 1
        if count != len(found):
            raise Unknown


# ---------------------------------------------------------------------- joining


def _sequence(tensors: Any) -> list[torch.Tensor]:
    if not isinstance(tensors, tuple | list) or not tensors:
        raise Unknown
    return [_tensor(t) for t in tensors]


@rule("cat", "concat", "concatenate", methods=())
def _cat(tensors: Any, dim: Any = 0) -> torch.Tensor:
    items = _sequence(tensors)
    first = items[0]
    rank = first.dim()
    dim = layouts.normalize_dim(dim, rank)
    shape = list(first.shape)
    total = 0
    for item in items:
        own = tuple(item.shape)
        if len(own) != rank or 0 in own or rank == 0 or item.dtype is not first.dtype:
            raise Unknown
        if item.stride() != contiguous(own) or (rank >= 4 and layouts._is_channels_last(own, item.stride())):
            raise Unknown
        if own[:dim] != tuple(shape[:dim]) or own[dim + 1 :] != tuple(shape[dim + 1 :]):
            raise Unknown
        total += own[dim]
    shape[dim] = total
    return new(tuple(shape), None, first.dtype, needs_grad(*items))


@rule("stack", methods=())
def _stack(tensors: Any, dim: Any = 0) -> torch.Tensor:
    items = _sequence(tensors)
    first = items[0]
    shape = tuple(first.shape)
    dim = layouts.normalize_dim(dim, len(shape) + 1)
    if 0 in shape or any(tuple(item.shape) != shape or item.dtype is not first.dtype for item in items):
        raise Unknown
    made = (*shape[:dim], len(items), *shape[dim:])
    if any(item.stride() != contiguous(shape) for item in items) or (len(made) >= 4 and 1 in made):
        raise Unknown
    return new(made, None, first.dtype, needs_grad(*items))


# ---------------------------------------------------------------------- normalisation


def _norm_weights(x: torch.Tensor, *weights: Any) -> None:
    for weight in weights:
        if weight is not None and (not isinstance(weight, _Tensor) or weight.dtype is not x.dtype):
            raise Unknown


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    shape = tuple(_tensor(x).shape)
    inner = tuple(normalized_shape)
    if not inner or shape[-len(inner) :] != inner or not x.dtype.is_floating_point or 0 in shape:
        raise Unknown
    _norm_weights(x, weight, bias)
    if any(w is not None and tuple(w.shape) != inner for w in (weight, bias)):
        raise Unknown
    return new(shape, None, x.dtype, needs_grad(x, weight, bias))


RULES[F.layer_norm] = RULES[torch.layer_norm] = _layer_norm


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
    shape = tuple(_tensor(x).shape)
    if x.stride() != contiguous(shape):
        raise Unknown
    return _layer_norm(x, normalized_shape, weight)


RULES[F.rms_norm] = _rms_norm


def _group_norm(x: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    shape = tuple(_tensor(x).shape)
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
    shape = tuple(_tensor(x).shape)
    if training or len(shape) < 2 or running_mean is None or running_var is None or 0 in shape:
        raise Unknown  # training mutates the running statistics: torch's own kernel does that on meta too
    parts = (running_mean, running_var, weight, bias)
    _norm_weights(x, *parts)
    if any(p is not None and tuple(p.shape) != (shape[1],) for p in parts) or not x.dtype.is_floating_point:
        raise Unknown
    strides = x.stride()
    if strides != contiguous(shape) and not layouts._is_channels_last(shape, strides):
        raise Unknown
    return new(shape, strides, x.dtype, needs_grad(x, weight, bias))


RULES[F.batch_norm] = _batch_norm


# ---------------------------------------------------------------------- attention, embedding, losses


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
               scale: Any = None, enable_gqa: bool = False) -> torch.Tensor:  # fmt: skip
    """Eager's flash kernel on CPU lays the result out as (batch, length, heads, width)."""
    q, k, v = tuple(_tensor(query).shape), tuple(_tensor(key).shape), tuple(_tensor(value).shape)
    if len(q) != 4 or len(k) != 4 or len(v) != 4 or 0 in q + k + v or not query.dtype.is_floating_point:
        raise Unknown
    if query.dtype is not key.dtype or key.dtype is not value.dtype or q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        raise Unknown
    if q[1] != k[1] and not (enable_gqa and q[1] % k[1] == 0):
        raise Unknown
    if attn_mask is not None:
        mask = tuple(_tensor(attn_mask).shape)
        if is_causal or layouts.broadcast((mask, (*q[:3], k[2]))) != (*q[:3], k[2]):
            raise Unknown
        if attn_mask.dtype is not _BOOL and attn_mask.dtype is not query.dtype:
            raise Unknown
    shape = (*q[:3], v[3])
    grad = needs_grad(query, key, value, attn_mask)
    if _cpu_flash(query, key, value, attn_mask, dropout_p):
        batch, heads, length, width = shape
        strides = (length * heads * width, width, heads * width, 1)
        return new(shape, strides, query.dtype, grad)
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
    if max_norm is not None or _tensor(weight).dim() != 2 or _tensor(ids).dtype not in (torch.int64, torch.int32):
        raise Unknown
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise Unknown
    return new((*ids.shape, weight.shape[1]), None, weight.dtype, needs_grad(weight))


RULES[F.embedding] = _embedding


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or inplace or not isinstance(p, float | int) or not 0.0 < p < 1.0:
        raise Unknown  # without training the very same tensor comes back
    if not _tensor(x).dtype.is_floating_point:
        raise Unknown
    return new(*_layout(x), x.dtype, needs_grad(x))


RULES[F.dropout] = _dropout


def _glu(x: Any, dim: Any = -1) -> torch.Tensor:
    shape = list(_tensor(x).shape)
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


# ---------------------------------------------------------------------- in-place pointwise: torch's C++ is fast


def operator_rule(function: Any) -> Any:
    """The rule behind `operator.add` and the like."""
    return RULES.get(getattr(_Tensor, f"__{function.__name__.strip('_')}__", None))


def signature_ok(fn: Rule) -> bool:
    """Whether a rule can be called with keyword arguments by name (used by tests)."""
    return bool(inspect.signature(fn).parameters)


OPERATORS = {
    getattr(operator, name): name for name in ("add", "sub", "mul", "truediv", "matmul", "pow", "mod", "floordiv")
}
