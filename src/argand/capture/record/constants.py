"""Tensors whose values are known while capturing: `torch.tensor(5)` and what is computed from such alone.

Their `.item()`, truth value and use as index or slice bound need no graph break.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a
from argand.capture.facts.values.tensor_info import TensorInfo

_LIMIT = 64  # elements
_MAKERS = frozenset((torch.tensor, torch.scalar_tensor, torch.as_tensor))


def applicable(func: Function, infos: list[TensorInfo], device: torch.device) -> bool:
    """Whether the result of a call may be known: everything that went in is."""
    if device.type != "cpu":
        return False
    if not infos:
        return func in _MAKERS
    return all(info.constant is not None for info in infos)


def propagate(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, result: object) -> None:
    """Compute the value for real and remember it with the stand-ins of `result`."""
    if not _small(result):
        return
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            real = func(*_real(builder, args), **{key: _real(builder, value) for key, value in kwargs.items()})
    except Exception:  # the value stays unknown; the operation itself was recorded
        return
    _attach(builder, result, real)


def _attach(builder: GraphBuilder, result: Any, real: Any) -> None:
    if is_a(result, torch.Tensor):
        info = builder.tensors.get(id(result))
        if info is not None and is_a(real, torch.Tensor) and real.shape == result.shape and real.dtype is result.dtype:
            info.constant = real
    elif is_a(result, tuple | list) and is_a(real, tuple | list) and len(real) == len(result):
        for part, value in zip(result, real):
            _attach(builder, part, value)


def _small(result: Any) -> bool:
    if is_a(result, torch.Tensor):
        return result.numel() <= _LIMIT
    return is_a(result, tuple | list) and all(_small(item) for item in result)


def _real(builder: GraphBuilder, value: Any) -> Any:
    if is_a(value, torch.Tensor):
        return builder.tensors[id(value)].constant
    if type(value) in (list, tuple):
        return type(value)(_real(builder, item) for item in value)
    if type(value) is slice:
        return slice(_real(builder, value.start), _real(builder, value.stop), _real(builder, value.step))
    return value


def forget(builder: GraphBuilder, info: TensorInfo) -> None:
    """`info`'s tensor is written to: neither it nor any view of it is known any more."""
    if info.constant is None:
        return
    with torch._C.DisableTorchFunction():
        storage = info.constant.untyped_storage()._cdata
        for other in builder.tensors.values():
            if other.constant is not None and other.constant.untyped_storage()._cdata == storage:
                other.constant = None


def value_of(builder: GraphBuilder, tensor: object) -> torch.Tensor | None:
    """The known value of a stand-in, or None."""
    info = builder.tensors.get(id(tensor))
    return None if info is None else info.constant
