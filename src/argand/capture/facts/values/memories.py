"""In which memory the stand-ins of a capture's inputs lie."""

from __future__ import annotations

from collections import Counter

import torch

from argand.capture.facts.values.tensor_info import TensorInfo
from argand.graph.compat import storage_address


class Memories:
    """What is kept of it as inputs come, so that no write has to look at all of them.

    Fields:
        outside: storages of inputs' stand-ins -> those of the inputs.
        inputs: storage of stand-ins -> the inputs that lie there.
        held: storages of stand-ins that a graph is handed, or holds.
        shared: how many inputs have a storage.
        strided: all inputs are laid out by strides; inference: one is of inference mode.
    """

    def __init__(self) -> None:
        self.outside: dict[int, int] = {}
        self.inputs: dict[int, list[TensorInfo]] = {}
        self.held: set[int] = set()
        self.shared: Counter[int] = Counter()
        self.strided = True
        self.inference = False

    def add(self, info: TensorInfo, real: torch.Tensor) -> None:
        """An input."""
        with torch._C.DisableTorchFunction():
            memory = storage_address(info.tensor)
            self.outside[memory] = storage_address(real)
            self.shared[self.outside[memory]] += 1
            self.strided = self.strided and real.layout is torch.strided
            self.inference = self.inference or real.is_inference()
        self.inputs.setdefault(memory, []).append(info)

    def hold(self, info: TensorInfo) -> None:
        """A stand-in of which no input is known here."""
        if info.node.op in ("placeholder", "get_attr") and torch._C._has_storage(info.tensor):
            with torch._C.DisableTorchFunction():
                self.held.add(storage_address(info.tensor))

    def move(self, tensor: torch.Tensor, before: int, after: int) -> None:
        """A stand-in has come to lie in other memory."""
        here = self.inputs.get(before, [])
        moving = [info for info in here if info.tensor is tensor]
        here[:] = [info for info in here if info.tensor is not tensor]
        self.inputs.setdefault(after, []).extend(moving)

    def is_outside(self, memory: int) -> bool:
        """Whether a stand-in's memory is that of an input, or of a tensor that a graph holds."""
        return memory in self.outside or memory in self.held

    def is_alone(self, info: TensorInfo) -> bool:
        """Whether no other input is known to lie in an input's memory."""
        return self.strided and info.real is not None and self.shared[storage_address(info.real)] == 1
