"""The state of a thread that a compile changes while it runs, and that is the same after it, whatever happens.

The core takes a `snapshot` where a compile begins and calls `restore` where it ends, also when an exception comes from
outside (Ctrl-C, a signal, out of memory) at a moment when no `finally` could run. Context variables need nothing: a
compile runs in a copy of them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from argand.errors import ArgandError
from argand.graph import builtin_names, compat
from argand.graph.compat import FLAGS, Setting, settings_of
from argand.quick_dataclasses import dataclass

_DEVICES = ("cpu", "cuda")
_OWN = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
)


def _autocast() -> tuple[Setting, ...]:
    def of(device: str) -> tuple[Setting, Setting]:
        return (
            (lambda: torch.is_autocast_enabled(device), lambda on: torch.set_autocast_enabled(device, on)),
            (lambda: torch.get_autocast_dtype(device), lambda dtype: torch.set_autocast_dtype(device, dtype)),
        )

    return tuple(setting for device in _DEVICES for setting in of(device))


def _nesting() -> int:
    inside = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return int(inside) - 1


def _set_nesting(wanted: int) -> None:
    while _nesting() < wanted:
        torch.autocast_increment_nesting()
    while _nesting() > wanted:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


_MODE_FLAGS = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]


def _mode_flags() -> tuple[Any, ...]:
    return tuple([getattr(_python_dispatch, name) for name in _MODE_FLAGS])


def _set_mode_flags(values: tuple[Any, ...]) -> None:
    for name, value in zip(_MODE_FLAGS, values):
        setattr(_python_dispatch, name, value)
    tell = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    if tell is not None and len(values) == 3:
        tell(values[2])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(wanted: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*wanted)


def _set_inference(wanted: bool) -> None:
    guard = torch._C._InferenceMode(wanted)
    guard.__enter__()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(guard))  # for good: its end would set the mode back


def _key_sets() -> tuple[str, str, Any, Any]:
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return repr(included), repr(excluded), included, excluded


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _infra_keys() -> list[Any]:
    return list(getattr(torch._C._TorchDispatchModeKey, "__members__", {}).values())


def _dispatch_modes() -> tuple[list[Any], list[Any]]:
    """The modes of torch's own, by key, and the other ones as they are stacked."""
    infra = [torch._C._get_dispatch_mode(key) for key in _infra_keys()]
    others = torch._C._len_torch_dispatch_stack() - sum(mode is not None for mode in infra)
    return infra, [torch._C._get_dispatch_stack_at(i) for i in range(others)]


def _settings() -> tuple[Setting, ...]:
    """What can be read and written as it is. Grad mode comes after inference mode, which changes it."""
    return (
        *settings_of(
            torch._C,
            [
                ("_get_torch_function_state", "_set_torch_function_state"),
                ("_is_multithreading_enabled", "_set_multithreading_enabled"),
                ("_is_view_replay_enabled", "_set_view_replay_enabled"),
                ("_get_tracing_state", "_set_tracing_state"),
            ],
        ),
        (torch.is_inference_mode_enabled, _set_inference),
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        *_autocast(),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (_nesting, _set_nesting),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_mode_flags, _set_mode_flags),
        (_anomaly, _set_anomaly),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        *FLAGS,
    )


_SETTINGS = _settings()


@dataclass(frozen=True, slots=True)
class Ambient:
    """A thread's state at one moment.

    Fields:
        settings: values of _SETTINGS.
        function_modes, dispatch_modes: stacks of torch's modes.
        functorch: depth of the stack of function transforms.
        saved_tensor_hooks: the innermost pair.
        keys: dispatch keys that this thread includes and excludes.
        random: state of the CPU's random number generator.
        warned: filters and the functions that show warnings.
        collects: the garbage collector is on.
    """

    settings: tuple[Any, ...]
    function_modes: list[Any]
    dispatch_modes: tuple[list[Any], list[Any]]
    functorch: int
    saved_tensor_hooks: Any
    keys: tuple[str, str, Any, Any]
    random: torch.Tensor
    warned: tuple[Any, ...]
    collects: bool


_WARNED = ("filters", "showwarning", "_showwarnmsg_impl", "_showwarnmsg")


