"""Operations on nested tensors: torch says what they are in terms of its dispatch, and the dispatch of nested tensors,
which is Python, is interpreted, down to operations on their values and offsets."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Protocol

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.metadata.special_calls import getter
from argand.capture.torch_functions.nested.stand_ins import refused
from argand.graph import compat
from argand.graph import nested_tensors as jagged
from argand.graph.nested_tensors import Jagged, among, is_jagged

_OF_VALUES = frozenset(
    getter(name)
    for name in ("requires_grad", "dtype", "device", "is_cuda", "is_cpu", "is_meta", "is_xpu", "is_mps", "itemsize")
) | {torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.get_device, torch.is_floating_point,
     torch.is_complex}  # fmt: skip
"""What a nested tensor answers as its values do."""
_OF_STAND_INS = frozenset(getter(name) for name in ("layout", "is_nested", "ndim", "shape", "is_sparse")) | {
    torch.Tensor.dim,
    torch.Tensor.ndimension,
}
"""What stand-ins answer as nested tensors do."""
_VIEWS = frozenset(getter(name) for name in ("T", "mT", "H", "mH", "real"))
_aten = torch.ops.aten


def call(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> object:
    """A torch call with nested tensors among its arguments, of which `__torch_function__` was asked already.

    Arguments:
        mode: the trace mode, which is off.

    Raises:
        GraphBreak: the call cannot be part of a graph.
    """
    builder: GraphBuilder = mode.builder
    name = getattr(func, "__name__", str(func))
    if func in _OF_VALUES:
        with mode:
            return func(args[0]._values, *args[1:], **kwargs)
    if func in _OF_STAND_INS:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if func is getter("is_leaf") and builder.tensors[id(args[0])].real is not None:
        return builder.tensors[id(args[0])].real.is_leaf  # type: ignore[union-attr]
    if name in ("__get__", "__set__") and func not in _VIEWS:
        raise refused(name, "this attribute of a nested tensor is known, or set, only when the program runs")
    if torch._C._is_any_autocast_enabled():
        raise refused(name, "what autocast does with tensors without data is not what it does with nested tensors")
    ours = builder.tensors.get(id(args[0])) if args else None
    if name.endswith("_") and ours is not None and ours.source is not None and ours.tensor._values.requires_grad:
        raise refused(name, "it writes to a nested tensor from outside that requires grad")
    if func in _OF_PARTS:
        return _OF_PARTS[func](*args, **kwargs)
    interp = builder.state.interpreter
    enabled = torch.is_grad_enabled()
    builder.undressing.append(interp.number)
    try:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad(), Below(mode, enabled):
            return func(*args, **kwargs)
    finally:
        builder.undressing.pop()


class Mode(Protocol):
    """The trace mode (`overriding.TraceMode`)."""

    builder: GraphBuilder

    def __enter__(self) -> object: ...
    def __exit__(self, *raised: object) -> object: ...


def _values(tensor: Jagged) -> object:
    return tensor._values


_OF_PARTS: dict[object, Function] = {torch._nested_get_values: _values}


class Below(compat.DispatchMode):
    """Has the dispatch of nested tensors interpreted.

    Arguments:
        mode: the trace mode.
        recording: whether gradients were recorded where the operation was called.
    """

    def __init__(self, mode: Mode, recording: bool) -> None:
        super().__init__()
        self.mode = mode
        self.recording = recording
        self.keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def __torch_dispatch__(
        self, func: Function, types: Iterable[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if len(args) == 1 and not kwargs and func in _SHAPES and is_jagged(type(args[0])):
            return _SHAPES[func](args[0])
        interp = self.mode.builder.state.interpreter
        before = torch.is_grad_enabled()
        with torch._C._ForceDispatchKeyGuard(*self.keys):
            torch._C._set_grad_enabled(self.recording)
            try:
                if among(args, kwargs) and (key := self._composite(func, args, kwargs)) is not None:
                    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad(), self:
                        return func._op_dk(key, *args, **kwargs)  # type: ignore[attr-defined]
                with self.mode:
                    if not among(args, kwargs):
                        return func(*args, **kwargs)
                    decide = vars(jagged.jagged_class())["__torch_dispatch__"].__func__
                    return interp.enter(decide, (jagged.jagged_class(), func, tuple(types), tuple(args), kwargs), {})
            finally:
                torch._C._set_grad_enabled(before)

    def _composite(self, func: Function, args: Args, kwargs: Kwargs) -> object:
        """The key of the kernel of an operation that is made of others. In inference mode torch asks the dispatch of
        nested tensors of these, too, which calls that kernel, but where it knows better: None."""
        ops = sys.modules["torch.nested._internal.ops"]
        with torch._C.DisableTorchFunction():
            if not torch.is_inference_mode_enabled() or ops.lookup_jagged(func, *args, **kwargs) is not None:
                return None
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return next((key for key in _COMPOSITE if has(func.name(), key)), None)  # type: ignore[attr-defined]


_COMPOSITE = (
    torch._C.DispatchKey.CompositeImplicitAutogradNestedTensor,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)


def _strides(tensor: Jagged) -> object:
    raise refused("stride", "where elements of a nested tensor lie depends on how long its pieces are")


_SHAPES: dict[object, Function] = {
    _aten.is_non_overlapping_and_dense.default: lambda tensor: False,
    _aten.sym_size.default: lambda tensor: tensor._size,
    _aten.dim.default: lambda tensor: len(tensor._size),
    _aten.sym_stride.default: _strides,
    _aten.sym_storage_offset.default: _strides,
    torch.ops.prim.layout.default: lambda tensor: torch.jagged,
}
