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

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.name_tables import words
from argand.capture.metadata import kinds
from argand.graph.plain_checks import with_plain_checks
from argand.graph.trees import mapped
from argand.interruptions import let_pass

_Tensor = torch.Tensor
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
_KIND_ERRORS = ("not implemented for", "dtype", "scalar type", "result type", "bool tensor", "data type")


def refusal(func: Function, call: kinds.Call, result: object, at_hand: bool = True) -> Exception | None:
    """The exception that a call of a kind raises whatever its tensors hold; None where it does not, or is not tried.

    Arguments:
        func: a torch function of CPU tensors.
        result: what its metadata says that it makes.
        at_hand: whether these are the sizes of the call at hand. Of large ones only dtypes are tried out, which are no
            others at the probes.
    """
    if not may_run(func):
        return None
    given, results = sum(map(kinds.elements, call)), _results(result)
    if (given == 0 and results > _SMALL and not _takes_tensors(call)) or results > _MOST_RESULTS:
        return None
    small = given + results <= (_MOST_WORK if _is_costly(func) else _MOST)
    if not small and not at_hand:
        return None
    try:
        return _tried(func, call, small, torch.get_default_dtype(), torch._C._is_any_autocast_enabled())
    except TypeError:  # something that cannot be hashed
        return None


_SEEN_BY_CAPTURE_ONLY = ("meta", "alloc", "device", "storage", "data_ptr", "data pointer", "item()", "fake")


def raises_too(func: Function, call: kinds.Call | None, error: Exception) -> bool:
    """Whether torch raises on zeros and ones what it raised on stand-ins: sizes and types alone are to blame.

    Whatever else fails on stand-ins is no exception of the program's: capture cannot evaluate the call.
    """
    if not is_torchs(func):
        return False  # of unknown effects
    if call is None or sum(map(kinds.elements, call)) > _MOST:
        return not any(part in str(error).lower() for part in _SEEN_BY_CAPTURE_ONLY)
    outcomes = [_run(func, call, fill, None, grad=torch.is_grad_enabled()) for fill in (0, 1)]
    return all(isinstance(real, type(error)) or isinstance(error, type(real)) for real in outcomes)


@functools.lru_cache(maxsize=4096)
def may_run(func: Function) -> bool:
    """Whether a call is one of torch's own functions that compute something."""
    return not is_view(func) and is_torchs(func)


@functools.lru_cache(maxsize=4096)
def is_view(func: Function) -> bool:
    """Whether a function computes nothing."""
    name = getattr(func, "__name__", "")
    if getattr(func, "__module__", None) == "torch.nn.functional":  # its `unfold` copies, the method does not
        return False
    return name in ("__get__", "__set__", "__delete__") or name in _VIEWS


def is_torchs(func: Function) -> bool:
    """Whether a function is torch's own, so that what it does to its arguments is known."""
    if isinstance(func, torch._ops.OpOverload):
        return func.namespace in ("aten", "prims")
    if isinstance(func, torch._ops.OpOverloadPacket):
        return func._qualified_op_name.startswith(("aten::", "prims::"))
    if isinstance(func, torch._ops.OperatorBase):
        return False
    return str(getattr(func, "__module__", None) or "torch").startswith(("torch", "_operator"))


@functools.lru_cache(maxsize=4096)
def _is_costly(func: Function) -> bool:
    name = getattr(func, "__name__", "")
    return name in _COSTLY or name.startswith("linalg_")


@functools.lru_cache(maxsize=8192)
def _tried(func: Function, call: kinds.Call, small: bool, dtype: torch.dtype, autocast: bool) -> Exception | None:
    """`refusal` of one kind of call."""
    if small:
        return _refused(func, call, None)
    if _is_costly(func):
        return None
    error = _refused(func, call, _Smaller())
    return error if error is not None and any(text in str(error) for text in _KIND_ERRORS) else None


def _refused(func: Function, call: kinds.Call, smaller: _Smaller | None) -> Exception | None:
    error = _run(func, call, 0, smaller)
    if (
        error is None
        or _of_values(error)
        or (_COUNTED in str(error) and _has_mask(call))
        or _run(func, call, 1, smaller) is None
    ):
        return None
    return error


def _of_values(error: Exception) -> bool:
    """Whether other values might do."""
    of_some = isinstance(error, (torch.linalg.LinAlgError, MemoryError))
    return of_some or any(text in str(error) for text in ("out of memory", _SUMMED))


_SUMMED = "allocated size does not match"  # of repeat_interleave, whose repeats add up to its output_size

_COUNTED = "cannot be broadcast to indexing result"


def _has_mask(call: kinds.Kind) -> bool:
    """Whether truth values are among the arguments, which may decide how many values are wanted."""
    if type(call) is kinds.Sizes:
        return call.dtype in (torch.bool, torch.uint8)
    return any(_has_mask(part) for part in call if isinstance(part, tuple))


def _takes_tensors(call: kinds.Kind) -> bool:
    """Whether tensors are among the arguments, which may all be empty."""
    return type(call) is kinds.Sizes or any(_takes_tensors(part) for part in call if isinstance(part, tuple))


def _run(func: Function, call: kinds.Call, fill: int, smaller: _Smaller | None, grad: bool = False) -> Exception | None:
    generator = torch.default_generator
    state, always = generator.get_state(), torch.is_warn_always_enabled()
    before = torch.is_grad_enabled()
    try:
        torch.set_warn_always(True)  # else a warning that is given once were lost
        torch._C._set_grad_enabled(grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*_real(call[0], fill, smaller), **_real(call[1], fill, smaller))
    except Exception as error:
        let_pass(error)
        error.__context__ = None
        return error.with_traceback(None)  # which would keep the frames of capture, and so the call's tensors
    finally:
        torch._C._set_grad_enabled(before)
        torch.set_warn_always(always)
        generator.set_state(state)
    return None


def _call_on_meta(func: Function, args: Args, kwargs: Kwargs) -> None:
    args, kwargs = mapped(
        (args, kwargs), lambda leaf: torch.empty_like(leaf, device="meta") if isinstance(leaf, _Tensor) else leaf
    )
    func(*args, **kwargs)


def warns(func: Function, args: Args, kwargs: Kwargs) -> bool:
    """Whether a Python function of torch's warns of these arguments. It is given tensors like them on meta."""
    with torch._C.DisableTorchFunction(), warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with_plain_checks(_call_on_meta, (func, args, kwargs), {})
        except Exception as error:  # for which the call itself is asked
            let_pass(error)
            return False
    return len(given) > 0


# ---------------------------------------------------------------------- real arguments


def _results(result: object) -> int:
    if isinstance(result, _Tensor):
        return result.numel()
    return sum(map(_results, result)) if isinstance(result, tuple | list) else 0


class _Smaller:
    """Maps sizes to small ones: equal sizes stay equal, different ones different."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            [n if n <= _SMALL else self._numbers.setdefault(n, _SMALL + 1 + len(self._numbers)) for n in shape]
        )


def _real(kind: kinds.Kind, fill: int, smaller: _Smaller | None) -> Any:
    """An argument of a kind."""
    if type(kind) is kinds.Sizes:
        return kind.real(fill) if smaller is None else torch.full(smaller.shape(kind.shape), fill, dtype=kind.dtype)
    if kind[0] is torch.device:
        return kinds.CPU
    return kinds.rebuilt(kind, lambda part: _real(part, fill, smaller))
