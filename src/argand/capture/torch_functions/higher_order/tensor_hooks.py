"""Hooks on tensors that captured code makes: the hook's own graph, registered by a node."""

from __future__ import annotations

import functools

import torch
from torch.utils.hooks import RemovableHandle

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.record.scopes import placeholder, refuse_data
from argand.capture.sizes import dtensors, symbolic_tensors
from argand.capture.torch_functions import hops
from argand.capture.torch_functions.higher_order import hook_state, subgraphs
from argand.capture.torch_functions.torch_calls import handler
from argand.capture.world import pending_effects


class Handle:
    """What register_hook returned to captured code: it may be dropped, and nothing else."""

    argand_temporary = True

    def remove(self) -> None:
        raise hook_state.refused("The handle of a hook is used; the hook exists only when the program runs.")


@handler(Handle.remove)
def _remove(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    raise hook_state.refused("The handle of a hook is used; the hook exists only when the program runs.")


@handler(RemovableHandle.remove)
def _remove_known(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A handle from before, whose id is another in each call (the hook is put on before a break, say): it is the key in
    dicts that guards would compare, in a version for each call."""
    if args and state.is_outer(args[0]) and type(state.interpreter.getattr(args[0], "id")) in SYMBOLIC:
        raise hook_state.refused("A hook is taken off that the program puts on in each call, before the graph begins.")
    return NotImplemented


@handler(torch.Tensor.register_hook)
def _register_hook(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The hook is captured into a graph; it must not do anything but compute the new gradient."""
    bound = {**dict(zip(("self", "hook"), args)), **kwargs}
    if "hook" not in bound:
        return NotImplemented
    tensor, hook = bound["self"], bound["hook"]
    builder = state.graph
    info = state.tensor_info(tensor)
    if not tensor.requires_grad or info.source is not None:
        raise hook_state.refused(
            "The hook is put on a tensor from outside the compiled function, or that needs no gradient."
        )
    refuse_data(builder, info)
    make = functools.partial(subgraphs.leaf_like, requires_grad=False)
    grad = make(tensor)
    before = hook_state.reached(state, hook)
    with subgraphs.scope(state, dtensors.HOOK) as scope:
        dtensors.gradient_of(builder, tensor, grad, placeholder(scope.graph, "grad"))
        symbolic_tensors.passed_on(builder, info, grad, make)
        with subgraphs.grad_mode(False), pending_effects.watching(state) as watched:
            result = state.interpreter.call(hook, (grad,), {})
    hook_state.note(state, hook, before, watched, builder.node_of(info))
    if result is not None and not _is_alike(state, result, tensor):
        raise hook_state.refused("The hook returns something else than a gradient of the same kind and size, or None.")
    body = subgraphs.close(builder, scope, [] if result is None else [result])
    subgraphs.record(builder, hops.register_hook, [("hook_body", body)], [info, *scope.order], [])
    return Handle()


def _is_alike(state: CaptureState, result: object, tensor: torch.Tensor) -> bool:
    if not isinstance(result, torch.Tensor) or result.dtype != tensor.dtype:
        return False
    if not symbolic_tensors.alike(state.graph, result, tensor):
        return False
    return state.tensor_info(result).device == state.tensor_info(tensor).device
