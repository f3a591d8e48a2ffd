"""Operators run for their metadata alone: what they, and fakes of custom operators, make by themselves is on meta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library import simple_registry

from argand.graph.compat import DispatchMode

_META = torch.device("meta")


class OnMeta(DispatchMode):
    """While this is on, an operator that is told no device makes its tensors on meta, also within a fake."""

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is None and any(argument.name == "device" for argument in func._schema.arguments):
            given["device"] = _META
        fake = fake_of(func)
        if fake is None:
            return func(*args, **given)
        with self, _META:  # a call of the operator has left both
            return fake(*args, **given)


def fake_of(func: Any) -> Callable[..., Any] | None:
    """The function that a program registered to say what its operator makes."""
    if func.namespace in ("aten", "prims"):
        return None
    kernel: Any = simple_registry.singleton.find(func._schema.name).fake_impl.kernel
    return None if kernel is None else kernel.func
