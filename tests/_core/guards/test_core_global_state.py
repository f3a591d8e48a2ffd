"""The "global_state" check, and the functions of torch's libraries that it reads a thread's state with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from argand._core import _C, state_reads
from argand.capture.torch_functions import modes


@contextlib.contextmanager
def put(write: Callable[[Any], Any], value: Any, before: Any) -> Any:
    write(value)
    try:
        yield
    finally:
        write(before)


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "inference, grad mode as before": lambda: inference_with_grad(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of a GPU": lambda: put(
        lambda on: torch.set_autocast_enabled("cuda", on), True, torch.is_autocast_enabled("cuda")
    ),
    "autocast of a device that is not here": lambda: put(
        lambda on: torch.set_autocast_enabled("xpu", on), True, torch.is_autocast_enabled("xpu")
    ),
    "default dtype": lambda: put(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: put(torch.use_deterministic_algorithms, True, False),
    "dispatch mode": TorchDispatchMode,
    "function mode": TorchFunctionMode,
}


@contextlib.contextmanager
def inference_with_grad() -> Any:
    with torch.inference_mode(), torch.enable_grad():
        yield


def tree() -> _C.GuardTree:
    made = _C.GuardTree()
    made.check(0, "global_state", modes.guard_functions(), label="state")
    return made


def holds(guards: _C.GuardTree) -> bool:
    return guards.evaluate(()) is True


def test_every_function_that_guards_ask_has_a_stand_in() -> None:
    asked = {function for function, _ in modes.guard_functions()}
    assert {read[0] for read in state_reads.reads()} == asked | {torch._C._is_torch_function_enabled}


@pytest.mark.parametrize(
    "bars", [torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction, TorchDispatchMode]
)
def test_nobody_is_asked_to_capture_where_that_cannot_be(bars: Callable[[], Any]) -> None:
    asked: list[str] = []
    assert holds(tree())  # what reads the state is learnt with the first guards

    def inner() -> None:
        pass

    def program() -> None:
        inner()
        with bars():
            inner()
        inner()

    _C.run_with_callback(lambda info: asked.append(info.code.co_name), None, program)
    assert [name for name in asked if name in ("program", "inner")] == ["program", "inner", "inner"]


@pytest.mark.parametrize("state", STATES)
def test_a_changed_state_is_seen(state: str) -> None:
    outside = tree()
    for _ in range(3):
        assert holds(outside)
    for _ in range(2):
        with STATES[state]():
            inside = tree()
            assert not holds(outside) and holds(inside) and holds(inside)
        assert holds(outside) and not holds(inside)


def test_tracing_is_seen() -> None:
    guards, seen = tree(), []
    assert holds(guards) and holds(guards)

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(holds(guards))
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert seen == [False] and holds(guards)


def test_each_thread_has_its_own_state() -> None:
    guards, seen = tree(), []
    assert holds(guards) and holds(guards)

    def other() -> None:
        seen.append(holds(guards))  # grad mode is on in a new thread
        with torch.no_grad(), torch.autocast("cpu"):
            seen.append(holds(guards))
            changed.set()
            go_on.wait(60)
        seen.append(holds(guards))

    changed, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    changed.wait(60)
    assert holds(guards)
    go_on.set()
    thread.join()
    assert seen == [True, False, True]


def test_a_stand_in_that_disagrees_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    grad, inference = "_ZN3c108GradMode10is_enabledEv", "_ZN3c1013InferenceMode10is_enabledEv"
    real = state_reads._address
    monkeypatch.setattr(
        state_reads, "_address", lambda library, symbol: real(library, inference if symbol == grad else symbol)
    )
    asked = [read[0] for read in state_reads.reads()]
    assert torch.is_grad_enabled not in asked and torch.is_inference_mode_enabled in asked
    with torch.no_grad():  # the two agree now, and part when grad mode is changed
        assert torch.is_grad_enabled not in [read[0] for read in state_reads.reads()]


def test_a_name_that_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(library: str, symbol: str) -> int:
        raise AttributeError(symbol)

    monkeypatch.setattr(state_reads, "_address", nowhere)
    assert state_reads.reads() == []
