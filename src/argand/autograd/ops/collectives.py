"""Collectives: what a call starts is received at once; the scheduler parts the two again."""

from __future__ import annotations

from typing import Any

import torch

from argand.autograd.ops.mutation import run_mutation
from argand.autograd.recording.recorder import Handler, Recorder
from argand.autograd.recording.values import TraceTensor
from argand.errors import AutogradError
from argand.graph.metadata.strides import contiguous_strides
from argand.graph.operators.collectives import IN_PLACE, NAMESPACES, STARTS, collective_ops


def handler_of(func: Any) -> Handler | None:
    """How an op that talks to other processes, or waits for them, is traced."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "argand":
        return None
    if namespace in NAMESPACES and name in STARTS:
        return start
    if namespace == "_c10d_functional" and name in IN_PLACE:
        return start_in_place
    if namespace == "_c10d_functional" and name == "wait_tensor":
        return wait
    if name == "_wrap_tensor_autograd":
        return as_it_is
    return refuse


def refuse(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A graph whose communication is not known here runs as it is: every call, in order, while its tensors live."""
    raise AutogradError(f"{func} talks to other processes")


def start(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A collective that writes to none of its arguments, and what it delivers."""
    names = [argument.name for argument in func._schema.arguments]
    bound = {**dict(zip(names, args)), **kwargs}
    first = bound[names[0]]
    several = isinstance(first, (list, tuple))
    given = [_row_major(tracer, tracer.tensor(each)) for each in (first if several else (first,))]
    target = getattr(torch.ops._c10d_functional, func._schema.name.partition("::")[2]).default
    rest = tuple(bound[name] for name in names[1:])
    pending = tracer.record(target, (given if several else given[0], *rest), {})
    delivered = [tracer.one(collective_ops().received, each, given) for each in (pending if several else (pending,))]
    return delivered if several else delivered[0]


def _row_major(tracer: Recorder, tensor: TraceTensor) -> TraceTensor:
    """What is sent lies in memory as the other processes read it."""
    return tracer.with_strides(tensor, contiguous_strides(tensor.value.spec.size))


def start_in_place(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A collective that puts what arrives in its arguments."""
    result = run_mutation(tracer, func, args, kwargs)
    for each in result if isinstance(result, (list, tuple)) else (result,):
        tracer.received.append(tracer.tensor(each).value.root)
    return result


def as_it_is(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor that would wait when it is read: what is started in a graph is received at once."""
    return args[0]


def wait(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the graph computes has arrived when it is read. Of what began before the graph, nothing is known here."""
    (tensor,) = (*args, *kwargs.values())
    root = tracer.tensor(tensor).value.root
    if root.input >= 0 and not any(root is value for value in tracer.received):
        raise AutogradError("what is waited for began outside of the graph")
    return tensor
