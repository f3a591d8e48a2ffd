"""Saved tensors that a checkpoint computes again (`use_reentrant=False`), within the backward that needs them.

Torch shows of these a hook on each saved tensor, which runs the program's function for the first of a checkpoint's
tensors, and gives each out once per run of the engine. What is used of the hook's own objects is not public: the
checkpoint that it is of (`_CheckpointFrame`), and where that keeps what it has computed (`_Holder`, `_Handle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import checkpoint

from argand.quick_dataclasses import dataclass

Metadata = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """A saved tensor that is computed again.

    Arguments:
        raw: what torch keeps in its place.
        node: that saved it, under the name `name`.
    """

    raw: Any
    node: Any
    name: str


class Saved(list[torch.Tensor]):
    """Tensors that nodes saved.

    Fields:
        late: those of which something else stands here, that are computed within the backward, by their place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[int, Late] = {}

    def add_late(self, one: Late) -> Metadata:
        """Add one that is computed later; what is known of it."""
        self.late[len(self)] = one
        self.append(_nothing())
        return metadata_of(one.raw)

    def let_go(self, places: Iterable[int]) -> None:
        """Nobody reads what was computed again for these any more."""
        for place in self.late.keys() & places:
            self[place] = _nothing()


def _nothing() -> torch.Tensor:
    return torch.empty(0, device="cpu")


_PRIVATE = tuple([getattr(checkpoint, name, None) for name in ("_CheckpointFrame", "_Holder", "_Handle")])
_FIELDS = ("recomputed", "weak_holders", "x_metadatas")


def checkpoint_of(raw: Any) -> Any | None:
    """The checkpoint that computes a saved tensor again; None where another hook, or none, stands for it, or where it
    does not tell what its tensors are like (`determinism_check="none"`)."""
    if None in _PRIVATE or type(getattr(raw, "data", None)) is not _PRIVATE[1]:
        return None
    for cell in getattr(raw.unpack_hook, "__closure__", None) or ():
        frame = cell.cell_contents
        if type(frame) is _PRIVATE[0] and all(hasattr(frame, name) for name in _FIELDS):
            return frame if frame.x_metadatas and isinstance(frame.x_metadatas[0], dict) else None
    return None


def metadata_of(raw: Any) -> Metadata:
    """What is known of a tensor before it is computed again: its place among those of its checkpoint, and its form."""
    frame = checkpoint_of(raw)
    assert frame is not None
    place = next(n for n, one in enumerate(frame.weak_holders) if one() is raw.data)
    return place, tuple([value for _, value in sorted(frame.x_metadatas[place].items())])


def computed(one: Late) -> torch.Tensor:
    """The tensor, with its history, computed again if its checkpoint was not in this run of the engine. It can be given
    out once more."""
    tensor: torch.Tensor = getattr(one.node, one.name)
    give_again(one, tensor.detach())
    return tensor


def give_again(one: Late, tensor: torch.Tensor | None = None) -> None:
    """What the engine is given when a node asks for the tensor; where nothing is computed with it, one without data,
    on the tensor's device, whose kernel is asked."""
    raw = one.raw
    handle = checkpoint._Handle()
    run = torch._C._current_graph_task_id()
    raw.data.handles[run] = handle
    frame = checkpoint_of(raw)
    assert frame is not None
    if tensor is None:
        place = next(n for n, holder in enumerate(frame.weak_holders) if holder() is raw.data)
        tensor = torch.empty(0, device=frame.x_metadatas[place].get("device", "cpu"))
    frame.recomputed[run][handle] = tensor
