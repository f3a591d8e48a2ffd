"""Trying torch calls out on real tensors, to see what their metadata does not tell: whether eager raises.

Metadata kernels, torch's and argand's, accept calls that the kernels refuse: sources that do not fit, dtypes without a
kernel, reductions over nothing. What raises on real tensors must not be compiled. A call of one kind (function, sizes,
dtypes, numbers) is tried once in a process; the values are zeros, then ones.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from argand.capture.facts.words import words
from argand.capture.world.native_reads import base_value

_Tensor = torch.Tensor
_CPU = torch.device("cpu")
_MOST = 1 << 20
"""Elements of a call's arguments above which the sizes are made smaller first."""
_MOST_WORK = 1 << 14
"""The same of calls whose time grows faster than their arguments."""
_MOST_RESULTS = 1 << 24
_SMALL = 8  # sizes up to this are kept when sizes are made smaller

_VIEWS = frozenset(
    words(
        """
    view view_as reshape reshape_as flatten unflatten permute transpose t T mT H mH expand expand_as unsqueeze squeeze
    select narrow slice split split_with_sizes chunk unbind diagonal as_strided movedim moveaxis swapaxes swapdims
    ravel detach alias real imag view_as_real view_as_complex unfold contiguous requires_grad_ size shape stride numel
    dim type to float double half bfloat16 int long bool clone data_ptr storage_offset item tolist is_floating_point
    """
    )
)
"""Functions that compute nothing: their metadata decides everything."""
_COSTLY = frozenset(
    words(
        """
    matmul mm bmm addmm baddbmm addbmm linear bilinear einsum tensordot conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d convolution scaled_dot_product_attention multi_head_attention_forward lstm gru
    rnn_tanh rnn_relu cdist pdist kron __matmul__ __rmatmul__ chain_matmul multi_dot ctc_loss
    """
    )
)
_KIND_ERRORS = ("not implemented for", "dtype", "scalar type", "result type", "bool tensor", "data type", "must match")


class _Refuse(Exception):
    """An argument that nothing real stands for."""


def refusal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> Exception | None:
    """The exception that the call raises whatever its tensors hold; None where it does not, or is not tried.

    Arguments:
        func: a torch function of CPU tensors.
        args, kwargs: stand-ins and plain values.
        made: what its metadata says that it makes.
    """
    if not _may_run(func):
        return None
    try:
        key = _key(args), _key(list(map(list, kwargs.items())))
        given, results = _elements(key), _results(made)
        if (given == 0 and results > _SMALL) or results > _MOST_RESULTS:
            return None
        small = given + results <= (_MOST_WORK if _is_costly(func) else _MOST)
        return _tried(func, key, small, torch.get_default_dtype(), torch._C._is_any_autocast_enabled())
    except (_Refuse, TypeError):  # or something that cannot be hashed
        return None


_SEEN_BY_CAPTURE_ONLY = ("meta", "alloc", "device", "storage", "data_ptr", "data pointer", "item()", "fake")


