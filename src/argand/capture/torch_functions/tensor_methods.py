"""Tensor methods and torch functions whose capture differs from "record a node, compute metadata"."""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import callable_words, words
from argand.capture.facts.sources import AttrSource
from argand.capture.facts.values.tensor_info import Cost, TensorInfo
from argand.capture.metadata import data_errors, metadata
from argand.capture.metadata.special_calls import Special, getter, named, special
from argand.capture.record import conditions, constants, gradient_flags, numpy_calls, size_tensors
from argand.capture.sizes import subclasses, symbolic_index, symbolic_tensors, unbacked_index, unbacked_ops
from argand.capture.torch_functions import data_dependent, one_sided_branches
from argand.graph.metadata import metas

_T = torch.Tensor
_META = torch.device("meta")

# ---------------------------------------------------------------------- values that only the running program knows

_SCALAR_HINT = "Read the value outside the compiled function and pass it in as a number."


_OF_CONSTANTS = frozenset(
    ["item", "tolist", "__int__", "__float__", "__index__", "__complex__", "__bool__", "is_nonzero"]
)

_BRANCHES = frozenset(["__bool__", "is_nonzero"])
_COMPARISONS = frozenset(["equal", "allclose"])


_WITH_SYMBOLS = {
    "item": "read", "tolist": "read", "nonzero": "nonzero", "argwhere": "nonzero", "masked_select": "masked_select",
    "unique": "unique", "unique_consecutive": "unique", "_unique2": "unique", "unique_dim": "unique",
    "bincount": "bincount",
}  # fmt: skip
"""By name of the function: what captures it where values and sizes that depend on data are symbols."""
_OF_KNOWN = frozenset(_WITH_SYMBOLS) - {"item", "tolist"}
"""Whose result is known where the arguments are."""


