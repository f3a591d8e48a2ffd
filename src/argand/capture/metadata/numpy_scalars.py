"""numpy's scalars given to torch: where a graph may hold the plain number instead.

Torch reads some of numpy's scalars as the Python number of the same value, and others in its own way: the imaginary
part of a complex64 is dropped, a bool in an operator becomes a float. What a constructor makes of one has its dtype.
Nothing here imports numpy.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a, is_numpy_array, is_numpy_scalar
from argand.errors import graph_break
from argand.graph.trees import leaves

EVERYWHERE = frozenset(("float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"))
"""Read as the Python number, also as a size or an index among others."""
ALONE = frozenset(("float16", "float32", "uint64", "longdouble"))
"""Read as the Python number as an argument of their own, rounded to a float where there is no such; in a list torch
refuses some of them."""


def is_scalar(value: object) -> bool:
    """Whether an object is a scalar of numpy's."""
    return is_numpy_scalar(type(value))


def held_in(data: Any) -> bool:
    """Whether a scalar of numpy's, or an array that captured code made, is among nested lists and tuples."""
    if is_a(data, list | tuple):
        return any(held_in(item) for item in (list if is_a(data, list) else tuple).__iter__(data))
    return is_scalar(data) or is_numpy_array(type(data))


def number(value: Any, arguments: Args) -> object:
    """The number that a graph holds for a scalar.

    Arguments:
        arguments: of the call that gets it.

    Raises:
        GraphBreak: torch reads the scalar otherwise.
    """
    name = type(value).__name__
    if name in EVERYWHERE or (name in ALONE and any(value is given for given in arguments)):
        return float(value) if name == "longdouble" else value.item()
    raise graph_break(
        kind="argument that a graph cannot hold",
        context=f"numpy.{name}",
        explanation=f"A {name} of numpy's was passed to a torch function, which reads it otherwise than a number.",
        hints=("Convert it to a number before the call: value.item().",),
    )


def constructed(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """What `torch.tensor` and its like make of data with scalars or arrays in it: a constant, copied at each call."""
    if any(map(builder.state.is_outer, leaves(args))):
        raise graph_break(kind="numpy array from outside", context=func.__name__)
    if kwargs.get("requires_grad") or kwargs.get("device") is not None or kwargs.get("pin_memory"):
        raise graph_break(
            kind="tensor constructor",
            context=func.__name__,
            explanation=f"torch.{func.__name__} is called with numbers of numpy's, and says how to keep the result.",
            hints=("Convert the numbers before the call: value.item().",),
        )
    with torch._C.DisableTorchFunction():
        real = func(*args, **kwargs)
        held = builder.constant(real)
        builder.tensors[id(held)].constant = real
        return builder.call(torch.Tensor.clone, (held,), {})
