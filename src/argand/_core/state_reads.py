"""Functions in torch's libraries that `_C` reads the state of a thread with, in place of Python functions that say the
same (see guards/guard_state.c).

A guard asks eight of torch's Python functions (grad mode, autocast, ...), 0.4 us a call of a compiled function. Behind
each is a C++ function without arguments, or with one that never changes, whose answer is a number. It is looked up by
its name in the libraries that this process has loaded and taken only if its numbers agree with what Python says, before
and after the state is changed where a change is seen by this thread alone. A name that a version of torch lacks is left
out: then the Python function is asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from argand.quick_dataclasses import dataclass

PLAIN, POINTED, OF_OBJECT, OF_NUMBER = range(4)
"""How a function is called, as in guard_state.c: `int64 f()`, `void **f()` whose target counts, `bool f(object)`,
`bool f(uint64)`."""
ANY = -1
_GRAD = "_ZN3c108GradMode10is_enabledEv"


@dataclass(frozen=True)
class Read:
    """A function that answers for a Python function.

    Arguments:
        asked: the Python function.
        library, symbol: where its stand-in is.
        kind: how that is called.
        bits: of its result that count: 8 of a bool, 64 of a number.
        number: what it says when Python gives an answer; None when it cannot be told.
        certain: the one number that means one answer of Python; ANY: each does.
        changed: what changes the state of this thread while it is entered; None: nothing does, or other threads see it.
        argument: makes what is passed.
        bars: nothing is captured while it is not 0.
    """

    asked: Callable[[], object]
    library: str
    symbol: str
    kind: int
    bits: int
    number: Callable[[Any], int | None]
    certain: int = ANY
    changed: Callable[[], contextlib.AbstractContextManager[object]] | None = None
    argument: Callable[[], int] = lambda: 0
    bars: bool = False


def reads() -> list[tuple[Callable[[], object], int, int, int, int, int, bool]]:
    """(Python function, kind, bits, address, argument, certain, bars) of those that can be trusted here."""
    taken = []
    for read in _candidates():
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
            address, argument = _address(read.library, read.symbol), read.argument()
            call = _caller(read, address, argument)
            if _agrees(read, call):
                taken.append((read.asked, read.kind, read.bits, address, argument, read.certain, read.bars))
    return taken


def _agrees(read: Read, call: Callable[[], int]) -> bool:
    before = _number(read)
    if before is None or call() != before:
        return False
    if read.changed is None:
        return True
    with read.changed():
        changed = read.asked(), call()
    number = read.number(changed[0])
    told_apart = changed[1] != before and (number is None or changed[1] == number)
    return told_apart and call() == before


def _number(read: Read) -> int | None:
    return read.number(read.asked())


def _address(library: str, symbol: str) -> int:
    import torch

    path = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib", library)
    loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return ctypes.cast(getattr(loaded, symbol), ctypes.c_void_p).value or 0


def _caller(read: Read, address: int, argument: int) -> Callable[[], int]:
    """The same call that guard_state.c makes."""
    result = ctypes.c_void_p if read.kind == POINTED else {8: ctypes.c_uint8, 64: ctypes.c_int64}[read.bits]
    takes: tuple[Any, ...] = {OF_OBJECT: (ctypes.c_void_p,), OF_NUMBER: (ctypes.c_uint64,)}.get(read.kind, ())
    function = ctypes.CFUNCTYPE(result, *takes)(address)
    arguments = (argument,) if takes else ()
    if read.kind == POINTED:
        return lambda: ctypes.c_void_p.from_address(function()).value or 0
    return lambda: int(function(*arguments))


def _candidates() -> Iterator[Read]:
    import torch

    c = torch._C
    types = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # c10::ScalarType
    yield Read(torch.is_grad_enabled, "libc10.so", _GRAD, PLAIN, 8, int, changed=_flipped_grad)
    yield Read(
        torch.is_inference_mode_enabled, "libc10.so", "_ZN3c1013InferenceMode10is_enabledEv", PLAIN, 8, int,
        changed=lambda: torch.inference_mode(not torch.is_inference_mode_enabled()),
    )  # fmt: skip
    yield Read(
        c._is_any_autocast_enabled, "libc10.so", "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE",
        OF_NUMBER, 8, lambda on: None if on else 1, certain=1, changed=lambda: torch.autocast("cpu", torch.bfloat16),
        argument=_autocast_keys,
    )  # fmt: skip
    yield Read(torch.get_default_dtype, "libc10.so", "_ZN3c1031get_default_dtype_as_scalartypeEv", PLAIN, 8, types.get)
    yield Read(
        c._get_deterministic_algorithms, "libtorch_cpu.so", "_ZNK2at7Context23deterministicAlgorithmsEv", OF_OBJECT, 8,
        int, argument=_context,
    )  # fmt: skip
    yield Read(
        c._len_torch_dispatch_stack, "libc10.so", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", PLAIN, 64, int,
        changed=_dispatch_mode, bars=True,
    )  # fmt: skip
    yield Read(
        c._get_tracing_state, "libtorch_cpu.so", "_ZN5torch3jit6tracer15getTracingStateEv", POINTED, 64,
        lambda state: None if state is not None else 0, certain=0,
    )  # fmt: skip
    yield Read(
        c._len_torch_function_stack, "libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", PLAIN, 64,
        int, changed=_function_mode,
    )  # fmt: skip
    yield Read(
        c._is_torch_function_enabled, "libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
        PLAIN, 8, lambda on: 0 if on else None, certain=0, changed=c.DisableTorchFunctionSubclass, bars=True,
    )  # fmt: skip


@contextlib.contextmanager
def _flipped_grad() -> Iterator[None]:
    import torch

    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(not before)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)


def _autocast_keys() -> int:
    """The dispatch keys of autocast on all devices, one bit each: all are excluded while none is on."""
    import torch

    keys: Iterable[Any] = torch._C.DispatchKey.__members__.items()
    bits = 0
    for name, key in keys:
        if name.startswith("Autocast"):
            bits |= int(torch._C.DispatchKeySet(key).raw_repr())
    return bits


def _context() -> int:
    """The one object of torch's settings."""
    function = ctypes.CFUNCTYPE(ctypes.c_void_p)(_address("libtorch_cpu.so", "_ZN2at13globalContextEv"))
    return int(function() or 0)


def _dispatch_mode() -> contextlib.AbstractContextManager[object]:
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode()


def _function_mode() -> contextlib.AbstractContextManager[object]:
    from torch.overrides import TorchFunctionMode

    return TorchFunctionMode()
