"""torch.optim: steps are interpreted like other Python code; what of it asks for special treatment is here."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.kinds import is_a, namespace
from argand.capture.metadata import metadata
from argand.capture.metadata.call_targets import target_of
from argand.capture.metadata.rules import RULES
from argand.capture.metadata.special_calls import named, special
from argand.capture.torch_functions import hops, torch_polyfills
from argand.capture.torch_functions.torch_calls import all_of, handler
from argand.graph import compat


def breaks_around_step(state: CaptureState) -> bool:
    """Whether the graph break asked for is the one that torch.optim puts around every step.

    It is there for torch's own compiler, which would otherwise not see that the step runs without gradients. Captured
    code switches the gradient mode where the program does.
    """
    frames = state.interpreter.frames
    if not frames:
        return False
    code = frames[-1].code
    return code.co_name == "_use_grad" and code.co_filename.endswith("optimizer.py")


@handler(inspect.unwrap(torch.optim.Optimizer.zero_grad), torch.nn.Module.zero_grad)
def _zero_grad(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    given = {**dict(zip(("self", "set_to_none"), args)), **kwargs}
    owner, to_none = given.pop("self", None), given.pop("set_to_none", True)
    if to_none is not True or given or not is_a(owner, torch.optim.Optimizer | torch.nn.Module):
        return NotImplemented
    if is_a(owner, torch.optim.Optimizer) and "_zero_grad_profile_name" not in (namespace(owner) or ()):
        return NotImplemented  # it was unpickled, and is set up first
    return None if state.interpreter.polyfill(torch_polyfills.without_gradients, owner) else NotImplemented


@handler(inspect.unwrap(torch.optim.LBFGS.step))
def _searched_step(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    raise errors.graph_break(
        kind="data-dependent value",
        context="LBFGS.step",
        explanation="LBFGS asks for the value of each loss that its closure computes: the closure is captured.",
    )


@handler(*all_of("_C._group_tensors_by_device_and_dtype"))
def _grouped(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """In which order torch lists groups is up to its hash table: it groups tensors without data, of these kinds."""
    lists = [list(tensors) for tensors in state.deep_resolve(args[0])]
    given = {id(tensor): tensor for tensors in lists for tensor in tensors if tensor is not None}
    if kwargs or len(args) > 2 or any(tensor is None for tensor in lists[0]):
        return NotImplemented
    with torch._C.DisableTorchFunction(), compat.outside_of_modes():
        sample = {key: _without_data(state, tensor) for key, tensor in given.items()}
        samples = [[None if tensor is None else sample[id(tensor)] for tensor in tensors] for tensors in lists]
        try:
            groups = torch._C._group_tensors_by_device_and_dtype(samples, *args[1:])
        except RuntimeError:  # lists that do not go together
            return NotImplemented
    stands_for = {id(sample[key]): tensor for key, tensor in given.items()}
    return {
        kind: ([[None if one is None else stands_for[id(one)] for one in own] for own in members], indices)
        for kind, (members, indices) in groups.items()
    }


def _without_data(state: CaptureState, tensor: torch.Tensor) -> torch.Tensor:
    shape = (0,) if tensor.dim() else ()
    return torch.empty(shape, dtype=tensor.dtype, device=state.tensor_info(tensor).device)


@special(*named(torch, "_fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_"))
def _fused_step(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """One kernel for the step of all parameters: a call that writes to lists of tensors and returns nothing.

    Torch has no rule for the sizes of most of them; none is needed.
    """
    written = [tensor for given in (*args, *kwargs.values()) if isinstance(given, list | tuple) for tensor in given]
    if torch.is_grad_enabled() or not all(isinstance(tensor, torch.Tensor) for tensor in written):
        return NotImplemented  # what torch refuses, it says in the general case
    infos: list[Any] = []
    node_args = tuple([builder.to_node(arg, infos) for arg in args])
    node_kwargs = {key: builder.to_node(value, infos) for key, value in kwargs.items()}
    builder.note_writes(written)
    device = metadata.logical_device(func, infos, {})
    return builder.finish_call(target_of(func), node_args, node_kwargs, None, device, True, written)


@special(*named(torch, "addcdiv addcmul"), *named(torch.Tensor, "addcdiv addcdiv_ addcmul addcmul_"))
def _scaled_by_tensor(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`addcdiv(x, a, b, value=tensor)`: eager reads the tensor's number; here it multiplies, in the same order."""
    value = kwargs.get("value")
    if not isinstance(value, torch.Tensor) or len(args) != 3 or len(kwargs) != 1:
        return NotImplemented
    return _add_scaled(builder, func.__name__, *args, value)


