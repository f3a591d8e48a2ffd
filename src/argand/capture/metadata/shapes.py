"""Fast metadata rules for the operations that models are made of; everything else asks torch's meta kernels.

torch's meta kernels for many pointwise operations are Python, cost 50 to 900 µs a call and import torch's own compiler.
A rule gets the call's arguments and returns the result's meta tensor, or raises `Unknown` to leave the call to
torch: for anything unusual, and for everything that is an error (so that messages are torch's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from argand.capture.facts.words import words
from argand.capture.metadata import layouts
from argand.capture.metadata.layouts import Unknown, contiguous, needs_grad, new
from argand.graph.metadata.strides import is_channels_last

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


def tensor(value: Any) -> torch.Tensor:
    """The argument if it is a tensor; Unknown otherwise."""
    if not isinstance(value, _Tensor):
        raise Unknown
    return value


def _number(value: Any) -> bool:
    return type(value) in (int, float, bool, complex)


def layout_of(*operands: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return layouts.pointwise_layout(tuple([(tuple(t.shape), t.stride()) for t in operands if isinstance(t, _Tensor)]))


def _layout_as(dtype: torch.dtype, *operands: Any, mask: Any = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As `layout_of`, of operands that are converted to `dtype` first, which leaves no holes; numbers count.

    Arguments:
        mask: an operand before the others that is not converted.
    """
    found: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = []
    if mask is not None:
        found.append((tuple(mask.shape), mask.stride()))
    for each in operands:
        if isinstance(each, _Tensor):
            size, stride = tuple(each.shape), each.stride()
            found.append((size, stride if each.dtype is dtype else layouts.preserved(size, stride)))
        else:
            found.append(None)
    return layouts.pointwise_layout(tuple(found))


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
    return new(*_layout_as(dtype, a, b), dtype, needs_grad(a, b))


