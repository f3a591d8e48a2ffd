"""Small tensors on the CPU that the program keeps, such as a scheduler's table of steps: known by their values.

Nothing is guarded until captured code asks for a value (a branch, `.item()`, an index), or for one that is computed
from such tensors alone. Then the tensor's contents are, for as long as they are what an earlier call saw: where they
turn out to vary, the graph breaks at what asks. Arguments of the frame are the program's data: they are asked only
where one that holds a single integer is a size. Questions of libraries are answered otherwise (`conditions`).
"""

from __future__ import annotations

import ctypes
from functools import partial

import torch

from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import Source
from argand.capture.facts.values.tensor_info import Cost, Deferred, Leaf, TensorInfo
from argand.capture.record import conditions, constants
from argand.capture.sizes.symbolic_policy import History
from argand.graph.compat import storage_address

_LIMIT = 1024  # elements: a schedule of a thousand steps
_WORDS = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                    torch.bfloat16, torch.float32, torch.float64))  # fmt: skip


def offer(state: CaptureState, history: History, info: TensorInfo) -> None:
    """Remember of a graph input how its value can be told."""
    real, source = info.real, info.source
    if real is None or source is None:
        return
    if not conditions.askable(real) or _is_written(state, real):
        return
    cost = _cost(source, real, history)
    read = _nothing if cost is Cost.CONDITION else partial(_read, state, history, source, info, real)
    constants.remember(state.graph, info, Deferred(read, (), 1, info.tensor, cost, Leaf(source, real)))


def _is_written(state: CaptureState, real: torch.Tensor) -> bool:
    """Whether the graph has written to a tensor's memory before it was met, through another tensor."""
    with torch._C.DisableTorchFunction():
        return storage_address(real) in state.graph.written


def _cost(source: Source, real: torch.Tensor, history: History) -> Cost:
    """What telling what a tensor holds costs; `CONDITION`: nothing but answers about it can be told."""
    cost = Cost.KEPT if conditions.is_kept(source) else Cost.ARGUMENT
    if cost is Cost.ARGUMENT and (real.dim() or real.dtype not in (torch.int64, torch.int32)):
        return Cost.CONDITION
    if type(real) is not torch.Tensor or real.requires_grad or real.numel() > _LIMIT or real.dtype not in _WORDS:
        return Cost.CONDITION
    return Cost.CONDITION if real.is_neg() or source.name() in history.changing else cost


def _nothing() -> None:
    """What a tensor holds of which only answers are told."""


def _read(
    state: CaptureState, history: History, source: Source, info: TensorInfo, real: torch.Tensor
) -> torch.Tensor | None:
    """The value, which is guarded from now on; None where it varies."""
    name = source.name()
    seen = history.values.setdefault(name, set())
    bits = contents(real)
    if bits not in seen and len(seen) >= (2 if real.dtype is torch.bool and real.numel() == 1 else 1):
        history.changing.add(name)
    if name in history.changing or info.dynamic is not None:
        return None
    seen.add(bits)
    state.graph.asked[id(info.tensor)] = lambda: history.changing.add(name)
    state.guard(source, "call", contents, bits, label="VALUE_MATCH")
    return real.clone()


def contents(tensor: torch.Tensor) -> bytes:
    """What tells whether a small tensor still holds the same."""
    with torch._C.DisableTorchFunction():
        whole = tensor.detach().contiguous()
        return ctypes.string_at(whole.data_ptr(), whole.nbytes)
