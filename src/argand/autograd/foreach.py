"""`torch._foreach_*` taken apart: one op per tensor, which is what eager does on a CPU; kernels fuse them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from argand.autograd.tracer import Handler, Tracer

aten = torch.ops.aten

_UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "pow": torch.pow,
    "lerp": torch.lerp,
    "addcdiv": torch.addcdiv,
    "addcmul": torch.addcmul,
}


def _one_by_one(call: Callable[..., Any], lists: int) -> Handler:
    """A handler for an op whose first `lists` arguments go tensor by tensor, or are the same for each."""

    def trace(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        bound = {**dict(zip(names, args)), **kwargs}
        given = [bound.pop(name) for name in names[:lists]]
        count = len(given[0])
        columns = [one if isinstance(one, (list, tuple)) else [one] * count for one in given]
        if any(len(column) != count for column in columns):
            return tracer.record(func, args, kwargs)  # which raises eager's error
        with tracer:
            made = [call(*row, **bound) for row in zip(*columns)]
        return None if func._schema.is_mutable else made

    return trace


def _scaled(call: Callable[..., Any]) -> Handler:
    """addcdiv and addcmul: three lists, and a number or a list of numbers by keyword."""

    def trace(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        bound = {**dict(zip(names, args)), **kwargs}
        lists = [bound[name] for name in names[:3]]
        scales = bound.get(names[3], 1)
        count = len(lists[0])
        if isinstance(scales, torch.Tensor) or any(len(one) != count for one in lists):
            return tracer.record(func, args, kwargs)
        if not isinstance(scales, (list, tuple)):
            scales = [scales] * count
        if len(scales) != count:
            return tracer.record(func, args, kwargs)
        with tracer:
            made = [call(*row, value=scale) for *row, scale in zip(*lists, scales)]
        return None if func._schema.is_mutable else made

    return trace


def _norm(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    bound = {**dict(zip(names, args)), **kwargs}
    with tracer:
        return [
            torch.linalg.vector_norm(tensor, bound.get("ord", 2), dtype=bound.get("dtype")) for tensor in bound["self"]
        ]


def _copy(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_foreach_copy_: the writes themselves."""
    targets, sources = args[0], args[1]
    if len(targets) != len(sources):
        raise RuntimeError("_foreach_copy_ expects lists of one length")
    for target, source in zip(targets, sources):
        tracer.run(aten.copy_.default, (target, source), {})


def _zero(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for target in args[0]:
        tracer.run(aten.zero_.default, (target,), {})


def _handlers() -> dict[Any, Handler]:
    found: dict[Any, Handler] = {}
    for name in (*_UNARY, *_BINARY):
        lists = 1 if name in _UNARY else 3 if name == "lerp" else 2
        plain = _BINARY.get(name) or getattr(torch, name)
        for suffix, call in (("", plain), ("_", getattr(torch.Tensor, f"{plain.__name__}_"))):
            packet = getattr(aten, f"_foreach_{name}{suffix}", None)
            for overload in packet.overloads() if packet is not None else ():
                func = getattr(packet, overload)
                if overload == "ScalarAndTensor" or func._schema.arguments[-1].is_out:
                    continue
                found[func] = _scaled(call) if name.startswith("addc") else _one_by_one(call, lists)
    found[aten._foreach_norm.Scalar] = _norm
    found[aten._foreach_copy_.default] = _copy
    found[aten._foreach_zero_.default] = _zero
    return found


HANDLERS = _handlers()
