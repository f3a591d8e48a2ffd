"""torch's state that captured code may change: grad mode, inference mode, autocast, default dtype."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.nn import attention

from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import ConstSource, DictItemSource
from argand.capture.torch_functions.grad_mode import put_back_grad
from argand.graph import compat
from argand.graph.compat import FLAGS as FLAGS
from argand.graph.compat import set_deterministic as set_deterministic
from argand.quick_dataclasses import dataclass
from argand.runtime.recipes import with_recipe

_DEVICES = ("cpu", "cuda")


def flags() -> tuple[object, ...]:
    """The values of `compat.FLAGS` now."""
    return tuple([read() for read, _ in compat.FLAGS])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at one moment."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_cache: bool
    nesting: int
    dtype: torch.dtype
    extra: tuple[Any, ...] = field(default=())


def snapshot() -> Snapshot:
    """Read the state now."""
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return Snapshot(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
        torch.is_autocast_cache_enabled(),
        nesting - 1,
        torch.get_default_dtype(),
        flags(),
    )


def difference(before: Snapshot, after: Snapshot) -> list[tuple[Callable[..., object], tuple[object, ...]]]:
    """The calls that turn the state `before` into `after`."""
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
    if before.grad != after.grad:
        calls.append((torch._C._set_grad_enabled, (after.grad,)))
    for (device, was, dtype), (_, now, new_dtype) in zip(before.autocast, after.autocast):
        if was != now:
            calls.append((torch.set_autocast_enabled, (device, now)))
        if dtype is not new_dtype:
            calls.append((torch.set_autocast_dtype, (device, new_dtype)))
    if before.autocast_cache != after.autocast_cache:
        calls.append((torch.set_autocast_cache_enabled, (after.autocast_cache,)))
    for _ in range(after.nesting - before.nesting):
        calls.append((torch.autocast_increment_nesting, ()))
    for _ in range(before.nesting - after.nesting):
        calls.append((torch.autocast_decrement_nesting, ()))
    if before.dtype is not after.dtype:
        calls.append((torch.set_default_dtype, (after.dtype,)))
    for (_, write), was, now in zip(compat.FLAGS, before.extra, after.extra):
        if was != now:
            calls.append((write, (now,)))
    return calls


@contextlib.contextmanager
def restored() -> Iterator[Snapshot]:
    """Whatever happens inside, the state is as before afterwards."""
    before = snapshot()
    try:
        yield before
    finally:
        after = snapshot()
        if after != before:
            for function, args in difference(after, before):
                function(*args)


def changed_by(graph: fx.Graph) -> str:
    """What of torch's state running a graph changes on the way: "" nothing, "grad" grad mode only, "more"."""
    writers = {node.target for node in graph.nodes if node.op == "call_function" and node.target in _WRITERS}
    return "more" if writers - {torch._C._set_grad_enabled} else "grad" if writers else ""


_WRITERS = frozenset(
    [
        torch._C._set_grad_enabled,
        torch.set_default_dtype,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.amp.autocast_mode._enter_autocast,
        *(write for _, write in compat.FLAGS),
    ]
)


def put_back_on_error(run: Function, changes: str) -> Callable[..., object]:
    """A compiled graph that, when an operation in it raises, leaves torch's state as it found it.

    Arguments:
        changes: what the graph changes, of `changed_by`.
    """
    return put_back_grad(run) if changes == "grad" else put_back_all(run)


def put_back_all(run: Function) -> Callable[..., object]:
    """A compiled graph that leaves all of torch's state as it found it when an operation in it raises."""

    def with_all(*args: object) -> object:
        before = snapshot()
        try:
            return run(*args)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # the graph's frame owns what ends inference mode
            for function, values in difference(snapshot(), before):
                function(*values)
            raise

    return with_recipe(with_all, "put back modes", lambda: (run,))


