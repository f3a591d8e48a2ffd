"""Exceptions from outside (Ctrl-C, signals, other threads, no memory) while compiling: nothing is left behind.

`python tests/fuzz/interrupts.py --stride 1` tries every line, call and return of a compile.
"""

from __future__ import annotations

import ctypes
import dis
import logging
import random
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _python_dispatch

import argand
import sweeps
from argand import interruptions
from argand._core import _C
from argand._core.calls import locked
from argand.capture.interp.interpreter import Interpreter

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

import interrupts


@pytest.fixture(autouse=True)
def lock_of_logging() -> Iterator[None]:
    """What comes between logging's acquiring its lock and its `try` leaves it held, for which other threads then wait."""
    yield
    while logging._lock._is_owned():  # type: ignore[attr-defined]
        logging._lock.release()  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [0, 3, 4, 7, 8, 11, 13] if sweeps.WHOLE else [0, 4, 7, 13])
def test_interrupted_at_moments_of_a_compile(number: int) -> None:
    case = interrupts.CASES[number]
    found = interrupts.moments(case, everywhere=False)
    chosen = found[number :: len(found) // 5]
    tried = [interrupts.attempt(case, at, times, KeyboardInterrupt, False) for at, times in chosen]
    assert sum(came for came, _ in tried) >= 3
    assert [problems for _, problems in tried if problems] == []


@pytest.mark.parametrize(
    ("name", "case"),
    sweeps.chessboard(
        ["SystemExit", "MemoryError", "RecursionError", "Stop"],
        [interrupts.Case("eager"), interrupts.Case("aot_eager", True, True)],
    ),
    ids=lambda value: getattr(value, "backend", value),
)
def test_other_exceptions_at_moments_of_a_compile(name: str, case: interrupts.Case) -> None:
    found = interrupts.moments(case, everywhere=False)
    for at, times in found[len(name) :: len(found) // 5]:
        problems = interrupts.attempt(case, at, times, interrupts.EXCEPTIONS[name], False)[1]
        if name == "RecursionError" and problems == ["nothing was compiled afterwards"]:
            continue  # taken for the program's own depth where it comes while the program is interpreted
        assert problems == []


def moments_of(function: Any, case: interrupts.Case, event: str) -> list[tuple[interrupts.Moment, int]]:
    code = function.__code__
    lines = range(code.co_firstlineno, max(line or 0 for _, _, line in code.co_lines()) + 1)
    found = interrupts.moments(case, everywhere=True)
    return [(at, n) for at, n in found if at[0] == code.co_filename and at[1] in lines and at[2] == event]


@pytest.mark.parametrize(
    ("function", "event"),
    [
        (_python_dispatch.TorchDispatchMode.__enter__, "return"),
        (_python_dispatch.TorchDispatchMode.__exit__, "line"),
        (torch.autograd.set_multithreading_enabled.__init__, "return"),
        (torch.set_grad_enabled.__init__, "return"),
        (argand.events.bus.span.__wrapped__, "line"),
    ],
    ids=["mode enter", "mode exit", "threads", "grad enter", "span"],
)
def test_interrupted_between_entering_a_context_and_its_block(function: Any, event: str) -> None:
    case = interrupts.Case("aot_eager", train=True)
    found = moments_of(function, case, event)
    assert found
    for at, times in found[:6]:
        came, problems = interrupts.attempt(case, at, times, KeyboardInterrupt, True)
        assert came and problems == []


def test_exit_from_a_signal_handler_is_not_what_native_code_raised() -> None:
    case = interrupts.Case("eager")
    found = moments_of(Interpreter.native, case, "line")
    assert found
    for at, times in found:
        came, problems = interrupts.attempt(case, at, times, SystemExit, True)
        assert came and problems == []


def test_state_is_put_back_although_interrupted_again_and_again() -> None:
    from argand.graph import thread_state

    left = [4]

    def restore(before: Any, error: BaseException | None) -> None:
        thread_state.restore(before, error)
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt("again")

    def leave_everything() -> None:
        torch.rand(3)
        torch.set_grad_enabled(False).__enter__()
        torch.set_default_dtype(torch.float64)
        torch.inference_mode().__enter__()
        _python_dispatch.TorchDispatchMode().__enter__()
        torch.autograd.set_multithreading_enabled(False)
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
        torch._C._functorch._vmap_increment_nesting(3, "error")
        warnings.catch_warnings().__enter__()
        torch._C.DisableTorchFunction().__enter__()
        torch.overrides.TorchFunctionMode().__enter__()
        raise ValueError("left in the middle")

    argand.compile(lambda: 0, backend="eager")
    before = interrupts.ambient()
    _C.set_ambient(thread_state.snapshot, restore)
    try:
        with pytest.raises(ValueError, match="left in the middle"):
            _C.call_restoring(leave_everything)
        assert left == [0]
        assert interrupts.ambient() == before
        left[0] = 1
        with pytest.raises(KeyboardInterrupt):
            _C.call_restoring(lambda: None)  # an interrupt is not lost, though the call itself went well
    finally:
        _C.set_ambient(thread_state.snapshot, thread_state.restore)


def test_lock_is_released_whatever_line_raises() -> None:
    class Counted:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        @locked
        def work(self, left: int) -> int:
            left -= 1
            return left

    counted = Counted()
    for stop_at in range(12):
        seen = [0]

        def trace(frame: Any, event: str, arg: Any, stop_at: int = stop_at, seen: list[int] = seen) -> Any:
            seen[0] += 1
            if seen[0] == stop_at:
                raise KeyboardInterrupt
            return trace

        old = sys.gettrace()
        sys.settrace(trace)
        try:
            counted.work(3)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        assert not counted.lock.locked()


SECONDS = 1.5 if sweeps.WHOLE else 0.5


def run_interrupted(arm: Any, disarm: Any, error: type[BaseException], seconds: float) -> int:
    """Compile again and again while exceptions come at random moments; how many did."""
    case = interrupts.Case("aot_eager", train=True)
    case.results(argand.compile(interrupts.new_function(), backend="aot_eager"))
    expected = case.results(interrupts.new_function())
    before = interrupts.ambient()
    rng, hit, end = random.Random(5), 0, time.time() + seconds
    while time.time() < end or hit < 3:
        argand.reset()
        plain = interrupts.new_function()
        compiled = argand.compile(plain, backend="aot_eager")
        try:
            arm(rng.random() * 0.1)
            try:
                case.results(compiled)
            finally:
                disarm()
        except error:
            hit += 1
        after = interrupts.ambient()
        assert {key: after[key] for key in after if after[key] != before[key] and key != "threads"} == {}
        assert interrupts.same(case.results(compiled), expected)
        assert interrupts.compiled_graphs(plain)
    return hit


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_signals_at_random_moments(error: type[BaseException]) -> None:
    def handler(number: int, frame: Any) -> None:
        raise error

    old = signal.signal(signal.SIGALRM, handler)
    try:
        arm = lambda delay: signal.setitimer(signal.ITIMER_REAL, delay + 1e-5)  # noqa: E731
        assert run_interrupted(arm, lambda: signal.setitimer(signal.ITIMER_REAL, 0), error, SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


class Late(Exception):
    """What a program has one thread tell another."""


@pytest.mark.parametrize("error", [interrupts.Stop, Late])
def test_exceptions_sent_by_another_thread(error: type[BaseException]) -> None:
    target, pending = threading.get_ident(), []

    def send() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(error))

    def arm(delay: float) -> None:
        pending.append(threading.Timer(delay, send))
        pending[-1].start()

    def disarm() -> None:
        timer = pending.pop()
        timer.cancel()
        timer.join()
        for _ in range(100):  # one that was sent too late for the compile comes here
            time.sleep(0)

    assert run_interrupted(arm, disarm, error, SECONDS)


def test_system_exit_from_a_signal_handler_is_not_the_programs() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            values = sorted([3, 1, 2], key=lambda v: v)
            return x + len(values)
        except SystemExit:
            return x * 100

    compiled = argand.compile(program, backend="eager")

    def stop_at_native(frame: Any, event: str, arg: Any) -> Any:
        if event == "call" and frame.f_code.co_qualname == "Interpreter.native" and frame.f_locals["fn"] is sorted:
            raise SystemExit
        return None

    sys.settrace(stop_at_native)
    try:
        compiled(torch.ones(2))
    except SystemExit:
        pass
    finally:
        sys.settrace(None)
    assert compiled(torch.ones(2)).tolist() == [4, 4]


def test_program_that_exits_still_does() -> None:
    def program(x: torch.Tensor, code: int) -> torch.Tensor:
        try:
            sys.exit(code)
        except SystemExit as error:
            return x + int(error.code or 0)

    compiled = argand.compile(program, backend="eager")
    assert compiled(torch.ones(2), 3).tolist() == [4, 4]

    def leaves(x: torch.Tensor) -> None:
        x.add_(1)
        sys.exit(7)

    x = torch.zeros(2)
    with pytest.raises(SystemExit) as found:
        argand.compile(leaves, backend="eager")(x)
    assert found.value.code == 7 and x.tolist() == [1, 1]


def test_an_exception_that_comes_where_a_generator_goes_on_was_sent() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield int("2")

    frame = numbers().gi_frame  # type: ignore[attr-defined]
    places = {place.offset: place for place in dis.get_instructions(frame.f_code)}
    entries = [at for at, place in places.items() if place.opname == "RESUME"]
    assert len(entries) == 3
    calls = [at for at, place in places.items() if place.opname.startswith(("CALL", "PRECALL"))]
    for at in (*entries, *calls):  # CPython 3.11 does some calls in what comes before them
        for error in (ValueError("two"), Late()):
            raised = error.with_traceback(types.TracebackType(None, frame, at, frame.f_lineno))
            assert interruptions.is_of_handler(raised) is (at in entries or type(error) is Late)
