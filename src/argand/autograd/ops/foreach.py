"""`torch._foreach_*` taken apart: one op per tensor, which is what eager does on a CPU; kernels fuse them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.autograd.recording.recorder import Handler, Recorder
from argand.autograd.recording.values import TraceTensor
from argand.graph import compat

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"

_UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
]  # fmt: skip
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


def _written(targets: Sequence[torch.Tensor]) -> None:
    """The op wrote to these. Eager's raises their versions, and nothing does so for what is called in its place."""
    compat.written_in_place([target for target in targets if not target.is_inference()])


def _read(values: Any) -> Any:
    """What a call that writes to tensors reads: eager has the values of conjugates and negatives before any write."""
    if not isinstance(values, (list, tuple)):
        return values
    return [
        value.clone() if isinstance(value, TraceTensor) and (value.value.spec.conj or value.value.spec.neg) else value
        for value in values
    ]


def _one_by_one(call: Callable[..., Any], lists: int) -> Handler:
    """A handler for an op whose first `lists` arguments go tensor by tensor, or are the same for each."""

    def trace(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = compat.bound_arguments(func, args, kwargs)
        given = [bound.pop(argument.name) for argument in func._schema.arguments[:lists]]
        count = len(given[0])
        columns = [one if isinstance(one, (list, tuple)) else [one] * count for one in given]
        if any(len(column) != count for column in columns):
            return tracer.record(func, args, kwargs)  # which raises eager's error
        with tracer:
            if func._schema.is_mutable:
                columns[1:] = map(_read, columns[1:])
            results = [call(*row, **bound) for row in zip(*columns)]
        return _written(given[0]) if func._schema.is_mutable else results

    return trace


def _scaled(call: Callable[..., Any]) -> Handler:
    """addcdiv and addcmul: three lists, and a number or a list of numbers by keyword."""

    def trace(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = compat.bound_arguments(func, args, kwargs)
        *names, scale_name = [argument.name for argument in func._schema.arguments[:4]]
        lists = [bound[name] for name in names]
        scales = bound.get(scale_name, 1)
        count = len(lists[0])
        if isinstance(scales, torch.Tensor) or any(len(one) != count for one in lists):
            return tracer.record(func, args, kwargs)
        if not isinstance(scales, (list, tuple)):
            scales = [scales] * count
        if len(scales) != count:
            return tracer.record(func, args, kwargs)
        with tracer:
            if func._schema.is_mutable:
                lists[1:] = map(_read, lists[1:])
            results = [call(*row, value=scale) for *row, scale in zip(*lists, scales)]
        return _written(lists[0]) if func._schema.is_mutable else results

    return trace


def _norm(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = compat.bound_arguments(func, args, kwargs)
    with tracer:
        return [
            torch.linalg.vector_norm(tensor, bound.get("ord", 2), dtype=bound.get("dtype")) for tensor in bound["self"]
        ]


def _copy(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_foreach_copy_: the writes themselves."""
    targets, sources = args[0], args[1]
    if len(targets) != len(sources):
        raise RuntimeError("_foreach_copy_ expects lists of one length")
    with tracer:
        sources = _read(sources)
    for target, source in zip(targets, sources):
        tracer.run(aten.copy_.default, (target, source), {})
    _written(targets)


def _zero(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for target in args[0]:
        tracer.run(aten.zero_.default, (target,), {})
    _written(args[0])


def _powers(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_foreach_pow of a number: as Adam's corrections are with `capturable=True`."""
    bound = compat.bound_arguments(func, args, kwargs)
    with tracer:
        return [torch.pow(bound["self"], exponent) for exponent in bound["exponent"]]


_OTHERS: dict[tuple[str, str], Handler] = {
    ("norm", "Scalar"): _norm,
    ("pow", "ScalarAndTensor"): _powers,
    ("copy_", "default"): _copy,
    ("zero_", "default"): _zero,
}


def handler_of(func: Any) -> Handler | None:
    """How an overload of `torch._foreach_*` is traced; None for other ops, and for those that are recorded whole."""
    schema = func._schema
    if not schema.name.startswith(_PREFIX):
        return None
    name, overload = schema.name.removeprefix(_PREFIX), schema.overload_name or "default"
    handler = _OTHERS.get((name, overload))
    if handler is not None:
        return handler
    base = name.removesuffix("_")
    if overload == "ScalarAndTensor" or schema.arguments[-1].is_out or (base not in _UNARY and base not in _BINARY):
        return None
    call = _BINARY.get(base) or getattr(torch, base)
    if name != base:
        call = getattr(torch.Tensor, f"{call.__name__}_")
    return (
        _scaled(call) if base.startswith("addc") else _one_by_one(call, 3 if base == "lerp" else 1 + (base in _BINARY))
    )
