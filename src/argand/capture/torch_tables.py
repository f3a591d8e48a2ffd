"""Handlers of particular functions and classes of torch (see torch_calls)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from argand import errors
from argand.capture import marks, modules, torch_polyfills
from argand.capture.torch_calls import (
    NAMED,
    Args,
    Handler,
    Kwargs,
    all_of,
    constant,
    find,
    guarded_constant,
    handler,
    leaf,
    name_of,
)

if TYPE_CHECKING:
    from argand.capture.state import CaptureState

_TABLES = (modules,)  # importing it registers its handlers

# ---------------------------------------------------------------------- answers

_CONSTANTS = """
finfo iinfo is_tensor is_storage device Size promote_types result_type can_cast broadcast_shapes typename
jit.is_scripting jit.is_tracing _jit_internal.is_scripting _C._jit_internal nn.functional._canonical_mask_never
overrides.is_tensor_like overrides.is_tensor_method_or_property _utils_internal.justknobs_check
nn.modules.utils._single nn.modules.utils._pair nn.modules.utils._triple nn.modules.utils._quadruple
_VF utils._python_dispatch.is_traceable_wrapper_subclass _C._get_tracing_state _C._is_tracing
_C._log_api_usage_once _C._functorch.is_batchedtensor _C._functorch.maybe_get_level
_functorch.utils.unwrap_dead_wrappers
"""
_GUARDED = """
amp.is_autocast_available cuda.is_available cuda.device_count cuda.is_bf16_supported cuda.get_device_capability
cuda.current_device cuda.get_device_name cuda.is_initialized mps.is_available xpu.is_available mtia.is_available
backends.mps.is_available backends.mps.is_built backends.mkldnn.is_available backends.cuda.flash_sdp_enabled
backends.cuda.math_sdp_enabled backends.cuda.mem_efficient_sdp_enabled backends.cuda.cudnn_sdp_enabled
backends.cudnn.is_available backends.cudnn.version
is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode get_float32_matmul_precision
get_num_threads get_num_interop_threads is_warn_always_enabled distributed.is_available distributed.is_initialized
accelerator.is_available accelerator.current_accelerator onnx.is_in_onnx_export get_default_device
is_anomaly_enabled is_anomaly_check_nan_enabled
_C._get_privateuse1_backend_name __future__.get_swap_module_params_on_conversion
__future__.get_overwrite_module_params_on_conversion backends.opt_einsum.is_available
"""
for _function in all_of(_CONSTANTS):
    if _function is not None:
        handler(_function)(constant)
_AT_ENTRY = """
is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled is_autocast_cpu_enabled
get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype is_autocast_cache_enabled is_autocast_available
_C._is_any_autocast_enabled are_deterministic_algorithms_enabled
"""
"""Guarded as they are at the frame's entry (`modes.guard_functions`); captured code itself may change them."""
for _function in all_of(_GUARDED):
    if _function is not None:
        handler(_function)(guarded_constant)
for _function in all_of(_AT_ENTRY):
    if _function is not None:
        handler(_function)(constant)