@special(*named(torch.Tensor, "add add_ sub sub_"))
def _sum_scaled_by_tensor(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`x.add(y, alpha=tensor)`: eager reads the tensor's number; backends multiply by the tensor."""
    alpha = kwargs.get("alpha")
    if not isinstance(alpha, torch.Tensor) or len(args) != 2 or len(kwargs) != 1:
        return NotImplemented
    x, y = args
    if not isinstance(y, torch.Tensor):
        return NotImplemented
    if x.dtype is not y.dtype and x.dim() and y.dim():
        y = builder.call(torch.Tensor.to, (y, torch.promote_types(x.dtype, y.dtype)), {})
    if not _may_scale(alpha, x, y):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        if func.__name__.startswith("sub"):
            alpha = builder.call(torch.Tensor.neg, (alpha,), {})
        total = builder.record(hops.scaled_sum, (x, y, alpha), {})
        return builder.call(torch.Tensor.copy_, (x, total), {}) if func.__name__.endswith("_") else total


@special(*named(torch, "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_"))
def _foreach_sum_scaled(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """The same for lists."""
    alpha = kwargs.get("alpha")
    lists = len(args) == 2 and all(isinstance(given, list | tuple) for given in args)
    if not isinstance(alpha, torch.Tensor) or len(kwargs) != 1 or not lists or len(args[0]) != len(args[1]):
        return NotImplemented
    name = func.__name__.removeprefix("_foreach_")
    sums = [_sum_scaled_by_tensor(builder, getattr(torch.Tensor, name), pair, kwargs) for pair in zip(*args)]
    if any(one is NotImplemented for one in sums):
        raise _refused(name)
    return _given_back(args[0]) if name.endswith("_") else tuple(sums)


def _given_back(written: object) -> object:
    """What a call that writes to a list of tensors returns: since torch 2.13 the list."""
    return written if _returns_lists() else None


@functools.cache
def _returns_lists() -> bool:
    with torch._C.DisableTorchFunction(), compat.outside_of_modes():
        return torch._foreach_add_([torch.zeros(1, device="cpu")], 1.0) is not None


def _sum(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.add(y)


RULES[hops.scaled_sum] = _sum


@special(*named(torch, "full_like"))
def _filled_with_tensor(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """`full_like(x, tensor)`: eager reads the tensor's number; here it is copied."""
    if len(args) != 2 or not isinstance(args[1], torch.Tensor) or args[1].dim() != 0 or args[1].requires_grad:
        return NotImplemented
    if args[0].dtype.is_complex or not args[0].dtype.is_floating_point or not args[1].dtype.is_floating_point:
        return NotImplemented
    return builder.call(torch.Tensor.fill_, (builder.call(torch.empty_like, args[:1], kwargs), args[1]), {})


def _may_scale(scale: torch.Tensor, *scaled: torch.Tensor) -> bool:
    """Whether a product with the tensor is one with its number."""
    dtypes = {tensor.dtype for tensor in scaled}
    plain = len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64} and scale.dtype.is_floating_point
    same = scale.dtype in dtypes or all(tensor.dim() for tensor in scaled)
    return plain and scale.dim() == 0 and not scale.requires_grad and same


def _of_numbers(name: str, *tensors: torch.Tensor) -> bool:
    """Whether all are single numbers, which a call in place computes as exactly as the most exact of them."""
    kinds = {tensor.dtype for tensor in tensors}
    return name.endswith("_") and not any(t.dim() for t in tensors) and kinds == {torch.float32, torch.float64}


_FOREACH = named(torch, "_foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_")


@handler(*_FOREACH)
def _foreach_listed(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A list of tensors where numbers are wanted: torch refuses it before anybody is asked."""
    if len(args) != 4 or kwargs or not isinstance(args[3], list | tuple):
        return NotImplemented
    given = tuple(state.deep_resolve(arg) for arg in args)
    if not any(isinstance(scale, torch.Tensor) for scale in given[3]):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        return _foreach_scaled(state.graph, fn, given, {})


@special(*_FOREACH)
def _foreach_scaled(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """The same for lists, with a tensor of numbers or a list that holds tensors."""
    if len(args) == 3 and kwargs.keys() == {"value"}:
        args, kwargs = (*args, kwargs["value"]), {}
    if len(args) != 4 or kwargs:
        return NotImplemented
    given, scales = args[:3], args[3]
    count = len(given[0])
    if isinstance(scales, torch.Tensor) and scales.dim() == 0:
        scales = [scales] * count
    elif isinstance(scales, torch.Tensor):
        if scales.dim() != 1 or scales.shape[0] != count:
            return NotImplemented
        scales = [builder.call(torch.Tensor.select, (scales, 0, i), {}) for i in range(count)]
    elif not isinstance(scales, list | tuple) or not any(isinstance(item, torch.Tensor) for item in scales):
        return NotImplemented
    if any(len(item) != count for item in (*given, scales)):
        return NotImplemented
    name = func.__name__.removeprefix("_foreach_")
    scaled = []
    for x, a, b, scale in zip(*given, scales):
        if isinstance(scale, torch.Tensor):
            one = _add_scaled(builder, name, x, a, b, scale)
        else:
            one = builder.call(getattr(torch.Tensor, name), (x, a, b), {"value": scale})
        if one is NotImplemented:
            raise _refused(name)
        scaled.append(one)
    return _given_back(args[0]) if name.endswith("_") else tuple(scaled)


def _add_scaled(
    builder: GraphBuilder, name: str, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor
) -> object:
    if not _of_numbers(name, scale, x, a, b) and ({a.dtype, b.dtype} != {x.dtype} or not _may_scale(scale, x, a)):
        return NotImplemented
    scaled = builder.call(torch.Tensor.mul, (a, scale), {})
    change = builder.call(torch.Tensor.div if "div" in name else torch.Tensor.mul, (scaled, b), {})
    return builder.call(torch.Tensor.add_ if name.endswith("_") else torch.Tensor.add, (x, change), {})


def _refused(name: str) -> errors.GraphBreak:
    return errors.graph_break(kind="scale that is a tensor", context=name)