def raises_too(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> bool:
    """Whether torch raises on zeros and ones what it raised on stand-ins: sizes and types alone are to blame.

    Whatever else fails on stand-ins is no exception of the program's: capture cannot evaluate the call.
    """
    if not _is_torchs(func):
        return False  # of unknown effects
    try:
        key = _key(args), _key(list(map(list, kwargs.items())))
        too_large = _elements(key) > _MOST
    except _Refuse:
        too_large = True
    if too_large:
        return not any(part in str(error).lower() for part in _SEEN_BY_CAPTURE_ONLY)
    found = [_run(func, key, fill, None, grad=torch.is_grad_enabled()) for fill in (0, 1)]
    return all(isinstance(real, type(error)) or isinstance(error, type(real)) for real in found)


@functools.lru_cache(maxsize=4096)
def _may_run(func: Any) -> bool:
    return not is_view(func) and _is_torchs(func)


@functools.lru_cache(maxsize=4096)
def is_view(func: Any) -> bool:
    """Whether a function computes nothing."""
    name = getattr(func, "__name__", "")
    return name in ("__get__", "__set__", "__delete__") or name in _VIEWS


def _is_torchs(func: Any) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return func.namespace in ("aten", "prims")
    if isinstance(func, torch._ops.OpOverloadPacket):
        return func._qualified_op_name.startswith(("aten::", "prims::"))
    if isinstance(func, torch._ops.OperatorBase):
        return False
    return str(getattr(func, "__module__", None) or "torch").startswith(("torch", "_operator"))


@functools.lru_cache(maxsize=4096)
def _is_costly(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in _COSTLY or name.startswith("linalg_")


@functools.lru_cache(maxsize=8192)
def _tried(func: Any, key: Any, small: bool, dtype: torch.dtype, autocast: bool) -> Exception | None:
    """`refusal` of one kind of call."""
    if small:
        return _refused(func, key, None)
    if _is_costly(func):
        return None
    error = _refused(func, key, _Smaller())
    return error if error is not None and any(text in str(error) for text in _KIND_ERRORS) else None


def _refused(func: Any, key: Any, smaller: _Smaller | None) -> Exception | None:
    error = _run(func, key, 0, smaller)
    if error is None or _of_values(error) or _run(func, key, 1, smaller) is None:
        return None
    return error


def _of_values(error: Exception) -> bool:
    """Whether other values might do."""
    return isinstance(error, (torch.linalg.LinAlgError, MemoryError)) or "out of memory" in str(error)


def _run(func: Any, key: Any, fill: int, smaller: _Smaller | None, grad: bool = False) -> Exception | None:
    generator = torch.default_generator
    state, always = generator.get_state(), torch.is_warn_always_enabled()
    before = torch.is_grad_enabled()
    try:
        torch.set_warn_always(True)  # else a warning that is given once were lost
        torch._C._set_grad_enabled(grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*_real(key[0], fill, smaller), **dict(_real(key[1], fill, smaller)))
    except Exception as error:
        error.__context__ = None
        return error.with_traceback(None)  # which would keep the frames of capture, and so the call's tensors
    finally:
        torch._C._set_grad_enabled(before)
        torch.set_warn_always(always)
        generator.set_state(state)
    return None


# ---------------------------------------------------------------------- kinds of calls


class _Sizes:
    """A tensor argument of a kind of call."""

    __slots__ = ("dtype", "leaf", "requires_grad", "shape", "strides")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.strides, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        self.requires_grad, self.leaf = tensor.requires_grad, tensor.is_leaf

    def __hash__(self) -> int:
        return hash((self.shape, self.strides, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sizes) and (self.shape, self.strides, self.dtype) == (
            other.shape,
            other.strides,
            other.dtype,
        )


_HASHED = frozenset(
    {int, float, bool, str, complex, type(None), torch.dtype, torch.memory_format, torch.layout, type(...)}
)


def _key(value: Any) -> Any:
    kind = type(value)
    if kind in _HASHED:
        return (kind, value)
    if isinstance(value, _Tensor):
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise _Refuse
        return _Sizes(value)
    if kind is tuple or kind is list or kind is torch.Size:
        return (kind, *map(_key, value))
    if kind is slice:
        return (kind, value.start, value.stop, value.step)
    if kind is torch.device:
        return (kind, _CPU)
    if issubclass(kind, int | float | str):  # of which a graph gets what it holds
        return _key(base_value(value))
    raise _Refuse


def _elements(key: Any) -> int:
    if type(key) is _Sizes:
        total = 1
        for size in key.shape:
            total *= size
        return total
    return sum(map(_elements, key)) if type(key) is tuple else 0


def _results(made: Any) -> int:
    if isinstance(made, _Tensor):
        return made.numel()
    return sum(map(_results, made)) if isinstance(made, tuple | list) else 0


class _Smaller:
    """Maps sizes to small ones: equal sizes stay equal, different ones different."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([n if n <= _SMALL else self._made.setdefault(n, _SMALL + 1 + len(self._made)) for n in shape])


def _real(key: Any, fill: int, smaller: _Smaller | None) -> Any:
    if type(key) is _Sizes:
        if smaller is not None:
            return torch.full(smaller.shape(key.shape), fill, dtype=key.dtype)
        made = torch.empty_strided(key.shape, key.strides, dtype=key.dtype, device=_CPU).fill_(fill)
        if not key.requires_grad or not torch.is_grad_enabled():
            return made
        made.requires_grad_()  # whether it may be written to hangs on both
        return made if key.leaf else made.clone()
    kind, *parts = key
    if kind is tuple or kind is list or kind is torch.Size:
        return kind([_real(part, fill, smaller) for part in parts])
    return slice(*parts) if kind is slice else parts[0]