@handler(*all_of("_C._log_api_usage_once compiler.cudagraph_mark_step_begin _dynamo.mark_static_address"))
def _nothing(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    return None


@handler(
    *all_of(
        "compiler.is_compiling compiler.is_dynamo_compiling _dynamo.is_compiling _dynamo.external_utils.is_compiling"
    ),
    marks.is_compiling,
)
def _compiling(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    return True


@handler(
    *all_of(
        "compiler.is_exporting jit.is_tracing jit.is_scripting _jit_internal.is_scripting "
        "overrides.is_torch_function_mode_enabled "
        "_C._is_torch_function_mode_enabled onnx.is_in_onnx_export _C._get_tracing_state_never"
    )
)
def _no(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    return False


@handler(find("_C._get_tracing_state"))
def _none(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    return None


@handler(
    *all_of(
        "_C._has_torch_function _C._has_torch_function_unary _C._has_torch_function_variadic "
        "overrides.has_torch_function "
        "overrides.has_torch_function_unary overrides.has_torch_function_variadic"
    )
)
def _has_torch_function(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    """Code that is interpreted sees plain tensors: nobody overrides anything."""
    return False


@handler(marks.graph_break, find("_dynamo.graph_break"))
def _graph_break(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    raise errors.graph_break(
        kind="graph break asked for",
        context=name_of(fn),
        explanation="The program calls graph_break().",
        hints=("remove the call",),
    )


# ---------------------------------------------------------------------- breaks

_BREAKS = """
manual_seed seed initial_seed get_rng_state set_rng_state save load set_num_threads set_num_interop_threads
set_default_device set_default_tensor_type set_printoptions use_deterministic_algorithms set_deterministic_debug_mode
set_float32_matmul_precision compile vmap jit.script jit.trace jit.fork jit.wait cuda.synchronize cuda.empty_cache
cuda.manual_seed cuda.manual_seed_all cuda.set_device set_flush_denormal set_warn_always autograd.set_detect_anomaly
autograd.detect_anomaly autograd.backward autograd.grad from_dlpack frombuffer set_default_dtype
utils.dlpack.from_dlpack utils.dlpack.to_dlpack
"""


@handler(*all_of(_BREAKS))
def _break(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    raise errors.graph_break(
        kind="torch function with outside effects",
        context=name_of(fn),
        explanation=f"{name_of(fn)} reads or changes something outside the compiled function.",
        hints=("call it outside the compiled function",),
    )


@handler(
    torch.nn.Parameter,
    torch.nn.parameter.Buffer,
    torch.Tensor,
    torch.Generator,
    torch.nn.UninitializedParameter,
    torch.nn.UninitializedBuffer,
    *all_of(
        "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor ShortTensor "
        "CharTensor ByteTensor BoolTensor"
    ),
)
def _tensor_class(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    raise errors.graph_break(
        kind="tensor object made",
        context=name_of(fn),
        explanation=f"{fn.__name__}(...) makes a tensor object that autograd or the program treats as new state.",
        hints=("make it outside the compiled function, or use torch.tensor / torch.empty",),
    )


# ---------------------------------------------------------------------- modes


def _record_effect(state: CaptureState, fn: Any, args: Args) -> Any:
    """A node whose effect on torch's state matters."""
    from argand.capture import compat

    node = compat.new_node(state.graph.graph, "call_function", fn, args, {})
    state.graph._annotate(node)
    state.graph.kept.add(node)
    return node


@handler(torch._C._set_grad_enabled)
def _set_grad_enabled(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    wanted = bool(args[0])
    if wanted != torch.is_grad_enabled():
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(wanted)
        _record_effect(state, torch._C._set_grad_enabled, (wanted,))


_inference: Any = torch.inference_mode


@handler(_inference.__enter__)
def _enter_inference(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    (context,) = args
    mode = bool(state.interpreter.getattr(context, "mode"))
    guard = torch._C._InferenceMode(mode)
    guard.__enter__()
    node = _record_effect(state, torch.autograd.grad_mode._enter_inference_mode, (mode,))
    state.open_modes.append((id(context), guard, node))


@handler(_inference.__exit__)
def _exit_inference(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    known, guard, node = state.open_modes.pop()
    if known != id(args[0]):
        raise errors.graph_break(
            kind="modes left out of order", explanation="inference_mode contexts are not nested properly."
        )
    guard.__exit__(None, None, None)
    _record_effect(state, torch.autograd.grad_mode._exit_inference_mode, (node,))


def _autocast_class(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    with torch._C.DisableTorchFunction():
        return state.interpreter.native(fn, *args, **kwargs)


_AUTOCAST = torch.amp.autocast_mode.autocast
for _class in (_AUTOCAST, *all_of("cuda.amp.autocast cpu.amp.autocast")):
    if _class is not None:
        handler(_class)(_autocast_class)


@handler(_AUTOCAST.__enter__, *(c.__enter__ for c in all_of("cuda.amp.autocast cpu.amp.autocast") if c is not None))
def _enter_autocast(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What autocast.__enter__ does, with its attributes, so that a real __exit__ can follow a graph break."""
    context = args[0]
    if state.is_outer(context):
        raise errors.graph_break(
            kind="autocast object from outside",
            context="autocast",
            explanation="Entering an autocast object that was made outside changes it.",
            hints=("make it in the function",),
        )
    kind = context.device
    context.prev_cache_enabled = torch.is_autocast_cache_enabled()
    context.prev = torch.is_autocast_enabled(kind)
    context.prev_fastdtype = torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, context._enabled)
    torch.set_autocast_dtype(kind, context.fast_dtype)
    torch.autocast_increment_nesting()
    torch.set_autocast_cache_enabled(context._cache_enabled)
    node = _record_effect(
        state,
        torch.amp.autocast_mode._enter_autocast,
        (kind, context.fast_dtype, context._enabled, context._cache_enabled),
    )
    state.open_modes.append((id(context), None, node))
    return context


@handler(_AUTOCAST.__exit__, *(c.__exit__ for c in all_of("cuda.amp.autocast cpu.amp.autocast") if c is not None))
def _exit_autocast(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    context = args[0]
    if not state.open_modes or state.open_modes[-1][0] != id(context):
        raise errors.graph_break(
            kind="modes left out of order", explanation="autocast contexts are not nested properly."
        )
    _, _, node = state.open_modes.pop()
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    torch.set_autocast_enabled(context.device, context.prev)
    torch.set_autocast_dtype(context.device, context.prev_fastdtype)
    torch.set_autocast_cache_enabled(context.prev_cache_enabled)
    _record_effect(state, torch.amp.autocast_mode._exit_autocast, (node,))
    return False


_RECORD = torch.autograd.profiler.record_function


@handler(_RECORD.__enter__)
def _enter_record(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    return args[0]


@handler(_RECORD.__exit__)
def _exit_record(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> None:
    return None


@handler(_RECORD)
def _make_record(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    with torch._C.DisableTorchFunction():
        return fn(*args, **kwargs)


# ---------------------------------------------------------------------- functions of functions


def _checkpoint(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """Without gradients a checkpoint is a plain call."""
    if torch.is_grad_enabled():
        raise errors.graph_break(
            kind="activation checkpoint",
            context=name_of(fn),
            explanation="torch.utils.checkpoint while gradients are recorded is not captured; what it calls is.",
            hints=("switch gradient checkpointing off, or compile the function that is checkpointed",),
        )
    options = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
    return state.interpreter.call(args[0], args[1:], {k: v for k, v in kwargs.items() if k not in options})


def install_checkpoint() -> None:
    """torch.utils.checkpoint is imported by torch itself; register its function."""
    import torch.utils.checkpoint

    handler(torch.utils.checkpoint.checkpoint)(_checkpoint)


install_checkpoint()


class ForwardContext:
    """The `ctx` of an autograd.Function whose forward is captured while no gradient is recorded."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def _function_apply(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """autograd.Function.apply: its forward, where no gradient would be recorded."""
    cls, *rest = args
    tensors = [arg for arg in rest if isinstance(arg, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise errors.graph_break(
            kind="autograd.Function with gradients",
            context=name_of(cls),
            explanation=f"{cls.__name__}.apply defines its own backward; it runs eagerly when gradients are recorded.",
            hints=("call it outside the compiled function, or use torch.library.custom_op with register_autograd",),
        )
    call = state.interpreter.call
    context = ForwardContext(len(rest))
    if cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context:
        result = call(cls.forward, tuple(rest), kwargs)
        call(cls.setup_context, (context, tuple(rest), result), {})
    else:
        result = call(cls.forward, (context, *rest), kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    if any(out is arg for out in outputs for arg in tensors):
        raise errors.graph_break(
            kind="autograd.Function returns its input",
            context=name_of(cls),
            explanation="An autograd.Function that returns its input makes an alias of it.",
        )
    return result


handler(torch.autograd.Function.apply)(_function_apply)


@handler(*all_of("_check_tensor_all _check_tensor_all_with"))
def _check_all(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch._check_tensor_all(cond)`: an operation that raises at run time."""
    condition = args[-1] if len(args) == 1 else args[1] if fn.__name__.endswith("with") else args[0]
    message = (
        args[2] if len(args) > 2 else None if fn.__name__.endswith("with") else (args[1] if len(args) > 1 else None)
    )
    if not isinstance(condition, torch.Tensor) or (message is not None and not isinstance(message, str)):
        return NotImplemented
    text = "Expected cond to be True" if message is None else message
    holds = leaf(state, torch.all, (condition,), {})
    _record_effect(state, torch.ops.aten._assert_async.msg, (state.tensor_info(holds).node, text))
    return None


@handler(*all_of("_assert _check _check_index _check_value _check_type _check_not_implemented _check_is_size"))
def _check(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """A condition on numbers is decided now; one on tensors becomes an operation (torch._assert) or a break."""
    condition = args[0] if args else kwargs.get("cond", kwargs.get("condition"))
    if isinstance(condition, torch.Tensor):
        if fn is not find("_assert"):
            raise errors.graph_break(
                kind="data-dependent value",
                context=name_of(fn),
                explanation=f"{name_of(fn)} looks at the value of a tensor.",
            )
        message = args[1] if len(args) > 1 else kwargs.get("message", "")
        _record_effect(state, fn, (state.tensor_info(condition).node, str(message)))
        return None
    return _decided(state, fn, args, kwargs, condition)


def _decided(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs, condition: Any) -> Any:
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


@handler(torch.nn.functional.multi_head_attention_forward, *all_of("_VF.lstm _VF.gru _VF.rnn_tanh _VF.rnn_relu"))
def _composed(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    return leaf(state, fn, args, kwargs)


@handler(torch.Tensor.__torch_function__)
def _disabled(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    raise errors.graph_break(
        kind="torch function protocol called",
        context="__torch_function__",
        explanation="Calling Tensor.__torch_function__ from Python is not captured.",
    )


@handler(torch.from_numpy)
def _from_numpy(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    from argand.capture import numpy_calls

    return numpy_calls.to_tensor(state, args[0], "from_numpy")


def _scan(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    return state.interpreter.call(torch_polyfills.associative_scan, args, kwargs)


def _cond(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """A condition that is a plain bool, or a tensor of known value, picks its branch now."""
    pred = args[0] if args else kwargs.get("pred")
    if isinstance(pred, torch.Tensor):
        known = state.tensor_info(pred).constant
        if known is None:
            return NotImplemented
        with torch._C.DisableTorchFunction():
            pred = bool(known)
    if not isinstance(pred, bool):
        return NotImplemented
    return state.interpreter.call(
        torch_polyfills.cond, (pred, *args[1:]), {k: v for k, v in kwargs.items() if k != "pred"}
    )


NAMED["torch._higher_order_ops.associative_scan.associative_scan"] = _scan
NAMED["torch._higher_order_ops.cond.cond"] = _cond


def _untagged(cell: str) -> Handler:
    """torch._dynamo, once imported, wraps methods of nn.Module to number modules for itself: what it wraps counts."""

    def handle(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
        names = fn.__code__.co_freevars
        if cell not in names:
            return NotImplemented
        wrapped = fn.__closure__[names.index(cell)].cell_contents
        return state.interpreter.call(wrapped, args, kwargs)

    return handle


NAMED["torch._dynamo.mutation_guard.patched_init"] = _untagged("init")
NAMED["torch._dynamo.mutation_guard.patched_setstate"] = _untagged("setstate")
