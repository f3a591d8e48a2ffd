"""Handlers of particular functions and classes of torch (see torch_calls)."""

from __future__ import annotations

from typing import Any, cast

import torch

from argand import errors
from argand.capture.facts.code import directives, skip
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tensor_info import Scope
from argand.capture.metadata import numpy_scalars
from argand.capture.record import numpy_calls
from argand.capture.sizes import unbacked_ops
from argand.capture.torch_functions import modes, modules, optimizer_steps, optimizers, overriding, torch_polyfills
from argand.capture.torch_functions.torch_calls import (
    CODES,
    Handler,
    all_of,
    enter_late,
    enter_rows,
    find,
    guarded_constant,
    handler,
    instead,
    leaf,
    name_of,
    outside_effects,
)
from argand.graph.operators.ctc_ops import ctc_ops

# ---------------------------------------------------------------------- answers, breaks


def _of_autocast(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    modes.guard_autocast(state)
    return leaf(state, fn, args, kwargs)


def _answer(value: object) -> Handler:
    """The same, whatever is asked."""
    return lambda state, fn, args, kwargs: value


@handler(directives.is_compiling)
def _compiling(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> bool:
    modules.check_encoder(state.interpreter)
    torchs = skip.is_torch(state.interpreter.frames[-1].code.co_filename)
    answer = (torchs or not state.memory.untold) and not modules.runs_hooks_after_an_error(state.interpreter)
    state.told_compiling |= answer and not modules.same_while_compiling(state.interpreter.frames[-1].code)
    return answer


def _has_torch_function(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> bool:
    """Whether somebody overrides torch functions of these arguments: a class does, or a mode of the program."""
    return overriding.overridden(state, args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args)


@handler(directives.graph_break)
def _graph_break(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if optimizers.breaks_around_step(state):
        return None
    raise errors.graph_break(kind="graph break on request", context=name_of(fn))


def _outside_effects(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    raise outside_effects(fn)


@handler(torch.is_tensor)
def _is_tensor(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Any object may be asked for its class."""
    if kwargs or len(args) != 1:
        return leaf(state, fn, args, kwargs)
    return state.interpreter.call(isinstance, (args[0], torch.Tensor))


def _transforms_active(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """No transform of torch.func is active where a graph begins; within one that is captured torch is not asked."""
    return NotImplemented if state.graph.scopes else False


@handler(torch._shape_as_tensor)
def _shape_as_tensor(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The sizes as a tensor of integers on the CPU."""
    if kwargs or len(args) != 1 or not state.interpreter.is_tensor(args[0]):
        return leaf(state, fn, args, kwargs)
    sizes = [*state.interpreter.getattr(args[0], "shape")]
    return leaf(state, torch.tensor, (sizes,), {"dtype": torch.int64, "device": torch.device("cpu")})


@handler(*all_of("_C._nn._parse_to"))
def _parse_to(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What `Module.to` asks: of a tensor it takes device and dtype."""
    given = (args[0] if args else None, *(kwargs.get(name) for name in ("tensor", "other")))
    tensor = next((value for value in given if state.interpreter.is_tensor(value)), None)
    if tensor is not None:
        device = state.interpreter.getattr(tensor, "device")
        dtype = state.interpreter.getattr(tensor, "dtype")
        args = (device, dtype, *args[1:])
        kwargs = {name: value for name, value in kwargs.items() if name not in ("tensor", "other")}
    with torch._C.DisableTorchFunction():
        return state.interpreter.native(fn, *args, **kwargs)


def _kept_from_torchs_compiler(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A function of torch's (`Optimizer.zero_grad`) around which torch's own compiler is switched off."""
    return state.interpreter.call(state.interpreter.getattr(fn, "__wrapped__"), args, kwargs)


CODES["_compile.py:_disable_dynamo.<locals>.inner"] = _kept_from_torchs_compiler
for _name in ("__enter__", "__exit__"):  # settings of torch's own compiler
    CODES[f"decorators.py:DynamoConfigPatchProxy.{_name}"] = lambda *_: None
handler(directives.mark_step_begin)(_answer(None))
enter_rows({
    # what does not change in a process, or is guarded as it was at the frame's entry (`modes.guard_functions`)
    """
    finfo iinfo is_storage device Size promote_types result_type can_cast broadcast_shapes typename
    overrides.is_tensor_like overrides.is_tensor_method_or_property _utils_internal.justknobs_check
    nn.modules.utils._single nn.modules.utils._pair nn.modules.utils._triple nn.modules.utils._quadruple
    _VF utils._python_dispatch.is_traceable_wrapper_subclass _C._is_tracing
    _C._functorch.is_batchedtensor _C._functorch.maybe_get_level
    _functorch.utils.unwrap_dead_wrappers
    is_grad_enabled is_inference_mode_enabled get_default_dtype
    _C._is_any_autocast_enabled are_deterministic_algorithms_enabled
    _C._cpu._get_cpu_capability[torch>=2.13]
    """: leaf,
    # what may change: guarded to be what it is
    """
    amp.is_autocast_available cuda.is_available cuda.device_count cuda.is_bf16_supported cuda.get_device_capability
    cuda.current_device cuda.get_device_name cuda.is_initialized mps.is_available xpu.is_available mtia.is_available
    backends.mps.is_available backends.mps.is_built
    get_num_threads get_num_interop_threads is_warn_always_enabled distributed.is_available distributed.is_initialized
    accelerator.is_available accelerator.current_accelerator
    is_anomaly_enabled is_anomaly_check_nan_enabled
    _C._get_privateuse1_backend_name __future__.get_swap_module_params_on_conversion
    __future__.get_overwrite_module_params_on_conversion
    """: guarded_constant,
    "is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype "
    "is_autocast_cache_enabled": _of_autocast,
    "_C._are_functorch_transforms_active": _transforms_active,
    "_C._log_api_usage_once compiler.cudagraph_mark_step_begin _C._get_tracing_state": _answer(None),
    "compiler.is_exporting jit.is_tracing jit.is_scripting _jit_internal.is_scripting "
    "_C._is_torch_function_mode_enabled": _answer(False),
    "compiler.is_compiling compiler.is_dynamo_compiling": _compiling,
    "_C._has_torch_function _C._has_torch_function_unary _C._has_torch_function_variadic overrides.has_torch_function "
    "overrides.has_torch_function_unary overrides.has_torch_function_variadic": _has_torch_function,
    """
    seed initial_seed random.seed save load
    set_num_threads set_num_interop_threads
    set_default_tensor_type set_printoptions
    jit.script jit.trace jit.fork jit.wait cuda.synchronize cuda.empty_cache
    cuda.manual_seed cuda.manual_seed_all cuda.set_device set_flush_denormal set_warn_always autograd.set_detect_anomaly
    autograd.detect_anomaly from_dlpack frombuffer
    utils.dlpack.from_dlpack utils.dlpack.to_dlpack
    set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled autocast_increment_nesting
    autocast_decrement_nesting clear_autocast_cache set_anomaly_enabled init_num_threads fork wait
    set_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_gpu_dtype set_autocast_ipu_enabled
    set_autocast_ipu_dtype set_autocast_xla_enabled set_autocast_xla_dtype import_ir_module import_ir_module_from_buffer
    """: _outside_effects,
})  # fmt: skip


_LEGACY: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}


@handler(*_LEGACY)
def _legacy_class(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`torch.Tensor([1, 2])` and `torch.FloatTensor(2, 3)`: torch.tensor of numbers, torch.empty of sizes."""
    options: dict[str, object] = {"dtype": _LEGACY[fn] or torch.get_default_dtype()}
    if state.graph.entered:
        options["device"] = "cpu"  # whatever the default device is
    if not kwargs and args and all(type(arg) is int for arg in args):
        return leaf(state, torch.empty, args, options)
    data = state.deep_resolve(args[0]) if len(args) == 1 and not kwargs else None
    if type(data) in (list, tuple) and data and _numbers(data):
        return leaf(state, torch.tensor, (data,), options)
    if getattr(data, "ndim", 0) and numpy_scalars.held_in(data):
        return leaf(state, torch.tensor, (data,), options)
    return _tensor_class(state, fn, args, kwargs)


def _numbers(data: Any) -> bool:
    return all(_numbers(item) if type(item) in (list, tuple) else type(item) in (int, float, bool) for item in data)


@handler(torch.nn.Parameter)
def _parameter(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A leaf of the graph's own over the same memory; what is returned of it becomes a Parameter again."""
    given = {**dict(zip(("data", "requires_grad"), args)), **kwargs}
    data = state.deep_resolve(given.pop("data", None))
    wanted = given.pop("requires_grad", True)
    info = state.tensors.get(id(data))
    if info is None or given or type(wanted) is not bool or state.graph.scopes or torch.is_inference_mode_enabled():
        return _tensor_class(state, fn, args, kwargs)
    if wanted and not (info.tensor.is_floating_point() or info.tensor.is_complex()):
        return _tensor_class(state, fn, args, kwargs)  # raises
    tensor = cast(torch.Tensor, leaf(state, torch.Tensor.detach, (data,), {}))
    if wanted:
        leaf(state, torch.Tensor.requires_grad_, (tensor,), {})
    with torch._C.DisableTorchFunction():
        parameter = torch.Tensor._make_subclass(torch.nn.Parameter, tensor, wanted)
    return state.graph.register(parameter, state.tensors[id(tensor)].node, info.device)


@handler(torch.nn.Buffer)
def _buffer(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A detached tensor with two attributes: no object is of this class."""
    return state.interpreter.call(torch.nn.Buffer.__new__, (fn, *args), kwargs)


@handler(torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
def _tensor_class(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    raise errors.graph_break(
        kind="tensor object made",
        context=name_of(fn),
        explanation=f"{fn.__name__}(...) makes a tensor object that autograd or the program treats as new state.",
    )


@handler(torch.nn.functional.ctc_loss)
def _ctc_loss_by_name(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Its body, down to the function below."""
    return NotImplemented


@handler(torch.ctc_loss)
def _ctc_loss(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """With lengths that are tensors its intermediate results are as large as these say."""
    names = ("log_probs", "targets", "input_lengths", "target_lengths")
    given = {**dict(zip(names, args)), **kwargs}
    infos = [state.tensors.get(id(given.get(name))) for name in names]
    if torch.is_autocast_enabled("cpu") or any(info is None or info.device.type != "cpu" for info in infos):
        return NotImplemented
    ctc_ops()
    return state.interpreter.call(torch_polyfills.ctc_loss, args, kwargs)


# ---------------------------------------------------------------------- modes


@handler(torch._C._set_grad_enabled)
def _set_grad_enabled(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    wanted = bool(args[0])
    scopes = state.graph.scopes
    if scopes and scopes[-1].feeds is not None:
        _set_grad_in_backward(state, scopes[-1], wanted)
    elif wanted != torch.is_grad_enabled():
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(wanted)
        state.graph.effect(torch._C._set_grad_enabled, (wanted,))


def _set_grad_in_backward(state: CaptureState, scope: Scope, wanted: bool) -> None:
    """A backward runs with gradients disabled or, under `create_graph`, enabled: leaving a context manager of torch's
    puts back that, where it was in force before."""
    if scope.entry is None:
        scope.entry = state.graph.effect(torch.is_grad_enabled, ())
    manager: object = None
    name = ""
    for frame in reversed(state.interpreter.frames):
        if frame.code.co_filename != _GRAD_MODE_FILE:
            break
        manager, name = frame.fast[0], frame.code.co_name
    as_at_entry = name == "__exit__" and scope.managers.pop(id(manager), False)
    if name == "__init__" or (name == "__enter__" and type(manager) is not torch.set_grad_enabled):
        scope.managers[id(manager)] = scope.managers.get(None, True)
    scope.managers[None] = as_at_entry
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(wanted)
    state.graph.effect(torch._C._set_grad_enabled, (scope.entry if as_at_entry else wanted,))


_GRAD_MODE_FILE = torch.no_grad.__enter__.__code__.co_filename
_inference: Any = torch.inference_mode


@handler(_inference.__enter__)
def _enter_inference(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    (context,) = args
    mode = bool(state.interpreter.getattr(context, "mode"))
    guard = torch._C._InferenceMode(mode)
    guard.__enter__()
    node = state.graph.effect(torch.autograd.grad_mode._enter_inference_mode, (mode,))
    state.open_modes.append((id(context), guard, node))
    state.interpreter.born[id(context)] = (context, state.interpreter.number)


@handler(_inference.__exit__)
def _exit_inference(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    if not state.open_modes:
        raise errors.graph_break(kind="mode entered before")
    known, guard, node = state.open_modes.pop()
    if known != id(args[0]):
        raise errors.graph_break(
            kind="modes left out of order",
            explanation="torch.inference_mode contexts are left in another order than they were entered.",
        )
    guard.__exit__(None, None, None)
    state.graph.effect(torch.autograd.grad_mode._exit_inference_mode, (node,))


def _autocast_class(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    modes.guard_autocast(state)  # what it does not get it asks torch for
    with torch._C.DisableTorchFunction():
        return state.interpreter.native(fn, *args, **kwargs)


_AUTOCAST_KINDS = all_of("amp.autocast_mode.autocast cuda.amp.autocast cpu.amp.autocast")
_OF_AUTOCAST = ("device", "fast_dtype", "_enabled", "_cache_enabled")
handler(*_AUTOCAST_KINDS)(_autocast_class)


@handler(*(kind.__enter__ for kind in _AUTOCAST_KINDS))
def _enter_autocast(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What autocast.__enter__ does, with its attributes, so that a real __exit__ can follow a graph break."""
    context, interp = args[0], state.interpreter
    kind, dtype, enabled, cached = (interp.getattr(context, name) for name in _OF_AUTOCAST)
    for name, value in (
        ("prev_cache_enabled", torch.is_autocast_cache_enabled()),
        ("prev", torch.is_autocast_enabled(kind)),
        ("prev_fastdtype", torch.get_autocast_dtype(kind)),
    ):
        interp.setattr(context, name, value)
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
    torch.autocast_increment_nesting()
    torch.set_autocast_cache_enabled(cached)
    node = state.graph.effect(torch.amp.autocast_mode._enter_autocast, (kind, dtype, enabled, cached))
    state.open_modes.append((id(context), None, node))
    interp.born[id(context)] = (context, interp.number)
    return context


@handler(*(kind.__exit__ for kind in _AUTOCAST_KINDS))
def _exit_autocast(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> bool:
    context, interp = args[0], state.interpreter
    if not state.open_modes or state.open_modes[-1][0] != id(context):
        raise errors.graph_break(
            kind="modes left out of order",
            explanation="torch.autocast contexts are left in another order than they were entered.",
        )
    _, _, node = state.open_modes.pop()
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    kind = interp.getattr(context, "device")
    torch.set_autocast_enabled(kind, interp.getattr(context, "prev"))
    torch.set_autocast_dtype(kind, interp.getattr(context, "prev_fastdtype"))
    torch.set_autocast_cache_enabled(interp.getattr(context, "prev_cache_enabled"))
    state.graph.effect(torch.amp.autocast_mode._exit_autocast, (node,))
    return False


_RECORD = torch.autograd.profiler.record_function


handler(_RECORD.__enter__)(lambda state, fn, args, kwargs: args[0])
handler(_RECORD.__exit__)(_answer(None))


@handler(_RECORD)
def _make_record(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    with torch._C.DisableTorchFunction():
        return fn(*args, **kwargs)


# ---------------------------------------------------------------------- checks


@handler(*all_of("_check_tensor_all _check_tensor_all_with"))
def _check_all(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """An operation that raises at run time, where the error is a RuntimeError that says what torch says of itself."""
    error, condition = (RuntimeError, *args)[-2:]
    count = 2 if fn.__name__.endswith("with") else 1
    if kwargs or len(args) != count or error is not RuntimeError or not isinstance(condition, torch.Tensor):
        return NotImplemented
    if condition.dtype is not torch.bool:
        return NotImplemented
    holds = leaf(state, torch.all, (condition,), {})
    node = state.graph.node_of(state.tensor_info(holds))
    try:
        torch._check(False)
    except RuntimeError as failure:
        state.graph.effect(torch.ops.aten._assert_async.msg, (node, str(failure)))
    return None


@handler(*all_of("_assert _check _check_index _check_value _check_type _check_not_implemented _check_is_size"))
def _check(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A condition on numbers is decided now; one on tensors becomes an operation (torch._assert) or a break."""
    condition = args[0] if args else kwargs.get("cond", kwargs.get("condition"))
    if isinstance(condition, torch.Tensor):
        if fn is not find("_assert"):
            raise errors.graph_break(
                kind="data-dependent value",
                context=name_of(fn),
                explanation=f"{name_of(fn)} checks the value of a tensor, which is known only when the program runs.",
                hints=("Use torch._assert(condition, message), which becomes part of the graph.",),
            )
        message = args[1] if len(args) > 1 else kwargs.get("message", "")
        state.graph.effect(fn, (state.graph.node_of(state.tensor_info(condition)), str(message)))
        return None
    if type(condition) in SYMBOLIC and fn.__name__ in ("_check", "_check_is_size", "_assert"):
        known = _known_from_here(state, fn, condition, args)
        if known is not NotImplemented:
            return known
    return _decided(state, fn, args, kwargs, condition)


def _known_from_here(state: CaptureState, fn: Function, condition: Any, args: Args) -> object:
    """A check of numbers that only the running program knows: it stays in the graph, and capture goes by it."""
    if fn.__name__ == "_check_is_size":
        condition = condition >= 0
    if condition is True:
        return None
    node = unbacked_ops.check(state.graph, condition)
    if node is NotImplemented:
        return NotImplemented
    message = args[1] if len(args) > 1 and fn.__name__ != "_check_is_size" else None
    text = state.interpreter.call(message, (), {}) if callable(message) else message
    effect = torch._assert if fn.__name__ == "_assert" else unbacked_ops.checked
    state.graph.effect(effect, (node, text if text is None else str(text)))
    return None


def _decided(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs, condition: object) -> object:
    """The check on plain values: nothing when it holds; the function's own error when it does not."""
    if fn.__name__ == "_check_index" or not isinstance(condition, bool) or not condition:
        if (
            fn.__name__ in ("_check_is_size", "_check_index")
            and type(condition) is int
            and condition >= 0
            and len(args) == 1
        ):
            return None
        if condition is False and not fn.__name__.startswith(("_check_is", "_check_index")):
            message = args[1] if len(args) > 1 else kwargs.get("message")
            text = state.interpreter.call(message, (), {}) if callable(message) else message
            with torch._C.DisableTorchFunction():
                return state.interpreter.native(fn, False, (lambda: str(text)) if text is not None else None)
        return NotImplemented
    return None


handler(torch.nn.functional.multi_head_attention_forward)(leaf)


handler(torch.from_numpy)(lambda state, fn, args, kwargs: numpy_calls.to_tensor(state, args[0], "from_numpy"))


def _untagged(cell: str) -> Handler:
    """torch._dynamo, once imported, wraps methods of nn.Module to number modules for itself: what it wraps counts."""

    def handle(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> object:
        names = fn.__code__.co_freevars
        if cell not in names:
            return NotImplemented
        wrapped = fn.__closure__[names.index(cell)].cell_contents
        return state.interpreter.call(wrapped, args, kwargs)

    return handle


def _symbolic_tracing(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Captured code is called with tensors, not with what torch.fx traces with."""
    return NotImplemented if fn.__globals__.get("_is_fx_tracing_flag") else False


_PLAIN = {"differentiable": False, "capturable": False, "has_complex": ...}
_UNSCALED = {"grad_scale": None, "found_inf": None, "has_complex": False}

_aten = torch.ops.aten
for _packets, _function in (
    ((_aten.size, _aten.sym_size), torch_polyfills.size),
    ((_aten.stride, _aten.sym_stride), torch_polyfills.stride),
    ((_aten.numel, _aten.sym_numel), torch.Tensor.numel),
    ((_aten.sym_storage_offset,), torch.Tensor.storage_offset),
    ((_aten.dim,), torch.Tensor.dim),
    ((_aten.is_floating_point,), torch.Tensor.is_floating_point),
    ((_aten.is_complex,), torch.Tensor.is_complex),
    ((_aten.is_contiguous,), torch.Tensor.is_contiguous),
):
    for _packet in _packets:
        handler(_packet, *[getattr(_packet, name) for name in _packet.overloads()])(instead(_function))

enter_late({
    "fx.experimental.symbolic_shapes.guard_or_false fx.experimental.symbolic_shapes.guard_or_true":
        instead(bool),  # what a condition on sizes is for eager, which knows them
    "optim.radam._single_tensor_radam optim.radam._multi_tensor_radam":
        optimizer_steps.stand_in(optimizer_steps.radam, _PLAIN),
    "optim.nadam._single_tensor_nadam optim.nadam._multi_tensor_nadam":
        optimizer_steps.stand_in(optimizer_steps.nadam, _PLAIN),
    "optim.optimizer._get_value": optimizer_steps.get_value,
    "optim.asgd._single_tensor_asgd": optimizer_steps.stand_in(optimizer_steps.asgd, _PLAIN, at_once=True),
    "optim.asgd._multi_tensor_asgd": optimizer_steps.stand_in(optimizer_steps.asgd, _PLAIN, at_once=False),
    "optim._adafactor._single_tensor_adafactor":
        optimizer_steps.stand_in(optimizer_steps.adafactor, _UNSCALED, at_once=True),
    "optim._adafactor._multi_tensor_adafactor":
        optimizer_steps.stand_in(optimizer_steps.adafactor, _UNSCALED, at_once=False),
    "onnx.is_in_onnx_export fx.experimental.symbolic_shapes.has_free_unbacked_symbols": _answer(False),
    "fx._symbolic_trace.is_fx_tracing fx._symbolic_trace.is_fx_symbolic_tracing": _symbolic_tracing,
    "_dynamo.external_utils.is_compiling": _compiling,
    "_dynamo.decorators.mark_static_address": _answer(None),
    "_dynamo.decorators.graph_break": _graph_break,
    "_dynamo.mutation_guard.patched_init": _untagged("init"),
    "_dynamo.mutation_guard.patched_setstate": _untagged("setstate"),
})  # fmt: skip