def snapshot() -> Ambient | None:
    """This thread's state now; None while Python's builtins are replaced, when nothing is compiled."""
    if not builtin_names.are_pythons():
        return None
    return Ambient(
        tuple([read() for read, _ in _SETTINGS]),
        _function_modes(),
        _dispatch_modes(),
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        _top_hooks(),
        _key_sets(),
        torch.random.default_generator.get_state(),
        tuple([getattr(warnings, name, None) for name in _WARNED]),
        gc.isenabled(),
    )


def restore(before: Ambient | None, error: BaseException | None) -> None:
    """Make this thread's state what it was. May be begun several times, and does then what is left to do.

    Arguments:
        error: what the compile raised. If it was not argand's own, the frames that it left are emptied first: they own
            guards whose end sets torch's state.
    """
    if before is None:
        return
    foreign = error is not None and not isinstance(error, ArgandError)
    if foreign and error is not None:
        _empty_frames(error)
    _restore_modes(before)
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    if depth > before.functorch:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(before.functorch)
    if foreign:
        while (hooks := _top_hooks()) is not None and hooks != before.saved_tensor_hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()
    for (read, write), value in zip(_SETTINGS, before.settings):
        if read() != value:
            write(value)
    _restore_keys(before.keys)
    if before.collects and not gc.isenabled():
        gc.enable()  # never off: it may be that another thread's compile has switched it off for a while
    if foreign:
        _restore_process(before)


def _restore_process(before: Ambient) -> None:
    """What other threads see too, and a compile that ends by itself has put back."""
    for name, value in zip(_WARNED, before.warned):
        if value is not None and getattr(warnings, name) is not value:
            setattr(warnings, name, value)
            warnings._filters_mutated() if hasattr(warnings, "_filters_mutated") else None
    generator = torch.random.default_generator
    if not torch.equal(generator.get_state(), before.random):
        generator.set_state(before.random)


def _top_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def _restore_modes(before: Ambient) -> None:
    now = _function_modes()
    for _ in range(len(now) - _in_common(now, before.function_modes)):
        torch._C._pop_torch_function_stack()
    for mode in before.function_modes[torch._C._len_torch_function_stack() :]:
        torch._C._push_on_torch_function_stack(mode)
    infra, others = _dispatch_modes()
    for _ in range(len(others) - _in_common(others, before.dispatch_modes[1])):
        torch._C._pop_torch_dispatch_stack(None)
    for mode in before.dispatch_modes[1][len(_dispatch_modes()[1]) :]:
        torch._C._push_on_torch_dispatch_stack(mode)
    for key, is_set, wanted in zip(_infra_keys(), infra, before.dispatch_modes[0]):
        if is_set is not wanted:
            if is_set is not None:
                torch._C._unset_dispatch_mode(key)
            if wanted is not None:
                torch._C._set_dispatch_mode(wanted)


def _in_common(now: list[Any], before: list[Any]) -> int:
    """How many entries at the bottom of two stacks are the same."""
    for i, (a, b) in enumerate(zip(now, before)):
        if a is not b:
            return i
    return min(len(now), len(before))


def _restore_keys(before: tuple[str, str, Any, Any]) -> None:
    now = _key_sets()
    if now[:2] == before[:2]:
        return
    switches = (torch._C._dispatch_tls_set_dispatch_key_included, torch._C._dispatch_tls_set_dispatch_key_excluded)
    for key in torch._C.DispatchKey.__members__.values():
        for switch, was, is_now in zip(switches, before[2:], now[2:]):
            if was.has(key) != is_now.has(key):
                switch(key, was.has(key))


def _empty_frames(error: BaseException) -> None:
    for frame in _left_frames(error):
        try:
            frame.clear()
        except RuntimeError:  # it is still running
            continue


def _left_frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of argand's and of torch's that an exception has left; the innermost come last."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        exc = todo.pop()
        if exc is None or id(exc) in seen:
            continue
        seen.add(id(exc))
        todo += [exc.__context__, exc.__cause__]
        step = exc.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename.startswith(_OWN):
                yield step.tb_frame
            step = step.tb_next


def cannot_capture() -> bool:
    """A mode is active under which torch calls mean something else (user's torch-function or dispatch modes, functorch,
    forward-mode gradients, tracing, subclass contexts): frames run eagerly."""
    return (
        forward_ad._current_level >= 0
        or (torch._C._len_torch_function_stack() > 0 and compat.default_device() is None)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or not torch._C._is_torch_function_enabled()
        or _python_dispatch._get_current_dispatch_mode() is not None
    )


def saved_tensor_hooks_allowed() -> bool:
    """Nobody has forbidden them in this thread."""
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None
