"""`torch.autograd.grad` in captured code: a call in the graph, of tensors whose operations are in the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.sources import AttrSource
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import metadata
from argand.capture.metadata.meta_tensors import new
from argand.capture.metadata.rules import RULES
from argand.capture.torch_functions import hops, modes
from argand.capture.torch_functions.torch_calls import handler

_NAMES = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "allow_unused", "is_grads_batched",
    "materialize_grads",
)  # fmt: skip
_OPTIONS = ("retain_graph", "create_graph", "allow_unused", "materialize_grads")


def _refused(explanation: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="gradient inside the graph",
        context="torch.autograd.grad",
        explanation=f"torch.autograd.grad is captured where what it differentiates is in the same graph. {explanation}",
        hints=("Call it outside the compiled function, or use torch.func.grad.",),
    )


@handler(torch.autograd.grad)
def _grad(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The gradients of tensors of this graph with respect to others, or to its inputs."""
    given = dict(zip(_NAMES, [state.deep_resolve(arg) for arg in args]))
    given |= {key: state.deep_resolve(value) for key, value in kwargs.items()}
    if len(args) > len(_NAMES) or set(given) - set(_NAMES) or not {"outputs", "inputs"} <= set(given):
        raise _refused("These arguments are not known.")
    options = {key: given[key] for key in _OPTIONS if given.get(key) is not None}
    if given.get("is_grads_batched") or any(type(value) is not bool for value in options.values()):
        raise _refused("It is called with options that are not captured.")
    builder = state.graph
    if builder.graph is not builder.root:
        raise _refused("It is called in a function that became a graph of its own.")
    outputs, inputs = _tensors(state, given["outputs"]), _tensors(state, given["inputs"])
    grads = given.get("grad_outputs")
    grads = None if grads is None else _tensors(state, grads, True)
    _require_whole(state, inputs, bool(options.get("allow_unused") or options.get("materialize_grads")))
    shown, same = _replayed(builder, outputs, inputs, grads, options)
    with torch._C.DisableTorchFunction():
        recorded = builder.record(
            hops.autograd_grad, (outputs, inputs, grads), options, meta_kwargs={**options, "shown": shown}
        )
        for tensor, like in zip(recorded, shown):
            if isinstance(tensor, torch.Tensor) and not like[1]:
                builder.unsure.add(id(tensor))
    results = list(recorded)
    for i, one in same.items():
        results[i] = results[one] if one >= 0 or grads is None else grads[~one]
    return tuple(results)


def _tensors(state: CaptureState, value: object, optional: bool = False) -> list[object]:
    tensors = list(value) if isinstance(value, (tuple, list)) else [value]
    for item in tensors:
        if optional and item is None:
            continue
        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise _refused(f"A {type(item).__name__} is not captured there.")
        state.tensor_info(item)
    return tensors


def _require_whole(state: CaptureState, inputs: list[object], unused: bool) -> None:
    """What autograd knows of tensors from outside is not looked at: guard that no way leads from one to another."""
    chosen = {id(tensor) for tensor in inputs}
    infos = [info for info in state.graph.inputs if info.real is not None and info.tensor.requires_grad]
    for info in infos:
        if (len(infos) > 1 or unused) and type(info.real) is not torch.nn.Parameter:
            _require(state, info, "is_leaf", True)
        if id(info.tensor) in chosen:
            _require(state, info, "_backward_hooks", None)
    sources = [info.source for info in infos if info.source is not None]
    if len(sources) > 1:  # of two that are one tensor, each gradient is the sum
        state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)


def _require(state: CaptureState, info: TensorInfo, name: str, wanted: object) -> None:
    with torch._C.DisableTorchFunction():
        actual = getattr(info.real, name)
    if info.source is None or actual is not wanted:
        raise _refused("A tensor from outside has a gradient history, or hooks, that the graph does not have.")
    source = AttrSource(info.source, name)
    if wanted is None:
        state.guard(source, "is_none")
    else:
        state.guard(source, "id", wanted)


