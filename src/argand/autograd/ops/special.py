"""Ops that the tracer treats one by one: literals, reads of data, metadata changes, writes that a schema hides."""

from __future__ import annotations

from typing import Any

import torch

from argand.autograd.ops import mutation
from argand.autograd.ops.mutation import refuse_overlap, refuse_written_twice
from argand.autograd.recording.recorder import Handler, Recorder
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.specs import Spec
from argand.graph.metadata.strides import memory_order
from argand.graph.operators.optimizer_ops import optimizer_ops
from argand.runtime.kernels import lstm
from argand.runtime.kernels.recurrent import recurrent_ops

aten = torch.ops.aten

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def refuse_operator(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A higher-order operator, which is not an ATen op."""
    raise AutogradError(f"{func} is not an ATen operator and cannot be part of an ATen graph")


def run_composite(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """An op that is defined by others: record those."""
    with tracer:
        result = func.decompose(*args, **kwargs)
    if result is NotImplemented:
        raise AutogradError(f"{func} could not be taken apart")
    return result


def lift_literal(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A tensor written down in the program (`torch.tensor(3.0)`): a constant of the graph."""
    real = args[0]
    if real.__class__ is TraceTensor:
        return real
    if not compat.is_plain_tensor(real):
        raise AutogradError(f"a literal tensor of type {type(real).__name__} cannot be traced")
    name = f"_tensor_constant{len(tracer.literals)}"
    tracer.literals[name] = real.detach()
    spec = tracer.specs.make(tuple(real.shape), real.stride(), 0, real.dtype, real.device)
    node = tracer.graph.get_attr(name)
    node.meta.update(val=spec.meta, device=spec.device, origin=tracer.origin)
    literal = make_tensor(Value(spec, node))
    literal.constant = real.detach()
    return literal


def read_scalar(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`item()`: known for a literal, otherwise the program depends on data."""
    tensor = tracer.tensor(args[0])
    if tensor.constant is not None:
        return tensor.constant.item()
    raise AutogradError(
        "a number is read out of a tensor (item(), int(), bool() or a branch on a tensor)",
        remedy="keep the value in a tensor, for example with torch.where",
    )


def refuse_metadata(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """set_, resize_ and their like: the storage itself changes."""
    if func is aten.resize_.default and tuple(args[1]) == tuple(args[0].shape):
        return args[0]
    raise AutogradError(
        f"{func} changes the storage of a tensor, which cannot be made functional",
        remedy="make a new tensor instead (reshape, cat, new_empty)",
    )


def change_metadata(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """t_, transpose_, unsqueeze_, squeeze_, as_strided_: the tensor object becomes a view of what it was."""
    target = tracer.tensor(args[0])
    if args[0].__class__ is not TraceTensor or any(target is tensor for tensor in tracer.inputs):
        raise AutogradError(f"{func} changes the shape of an input of the graph")
    view = METADATA_CHANGES[func]
    viewed: TraceTensor = tracer.run(view, (target, *args[1:]), kwargs)
    spec: Spec = viewed.value.spec
    compat.set_wrapper_metadata(target, spec.size, spec.stride, spec.offset)
    target.value = viewed.value
    target.constant = None
    return args[0]


def same_tensor(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """detach_: nothing to do without autograd."""
    return args[0]


def trace_copy_(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """copy_: the target takes the source's values in its own dtype and layout; its own are a write, too."""
    target, source = tracer.tensor(args[0]), tracer.tensor(args[1])
    refuse_overlap([target], [source])
    if len(torch.broadcast_shapes(source.shape, target.shape)) > target.dim():
        raise RuntimeError(f"cannot copy a tensor of shape {list(source.shape)} into {list(target.shape)}")
    tracer.write(target, tracer.copied(source, target.value.spec))
    return args[0]


def trace_fill_(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """zero_, fill_ of a number: a fresh full tensor."""
    target = tracer.tensor(args[0])
    spec = target.value.spec
    number = 0 if func is aten.zero_.default else args[1]
    if isinstance(number, complex) and not spec.dtype.is_complex:
        raise RuntimeError("value cannot be converted to the tensor's type without overflow")
    options = {"dtype": spec.dtype, "device": spec.device}
    tracer.write(target, tracer.record(aten.full.default, (list(spec.size), number), options))
    return args[0]


def trace_fill_tensor_(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """fill_ of a 0-d tensor."""
    target, source = tracer.tensor(args[0]), tracer.tensor(args[1])
    if source.dim():
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got {source.dim()} dimensions")
    tracer.write(target, tracer.copied(source, target.value.spec))
    return args[0]


def trace_batch_norm(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """native_batch_norm writes its running statistics in training, though its schema does not say so."""
    bound = compat.bound_arguments(func, args, kwargs)
    training = bound.get("training", True)
    if not training or bound["running_mean"] is None or bound["running_var"] is None:
        return tracer.record(func, args, kwargs)
    order = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    given = [tracer.tensor(bound[name]) for name in order[:5] if bound[name] is not None]
    refuse_written_twice(given[-2:], given[:-2])
    functional = aten._native_batch_norm_legit_functional.default
    out, mean, scale, new_mean, new_var = tracer.record(functional, tuple(bound[name] for name in order), {})
    tracer.write(tracer.tensor(bound["running_mean"]), new_mean)
    tracer.write(tracer.tensor(bound["running_var"]), new_var)
    return out, mean, scale


def trace_updating_batch_norm(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """_batch_norm_with_update on a CPU: another batch norm, and a reserve of no bytes; it says otherwise of layouts and
    of dtypes."""
    if any(tensor is not None and tensor.device.type != "cpu" for tensor in args[:5]):
        return mutation.run_mutation(tracer, func, args, kwargs)
    bound = compat.bound_arguments(func, args, kwargs)
    given = [*list(bound.values())[:5], True, bound["momentum"], bound["eps"]]
    results = tracer.run(aten._native_batch_norm_legit.default, tuple(given), {})
    return (*results, tracer.run(aten.new_empty.default, (args[0], [0]), {"dtype": torch.uint8}))


def trace_bernoulli(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """bernoulli_: the same stream in the same order of memory, as a fresh tensor."""
    target = tracer.tensor(args[0])
    probability = args[1] if len(args) > 1 else kwargs.pop("p", 0.5)
    if not 0 <= probability <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={probability}")
    spec = target.value.spec
    order = memory_order(spec.size, spec.stride)
    size = [spec.size[d] for d in order]
    options = {"dtype": spec.dtype, "device": spec.device}
    blank = tracer.record(aten.empty.memory_format, (size,), options)
    drawn = tracer.record(aten.bernoulli.p, (blank, float(probability)), kwargs)
    if order != tuple(range(len(order))):
        drawn = tracer.record(aten.permute.default, (drawn, [order.index(d) for d in range(len(order))]), {})
    tracer.write(target, drawn)
    return args[0]


def trace_optimizer_step(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A fused optimizer kernel: new values of all that it writes to, in one node."""
    step = optimizer_ops().by_writing[func]
    updated = tracer.record(step.functional, args, kwargs)
    for target, new in zip(step.targets(args, kwargs), updated):
        tracer.write(tracer.tensor(target), new)


def trace_lstm_layer(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """torch's LSTM kernel: where gradients are recorded, the form that hands out what its backward reads."""
    ops = recurrent_ops()
    lstm.prepare(args[10])
    return tracer.record(ops.lstm_layer_keeping if torch.is_grad_enabled() else ops.lstm_layer, args, kwargs)


def trace_lstm_layer_backward(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The backward of what `trace_lstm_layer` recorded."""
    return tracer.record(recurrent_ops().lstm_layer_backward, args, kwargs)


def trace_empty(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Memory of unknown content, which torch fills where algorithms must be deterministic."""
    unfilled = tracer.record(func, args, kwargs)
    if not compat.fills_empty_tensors():
        return unfilled
    dtype = unfilled.dtype
    value: Any = float("nan")
    if not (dtype.is_floating_point or dtype.is_complex):
        value = True if dtype is torch.bool else torch.iinfo(dtype).max
    return tracer.record(aten.full_like.default, (unfilled, value), {})


def drop(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """An assertion on metadata, which holds once traced."""
    return None


def clone_here(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """lift_fresh_copy and its like."""
    return tracer.run(aten.clone.default, (tracer.tensor(args[0]),), {})


def trace_zeros(tracer: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Zeros that torch makes no memory for; kernels read some."""
    return tracer.run(aten.zeros.default, args, kwargs)


METADATA_CHANGES: dict[Any, Any] = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.as_strided_.default: aten.as_strided.default,
}

EMPTY = (
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.empty_permuted.default,
    aten.new_empty.default, aten.new_empty_strided.default,
)  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(METADATA_CHANGES, change_metadata),
    aten.lift_fresh.default: lift_literal,
    aten.lift.default: lift_literal,
    aten.lift_fresh_copy.default: clone_here,
    aten._local_scalar_dense.default: read_scalar,
    aten.resize_.default: refuse_metadata,
    aten.resize_as_.default: refuse_metadata,
    **{getattr(aten.set_, name): refuse_metadata for name in aten.set_.overloads()},
    aten.detach_.default: same_tensor,
    aten.copy_.default: trace_copy_,
    **dict.fromkeys(EMPTY, trace_empty),
    aten._efficientzerotensor.default: trace_zeros,
    aten.zero_.default: trace_fill_,
    aten.fill_.Scalar: trace_fill_,
    aten.fill_.Tensor: trace_fill_tensor_,
    aten.native_batch_norm.default: trace_batch_norm,
    aten._batch_norm_with_update.default: trace_updating_batch_norm,
    aten.bernoulli_.float: trace_bernoulli,
    aten.mkldnn_rnn_layer.default: trace_lstm_layer,
    aten.mkldnn_rnn_layer_backward.default: trace_lstm_layer_backward,
    **{
        getattr(packet, overload): trace_optimizer_step
        for packet in (aten._fused_sgd_, aten._fused_adam_, aten._fused_adamw_, aten._fused_adagrad_)
        for overload in packet.overloads()
    },
    aten._assert_tensor_metadata.default: drop,
}


ASKED_OF_CONJUGATES = frozenset((getattr, torch.real, torch.imag, torch.isfinite, torch.isreal, "isfinite", "isreal"))
"""Functions and methods that look at the bit of a conjugate in C++, which no stand-in of the tracer has."""


def of_conjugate(target: Any, args: Args) -> Any:
    """What one of them gives for a conjugate: a view of the parts of what it is one of, or values; None of others."""
    x = args[0]
    if x.__class__ is not TraceTensor or not x.value.spec.conj:
        return None
    name = args[1] if target is getattr else getattr(target, "__name__", target)
    if name == "real":
        return x.conj().real
    if name == "imag":
        return torch._neg_view(x.conj().imag)
    return getattr(torch, name)(x.conj().conj_physical()) if target is not getattr else None
