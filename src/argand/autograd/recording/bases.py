"""Inputs that share memory, one of which the graph writes to: all of them become views of one synthetic base.

The base is a flat tensor over the memory that they cover together. It is an input of the graph besides them, made by
the runtime wrapper out of the first of them; the trace reads and writes them as views of it, and what it holds in the
end is written back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from argand.autograd.recording.values import TraceTensor, Value
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.strides import elements_spanned
from argand.graph.nodes.program import BaseSpec
from argand.graph.version_counters import refuses_writes
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten
T = TypeVar("T")

_MOST_GAPS = 4  # times the elements of the inputs: a base that covers more memory than that is not worth copying


class SharedMemory(AutogradError):
    """A written input shares its memory with others: the trace must begin anew with bases for these groups."""

    groups: list[list[torch.Tensor]]


def shared_memory(groups: list[list[torch.Tensor]]) -> SharedMemory:
    """The error that asks for bases."""
    error = SharedMemory(
        "the graph writes to an input that shares its memory with another input",
        remedy="pass separate tensors (clone one); until then the graph runs eagerly",
    )
    error.groups = groups
    return error


def with_bases(trace: Callable[[Sequence[Sequence[torch.Tensor]]], T], allowed: bool) -> T:
    """`trace(groups)` without groups of inputs that share memory; where it asks for some and may, with those."""
    try:
        return trace(())
    except SharedMemory as shared:
        if not allowed:
            raise
        return trace(shared.groups)


@dataclass(slots=True, eq=False)
class Group:
    """Inputs of one storage, and the base that stands for it in the trace."""

    members: list[torch.Tensor]
    low: int  # storage offset of the base
    length: int
    root: TraceTensor | None = None
    stand_ins: list[TraceTensor] | None = None
    real: torch.Tensor | None = None  # the base of the example inputs
    raised: int = 0  # how often `note_write` raised the version of each


class Bases:
    """The groups of one trace."""

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]] = ()) -> None:
        self.groups: list[Group] = []
        self._of: dict[int, Group] = {}  # by id of a member
        for tensors in groups:
            group = _covering(list(tensors))
            self.groups.append(group)
            self._of.update((id(tensor), group) for tensor in group.members)
        self._by_root: dict[int, Group] = {}

    def group_of(self, tensor: torch.Tensor) -> Group | None:
        """The group of an input."""
        return self._of.get(id(tensor))

    def root_of(self, group: Group, make: Callable[[torch.Tensor, int], TraceTensor]) -> TraceTensor:
        """The base of a group in the trace; `make` adds it to the inputs, from the base of the example inputs."""
        if group.root is None:
            group.real = torch.as_strided(group.members[0].data, (group.length,), (1,), group.low)
            group.root = make(group.real, self.groups.index(group))
            group.stand_ins = []
            self._by_root[id(group.root.value)] = group
        return group.root

    def note_write(self, root: Value) -> None:
        """An input was written to: tell autograd of all that may share its version, as some of eager's do.

        What was kept of them for the backward is then refused, as it may be in eager; the graph runs eagerly.
        """
        group = self._by_root.get(id(root))
        if group is not None and group.stand_ins is not None:
            group.raised += 1
            compat.written_in_place(list(group.stand_ins))

    def is_base(self, root: Value) -> bool:
        """Whether the value is a base, so that its views are views of inputs that share it."""
        return id(root) in self._by_root

    def finish(self, inputs: Sequence[TraceTensor]) -> list[BaseSpec]:
        """The description of each base, when the trace with these inputs is over."""
        described = []
        for group in self.groups:
            if group.root is None or group.stand_ins is None:
                raise AutogradError("inputs that share memory were met in one trace and not in the next")
            positions = {id(stand_in): index for index, stand_in in enumerate(inputs)}
            members = tuple(positions[id(stand_in)] for stand_in in group.stand_ins)
            offsets = tuple(stand_in.value.spec.offset - group.stand_ins[0].value.spec.offset
                            for stand_in in group.stand_ins)  # fmt: skip
            written = tuple(
                position
                for position, stand_in in zip(members, group.stand_ins)
                for _ in range(stand_in._version - group.raised)
            )
            start = group.low - group.stand_ins[0].value.spec.offset
            described.append(BaseSpec(members, offsets, start, group.length, written))
        return described

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether writes to the tensor's memory are followed: it is an input of a group, or the base itself."""
        return id(tensor) in self._of or any(tensor is group.real for group in self.groups)

    def refuse_gradients(self) -> None:
        """Writes that autograd records, and inputs that have a history, need views that autograd knows of."""
        for group in self.groups:
            for stand_in in group.stand_ins or ():
                if stand_in.requires_grad and (stand_in.grad_fn is not None or not stand_in.is_leaf):
                    raise AutogradError(
                        "the graph writes to an input that shares its memory with another input, and autograd "
                        "records the write or what the input was made of",
                        remedy="pass separate tensors (clone one); until then the graph runs eagerly",
                    )


def _covering(tensors: list[torch.Tensor]) -> Group:
    """A group over the memory from the first to the last element of any of the tensors."""
    low, high, elements = None, 0, 0
    for tensor in tensors:
        if tensor.dtype is not tensors[0].dtype or tensor.is_conj() or tensor.is_neg():
            raise AutogradError("inputs that share memory view it as several dtypes, and one is written to")
        if tensor.requires_grad and not tensor.is_leaf:
            raise AutogradError(
                "inputs that share memory with a written one were computed by operations with gradients"
            )
        if not tensor.numel():  # it may begin behind the memory's end
            continue
        begin = int(tensor.storage_offset())
        end = begin + elements_spanned(tensor.shape, tensor.stride())
        low = begin if low is None else min(low, begin)
        high, elements = max(high, end), elements + tensor.numel()
    low = low or 0
    length = max(high - low, 0)
    if length > _MOST_GAPS * elements + 1024:
        raise AutogradError("inputs that share memory with a written one lie far apart in it")
    return Group(tensors, low, length)


def base_tensor(
    tensors: tuple[torch.Tensor, ...], offsets: tuple[int, ...], start: int, length: int
) -> torch.Tensor | None:
    """The base of a call's inputs; None where they do not share memory as they did when the graph was traced, or
    autograd refuses to know one of them when others are written to."""
    first = tensors[0]
    origin = first.storage_offset()
    storage = compat.storage_key(first)
    for tensor, offset in zip(tensors, offsets):
        if compat.storage_key(tensor) != storage or tensor.storage_offset() - origin != offset:
            return None
        if tensor.requires_grad and torch.is_grad_enabled() and refuses_writes(tensor):
            return None
    return torch.as_strided(first.data, (length,), (1,), origin + start)
