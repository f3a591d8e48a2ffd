"""View ops: how each is traced, and its inverse, by which a write to a view becomes a write to what it views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.autograd.ops.special import lift_literal
from argand.autograd.recording.recorder import Handler, Recorder
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.errors import AutogradError
from argand.graph.metadata.strides import elements_spanned, is_dense, overlaps
from argand.graph.nodes.meta import viewed

aten = torch.ops.aten

Inverse = Callable[[Recorder, tuple[Any, ...], dict[str, Any], TraceTensor, TraceTensor], TraceTensor]


def trace_view(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view op that stays in the graph as it is."""
    if not isinstance(args[0], torch.Tensor):  # a number that the autograd engine treats as a tensor
        with torch._C._DisableTorchDispatch():
            number = torch.tensor(args[0])
        args = (lift_literal(tracer, func, (number,), {}), *args[1:])
    return tracer.record_view(func, args, kwargs)


def trace_alias(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """detach, alias: another tensor object of the same value; no node."""
    source = tracer.tensor(args[0])
    alias = make_tensor(source.value)
    alias.constant, alias.apart = source.constant, True
    return alias


def trace_split(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """split and split_with_sizes: one slice each."""
    bound = _bind(func, args, kwargs)
    source = tracer.tensor(bound["self"])
    dim = bound.get("dim", 0)
    dim = dim + source.dim() if dim < 0 else dim
    sizes = bound.get("split_sizes")
    extent = source.shape[dim]
    if sizes is None:
        step = bound["split_size"]
        if step < 0 or (step == 0 and extent):
            raise RuntimeError(f"split expects a positive split_size, not {step}")
        count = max((extent + step - 1) // step, 1) if step else 1
        sizes = [step] * (count - 1) + [extent - step * (count - 1)]
    elif sum(sizes) != extent or min(sizes, default=0) < 0:
        raise RuntimeError(f"split_with_sizes expects sizes that sum to {extent}, not {list(sizes)}")
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(tracer.record_view(aten.slice.Tensor, (source, dim, start, start + size), {}))
        start += size
    return pieces


def trace_unbind(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """unbind: one select each."""
    bound = _bind(func, args, kwargs)
    source = tracer.tensor(bound["self"])
    dim = bound.get("dim", 0)
    if not -source.dim() <= dim < source.dim():
        raise IndexError(f"Dimension out of range: {dim} of a tensor with {source.dim()} dimensions")
    return [tracer.record_view(aten.select.int, (source, dim, index), {}) for index in range(source.shape[dim])]


def trace_as_strided(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """as_strided: a view of the storage, that is of the root; its offset counts from the root's first element."""
    bound = _bind(func, args, kwargs)
    source = tracer.tensor(bound["self"])
    size, stride = tuple(bound["size"]), tuple(bound["stride"])
    offset = bound.get("storage_offset")
    if offset is None:
        offset = source.value.spec.offset
    root = source.value.root
    spec = root.spec
    if spec.dtype is not source.value.spec.dtype or any(s.conj or s.neg for s in (spec, source.value.spec)):
        raise AutogradError("as_strided of a tensor that views another dtype, or negates or conjugates what it views")
    start = offset - spec.offset
    reach = elements_spanned(size, stride)
    if not is_dense(spec.size, spec.stride) or start < 0 or start + reach > max(root.spec.meta.numel(), 0):
        raise AutogradError("as_strided reaches memory outside the tensor that owns it in this graph")
    own, first = source.value.spec, offset - source.value.spec.offset
    inside = is_dense(own.size, own.stride) and first >= 0 and first + reach <= own.meta.numel()
    if source.requires_grad and source.value is not root and not inside:
        raise AutogradError("as_strided reaches memory outside of a view, which autograd gives no gradient of")
    node = tracer.read(root)
    strided: TraceTensor = _strided(tracer, make_tensor(Value(spec, node)), size, stride, start)
    # What eager reports has the offset that the user asked for; the node's own storage starts at the root.
    eager = tracer.specs.make(size, stride, offset, spec.dtype, spec.device)
    value = Value(eager, tracer.read(strided.value))
    tracer.link(value, root, "as_strided", (size, stride, start), {})
    return make_tensor(value)


def replay(
    tracer: Recorder, func: Any, source: TraceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TraceTensor:
    """Make a view anew from what its parent holds now."""
    if func == "as_strided":
        return _strided(tracer, source, *args)
    return tracer.one(func, source, *args, **kwargs)


def _strided(
    tracer: Recorder, root: TraceTensor, size: tuple[int, ...], stride: tuple[int, ...], start: int
) -> TraceTensor:
    node = tracer.read(root.value)
    held = node.meta["val"]
    same = held.stride() == root.value.spec.stride
    anywhere = _begins_anywhere(node)
    if anywhere and same and 0 not in size:
        return tracer.windows(root, size, stride, start)
    if held.storage_offset() or not same or anywhere:
        # The node's memory may not be laid out as eager's; a copy is.
        order = tracer.with_strides(root, root.value.spec.stride)
        root = tracer.record(aten.clone.default, (order,), {"memory_format": torch.preserve_format})
    return tracer.one(aten.as_strided.default, root, list(size), list(stride), start)


def _begins_anywhere(node: fx.Node) -> bool:
    """Whether a tensor may begin behind its memory's beginning, as is not known of an input."""
    source = viewed(node)
    return source.op == "placeholder" or source.target in _COPIES_OF_MEMORY


_COPIES_OF_MEMORY = (
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)  # fmt: skip
"""They copy all the memory that their argument lies in, and begin in the copy where that does."""


def unknown_view(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view op that is not in the table: aliasing that cannot be followed."""
    raise AutogradError(f"{func} returns a view, and argand does not know of what part of its argument")


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = {argument.name: value for argument, value in zip(func._schema.arguments, args)}
    bound.update(kwargs)
    return bound


# ---------------------------------------------------------------------- inverses


def inverse(
    tracer: Recorder, view: tuple[Any, tuple[Any, ...], dict[str, Any]], parent: TraceTensor, new: TraceTensor
) -> TraceTensor:
    """What `parent` holds after its view (op, arguments, keywords) was overwritten by `new`."""
    func, args, kwargs = view
    rule = INVERSES.get(func)
    if rule is None:
        raise AutogradError(f"a write to a view made by {func} cannot be carried back to what it views")
    return rule(tracer, args, kwargs, parent, new)


def reshape(tracer: Recorder, tensor: TraceTensor, size: tuple[int, ...]) -> TraceTensor:
    """The values of a tensor in another shape, as a fresh functional value."""
    if tensor.value.spec.size == size:
        return tensor
    contiguous = tracer.with_strides(tensor, torch.empty(tensor.shape, device="meta").stride())
    return tracer.one(aten.view.default, contiguous, list(size))


def _back_by_shape(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return reshape(tracer, new, parent.value.spec.size)


def _back_by_permute(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    dims = [d % parent.dim() for d in args[0]]
    return tracer.one(aten.permute.default, new, [dims.index(d) for d in range(len(dims))])


def _back_by_transpose(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.transpose.int, new, *args, **kwargs)


def _back_by_t(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.t.default, new)


def _back_by_select(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.select_scatter.default, parent, new, *args, **kwargs)


def _back_by_slice(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    if new.value.spec.size == parent.value.spec.size:
        return new  # the slice was the whole
    return tracer.one(aten.slice_scatter.default, parent, new, *args, **kwargs)


def _back_by_diagonal(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.diagonal_scatter.default, parent, new, *args, **kwargs)


def _back_by_strides(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    size, stride, start = args
    if overlaps(size, stride):
        raise AutogradError("a write to a part of a tensor whose elements share memory")
    if not parent.is_contiguous():  # whose values kernels find in another order than by its strides
        raise AutogradError("a write by strides to a tensor that is not contiguous")
    node = tracer.read(parent.value)
    held = node.meta["val"]
    if held.storage_offset() or held.stride() != parent.value.spec.stride or _begins_anywhere(node):
        parent = tracer.record(aten.clone.default, (parent,), {"memory_format": torch.preserve_format})
    return tracer.record(aten.as_strided_scatter.default, (parent, new, list(size), list(stride), start), {})


def _back_by_unfold(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    dim, size, step = args
    if step < size:
        raise AutogradError("a write to overlapping windows of unfold")
    ones = tracer.record(aten.full.default, (list(new.shape), 1), _options(parent, torch.uint8))
    size_of = list(parent.shape)
    moved = tracer.record(aten.unfold_backward.default, (new, size_of, dim, size, step), {})
    hit = tracer.record(aten.unfold_backward.default, (ones, size_of, dim, size, step), {})
    mask = tracer.record(aten.ne.Scalar, (hit, 0), {})
    return tracer.one(aten.where.self, mask, moved, parent)


def _options(like: TraceTensor, dtype: torch.dtype | None = None) -> dict[str, Any]:
    spec = like.value.spec
    return {"dtype": dtype or spec.dtype, "device": spec.device}


def _back_by_dtype(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    if parent.dtype is torch.bool:
        raise AutogradError("a write of numbers to the memory of bools, which kernels take to be 0 or 1")
    contiguous = tracer.with_strides(new, torch.empty(new.shape, device="meta").stride())
    return tracer.one(aten.view.dtype, contiguous, parent.value.spec.dtype)


def _back_by_real(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    contiguous = tracer.with_strides(new, torch.empty(new.shape, device="meta").stride())
    return tracer.one(aten.view_as_complex.default, contiguous)


def _back_by_complex(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    contiguous = tracer.with_strides(new, torch.empty(new.shape, device="meta").stride())
    return tracer.one(aten.view_as_real.default, contiguous)


def _back_by_conj(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.conj_physical.default, new)


def _back_by_neg(tracer: Recorder, args: Any, kwargs: Any, parent: TraceTensor, new: TraceTensor) -> TraceTensor:
    return tracer.one(aten.neg.default, new)


INVERSES: dict[Any, Inverse] = {
    aten.view.default: _back_by_shape,
    aten._unsafe_view.default: _back_by_shape,
    aten._reshape_alias.default: _back_by_shape,
    aten.unsqueeze.default: _back_by_shape,
    aten.squeeze.default: _back_by_shape,
    aten.squeeze.dim: _back_by_shape,
    aten.squeeze.dims: _back_by_shape,
    aten.permute.default: _back_by_permute,
    aten.transpose.int: _back_by_transpose,
    aten.t.default: _back_by_t,
    aten.select.int: _back_by_select,
    aten.slice.Tensor: _back_by_slice,
    aten.diagonal.default: _back_by_diagonal,
    "as_strided": _back_by_strides,
    aten.unfold.default: _back_by_unfold,
    aten.view.dtype: _back_by_dtype,
    aten.view_as_real.default: _back_by_real,
    aten.view_as_complex.default: _back_by_complex,
    aten._conj.default: _back_by_conj,
    aten._neg_view.default: _back_by_neg,
}


HANDLERS: dict[Any, Handler] = {
    **{func: trace_view for func in INVERSES if func != "as_strided"},
    aten.expand.default: trace_view,  # no inverse: eager refuses to write to it
    aten.alias.default: trace_alias,
    aten.detach.default: trace_alias,
    aten.split.Tensor: trace_split,
    aten.split_with_sizes.default: trace_split,
    aten.unsafe_split.Tensor: trace_split,
    aten.unsafe_split_with_sizes.default: trace_split,
    aten.unbind.int: trace_unbind,
    aten.as_strided.default: trace_as_strided,
}
HANDLERS.pop(
    aten._unsafe_view.default
)  # not a view by its schema: its argument is a fresh value that nobody else holds
