"""Graphs that leave what they write to as it was when they raise, so that a frame can start again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand.errors import say_unwritten
from argand.graph.version_counters import set_versions

Copies = Sequence[tuple[weakref.ref[torch.Tensor], torch.Tensor, int | None]]


def copies_of(*inputs: torch.Tensor) -> Copies:
    """Inputs that a graph is about to write to, what they hold now, and their versions."""
    with torch._C.DisableTorchFunction():
        return [
            (weakref.ref(tensor), tensor.detach().clone(), None if tensor.is_inference() else tensor._version)
            for tensor in inputs
        ]


def put_back(copies: Copies) -> None:
    """Inputs hold again what they held."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for held, copy, version in copies:
            tensor = held()
            if tensor is not None:
                tensor.data.copy_(copy)
                if version is not None:  # to autograd nothing was written
                    set_versions((tensor,), (version,))


def undoing(run: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """A function that says, when it raises, that its arguments at these positions are as they were."""

    def undone_on_error(*args: Any) -> Any:
        copies = copies_of(*[args[position] for position in positions])
        try:
            return run(*args)
        except Exception as error:
            put_back(copies)
            say_unwritten(error)
            raise

    return undone_on_error