# ---------------------------------------------------------------------- metadata


def _replayed(
    builder: GraphBuilder, outputs: Any, inputs: Any, grads: Any, options: dict[str, object]
) -> tuple[tuple[Any, ...], dict[int, int]]:
    """What the engine gives: runs the graph so far on new stand-ins with autograd recording, then asks it.

    Returns:
        For each input None, or (whether its gradient requires grad, whether it lies in memory as the input does), and
        which gradients are the very object that is an earlier one, or (`~n`) the n-th of `grads`.
    """
    switches = [node.args[0] for node in builder.root.nodes if node.target is torch._C._set_grad_enabled]
    with torch._C.DisableTorchFunction(), modes.restored():
        enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(not switches[0] if switches else enabled)
        values = _run(builder)

        def real(tensor: torch.Tensor) -> torch.Tensor:
            return None if tensor is None else values[builder.node_of(builder.state.tensor_info(tensor))]

        given = [[real(tensor) for tensor in group] for group in (outputs, inputs)]
        seeds = None if grads is None else [real(tensor) for tensor in grads]
        try:
            with torch.set_grad_enabled(enabled):
                gradients = torch.autograd.grad(given[0], given[1], seeds, **options)
        except Exception as error:
            raise metadata.meta_failure("torch.autograd.grad", error) from None
    like = [None if g is None else (g.requires_grad, g.stride() == t.stride()) for g, t in zip(gradients, given[1])]
    return tuple(like), _same(gradients, values, seeds or [])


def _same(gradients: Sequence[object], values: dict[fx.Node, object], seeds: list[object]) -> dict[int, int]:
    same: dict[int, int] = {}
    known = {id(value) for value in values.values()}
    for i, gradient in enumerate(gradients):
        if gradient is None:
            continue
        earlier = next((j for j in range(i) if gradients[j] is gradient), None)
        seed = next((j for j, other in enumerate(seeds) if other is gradient), None)
        if seed is not None:
            same[i] = ~seed
        elif earlier is not None:
            same[i] = earlier
        elif id(gradient) in known:
            raise _refused("A gradient is the very tensor that is something else in the program.")
    return same


def _run(builder: GraphBuilder) -> dict[fx.Node, object]:
    values: dict[fx.Node, Any] = {}
    reals = {info.node: info.real for info in builder.inputs}
    for node in builder.root.nodes:
        try:
            values[node] = _value(builder, node, values, reals)
        except errors.GraphBreak:
            raise
        except Exception as error:
            raise _refused(f"The gradient's form cannot be told: {node.name} raises {type(error).__name__}.") from None
    return values


def _value(builder: GraphBuilder, node: fx.Node, values: dict[fx.Node, object], reals: dict[fx.Node, Any]) -> object:
    known = node.meta.get("example_value")
    if isinstance(known, (bool, int, float)):
        return known  # a number: of this call
    if node.op == "placeholder":
        return metadata.stand_in(reals[node]) if reals.get(node) is not None else known
    if node.op == "get_attr":
        held = builder.constants[str(node.target)]
        return metadata.stand_in(held) if isinstance(held, torch.Tensor) else held
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: values[used])
    args, kwargs = _on_meta(args), _on_meta(kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.target in metadata.FACTORIES and not kwargs.get("device"):
        kwargs = {**kwargs, "device": torch.device("meta")}
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("meta")
    if type(value) in (tuple, list):
        return type(value)([_on_meta(item) for item in value])
    return {key: _on_meta(item) for key, item in value.items()} if type(value) is dict else value


def _metadata(
    outputs: object, inputs: Any, grad_outputs: object, shown: Any = (), **options: object
) -> tuple[object, ...]:
    """Gradients look like what they belong to."""
    return tuple(
        [
            None if like is None else new(tuple(tensor.shape), tensor.stride(), tensor.dtype, like[0])
            for tensor, like in zip(inputs, shown)
        ]
    )


RULES[hops.autograd_grad] = _metadata
