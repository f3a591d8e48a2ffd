"""`torch.autograd.grad` in captured code: a call in the graph, of tensors whose operations are in the same graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.metadata.meta_tensors import new
from argand.capture.metadata.rules import RULES
from argand.capture.torch_functions import hops
from argand.capture.torch_functions.gradients import engine_runs
from argand.capture.torch_functions.gradients.engine_runs import refused, require, tensors_of
from argand.capture.torch_functions.higher_order import checkpoints, hook_state, leaf_hooks
from argand.capture.torch_functions.torch_calls import handler

_NAMES = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused",
    "is_grads_batched", "materialize_grads",
)  # fmt: skip
_OPTIONS = ("retain_graph", "create_graph", "allow_unused", "materialize_grads", "is_grads_batched")


@handler(torch.autograd.grad)
def _grad(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The gradients of tensors of this graph with respect to others, or to its inputs."""
    given = dict(zip(_NAMES, [state.deep_resolve(arg) for arg in args]))
    given |= {key: state.deep_resolve(value) for key, value in kwargs.items()}
    known = set(given) <= set(_NAMES) and given.get("only_inputs", True) is True  # eager warns of False
    if len(args) > len(_NAMES) or not known or not {"outputs", "inputs"} <= set(given):
        raise refused("These arguments are not known.")
    asked = {key: given[key] for key in _OPTIONS if given.get(key) is not None}
    options = {key: value for key, value in asked.items() if isinstance(value, bool)}
    if len(options) < len(asked):
        raise refused("It is called with options that are not captured.")
    builder = state.graph
    if any(scope.results is None for scope in builder.scopes) or (builder.scopes and hook_state.of_tensors(state)):
        raise refused("It is called in a function that became a graph of its own.")
    hook_state.check(state)
    outputs, inputs = tensors_of(state, given["outputs"]), tensors_of(state, given["inputs"])
    checkpoints.compute_again(state, outputs, bool(options.get("retain_graph", options.get("create_graph"))))
    grads = given.get("grad_outputs")
    grads = None if grads is None else tensors_of(state, grads, True)
    _require_whole(state, inputs, bool(options.get("allow_unused") or options.get("materialize_grads")))
    shown, same = engine_runs.gradients(builder, outputs, inputs, grads, options)
    with torch._C.DisableTorchFunction():
        recorded = builder.record(
            hops.autograd_grad, (outputs, inputs, grads), options, meta_kwargs={**options, "shown": shown}
        )
        for tensor, like in zip(recorded, shown):
            if like is not None and not like.laid_out:
                builder.unsure.add(id(tensor))
    results = list(recorded)
    for i, one in same.items():
        results[i] = results[one] if one >= 0 or grads is None else grads[~one]
    return tuple(results)


def _require_whole(state: CaptureState, inputs: list[object], unused: bool) -> None:
    """What autograd knows of tensors from outside is not looked at: guard that no way leads from one to another."""
    chosen = {id(tensor) for tensor in inputs}
    tensors = [info for info in state.graph.inputs if isinstance(info.tensor, torch.Tensor)]  # not numbers that vary
    infos = [info for info in tensors if info.real is not None and info.tensor.requires_grad]
    for info in infos:
        if (len(infos) > 1 or unused) and type(info.real) is not torch.nn.Parameter:
            require(state, info, "is_leaf", True)
        if id(info.tensor) in chosen:
            if not leaf_hooks.are_pythons(info.real):
                raise refused("A hook of C++ is on a tensor whose gradient is asked for.")
            require(state, info, "_backward_hooks", None)
            if type(info.real) is not torch.nn.Parameter:
                require(state, info, "retains_grad", False)
            if info.source is not None:
                state.guards.add(None, "python", leaf_hooks.are_pythons, [info.source], label="NO_HOOKS", shown=False)
    sources = [info.source for info in infos if info.source is not None]
    if len(sources) > 1:  # of two that are one tensor, each gradient is the sum
        state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)


def _metadata(
    outputs: object,
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor | None] | None,
    shown: Sequence[engine_runs.Gradient | None] = (),
    **options: object,
) -> tuple[object, ...]:
    """Gradients look like what they belong to."""
    batch = next((grad.shape[0] for grad in grad_outputs or () if grad is not None and grad.dim()), None)
    results: list[torch.Tensor | None] = []
    for tensor, like in zip(inputs, shown):
        if like is None:
            results.append(None)
            continue
        size, strides = engine_runs.laid_out(tensor, batch if like.batched else None)
        results.append(new(size, strides, tensor.dtype, like.requires_grad))
    return tuple(results)


RULES[hops.autograd_grad] = _metadata
