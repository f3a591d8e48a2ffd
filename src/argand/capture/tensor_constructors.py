"""Functions that make tensors from data: capture of `torch.tensor` and its like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from argand import errors
from argand.capture import numpy_calls
from argand.capture.array_value import Traced
from argand.capture.tensor_methods import _named, special

if TYPE_CHECKING:
    from argand.capture.tensors import GraphBuilder

_T = torch.Tensor


def _holds_tensor(data: Any) -> bool:
    if isinstance(data, _T):
        return True
    return isinstance(data, list | tuple) and any(_holds_tensor(item) for item in data)


@special(*_named(torch, "tensor", "as_tensor", "asarray", "scalar_tensor"))
def _from_data(builder: GraphBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if isinstance(data, _T):
        return _copy_of_tensor(builder, func, data, kwargs)
    if type(data) is Traced or (type(data).__module__ == "numpy" and type(data).__name__ == "ndarray"):
        made = numpy_calls.to_tensor(builder.state, data, func.__name__)
        target = {key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None}
        return builder.call(_T.to, (made,), target) if target else made
    if _holds_tensor(data):
        raise errors.graph_break(
            kind="data-dependent value",
            context=func.__name__,
            explanation=f"torch.{func.__name__} of a list of tensors reads their values.",
            hints=("use torch.stack",),
        )
    arrays = builder.state.arrays
    if arrays is not None and arrays.recording and "dtype" not in kwargs:
        with torch._C.DisableTorchFunction():
            return builder.record(func, args, {**kwargs, "dtype": func(*args, **kwargs).dtype})
    return NotImplemented


def _copy_of_tensor(builder: GraphBuilder, func: Any, data: Any, kwargs: Any) -> Any:
    target = {key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None}
    if func is torch.as_tensor:
        return builder.call(_T.to, (data,), target) if target else data
    if func is not torch.tensor or kwargs.get("requires_grad"):
        raise errors.graph_break(
            kind="tensor constructor",
            context=func.__name__,
            explanation=f"torch.{func.__name__} copies the values of a tensor.",
            hints=("Use x.clone().detach(), and x.requires_grad_() where needed.",),
        )
    made = builder.call(_T.clone, (builder.call(_T.detach, (data,), {}),), {})
    return builder.call(_T.to, (made,), target) if target else made


@special(*_named(_T, "new_tensor"))
def _new_tensor(builder: GraphBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(args[1], _T) or _holds_tensor(args[1]):
        raise errors.graph_break(
            kind="tensor constructor",
            context="new_tensor",
            explanation="Tensor.new_tensor copies the values of a tensor.",
            hints=("Use x.clone().detach().",),
        )
    return NotImplemented


@special(*_named(torch, "from_numpy", "frombuffer", "from_file", "from_dlpack", "set_printoptions", "load"))
def _foreign_memory(builder: GraphBuilder, func: Any, args: Any, kwargs: Any) -> Any:
    if func is torch.from_numpy:
        return numpy_calls.to_tensor(builder.state, args[0], "from_numpy")
    raise errors.graph_break(
        kind="tensor from foreign memory",
        context=func.__name__,
        explanation=f"torch.{func.__name__} makes a tensor from memory that capture cannot follow.",
        hints=("make the tensor outside the compiled function and pass it as an argument",),
    )
