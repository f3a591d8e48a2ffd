"""`backward()` in captured code: gradients are a call in the graph, `.grad` of leaves is written when the graph ends.

What the engine does around the gradients is done by capture: hooks of leaves are interpreted, a gradient is added to
the one that is there already, in the order in which the engine reaches the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.metadata.meta_tensors import new
from argand.capture.metadata.rules import RULES
from argand.capture.torch_functions import hops
from argand.capture.torch_functions.gradients import engine_runs
from argand.capture.torch_functions.gradients.engine_runs import Reached, require, tensors_of
from argand.capture.torch_functions.higher_order import checkpoints, hook_state, leaf_hooks
from argand.capture.torch_functions.torch_calls import handler

_NAMES = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_METHOD = ("self", "gradient", "retain_graph", "create_graph", "inputs")


def _refused(explanation: str) -> errors.GraphBreak:
    return engine_runs.refused(explanation, "backward()")


@handler(torch.autograd.backward)
def _backward(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    _run(state, _bound(state, _NAMES, args, kwargs))
    return None


@handler(torch.Tensor.backward)
def _method(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    given = _bound(state, _METHOD, args, kwargs)
    given["tensors"], given["grad_tensors"] = given.pop("self"), given.pop("gradient", None)
    _run(state, given)
    return None


def _bound(state: CaptureState, names: Sequence[str], args: Args, kwargs: Kwargs) -> dict[str, object]:
    given = dict(zip(names, [state.deep_resolve(arg) for arg in args]))
    given |= {key: state.deep_resolve(value) for key, value in kwargs.items()}
    if len(args) > len(names) or set(given) - set(names) or names[0] not in given:
        raise _refused("These arguments are not known.")
    return given


def _run(state: CaptureState, given: dict[str, object]) -> None:
    asked = {key: given[key] for key in ("retain_graph", "create_graph") if given.get(key) is not None}
    options = {key: value for key, value in asked.items() if isinstance(value, bool)}
    if given.get("grad_variables") is not None or len(options) < len(asked):
        raise _refused("It is called with options that are not captured.")
    builder = state.graph
    if builder.graph is not builder.root:
        raise _refused("It is called in a function that became a graph of its own.")
    hook_state.check(state)
    outputs = tensors_of(state, given["tensors"])
    grads = None if given.get("grad_tensors") is None else tensors_of(state, given["grad_tensors"], True)
    checkpoints.compute_again(state, outputs, bool(options.get("retain_graph", options.get("create_graph"))))
    inputs = None if given.get("inputs") is None else tensors_of(state, given["inputs"])
    reached, others = engine_runs.accumulated(builder, outputs, grads, inputs, options)
    _require_history_here(state, [*[leaf.tensor for leaf in reached], *others, *(inputs or ())])
    if not reached:  # of the `inputs` that are asked for
        return
    _require_leaves(state, reached)
    leaves = [leaf.tensor for leaf in reached]
    outside = [i for i, leaf in enumerate(leaves) if state.tensor_info(leaf).real is not None]
    laid_out = [i for i, leaf in enumerate(reached) if leaf.strides == leaf.tensor.stride()]
    arguments = (outputs, grads, leaves, outside, laid_out)
    with torch._C.DisableTorchFunction():
        gradients = builder.record(
            hops.autograd_backward, arguments, options, meta_kwargs={**options, "reached": reached}
        )
    for leaf, gradient in zip(leaves, gradients):
        _accumulate(state, leaf, gradient, bool(options.get("create_graph")))


def _require_history_here(state: CaptureState, tensors: list[torch.Tensor]) -> None:
    """No history of a tensor from outside leads on, be it to one of the `inputs` that are asked for."""
    for info in map(state.tensor_info, tensors):
        if info.real is not None and type(info.real) is not torch.nn.Parameter:
            require(state, info, "is_leaf", True)


def _require_leaves(state: CaptureState, reached: list[Reached]) -> None:
    """What autograd knows of tensors from outside is guarded where their gradients are told."""
    infos = [state.tensor_info(leaf.tensor) for leaf in reached]
    outside = [info for info in infos if info.real is not None]
    sources = [info.source for info in outside if info.source is not None]
    if not leaf_hooks.accumulate_quietly(*[info.real for info in outside]):
        raise _refused(
            "A hook is on the node that accumulates a gradient, or one of C++ on a leaf, or its dtype is another."
        )
    if sources:
        state.guards.add(None, "python", leaf_hooks.accumulate_quietly, sources, label="NO_HOOKS", shown=False)
    if len(sources) > 1:  # of two that are one tensor, the gradient is the sum
        state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)


def _accumulate(state: CaptureState, leaf: torch.Tensor, gradient: torch.Tensor, create_graph: bool) -> None:
    builder, interpreter = state.graph, state.interpreter
    hooks = leaf_hooks.seen_by_program(state, leaf, "_backward_hooks")
    if hooks is not None:
        changed = interpreter.polyfill(_changed, hooks, gradient, create_graph)
        if not isinstance(changed, torch.Tensor) or not _alike(builder, changed, gradient):
            raise _refused("A hook returns something else than a gradient of the same kind.")
        gradient = changed if changed is gradient else interpreter.polyfill(_copied, changed, gradient, create_graph)
    old = interpreter.getattr(leaf, "grad")
    if old is None:
        interpreter.setattr(leaf, "grad", gradient)
    elif create_graph:
        interpreter.setattr(leaf, "grad", _called(builder, torch.Tensor.add, old, gradient))
    elif old.requires_grad or gradient.requires_grad:
        interpreter.polyfill(_added, old, gradient)
    else:
        _called(builder, torch.Tensor.add_, old, gradient)
    hooks = leaf_hooks.seen_by_program(state, leaf, "_post_accumulate_grad_hooks")
    if hooks is not None and interpreter.polyfill(_told, hooks, leaf, create_graph) is not None:
        raise _refused("A hook for after a gradient was accumulated returns something.")


def _called(builder: GraphBuilder, function: Function, *args: object) -> object:
    with torch._C.DisableTorchFunction():
        return builder.call(function, args, {})


def _alike(builder: GraphBuilder, changed: torch.Tensor, gradient: torch.Tensor) -> bool:
    if changed is gradient:
        return True
    infos = [builder.state.tensor_info(tensor) for tensor in (changed, gradient)]
    fixed = all(info.dynamic is None for info in infos) and infos[0].device == infos[1].device
    return fixed and (changed.shape, changed.dtype) == (gradient.shape, gradient.dtype)


Hooks: TypeAlias = "Mapping[int, Callable[[torch.Tensor], Any]]"


def _changed(hooks: Hooks, gradient: torch.Tensor, create_graph: bool) -> object:
    with torch.set_grad_enabled(create_graph):
        for hook in list(hooks.values()):
            result = hook(gradient)
            if result is not None:
                gradient = result
    return gradient


def _copied(changed: torch.Tensor, gradient: torch.Tensor, create_graph: bool) -> torch.Tensor:
    with torch.set_grad_enabled(create_graph):
        return torch.empty_like(gradient).copy_(changed)


def _added(old: torch.Tensor, gradient: torch.Tensor) -> None:
    with torch.no_grad():
        old.add_(gradient)


def _told(hooks: Hooks, leaf: torch.Tensor, create_graph: bool) -> object:
    said: object = None
    with torch.set_grad_enabled(create_graph):
        for hook in list(hooks.values()):
            said = hook(leaf) or said
    return said


# ---------------------------------------------------------------------- what is told of the gradients


def _metadata(
    outputs: object,
    grads: object,
    leaves: Sequence[torch.Tensor],
    outside: object,
    laid_out: object,
    reached: Sequence[Reached] = (),
    **options: object,
) -> tuple[object, ...]:
    """Gradients look like what they belong to."""
    shown = []
    for tensor, like in zip(leaves, reached):
        fixed = tuple(tensor.shape) == tuple(like.tensor.shape)
        strides = like.strides if fixed else hops.gradient_strides(tensor)
        shown.append(new(tuple(tensor.shape), strides, tensor.dtype, like.requires_grad))
    return tuple(shown)


RULES[hops.autograd_backward] = _metadata
