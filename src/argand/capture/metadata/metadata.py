"""Metadata of results: stand-ins of real tensors, logical devices, and running a torch function on stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import kinds, outcomes, size_checks, trial_runs
from argand.capture.metadata.meta_tensors import needs_grad
from argand.capture.metadata.rules import RULES, Misfit, Unknown
from argand.capture.metadata.special_calls import named
from argand.graph import compat as tracing
from argand.graph import time_limit
from argand.graph.metadata import metas
from argand.graph.operators.on_meta import OnMeta
from argand.graph.trees import tensors_of
from argand.interruptions import let_pass
from argand.runtime.kernels.recurrent import FUNCTIONS as RECURRENT

_TABLES = (size_checks,)  # importing it registers its rules
_META = torch.device("meta")
_CPU = torch.device("cpu")
_Tensor = torch.Tensor

FACTORIES: frozenset[object] = frozenset((
    torch.fft.fftfreq,
    torch.fft.rfftfreq,
    *named(
        torch,
        """
        empty zeros ones full arange range linspace logspace eye rand randn randint randperm empty_strided
        empty_permuted tensor as_tensor asarray scalar_tensor tril_indices triu_indices hann_window
        hamming_window bartlett_window blackman_window kaiser_window normal
        """,
    ),
))  # fmt: skip


LAYOUT_READS: frozenset[object] = frozenset((_Tensor.stride, _Tensor.is_contiguous, _Tensor.dim_order))
UNSURE_LAYOUT: frozenset[object] = frozenset(
    function
    for owner, names in (
        (torch, "svd svd_lowrank pca_lowrank nonzero_static native_batch_norm _native_batch_norm_legit"),
        (torch._C._nn, "max_unpool2d"),
        (torch.nn.functional, "max_unpool2d"),
        (torch.linalg, "svd"),
        (torch.fft, "hfftn"),
        (_Tensor, "svd nonzero_static"),
    )
    for function in named(owner, names)
)
"""Functions whose results eager lays out as no meta kernel says: the tracer tries them out on zeros."""


def is_layout_unsure(func: object, infos: list[TensorInfo]) -> bool:
    """Whether nobody knows how a call's results lie in memory."""
    return func in UNSURE_LAYOUT and sum(info.tensor.numel() for info in infos) > metas.PROBE_LIMIT


def unknown_layout(func: Function) -> errors.GraphBreak:
    """The break for a question about strides that only the running program can answer."""
    name = getattr(func, "__name__", str(func))
    return errors.graph_break(
        kind="data-dependent value",
        context=name,
        explanation=f"{name}: how the result of an operation before it lies in memory is known only when it runs.",
        hints=("Ask outside the compiled function, or make the tensor contiguous with clone first.",),
    )


def asks_for_layout(func: Function, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call that may return its argument copies it first where it lies in memory otherwise than asked for."""
    formats = (*args[1:], *kwargs.values())
    return func is _Tensor.contiguous or any(isinstance(value, torch.memory_format) for value in formats)


def refuse_overlapping(func: Function, written: Iterable[torch.Tensor], args: Args) -> None:
    """Writes to expanded tensors mostly raise, which eager does at this very place: end the graph there.

    Where autograd records the write it asks what the tensor is a view of, which a graph's results are not.
    """
    for target in written:
        if any(step == 0 and size > 1 for step, size in zip(target.stride(), target.shape)):
            name = getattr(func, "__name__", str(func))
            recorded = needs_grad(target, *args)
            raise errors.graph_break(kind="write to an expanded tensor", context=name, skip_frame=recorded)


def out_shapes(kwargs: Kwargs) -> object:
    """The shapes of the tensors given as `out`; None where there is no `out`."""
    out = kwargs.get("out") if kwargs else None
    if isinstance(out, _Tensor):
        return (out.shape,)
    return tuple([item.shape for item in out if isinstance(item, _Tensor)]) if isinstance(out, tuple | list) else None


def is_resized(func: Function, args: Args, kwargs: Kwargs, shapes: object) -> bool:
    """Whether a call has given what it got as `out` other shapes than these.

    Raises:
        GraphBreak: an argument lies in that: eager resizes it before it looks at the arguments.
    """
    resized = shapes != out_shapes(kwargs)
    if resized and _memory_of(kwargs["out"]) & _memory_of(args):
        raise errors.graph_break(
            kind="call that capture cannot evaluate",
            context=getattr(func, "__name__", str(func)),
            explanation="It gives one of its arguments, which lies in its `out` too, another size.",
        )
    return resized


def _memory_of(tree: object) -> set[int]:
    with torch._C.DisableTorchFunction():
        return {tracing.storage_address(item) for item in tracing.tree_flatten(tree)[0] if isinstance(item, _Tensor)}


def note_unsure(unsure: set[int], result: object) -> None:
    """From now on the strides of the tensors in `result` are not relied on."""
    if isinstance(result, _Tensor):
        if len(result.shape) > 1:
            unsure.add(id(result))
    elif isinstance(result, tuple | list):
        for item in result:
            note_unsure(unsure, item)


def stand_in(real: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the metadata of `real`, a leaf or not as `real` is, and of inference mode only if that is."""
    if torch.is_inference_mode_enabled() and not real.is_inference():
        with torch.inference_mode(False):
            return stand_in(real)
    copy = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=_META)
    if type(real) is torch.nn.Parameter:
        return torch.Tensor._make_subclass(torch.nn.Parameter, copy, real.requires_grad)
    if real.requires_grad:
        try:
            copy.requires_grad_()
            history = real.grad_fn is not None
        except RuntimeError as error:  # integers, or a view whose history has to be made anew, and may not
            raise errors.graph_break(
                kind="input that a graph cannot hold", context="a view", explanation=f"Autograd refuses it: {error}"
            ) from None
        if history:
            with torch.enable_grad():
                result = copy.clone()
            if result.stride() == copy.stride():
                return result
    return copy