def _data_dependent(explanation: str, *hints: str) -> Special:
    def handler(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
        name = getattr(func, "__name__", str(func))
        value = _known_value(builder, name, func, args, kwargs, Cost.NOTHING)
        if value is not NotImplemented:
            return value
        if name == "item" and (number := size_tensors.number(builder, args[0])) is not None:
            return number
        if name in _OF_KNOWN:
            result = constants.result(builder, func, args, kwargs)
            if result is NotImplemented and name == "bincount":
                result = _counted(builder, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if name in _WITH_SYMBOLS:
            result = getattr(unbacked_ops, _WITH_SYMBOLS[name])(builder, func, args, kwargs)
            if result is not NotImplemented:
                return result
        value = _known_value(builder, name, func, args, kwargs, Cost.KEPT)
        if value is NotImplemented:
            value = conditions.ask(builder, func, args, kwargs)
        if value is not NotImplemented:
            return value
        if name in _BRANCHES:
            stop = data_dependent.branch(name)
        else:
            said = data_dependent.READS.get(name, f"{callable_words(func)} is called")
            stop = errors.graph_break(
                kind="data-dependent value", context=name, explanation=f"{said}: {explanation}", hints=hints
            )
        if name in _OF_CONSTANTS and name != "tolist" and args and _is_no_number(builder, args[0]):
            stop.exception = RuntimeError("not a tensor of one element")  # the program's error: eager's text
        raise stop

    return handler


def _counted(builder: GraphBuilder, x: torch.Tensor, weights: object = None, minlength: object = 0) -> object:
    """`bincount` with room for every value: the graph checks that there is, as it does for what a program asserts."""
    info = builder.tensors.get(id(x))
    if weights is not None or type(minlength) is not int or minlength <= 0 or info is None or info.dynamic is not None:
        return NotImplemented
    with torch._C.DisableTorchFunction():
        if x.dim() != 1 or x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
            return NotImplemented
        sides = builder.call(_T.ge, (x, 0), {}), builder.call(_T.lt, (x, minlength), {})
        fits = builder.call(torch.logical_and, sides, {})
        if not one_sided_branches.hold(builder, builder.call(_T.all, (fits,), {}), True):
            return NotImplemented
        index = builder.call(_T.to, (x, torch.int64), {})
        counts = builder.call(torch.zeros, (minlength,), {"dtype": torch.int64, "device": info.device})
        return builder.call(_T.scatter_add, (counts, 0, index, builder.call(torch.ones_like, (index,), {})), {})


def _known_value(builder: GraphBuilder, name: str, func: Function, args: Args, kwargs: Kwargs, most: Cost) -> object:
    """What a question for values gives where these are known; NotImplemented elsewhere."""
    if args and (name in _OF_CONSTANTS or name in _COMPARISONS):
        known = [constants.value_of(builder, arg, most) if is_a(arg, torch.Tensor) else arg for arg in args]
        if all(each is not None for each in known):
            with torch._C.DisableTorchFunction():
                return func(*known, **kwargs)
    return NotImplemented


def _is_no_number(builder: GraphBuilder, tensor: torch.Tensor) -> bool:
    """Whether asking for a tensor's value as a number raises whatever the value is."""
    info = builder.tensors.get(id(tensor))
    with torch._C.DisableTorchFunction():
        return info is not None and info.dynamic is None and tensor.numel() != 1


special(
    *named(_T, "item", "tolist", "__int__", "__float__", "__index__", "__complex__", "__bool__", "is_nonzero"),
    torch.is_nonzero,
)(
    _data_dependent(
        "Python needs the value of a tensor, which is known only when the program runs (data-dependent).",
        "Keep the value a tensor and go on computing with it.",
        _SCALAR_HINT,
    )
)
special(*named(_T, "__contains__", "equal", "allclose"), *named(torch, "equal", "allclose"))(
    _data_dependent(
        "whether tensors have equal values is known only when the program runs (data-dependent).",
        "compare with torch.eq(...).all() and keep the result a tensor",
    )
)
special(
    *named(_T, "nonzero", "unique", "unique_consecutive", "masked_select", "argwhere", "bincount"),
    *named(torch, "nonzero", "unique", "unique_consecutive", "masked_select", "argwhere", "bincount", "_unique2"),
    *named(torch._VF, "unique_dim", "unique_consecutive"),
)(
    _data_dependent(
        "the size of the result depends on values (dynamic output shape).",
        "use torch.where with three arguments or a mask, which keep the shape",
    )
)
special(
    *named(
        _T,
        "data_ptr untyped_storage storage _typed_storage __dlpack__ share_memory_ __reduce_ex__ __deepcopy__",
        "__repr__ __str__ __format__ __setstate__ apply_ map_ map2_ resize_ resize_as_ set_ __cuda_array_interface__",
        "to_sparse is_set_to pin_memory",
    ),
    *named(torch, "save", "resize_as_"),
)(
    _data_dependent(
        "the data of a tensor is needed, which exists only when the program runs.",
        "Move this line out of the compiled function, before or after it.",
    )
)
special(
    *named(_T, "backward", "register_post_accumulate_grad_hook", "retain_grad", "_backward_hooks"),
    torch.autograd.backward,
)(
    _data_dependent(
        "gradients are computed or observed when the program runs, not in the captured graph.",
        "Call it on the result, outside the compiled function.",
    )
)


# ---------------------------------------------------------------------- devices


def info_of(builder: GraphBuilder, tensor: torch.Tensor) -> TensorInfo:
    return builder.state.tensor_info(tensor)


special(getter("device"))(lambda builder, func, args, kwargs: info_of(builder, args[0]).device)


def _is_device(kind: str) -> Special:
    return lambda builder, func, args, kwargs: info_of(builder, args[0]).device.type == kind


for _kind in words("cuda cpu meta xpu mps ipu xla mtia maia vulkan"):
    special(getter(f"is_{_kind}"))(_is_device(_kind))


@special(_T.get_device, torch.get_device)
def _get_device(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> int:
    device = info_of(builder, args[0]).device
    if device.index is None:
        return -1 if device.type in ("cpu", "meta") else 0
    return device.index if device.type != "cpu" else -1


@special(_T.is_pinned)
def _is_pinned(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> bool:
    if info_of(builder, args[0]).device.type == "cpu" and torch.cuda.is_available():
        raise errors.graph_break(
            kind="data-dependent value",
            context="is_pinned",
            explanation="Whether memory is pinned is known only when the program runs.",
            hints=("Ask outside the compiled function and pass the answer in.",),
        )
    return False


def _target_device(value: object) -> torch.device | None:
    if isinstance(value, torch.device | str):
        return metas.indexed(value)
    if type(value) is int:
        return torch.device("cuda", value)
    return None


@special(_T.to)
def _to(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    self = args[0]
    info = info_of(builder, self)
    device = info.device
    meta_args = list(args)
    meta_kwargs = dict(kwargs)
    if kwargs.get("device") is not None:
        device = _target_device(kwargs["device"]) or device
        meta_kwargs["device"] = _META
    elif len(args) > 1:
        other = args[1]
        if isinstance(other, _T):
            device = info_of(builder, other).device
        elif not isinstance(other, torch.dtype):
            target = _target_device(other)
            if target is not None:
                device, meta_args[1] = target, _META
    if device != info.device:
        meta_kwargs["copy"] = True
        meta_kwargs.pop("non_blocking", None)
    return builder.record(func, args, kwargs, device=device, meta_args=tuple(meta_args), meta_kwargs=meta_kwargs)


@special(*named(_T, "cuda", "cpu"))
def _to_kind(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    info = info_of(builder, args[0])
    if func.__name__ == "cpu":
        device = torch.device("cpu")
    else:
        wanted = args[1] if len(args) > 1 else kwargs.get("device")
        device = metas.indexed("cuda") if wanted is None else _target_device(wanted) or metas.indexed("cuda")
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    layout = {k: v for k, v in kwargs.items() if k == "memory_format" and v is not torch.preserve_format}
    if device == info.device and not layout:
        return args[0]
    given, on_meta = (args[0], device, *args[2:]), (args[0], _META)
    meta_kwargs = {**layout, "copy": device != info.device}
    return builder.record(_T.to, given, kwargs, device=device, meta_args=on_meta, meta_kwargs=meta_kwargs)


_CPU_TYPE_NAMES: dict[str, torch.dtype] = {
    f"torch.{kind}Tensor": getattr(torch, kind.lower())
    for kind in words("Float Double Half BFloat16 Long Int Short Bool")
} | {"torch.CharTensor": torch.int8, "torch.ByteTensor": torch.uint8}


@special(_T.type)
def _type(builder: GraphBuilder, func: Function, args: Args, kwargs: Any) -> object:
    info = info_of(builder, args[0])
    if len(args) == 1 and not kwargs:
        real = torch.empty(0, dtype=args[0].dtype, device=info.device if info.device.type == "cpu" else "cpu")
        name = real.type()
        return name if info.device.type == "cpu" else name.replace("torch.", f"torch.{info.device.type}.")
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is _T or type(wanted) is type(torch.FloatTensor):
        wanted = f"{wanted.__module__}.{wanted.__name__}"
    if isinstance(wanted, str) and info.device.type == "cpu":
        default = torch.get_default_dtype() if torch._C._get_default_device() == "cpu" else wanted
        wanted = default if wanted == "torch.Tensor" else _CPU_TYPE_NAMES.get(wanted, wanted)
    if isinstance(wanted, torch.dtype):
        return builder.call(_T.to, (args[0], wanted), {})
    raise errors.graph_break(kind="legacy tensor type name", context=repr(wanted))


# ---------------------------------------------------------------------- attributes that belong to autograd


@special(getter("grad_fn"))
def _grad_fn(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    info = info_of(builder, args[0])
    as_before = _as_before(info, args[0])
    if as_before and info.source is not None and info.real is not None and info.real.grad_fn is None:
        builder.state.guard(AttrSource(info.source, "grad_fn"), "is_none")
        return None
    if not as_before and args[0].grad_fn is None:
        return None
    raise errors.graph_break(kind="autograd graph inspected", context="grad_fn")


def _as_before(info: TensorInfo, value: torch.Tensor) -> bool:
    """Whether to autograd an input is what it was: nothing with a gradient was written to it, nor was it detached."""
    return info.source is not None and (info.real is None or info.real.requires_grad is value.requires_grad)


@special(getter("is_leaf"))
def _is_leaf(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> bool:
    info = info_of(builder, args[0])
    if _as_before(info, args[0]) and info.source is not None and info.real is not None:
        leaf = bool(info.real.is_leaf)
        builder.state.guard(AttrSource(info.source, "is_leaf"), "id", leaf)
        return leaf
    return bool(args[0].is_leaf)


@special(
    *named(_T, "storage_offset", "_is_view", "is_shared"), getter("_version"), getter("output_nr"), getter("_base")
)
def _hidden_state(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    raise metadata.hidden_state(func)


@special(*named(_T, "requires_grad_", "detach_", "rename_[torch<2.13]", "names[torch<2.13]"))
def _requires_grad(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    info = info_of(builder, args[0])
    wanted = bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    if func is _T.requires_grad_ and args[0].requires_grad == wanted:
        return args[0]
    outside = info.source is not None
    if func is not _T.requires_grad_ and (outside or func is not _T.detach_):
        raise errors.graph_break(kind="autograd state of an input changed", context=func.__name__)
    with torch._C.DisableTorchFunction():
        is_view = args[0]._is_view()
        viewed = any(other.tensor._is_view() and other.tensor._base is args[0] for other in builder.tensors.values())
    if func is _T.requires_grad_ and viewed:
        written = bool(metadata.version(args[0]))  # those from before a write get a history that leads to the tensor
        what = "To autograd, views of a tensor that were made before become leaves too, or come from it."
        raise gradient_flags.refused(what, skip_frame=written)
    if outside:
        if id(args[0]) in builder.wearers or not _is_leaf(builder, _T.is_leaf.__get__, args[:1], {}):
            raise gradient_flags.refused()
        return gradient_flags.set_flag(builder, info, wanted)
    if func is _T.detach_ and is_view:
        raise errors.graph_break(
            kind="autograd state of an input changed",
            context="detach_",
            explanation="Autograd refuses to detach most views in place.",
            skip_frame=True,
        )
    return _metadata_in_place(builder, func, args, kwargs)


@special(_T.requires_grad.__set__)
def _set_requires_grad(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`x.requires_grad = True`: as `requires_grad_`, but for leaves only."""
    tensor, value = args
    if type(value) is not bool or not _is_leaf(builder, _T.is_leaf.__get__, (tensor,), {}):
        return NotImplemented
    _requires_grad(builder, _T.requires_grad_, (tensor, value), {})
    return None


@special(*named(_T, "unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"))
def _metadata_in_place(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """The stand-in itself changes: what was recorded before keeps a copy of the old metadata."""
    info = info_of(builder, args[0])
    if info.source is not None and id(args[0]) in builder.wearers:
        raise subclasses.changed_in_place(func)
    if info.source is not None and gradient_flags.is_replaced(builder, args[0]):
        raise gradient_flags.refused("In the graph another tensor stands for it.")
    if info.source is not None and info.dynamic is not None:  # its sizes are read again after the graph
        symbolic_tensors.give_up_tensor(builder, info)
    if info.source is not None:
        data_errors.changes_outside(builder, "an input that is given another shape")
    info.node.meta["example_value"] = _frozen(args[0])
    return builder.record(func, args, kwargs)


def _frozen(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META).requires_grad_(
        tensor.requires_grad
    )


@special(torch.max_pool1d, torch.nn.functional.max_pool1d)
def _max_pool1d(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """Without gradients, eager's kernel on a CPU reads a contiguous copy: so its result is laid out, too."""
    x = args[0] if args else None
    wanted = kwargs.get("return_indices", args[6] if len(args) > 6 else False)
    if isinstance(x, _T) and not wanted and not (x.requires_grad and torch.is_grad_enabled()):
        if info_of(builder, x).device.type == "cpu":
            args = (builder.call(_T.contiguous, (x,), {}), *args[1:])
    return builder.record(func, args, kwargs)


# ---------------------------------------------------------------------- iteration, indexing, construction


@special(_T.__iter__)
def _iter(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    if args[0].dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(builder.call(_T.unbind, (args[0], 0), {}))


def _has_boolean_index(index: object) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, _T) and i.dtype in (torch.bool, torch.uint8) for i in items)


@special(_T.__getitem__)
def _getitem(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    if type(args[1]) is int and not args[1] and conditions.asked_by(builder) == "torch":
        count = unbacked_ops.sequences(builder, args[0])
        if count is not None:  # torch's modules only read it: no view is needed
            return builder.call(torch.tensor, (count,), {})
    index = numpy_calls.as_index(builder, size_tensors.as_index(builder, args[1]))
    if index is not args[1]:
        return builder.call(func, (args[0], index), kwargs)
    if _has_boolean_index(index):
        index = constants.positions(builder, args[0], index)
        if index is not args[1]:
            return builder.call(func, (args[0], index), kwargs)
    read = unbacked_index.with_positions(builder, func, args)
    if read is not args:
        return builder.call(func, read, kwargs)
    result = unbacked_index.getitem(builder, func, args)
    if result is not NotImplemented:
        return result
    if _has_boolean_index(args[1]):
        result = constants.result(builder, func, args, kwargs)
        if result is not NotImplemented:
            return result
        raise errors.graph_break(
            kind="dynamic output shape",
            context="boolean mask index",
            explanation="The size of x[mask] depends on how many elements the mask selects (data-dependent).",
        )
    _break_on_tensor_slices(args[1])
    if builder.dynamics is not None:
        symbolic_index.guard_index(builder, args[0], args[1])
    return NotImplemented


special(*named(torch, "_pack_padded_sequence"))(unbacked_ops.pack)
special(*named(torch, "_pad_packed_sequence"))(unbacked_ops.pad)
special(*named(torch, "lstm", "gru", "rnn_tanh", "rnn_relu"))(unbacked_ops.recurrent)
special(*named(_T, "split", "split_with_sizes"), *named(torch, "split", "split_with_sizes"))(unbacked_ops.split)
special(*named(_T, "narrow"), *named(torch, "narrow"))(unbacked_ops.narrow)
special(*named(_T, "select"), *named(torch, "select"))(unbacked_ops.select)


@special(*named(_T, "chunk"), *named(torch, "chunk"))
def _chunk(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    return symbolic_index.guard_chunk(builder, *args, **kwargs)


@special(_T.__setitem__)
def _setitem(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> Any:
    self, index, value = args
    known = numpy_calls.as_index(builder, size_tensors.as_index(builder, index))
    if known is not index:
        builder.call(func, (self, known, value), kwargs)
        return None
    read = unbacked_index.with_positions(builder, func, args)
    if read is not args:
        builder.call(func, read, kwargs)
        return None
    _break_on_tensor_slices(index)
    if unbacked_index.depends(builder, args):
        data_errors.raises(builder, func.__name__)
        return _masked_setitem(builder, self, index, value)
    if builder.dynamics is not None:
        symbolic_index.guard_index(builder, self, index)
    if _has_boolean_index(index):
        if isinstance(value, _T) and value.dim() > 0:
            return _masked_setitem(builder, self, index, value)
        builder.record(func, args, kwargs, meta_args=(self, (Ellipsis,), 0))
        return None
    if isinstance(value, _T) and value.dim() == 0 and value.dtype is not self.dtype:
        builder.record(func, args, kwargs, meta_args=(self, index, value.to(self.dtype)))
        return None
    return NotImplemented


def _masked_setitem(builder: GraphBuilder, self: Any, index: object, value: object) -> None:
    """`x[mask] = values`: its node is recorded as it is; metadata do not change."""
    grad = isinstance(value, _T) and value.requires_grad and torch.is_grad_enabled()
    one = torch.empty((), dtype=self.dtype, device=_META).requires_grad_() if grad else 0
    builder.record(_T.__setitem__, (self, index, value), {}, meta_args=(self, (Ellipsis,), one))


def _break_on_tensor_slices(index: object) -> None:
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, slice) and any(isinstance(part, _T) for part in (item.start, item.stop, item.step)):
            raise errors.graph_break(
                kind="dynamic output shape",
                context="slice with tensor bounds",
                explanation="The bounds of a slice are tensors: the size of the result is data-dependent.",
                hints=("use integers as bounds, or torch.narrow_copy outside the compiled function",),
            )


def _sized_by_data(
    answer: Special, builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, *, explanation: str, hint: str
) -> object:
    """A result whose size depends on data: known where the arguments are, else what `answer` gives, else a break."""
    for one in (constants.result, answer):
        result = one(builder, func, args, kwargs)
        if result is not NotImplemented:
            return result
    raise errors.graph_break(
        kind="dynamic output shape",
        context="torch.where(condition)" if func is torch.where else func.__name__,
        explanation=explanation,
        hints=(hint,),
    )


@special(torch.where)
def _where(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) + len(kwargs) != 1:
        return NotImplemented
    explanation = "torch.where with one argument returns an index per true value (data-dependent)."
    hint = "use torch.where(condition, x, y), which keeps the shape"
    return _sized_by_data(unbacked_ops.nonzero, builder, func, args, kwargs, explanation=explanation, hint=hint)


@special(*named(torch, "repeat_interleave"), *named(_T, "repeat_interleave"))
def _repeat_interleave(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
    if not isinstance(repeats, _T) or kwargs.get("output_size") is not None:
        return NotImplemented
    explanation = "The size of repeat_interleave with a tensor of repeats is data-dependent."
    hint = "pass output_size=..."
    answer = unbacked_ops.repeat_interleave
    return _sized_by_data(answer, builder, func, args, kwargs, explanation=explanation, hint=hint)


@special(torch.nn.functional.one_hot)
def _one_hot(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if classes != -1:
        return NotImplemented
    explanation = "one_hot without num_classes looks at the largest value (data-dependent)."
    hint = "pass num_classes=..."
    return _sized_by_data(unbacked_ops.one_hot, builder, func, args, kwargs, explanation=explanation, hint=hint)


from argand.capture.record import contiguity as _contiguity  # noqa: E402,F401  (registers its functions)
from argand.capture.record import grad_attribute as _grad_attribute  # noqa: E402,F401
from argand.capture.torch_functions import tensor_constructors as _constructors  # noqa: E402,F401
from argand.capture.torch_functions import tensor_flags as _flags  # noqa: E402,F401
