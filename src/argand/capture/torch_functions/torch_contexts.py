"""State of torch's that captured code reads and changes: flags, torch-function modes, the device of a `with` block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, cast

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.values import symbolic
from argand.capture.facts.values.ragged_sizes import RAGGED
from argand.capture.objects import iteration
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.torch_functions import modes, torch_polyfills
from argand.capture.torch_functions.torch_calls import all_of, enter_late, guarded_constant, handler, instead
from argand.graph.compat import FLAGS, deterministic, set_deterministic
from argand.graph.product_settings import cudnn_flags, set_cudnn_flags

# ---------------------------------------------------------------------- flags


def _changing(state: CaptureState, change: Callable[[], Any], written: Collection[int] = ()) -> None:
    """Run something that changes flags, for this capture and, as nodes, for the graph.

    Arguments:
        written: places in FLAGS of what is written: a flag that has the value already is another call's that has not.
    """
    with torch._C.DisableTorchFunction():
        before = modes.snapshot()
        change()
        after = modes.snapshot()
    for index, (_, write) in enumerate(FLAGS):
        changed = before.extra[index] != after.extra[index]
        if changed or index in written:
            _guard_entry(state, index, before.extra[index])
        if changed:
            state.graph.effect(write, (after.extra[index],))
    if before.dtype is not after.dtype:
        state.graph.effect(torch.set_default_dtype, (after.dtype,))


def _guard_entry(state: CaptureState, index: int, value: object) -> None:
    """The first time that captured code reads or changes a flag, it still is as it was when the frame began."""
    known = state.graph.flags_seen
    if index not in known:
        known.add(index)
        state.guards.add(None, "global_state", ((FLAGS[index][0], value),), label="GLOBAL_STATE")


def _reader(index: int) -> Any:
    def read(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        with torch._C.DisableTorchFunction():
            value = FLAGS[index][0]()
        _guard_entry(state, index, value)
        return value

    return read


def _writer(write: Any, written: Collection[int] = ()) -> Any:
    def run(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
        _changing(state, functools.partial(write, *[state.deep_resolve(arg) for arg in args], **kwargs), written)

    return run


for _index, (_read, _write) in enumerate(FLAGS):
    handler(_read)(_reader(_index))
    handler(_write)(_writer(_write, (_index,)))
handler(torch.set_default_dtype)(_writer(torch.set_default_dtype))


@handler(torch.backends.cudnn.set_flags)
def _set_cudnn_flags(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    before = cudnn_flags()
    if before is None:
        return NotImplemented
    _guard_entry(state, FLAGS.index((cudnn_flags, set_cudnn_flags)), before)
    _writer(torch.backends.cudnn.set_flags)(state, fn, args, kwargs)
    return before


@handler(torch.use_deterministic_algorithms)
def _use_deterministic(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    bound = {**dict(zip(("mode", "warn_only"), args)), **kwargs}
    wanted = bool(bound["mode"]), bool(bound.get("warn_only", False))
    _changing(state, lambda: set_deterministic(wanted), (FLAGS.index((deterministic, set_deterministic)),))


handler(modes.select_attention)(_writer(modes.select_attention))
handler(modes.write_flags)(_writer(modes.write_flags))


@handler(modes.attention_flags)
def _attention_flags(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    with torch._C.DisableTorchFunction():
        flags = modes.attention_flags(args[0] is True)
    for place, value in flags:
        _guard_entry(state, place, value)
    state.keep(flags)
    return flags


enter_late({"nn.attention.sdpa_kernel": instead(torch_polyfills.sdpa_kernel)})


# ---------------------------------------------------------------------- torch-function modes


class Entered:
    """A torch-function mode (or a device) that captured code has entered.

    Arguments:
        mode: the user's mode object, or a torch.device.
        sequence: number of the root instruction that entered it; -1 for a device that was entered before the frame.
    """

    __slots__ = ("mode", "sequence")

    def __init__(self, mode: object, sequence: int) -> None:
        self.mode = mode
        self.sequence = sequence


class SetDevice(Entered):
    """A default device that captured code has set. The graph ends before that unless it sets another, or none."""

    __slots__ = ()


@handler(torch.set_default_device)
def _set_default_device(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    entered: list[Entered] = state.graph.entered
    (device,) = (*args, *kwargs.values())
    if any(type(entry) is not SetDevice for entry in entered) or not (device is None or entered or _plain(device)):
        raise errors.graph_break(
            kind="torch function with outside effects",
            context="torch.set_default_device",
            explanation="The default device is set within other modes, or where it was set before.",
        )
    entered[:] = [] if device is None else [SetDevice(torch.device(cast("str", device)), state.interpreter.number)]
    return None


def _plain(device: object) -> bool:
    return type(device) is str or type(device) is torch.device


def enter_default_device(state: CaptureState, device: torch.device | None) -> None:
    """The frame begins where a device is the default one."""
    if device is not None:
        state.graph.entered.append(Entered(device, _BEFORE))


_BEFORE = -1


def check_end(state: CaptureState) -> None:
    """The graph ends while modes are entered.

    Raises:
        GraphBreak: captured code has entered one; or numpy's functions, which know no default device, are computed by
            torch's, which do.
    """
    entered: list[Entered] = state.graph.entered
    if opened := [entry for entry in entered if entry.sequence != _BEFORE]:
        raise still_open(opened)
    if state.arrays is not None and entered[0].mode != torch.device("cpu"):
        raise errors.graph_break(
            kind="call of numpy",
            context="default device",
            explanation=f"numpy is not captured where {entered[0].mode} is the default device.",
            skip_frame=True,
        )


def still_open(entered: list[Entered]) -> errors.GraphBreak:
    """The break for a mode that is entered when the graph ends: the graph ends before it instead."""
    stop = errors.graph_break(kind="graph ends inside a torch-function mode", context=type(entered[0].mode).__name__)
    stop.sequence = entered[0].sequence
    return stop


@handler(*all_of("_C._push_on_torch_function_stack"))
def _push_mode(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    state.graph.entered.append(Entered(args[0], state.interpreter.number))


@handler(*all_of("_C._pop_torch_function_stack"))
def _pop_mode(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if not state.graph.entered or isinstance(state.graph.entered[-1].mode, torch.device):
        raise errors.graph_break(
            kind="modes left out of order",
            context="torch-function mode",
            explanation="A torch-function mode is left that was not entered here, or not last.",
        )
    return state.graph.entered.pop().mode


def _enter_device(
    interp: Interpreter, cls: type, name: str, owner: object, args: list[object], kwargs: Kwargs
) -> object:
    state = interp.state
    state.graph.entered.insert(_devices(state), Entered(owner, getattr(interp, "number", -1)))
    return owner


def _exit_device(
    interp: Interpreter, cls: type, name: str, owner: object, args: list[object], kwargs: Kwargs
) -> object:
    state = interp.state
    count = _devices(state)
    before = not count or state.graph.entered[count - 1].sequence == _BEFORE
    if before or state.graph.entered[count - 1].mode != owner:
        raise errors.graph_break(
            kind="modes left out of order",
            context=f"torch.device({str(owner)!r})",
            explanation="A torch.device context is left that was not entered here, or not last.",
        )
    del state.graph.entered[count - 1]
    return None


@handler(*all_of("get_default_device"))
def _get_default_device(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    count = _devices(state)
    if not count:
        return guarded_constant(state, fn, args, kwargs)
    device: Any = state.graph.entered[count - 1].mode
    if device.index is None and device.type not in ("cpu", "meta"):
        raise errors.graph_break(
            kind="torch function with outside effects",
            context="torch.get_default_device",
            explanation=f"Which device {device.type!r} stands for depends on torch's state.",
            hints=("Give the device its number.",),
        )
    return device


def _devices(state: CaptureState) -> int:
    """How many of the entered modes are devices; they lie below the others, as torch keeps them."""
    return sum(isinstance(entry.mode, torch.device) for entry in state.graph.entered)


native_handlers.method(torch.device, "__enter__")(_enter_device)
native_handlers.method(torch.device, "__exit__")(_exit_device)


# ---------------------------------------------------------------------- sizes


@native_handlers.function(torch.Size)
def _size(interp: Interpreter, fn: Function, args: list[object], kwargs: Kwargs) -> object:
    """Asks each item for its number, and makes an error of its own of whatever that raises."""
    if len(args) != 1 or kwargs or not iteration.is_iterable(interp, args[0]):
        return interp.native(fn, *args, **kwargs)
    items = iteration.to_list(interp, args[0], hint=True)
    for item in items:
        if interp.is_tensor(item):
            raise errors.graph_break(
                kind="data-dependent value",
                context="torch.Size",
                explanation="A size is made of the values of tensors, which are known only when the program runs.",
                hints=("Make it of numbers.",),
            )
        if type(item) is not RAGGED and interp.types.python_level(type(item), "__index__"):
            raise native_handlers.python_object_in_native(fn, item)
    make = interp.unread if RAGGED in map(type, items) else interp.native
    return make(symbolic.size_of, [interp.plain(item) for item in items])