@rule("mul", "multiply", methods=("mul", "multiply", "__mul__", "__rmul__"))
def _mul(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    return new(*_layout_as(dtype, a, b), dtype, needs_grad(a, b))


@rule("maximum", "minimum", "fmax", "fmin", "remainder", "floor_divide", methods=(
    "maximum", "minimum", "remainder", "floor_divide", "__mod__", "__floordiv__"))  # fmt: skip
def _same_kind(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_complex or dtype is _BOOL:
        raise Unknown
    if isinstance(a, _Tensor) and not dtype.is_floating_point and type(b) is int and b == 0:
        raise Unknown
    return new(*_layout_as(dtype, a, b), dtype, needs_grad(a, b))


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
    return new(*_layout_as(dtype, a, b), dtype, needs_grad(a, b))


@rule("pow", methods=("pow", "__pow__"))
def _pow(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if not (dtype.is_floating_point or dtype.is_complex) and not (type(b) is int and b >= 0):
        raise Unknown
    # a number to raise to is no operand
    found = _layout_as(dtype, a, b) if isinstance(b, _Tensor) else _layout_as(dtype, a)
    return new(*found, dtype, needs_grad(a, b))


@rule("eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", methods=(
    "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))  # fmt: skip
def _compare(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_complex:
        raise Unknown
    return new(*_layout_as(dtype, a, b), _BOOL)


@rule("logical_and", "logical_or", "logical_xor")
def _logical(a: Any, b: Any) -> torch.Tensor:
    return new(*layout_of(tensor(a), tensor(b)), _BOOL)


@rule("bitwise_and", "bitwise_or", "bitwise_xor", methods=(
    "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "__rand__", "__ror__"))  # fmt: skip
def _bitwise(a: Any, b: Any) -> torch.Tensor:
    dtype = _pair(a, b)
    if dtype.is_floating_point or dtype.is_complex:
        raise Unknown
    return new(*_layout_as(dtype, a, b), dtype)


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
    return new(*_layout_as(dtype, a, b, mask=condition), dtype, needs_grad(a, b))


RULES[_Tensor.where] = lambda self, condition, other: _where(condition, self, other)


@rule("masked_fill")
def _masked_fill(x: Any, mask: Any, value: Any) -> torch.Tensor:
    if not (isinstance(mask, _Tensor) and mask.dtype is _BOOL):
        raise Unknown
    if not (_number(value) or (isinstance(value, _Tensor) and value.dim() == 0 and value.dtype is x.dtype)):
        raise Unknown
    if type(value) is complex or (type(value) is float and not x.dtype.is_floating_point):
        raise Unknown
    return new(layouts.broadcast((tuple(x.shape), tuple(mask.shape))), None, x.dtype, needs_grad(x, value))


# ---------------------------------------------------------------------- pointwise, one operand

_FLOAT_UNARY = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf erfc erfinv sigmoid reciprocal lgamma digamma deg2rad rad2deg
    """
)
_SAME_UNARY = words(
    """
    neg negative square floor ceil trunc round frac sign sgn relu bitwise_not
    """
)


@rule(*_FLOAT_UNARY)
def _float_unary(x: Any) -> torch.Tensor:
    dtype = tensor(x).dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return new(*layout_of(x), dtype, needs_grad(x))


@rule(*_SAME_UNARY, methods=(*_SAME_UNARY, "__neg__"))
def _same_unary(x: Any) -> torch.Tensor:
    dtype = tensor(x).dtype
    if dtype.is_complex or dtype is _BOOL:
        raise Unknown
    return new(*layout_of(x), dtype, needs_grad(x))


@rule("bitwise_not", methods=("bitwise_not", "__invert__"))
def _invert(x: Any) -> torch.Tensor:
    dtype = tensor(x).dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise Unknown
    return new(*layout_of(x), dtype)


@rule("abs", "absolute", methods=("abs", "absolute", "__abs__"))
def _abs(x: Any) -> torch.Tensor:
    if tensor(x).dtype.is_complex or x.dtype is _BOOL:
        raise Unknown
    return new(*layout_of(x), x.dtype, needs_grad(x))


@rule("logical_not", "isnan", "isinf", "isfinite", methods=("logical_not", "isnan", "isinf"))
def _to_bool(x: Any) -> torch.Tensor:
    if x.dtype.is_complex:
        raise Unknown
    return new(*layout_of(tensor(x)), _BOOL)


def _float_only(x: Any) -> torch.Tensor:
    if not tensor(x).dtype.is_floating_point:
        raise Unknown
    return new(*layout_of(x), x.dtype, needs_grad(x))


def _only_floats(x: Any, *, inplace: bool = False) -> torch.Tensor:
    return _float_only(x)


def _activation(x: Any, inplace: bool = False) -> torch.Tensor:
    if inplace:
        raise Unknown
    return _float_only(x)


for _fn in (F.silu, F.mish, F.selu, F.relu6, F.hardswish, F.hardsigmoid):
    RULES[_fn] = _activation
RULES[F.softplus] = RULES[F.softsign] = RULES[F.logsigmoid] = RULES[F.tanhshrink] = _only_floats
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
    dtype = tensor(x).dtype
    for bound in (min, max):
        if bound is None:
            continue
        if not _number(bound) or (type(bound) is not int and not dtype.is_floating_point):
            raise Unknown
    if (min is None and max is None) or dtype.is_complex or dtype is _BOOL:
        raise Unknown
    return new(*layout_of(x), dtype, needs_grad(x))


RULES[_Tensor.clamp_min] = RULES[torch.clamp_min] = lambda x, min: _clamp(x, min)
RULES[_Tensor.clamp_max] = RULES[torch.clamp_max] = lambda x, max: _clamp(x, None, max)


@rule("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", methods=())
def _like(x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, layout: Any = None,
          pin_memory: bool = False, memory_format: Any = torch.preserve_format) -> torch.Tensor:  # fmt: skip
    if requires_grad or layout not in (None, torch.strided) or memory_format is not torch.preserve_format:
        raise Unknown
    return new(tuple(x.shape), layouts.preserved(tuple(x.shape), tensor(x).stride()), dtype or x.dtype)


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
    return _reduce(tensor(x), dim, keepdim, dtype)


@rule("mean")
def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise Unknown
    return _reduce(tensor(x), dim, keepdim, dtype)


@rule("amax", "amin")
def _amax(x: Any, dim: Any = (), keepdim: bool = False) -> torch.Tensor:
    if tensor(x).dtype.is_complex:
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("any", "all")
def _any(x: Any, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    dtype = torch.uint8 if tensor(x).dtype is torch.uint8 else _BOOL
    return _reduce(x, dim, keepdim, dtype, False)


@rule("var", "std")
def _var(x: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = 1) -> torch.Tensor:
    if not tensor(x).dtype.is_floating_point or type(dim) is bool:
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("norm", methods=("norm",))
def _norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    if dtype is not None or not tensor(x).dtype.is_floating_point or p not in ("fro", 1, 2):
        raise Unknown
    return _reduce(x, dim, keepdim, x.dtype)


@rule("logsumexp")
def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> torch.Tensor:
    if not tensor(x).dtype.is_floating_point:
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
    return _rowwise(tensor(x), dim, dtype)


RULES[F.softmax] = RULES[F.log_softmax] = lambda x, dim=None, _stacklevel=3, dtype=None: _rowwise(tensor(x), dim, dtype)


@rule("cumsum", "cumprod")
def _cumsum(x: Any, dim: Any, *, dtype: Any = None) -> torch.Tensor:
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    layouts.normalize_dim(dim, tensor(x).dim())
    return new(tuple(x.shape), None, dtype, needs_grad(x))


@rule("tril", "triu")
def _tril(x: Any, diagonal: Any = 0) -> torch.Tensor:
    if tensor(x).dim() < 2 or type(diagonal) is not int:
        raise Unknown
    shape = tuple(x.shape)
    if x.stride() != contiguous(shape):
        raise Unknown
    return new(shape, None, x.dtype, needs_grad(x))


@rule("roll", "flip")
def _roll(x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    values = [*args, *kwargs.values()]
    shape = tuple(tensor(x).shape)
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
    return [tensor(t) for t in tensors]


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
        if item.stride() != contiguous(own) or (rank >= 4 and is_channels_last(own, item.stride())):
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
