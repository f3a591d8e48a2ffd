"""What checkpointed functions of a graph look at: eager calls them again in the backward, and they look again.

The compiled backward computes what they computed in the forward. So where something is another by then, it raises.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.graph import get_gradient_edge

from argand.graph import compat
from argand.graph.trees import tensors_of
from argand.runtime.tape.result_nodes import SILENT, graphs_node

Read = tuple[int, str, Any, str]
"""The place of the owner among those given (-1: the globals), how it is read, under which name, what users call it."""

BEHIND = "behind"
"""How a tensor is read of which a reentrant checkpoint computes the gradient."""
_NUMBERS = (int, float, bool, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_DEEPEST = 4  # containers in each other
_MISSING = object()


def note(reads: Sequence[Read], count: int, *given: Any) -> None:
    """Called by transformed code behind a graph: what its checkpoints read must be the same in the backward.

    Arguments:
        count: how many of `given` are results that require grad; the others are owners of what is read.
    """
    results, owners = given[:count], (*given[count:], sys._getframe(1).f_globals)
    nodes = [graphs_node(result.grad_fn) for result in results]
    noted = Noted(reads, owners, nodes)
    for result, node in zip(results, nodes):
        if node is not None:
            node.reads = noted
        elif result.grad_fn is not None and noted.reads:  # the graph runs with eager's kernels
            result.grad_fn.register_prehook(noted.as_hook())


class Noted:
    """What was read in one call, and the tensors whose gradients come through reentrant checkpoints of `nodes`."""

    def __init__(self, reads: Sequence[Read], owners: Sequence[Any], nodes: Sequence[Any]) -> None:
        self.reads = [(_HOW[how], owners[at], key, shown) for at, how, key, shown in reads if how != BEHIND]
        self._values = [_kept(_value(*read)) for read in self.reads]
        behind = [owners[at] for at, how, *_ in reads if how == BEHIND]
        self._behind = [weakref.ref(one) for one in behind if graphs_node(one.grad_fn) not in nodes]

    def check(self) -> None:
        """In the backward.

        Raises:
            RuntimeError: something is another now, or the engine was asked for gradients that come through a reentrant
                checkpoint: torch's own function says so.
        """
        if self._behind and not compat.goes_to_all_leaves() and any(map(_is_asked_for, self._behind)):
            torch.utils.checkpoint.CheckpointFunction.backward(None)
        for read, kept in zip(self.reads, self._values):
            if not _is_same(kept, _value(*read)):
                raise RuntimeError(
                    f"argand: {read[3]} is another than in the forward, and a checkpointed function reads it. Eager "
                    "calls the function again in the backward, with what is there by then; compiled code computes what "
                    "it did in the forward. Change it before the forward or after the backward, or keep the checkpoint "
                    "out of the compiled code (argand.disable)."
                )

    def as_hook(self) -> Callable[..., None]:
        def hook(*grads: Any) -> None:
            self.check()

        setattr(hook, SILENT, True)
        return hook


def _is_asked_for(kept: weakref.ref[Any]) -> bool:
    """Whether the backward that runs in this thread comes to a tensor."""
    tensor = kept()
    if tensor is None or not tensor.requires_grad:
        return False
    try:
        return compat.will_run(get_gradient_edge(tensor).node)
    except RuntimeError:  # of leaves only `torch.autograd.grad` knows
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not torch.autograd.grad.__code__:
            frame = frame.f_back
        return frame is not None and any(one is tensor for one in tensors_of(frame.f_locals["inputs"]))


def _value(how: Callable[[Any, Any], Any], owner: Any, key: Any, shown: str) -> Any:
    try:
        return how(owner, key)
    except (LookupError, AttributeError, ValueError):  # it is there no more
        return _MISSING


def _kept(value: Any, depth: int = 0) -> Any:
    """What is compared later: tensors need not live until then."""
    if isinstance(value, torch.Tensor):
        return weakref.ref(value)
    if isinstance(value, _CONTAINERS) and depth < _DEEPEST:
        return type(value), [_kept(one, depth + 1) for one in value]
    return value


def _is_same(kept: Any, now: Any) -> bool:
    if type(kept) is weakref.ref:
        return _is_same_tensor(kept(), now)
    if type(kept) is tuple:
        kind, items = kept
        return type(now) is kind and len(now) == len(items) and all(map(_is_same, items, now))
    return kept is now or (type(kept) is type(now) and isinstance(now, _NUMBERS) and bool(kept == now))


def _is_same_tensor(before: Any, now: Any) -> bool:
    """One that was made anew may hold the same."""
    if before is now:
        return before is not None
    return type(before) is type(now) is torch.Tensor and before.dtype is now.dtype and torch.equal(before, now)


def _of_class(cls: Any, name: str) -> Any:
    for one in type.__getattribute__(cls, "__mro__"):
        if name in vars(one):
            return vars(one)[name]
    raise AttributeError(name)


def _item(owner: Any, key: Any) -> Any:
    kinds: tuple[Any, ...] = (dict, list, tuple)
    for kind in kinds:
        if isinstance(owner, kind):
            return kind.__getitem__(owner, key)
    return owner[key]


def _contents(cell: Any, key: Any) -> Any:
    return cell.cell_contents


_HOW: dict[str, Callable[[Any, Any], Any]] = {
    "item": _item,
    "attribute": getattr,
    "of class": _of_class,
    "cell": _contents,
}
