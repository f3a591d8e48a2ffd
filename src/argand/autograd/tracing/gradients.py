"""Whether running a graph would record gradients: what it can be traced as."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.nodes.meta import attribute


def needs_autograd(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Running the graph now would record gradients, so that the inference path must not be taken."""
    if torch.is_inference_mode_enabled():
        return False
    return records_gradients(gm, example_inputs, enabled=torch.is_grad_enabled())


def records_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any], *, enabled: bool) -> bool:
    """Whether an operation may be recorded by autograd, where gradients are enabled or not when the graph begins.

    An optimizer's step, say, disables them, writes to parameters, and enables them again: nothing is recorded.
    """
    values = iter(example_inputs)
    carrying: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(values, None)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                carrying.add(node)
            continue
        switched = _grad_mode(node)
        if switched is not None:
            enabled = switched
            continue
        if node.op == "call_method" and node.target == "requires_grad_":  # the tensor itself changes
            carrying.update((node, *node.all_input_nodes))
            continue
        if node.kwargs.get("requires_grad"):  # a new tensor
            carrying.add(node)
            continue
        carries = _attribute_requires_grad(gm, node) or any(n in carrying for n in node.all_input_nodes)
        if not carries or isinstance(node.meta.get("example_value"), (int, float, str)):
            continue
        carrying.add(node)
        if enabled and node.op not in ("get_attr", "output"):
            return True
    return False


def _grad_mode(node: fx.Node) -> bool | None:
    """What the node sets the grad mode to, if it may: True where that is not known."""
    if node.op != "call_function":
        return None
    if node.target is torch._C._set_grad_enabled or node.target is torch.set_grad_enabled:
        return bool(node.args[0]) if node.args and not isinstance(node.args[0], fx.Node) else True
    return True if node.target is torch.enable_grad else None


def _attribute_requires_grad(gm: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "get_attr":
        value = attribute(gm, str(node.target))
        return isinstance(value, torch.Tensor) and value.requires_grad
    if node.op == "call_module":
        module = attribute(gm, str(node.target))
        return any(p.requires_grad for p in module.parameters())
    return False


def leaves_tape(node: fx.Node) -> bool:
    """Whether a call does what autograd does not record: reads `.data`, has a backward of its own, puts up hooks."""
    if node.op == "call_method":
        return str(node.target).startswith("register_")
    if node.op != "call_function" or isinstance(node.target, str):
        return node.op == "call_module"
    if node.target in (getattr, setattr):
        return len(node.args) > 1 and node.args[1] in ("data", "grad")
    return str(getattr(node.target, "__module__", "")).startswith("argand")


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """As a backward runs: where no autocast is on, though what it calls may turn it on."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