def guard_functions(device: torch.device | None = None) -> tuple[tuple[Callable[[], object], object], ...]:
    """(function, value now) pairs: compiled code is valid only while these hold.

    Arguments:
        device: the default device at the frame's entry, whose mode is off while the frame is captured.
    """
    checks: list[Callable[[], object]] = [
        torch.is_grad_enabled, torch.is_inference_mode_enabled, torch._C._is_any_autocast_enabled,
        torch.get_default_dtype, torch._C._get_deterministic_algorithms, torch._C._len_torch_dispatch_stack,
        torch._C._get_tracing_state,
    ]  # fmt: skip
    answers: list[tuple[Callable[[], object], object]] = [(check, check()) for check in checks]
    if device is None:
        answers.append((torch._C._len_torch_function_stack, torch._C._len_torch_function_stack()))
    else:
        answers.append((compat.default_device, device))
    if torch.are_deterministic_algorithms_enabled():
        fills = torch._C._get_deterministic_fill_uninitialized_memory
        answers.append((fills, fills()))
    if torch._C._is_any_autocast_enabled():
        answers.append((autocast_state, autocast_state()))
    return tuple(answers)


def guard_surroundings(state: CaptureState) -> None:
    """Guard what the meaning of the whole frame depends on."""
    state.autocast = autocast_state()
    outside = [entry.mode for entry in state.graph.entered]
    state.guards.add(None, "global_state", guard_functions(outside[0] if outside else None))
    # Tensors have tangents only while a level is open, and nothing else about them tells.
    level = DictItemSource(ConstSource(vars(forward_ad)), "_current_level")
    state.guards.add(level, "equals", forward_ad._current_level, label="GLOBAL_STATE", shown=False)


def guard_transforms(state: CaptureState) -> None:
    """Guard that no transform of torch.func is active: under vmap random numbers are drawn otherwise. Transforms of
    tensors need no guard, for their tensors are of another kind."""
    state.guards.add(None, "global_state", ((torch._C._functorch.peek_interpreter_stack, None),))


def guard_current_gpu(state: CaptureState) -> None:
    """Guard which GPU is the current one where tensors are made on one: `device="cuda"` means that."""
    devices = {info.node: info.device for info in state.graph.tensors.values()}
    for node, device in devices.items():
        if device.type != "cuda" or node.op in ("placeholder", "get_attr"):
            continue
        if all(devices.get(given) != device for given in node.all_input_nodes):
            with contextlib.suppress(AssertionError, RuntimeError):  # there is none: the program will say so
                state.guards.add(None, "global_state", ((torch.cuda.current_device, torch.cuda.current_device()),))
            return


def autocast_state() -> tuple[object, ...]:
    """Which devices autocast to which type, or would, and whether casts are kept."""
    kinds = tuple([(d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in _DEVICES])
    return (*kinds, torch.is_autocast_cache_enabled())


def guard_autocast(state: CaptureState) -> None:
    """Captured code reads a setting of autocast, which it has while autocast is off too: guarded as it was at the
    frame's entry, for captured code itself may change it."""
    state.guards.add(None, "global_state", ((autocast_state, state.autocast),), label="GLOBAL_STATE")


# ---------------------------------------------------------------------- called by interpreted helpers


def attention_flags(with_priority: bool) -> tuple[tuple[int, object], ...]:
    """What the end of torch.nn.attention.sdpa_kernel puts back: (place in compat.FLAGS, value)."""
    kinds = ("_get_sdp_priority_order",) if with_priority else ()
    return tuple(
        [
            (place, read())
            for place, (read, _) in enumerate(compat.FLAGS)
            if read.__name__.endswith("_sdp_enabled") or read.__name__ in kinds
        ]
    )


def write_flags(values: tuple[tuple[int, object], ...]) -> None:
    """Make some of compat.FLAGS what they were."""
    for place, value in values:
        read, write = compat.FLAGS[place]
        if read() != value:
            write(value)


def select_attention(backends: Any, set_priority: bool) -> None:
    """What entering torch.nn.attention.sdpa_kernel does."""
    chosen = [backends] if isinstance(backends, attention.SDPBackend) else list(dict.fromkeys(backends))
    attention._sdpa_kernel(chosen, set_priority)