def leak(value: torch.Tensor) -> errors.GraphBreak:
    """The break for a tensor that is no stand-in."""
    return errors.graph_break(
        kind="tensor of unknown origin",
        context=f"{type(value).__name__}{tuple(value.shape)} on {value.device}",
        explanation="A tensor that capture did not see being made reached a torch function.",
    )


def generator(what: str) -> errors.GraphBreak:
    """The break for a use of a `torch.Generator` that is not captured."""
    return errors.graph_break(
        kind="random number generator",
        context="torch.Generator",
        explanation=f"{what}, where the graph cannot hand its state on.",
    )


def version(tensor: torch.Tensor | None) -> int | None:
    """The count of in-place changes; None where torch keeps none (inference tensors)."""
    if tensor is None:
        return None
    try:
        return tensor._version
    except RuntimeError:
        return None


def logical_device(func: Function, infos: list[TensorInfo], kwargs: Kwargs) -> torch.device:
    """Where the call's results live.

    Raises:
        GraphBreak: the tensor arguments are on different devices.
    """
    return metas.logical_device(func, infos, kwargs, _mixed)


def _mixed(func: Function, infos: list[TensorInfo]) -> torch.device:
    name = getattr(func, "__name__", "")
    if name in ("copy_", "__getitem__", "index", "__setitem__", "index_put_", "index_put", "copy"):
        return infos[0].device
    large = {info.device for info in infos if info.tensor.dim() or info.device.type != "cpu"}
    if len(large) == 1:
        return large.pop()
    devices = ", ".join(sorted({str(info.device) for info in infos}))
    raise errors.graph_break(
        kind="tensors on different devices",
        context=f"{name}: {devices}",
        explanation=f"{name} gets tensors on different devices ({devices}); what it makes of them is left to torch.",
    )


def compute(func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], judged: bool = True) -> object:
    """Run `func` on stand-ins.

    Arguments:
        judged: whether it matters why it cannot be run; else `outcomes.Refusal` may be raised too.

    Raises:
        GraphBreak: torch has no meta kernel for it, it needs the values, or it raised or would raise on real tensors
            (the frame then runs eagerly and raises there, if it does).
    """
    if tracing.saved_tensor_hooks_active():  # of the program's: what stand-ins save is none of its tensors
        with tracing.hidden_from_saved_tensor_hooks():
            return _computed(func, args, kwargs, infos, judged)
    return _computed(func, args, kwargs, infos, judged)


def _computed(func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], judged: bool) -> object:
    try:
        call = kinds.of_call(args, kwargs)
    except kinds.Unknown:
        call = None
    devices = tuple([info.device for info in infos]) if any(info.device.type != "cpu" for info in infos) else ()
    result = _on_stand_ins(func, args, kwargs, infos, call, devices, judged)
    if not devices:
        _try_out(func, call, result, judged)
    return result


def _try_out(func: Function, call: kinds.Call | None, result: object, judged: bool) -> None:
    if call is not None and (error := trial_runs.refusal(func, call, result, judged)) is not None:
        raise call_raises(getattr(func, "__name__", str(func)), error)


def try_out(func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], result: object) -> None:
    """Try a call whose result data decide about on real tensors.

    Raises:
        GraphBreak: it raises, whatever the data.
    """
    with contextlib.suppress(kinds.Unknown):
        call = kinds.of_call(args, kwargs)
        if all(info.device.type == "cpu" for info in infos):
            _try_out(func, call, result, True)


