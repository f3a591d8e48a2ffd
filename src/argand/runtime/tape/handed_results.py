"""Results of a compiled graph that its backward reads, as the program has them.

Autograd keeps a result's memory, and not the result itself, which would hold what holds it. In eager the operations
behind it hold it, and read whatever data it has by the time of the backward (`result.data = ...`). So it is with inputs
whose history the graph writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from argand._core import _C


class HandedResults:
    """Those of one call.

    Arguments:
        results: positions of results, and what the program gets there.
    """

    __slots__ = ("_held",)

    def __init__(self, results: Iterable[tuple[int, torch.Tensor]]) -> None:
        self._held: dict[int, tuple[weakref.ref[torch.Tensor], tuple[object, ...]]] = {}
        for position, result in results:
            self._held[position] = weakref.ref(result), _place(result)

    @classmethod
    def of(cls, results: Sequence[Any], positions: Sequence[int]) -> HandedResults | None:
        """Those at some positions; None where there are none."""
        return cls([(position, results[position]) for position in positions]) if positions else None

    def note(self, position: int, result: torch.Tensor) -> None:
        """What the program gets at a position, in place of what was there."""
        if position in self._held:
            self._held[position] = weakref.ref(result), _place(result)

    def set_since(self) -> dict[int, torch.Tensor]:
        """By position, those whose data the program has set."""
        changed = {}
        for position, (held, place) in self._held.items():
            result = held()
            if result is not None and _place(result) != place:
                changed[position] = result
        return changed


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    try:
        return _C.tensor_info(tensor)  # a third of the time
    except (RuntimeError, TypeError, ValueError, BufferError):
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
