"""What of the arguments of a call capture can tell: two calls with equal keys are interpreted alike."""

from __future__ import annotations

from collections.abc import Hashable
from types import FunctionType

import torch

from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.symbolic import SymbolicFloat, SymbolicInt, SymbolicNumber
from argand.capture.facts.values.tensor_info import Dynamic, TensorInfo
from argand.capture.metadata import metadata
from argand.graph import compat

_ATOMS = frozenset((int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


class Unlike(Exception):
    """A call that cannot be repeated for another module."""


class Key:
    """Describes arguments.

    Fields:
        tensors: the stand-ins among them, each once, in their order.
        described: how the call looks to capture.
    """

    def __init__(self, state: CaptureState, args: Args, kwargs: Kwargs) -> None:
        """Raises Unlike: an argument that may be written to, or of which too much may be asked."""
        self._state = state
        self.tensors: list[torch.Tensor] = []
        self._storages: list[int] = []
        with torch._C.DisableTorchFunction():
            parts = [self._part(value) for value in args]
            named = [(name, self._part(value)) for name, value in kwargs.items()]
        self.described: Hashable = (tuple(parts), tuple(named))

    def _part(self, value: object) -> Hashable:
        cls = type(value)
        if cls is torch.Tensor or cls is torch.nn.Parameter:
            assert isinstance(value, torch.Tensor)
            return self._tensor(value)
        if cls in _ATOMS:
            return cls, value
        if cls is float:
            return cls, repr(value)
        if cls is SymbolicInt or cls is SymbolicFloat:
            assert isinstance(value, SymbolicNumber)
            if id(value) in value.dynamics.keys:
                raise Unlike
            return cls, value.expr
        if cls is tuple:
            assert isinstance(value, tuple)
            return cls, tuple([self._part(item) for item in value])
        if id(value) in self._state.outer or (
            cls is FunctionType and id(value) not in self._state.interpreter.local_functions
        ):
            self._state.keep(value)
            return "this", id(value)
        raise Unlike

    def _tensor(self, value: torch.Tensor) -> Hashable:
        for number, earlier in enumerate(self.tensors):
            if earlier is value:
                return number
        graph = self._state.graph
        info = graph.tensors.get(id(value))
        if info is None or value.__dict__ or _is_odd(self._state, value):
            raise Unlike
        self.tensors.append(value)
        storage = compat.storage_address(value)
        if storage not in self._storages:
            self._storages.append(storage)
        if _is_itself(info):
            return "this", id(value), id(info.constant), metadata.version(value)
        return (
            type(value),
            info.device,
            *(value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad, value.is_leaf),
            *(value._is_view(), value.is_conj(), value.is_neg(), value.is_inference(), metadata.version(value)),
            self._storages.index(storage),
            None if info.dynamic is None else _varying(info.dynamic),
        )


def _varying(dynamic: Dynamic) -> Hashable:
    """Sizes that vary: their formulas, and the layouts at the probes.

    Raises:
        Unlike: one has no formula.
    """
    if not dynamic.siblings or None in dynamic.sizes:
        raise Unlike
    layouts = [(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in dynamic.siblings]
    return (*dynamic.sizes, *layouts)


def _is_itself(info: TensorInfo) -> bool:
    """Whether more of a tensor may be told than its metadata: where it comes from, or what it holds."""
    return info.source is not None or info.constant is not None


def _is_odd(state: CaptureState, value: torch.Tensor) -> bool:
    """Whether something is known of a stand-in that another does not have."""
    graph = state.graph
    key = id(value)
    return key in graph.unsure or key in graph.several or key in graph.maybe_same or key in graph.gradients
