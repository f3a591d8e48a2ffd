"""On which devices the tensors of a torch-level graph are, and are made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast

from argand.graph.nodes.meta import attribute


def made_on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Tensors that name no device are made there; on the CPU nothing is changed, which costs nothing."""
    return contextlib.nullcontext() if device.type == "cpu" else device


def devices_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> set[str]:
    """Types ("cpu", "cuda", "mps", ...) of the devices that a graph's inputs and tensors are on, or that it names.

    Arguments:
        inputs: one value per placeholder.
    """
    return set(_named_devices(gm, inputs))


def _named_devices(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[str]:
    for value in inputs:
        if isinstance(value, torch.Tensor):
            yield value.device.type
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = attribute(gm, str(node.target))
            if isinstance(value, torch.Tensor):
                yield value.device.type
        elif node.op == "call_module":
            module = gm.get_submodule(node.target)
            yield from (t.device.type for t in (*module.parameters(), *module.buffers()))
        elif node.op == "call_method" and _is_device(str(node.target)):  # x.cuda(), x.xpu()
            yield torch.device(str(node.target)).type
        elif node.op in ("call_function", "call_method") and node.target is not _enter_autocast:  # of no tensor
            yield from _named(node)


def _named(node: fx.Node) -> Iterator[str]:
    waiting: list[object] = [*node.args, *node.kwargs.values()]
    while waiting:
        value = waiting.pop()
        if type(value) is fx.Node or type(value) is int:
            continue
        if isinstance(value, torch.device):
            yield value.type
        elif isinstance(value, str):
            if _is_device(value):
                yield torch.device(value).type
        elif isinstance(value, (tuple, list)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()


@functools.lru_cache(maxsize=4096)  # devices have their names before graphs name them
def _is_device(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True