def _on_stand_ins(
    func: Function,
    args: Args,
    kwargs: Kwargs,
    infos: list[TensorInfo],
    call: kinds.Call | None,
    devices: tuple[torch.device, ...],
    judged: bool,
) -> object:
    if "out" not in kwargs:
        autocast = torch._C._is_any_autocast_enabled()
        if autocast and func in RECURRENT:
            raise _unknown_casts(func)
        rule = RULES.get(func)
        if rule is not None:
            try:
                return rule(*args, **kwargs)
            except Misfit as error:
                raise call_raises(getattr(func, "__name__", str(func)), error) from None
            except (Unknown, TypeError, AttributeError, IndexError, ValueError, RuntimeError):
                pass  # anything unusual, and whatever is an error, is torch's to judge
        if infos and call is not None and trial_runs.may_run(func):
            try:
                return outcomes.stand_ins(func, call, devices, args, kwargs)
            except outcomes.NotNew:
                pass
            except outcomes.Untraceable as error:
                if not judged and isinstance(error, outcomes.Refusal):
                    raise
                if autocast:  # which casts nothing for stand-ins
                    raise _unknown_casts(func) from None
    if kwargs.get("device") is not None or (func in FACTORIES and not infos):
        kwargs = {**kwargs, "device": _META}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    tracing.keep_torch_compiler_out()
    if not infos and isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _second_try(func, args, kwargs, call, None)  # the first would compute something, or draw
    try:
        result = func(*args, **kwargs) if trial_runs.is_view(func) else time_limit.run_checked(func, args, kwargs)
    except errors.GraphBreak:
        raise
    except Exception as error:
        let_pass(error)
        result = _second_try(func, args, kwargs, call, error)
    if _on_cpu(result):
        result = _second_try(func, args, kwargs, call, None)
    return result


def _unknown_casts(func: object) -> errors.GraphBreak:
    name = getattr(func, "__name__", str(func))
    return errors.graph_break(kind="composed function under autocast", context=name)


def _on_cpu(result: object) -> bool:
    return any(tensor.device.type != "meta" for tensor in tensors_of(result))


def _second_try(func: Function, args: Args, kwargs: Kwargs, call: kinds.Call | None, error: Exception | None) -> object:
    """Once more with every tensor that the function makes by itself on meta too."""
    name = getattr(func, "__name__", str(func))
    if error is None or "device" in str(error) or "meta" in str(error):
        try:
            with OnMeta(), _META:
                result = time_limit.run_checked(func, args, kwargs)
            if not _on_cpu(result):
                return result
        except Exception as again:
            let_pass(again)
            error = again.with_traceback(None)  # which refers to this frame, and to the call's tensors
    raise meta_failure(name, error if error is not None and trial_runs.raises_too(func, call, error) else None)


def meta_failure(name: str, error: Exception | None) -> errors.GraphBreak:
    """The break for a torch function that could not run on stand-ins."""
    text = str(error)
    first = text.splitlines()[0][:200] if text else ""
    if error is None or isinstance(error, NotImplementedError) or "meta" in text.lower():
        return errors.graph_break(
            kind="result of unknown size",
            context=f"{name}: {first or 'made a tensor on the CPU'}",
            explanation=f"The size or type of what {name} returns cannot be told without running it.",
        )
    return call_raises(name, error)


def call_raises(name: str, error: Exception) -> errors.GraphBreak:
    """The break for a torch call that raises in eager too."""
    text = str(error)
    first = text.splitlines()[0][:200] if text else ""
    stop = errors.graph_break(
        kind="torch call raises an exception",
        context=f"{name}: {type(error).__name__}: {first}",
        explanation=f"The call of {name} raises {type(error).__name__} for these arguments: {first}",
        hints=("Eager raises this too: check the arguments of the call on this line.",),
        skip_frame=True,
    )
    stop.exception = error.with_traceback(None)
    return stop


_PLAIN_RESULTS = frozenset(words("sparse_dim dense_dim _has_compatible_shallow_copy_type"))
"""Names of what gives plain values of tensors that their stand-ins know as well as they do."""


def _name_of(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    return str(func.__self__.__name__) if name == "__get__" else name


def refuse_unknown(func: Function, result: object, attribute: bool) -> None:
    """End the graph for a plain value of a tensor that its stand-in may have otherwise; None is such a value too."""
    nothing = result is None and not attribute and returns_nothing(func)
    if result is not NotImplemented and not nothing and _name_of(func) not in _PLAIN_RESULTS:
        raise hidden_state(func)


def returns_nothing(func: Function) -> bool:
    """Whether a function gives None for every tensor, as its schema says."""
    overloads = [getattr(func, name) for name in func.overloads()] if hasattr(func, "overloads") else [func]
    schemas = [getattr(overload, "_schema", None) for overload in overloads]
    return all(schema is not None and not schema.returns for schema in schemas)


def hidden_state(func: Function) -> errors.GraphBreak:
    """The graph break for what torch keeps in a tensor, and its stand-in has not or has otherwise."""
    name = _name_of(func)
    return errors.graph_break(
        kind="tensor state known only at run time",
        context=name,
        explanation=f"{name} of a tensor is known only when the program runs.",
    )


def property_name(owner: Any, name: str) -> str:
    """The attribute that `descriptor.__get__` reads."""
    if name != "__get__":
        raise errors.graph_break(
            kind="tensor attribute assignment",
            context=f"{getattr(owner, '__name__', owner)}",
            explanation=f"Setting tensor.{getattr(owner, '__name__', '?')} cannot be captured.",
        )
    return str(owner.__name__)


def has_tensor(result: object) -> bool:
    """Whether there is a tensor in a result."""
    if isinstance(result, _Tensor):
        return True
    if isinstance(result, tuple | list) and not isinstance(result, torch.Size):
        return any(has_tensor(item) for item in result)
    return False
