"""Exceptions that come from outside at every line of a compile: `python tests/fuzz/interrupts.py --stride 1`.

A trace function raises at the n-th line that a compile executes, from the capture to the loaded code. Afterwards the
thread must be as it was before, and the next call must compile and give eager's result.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import argand
from argand._core import _C

OWN = os.path.dirname(os.path.abspath(argand.__file__)) + os.sep


class Stop(BaseException):
    """An exception that nobody but the sweep raises."""


EXCEPTIONS: dict[str, type[BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "Stop": Stop,
}


def ambient() -> dict[str, Any]:
    """Everything of the thread and of the process that a compile may change while it runs."""
    c = torch._C
    get = argand.events.bus
    return {
        "function modes": c._len_torch_function_stack(),
        "dispatch modes": c._len_torch_dispatch_stack(),
        "torch function": c._is_torch_function_enabled(),
        "functorch": c._functorch.peek_interpreter_stack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), c._get_deterministic_algorithms()),
        "multithreading": c._is_multithreading_enabled() if hasattr(c, "_is_multithreading_enabled") else None,
        "view replay": c._is_view_replay_enabled() if hasattr(c, "_is_view_replay_enabled") else None,
        "dispatch include": str(c._dispatch_tls_local_include_set()),
        "dispatch exclude": str(c._dispatch_tls_local_exclude_set()),
        "saved tensor hooks": c._autograd._top_saved_tensors_default_hooks(False),
        "anomaly": torch.is_anomaly_enabled(),
        "random": torch.get_rng_state().sum().item(),
        "filters": (id(warnings.filters), list(warnings.filters)),
        "showwarning": (warnings.showwarning, warnings._showwarnmsg_impl, warnings._showwarnmsg),  # type: ignore[attr-defined]
        "collector": gc.isenabled(),
        "recursion limit": sys.getrecursionlimit(),
        "callback": _C.get_callback(),
        "hook": _C.is_hook_installed(),
        "threads": threads_left(),
        "compile id": get.compile_id,
        "span": get._path.get(),
        "sinks": (get.sinks, dict(get.named)),
    }


def threads_left() -> int:
    """How many threads run. Compilers of C++ that work beside Python may need a while to end; who does not end is counted."""
    until = time.monotonic() + 120
    while any(thread.name.startswith("argand") for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.001)
    return threading.active_count()


def held_locks() -> list[str]:
    """The locks of argand's objects that are held by anybody."""
    found = []
    holders = {id(cls) for cls in _classes() if cls.__module__.startswith("argand")}  # other tests' classes may be odd
    for obj in [obj for obj in gc.get_objects() if id(type(obj)) in holders]:
        for name in ("lock", "_lock"):
            lock = getattr(obj, name, None)
            if type(lock) is LOCK and lock.locked() or type(lock) is RLOCK and lock._is_owned():
                found.append(f"{type(obj).__module__}.{type(obj).__name__}.{name}")
    return found


LOCK, RLOCK = type(threading.Lock()), type(threading.RLock())


def _classes() -> Iterator[type]:
    """Classes of argand's modules whose code mentions a lock."""
    for name, module in list(sys.modules.items()):
        if name.startswith("argand."):
            for value in list(vars(module).values()):
                init = getattr(value, "__init__", None) if isinstance(value, type) else None
                if {"lock", "_lock"} & set(getattr(getattr(init, "__code__", None), "co_names", ())):
                    yield value


Moment = tuple[str, int, str]
"""(file, line, event) at which a trace function is called."""


class Tracer:
    """A trace function for argand's code, or any code: counts moments, and raises when one comes for the n-th time."""

    def __init__(self, at: Moment | None, times: int, error: type[BaseException], everywhere: bool) -> None:
        self.at = at
        self.left = times
        self.error = error
        self.everywhere = everywhere
        self.raised = False
        self.counts: dict[Moment, int] = {}

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        filename = frame.f_code.co_filename
        if self.at is not None:
            if filename != self.at[0] or self.raised:
                return None
        elif not self.everywhere and not filename.startswith(OWN):
            return None
        return self.local(frame, event, arg)

    def local(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        moment = (frame.f_code.co_filename, frame.f_lineno, event)
        if event == "exception":
            pass
        elif self.at is None:
            self.counts[moment] = self.counts.get(moment, 0) + 1
        elif moment == self.at:
            self.left -= 1
            if not self.left:
                self.raised = True
                raise self.error("from outside")
        return self.local


def traced(tracer: Tracer, run: Callable[[], Any]) -> Any:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        return run()
    finally:
        sys.settrace(before)


SOURCE = """
def program(x, y):
    if x.shape[0] > 1:
        z = (x + y).relu()
    with torch.no_grad():
        w = y.exp().sum()
    z = z.reshape(-1) * w
    for i in range(2):
        z = z.sin() + i
    return z.sum() * scale, z
"""

BROKEN = """
def program(x, y):
    z = (x + y).relu()
    torch._dynamo_is_not_here = None
    marks.append(1)
    print(end="")
    return z.sum() * scale, z * 2
"""


def new_function(source: str = SOURCE) -> Any:
    namespace: dict[str, Any] = {"torch": torch, "scale": 2.5, "marks": []}
    exec(compile(source, "<interrupted>", "exec"), namespace)
    return namespace["program"]


@dataclass
class Case:
    """One way to compile the program."""

    backend: str
    train: bool = False
    dynamic: bool | None = None
    source: str = SOURCE

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        y = torch.linspace(0, 1, 12).reshape(3, 4)
        return x.requires_grad_(self.train), y.requires_grad_(self.train)

    def results(self, fn: Any) -> list[Any]:
        args = self.inputs()
        total, rest = fn(*args)
        if self.train:
            total.backward()
        return [total.detach(), rest.detach(), *(arg.grad for arg in args)]


def same(a: list[Any], b: list[Any]) -> bool:
    return all((x is None) == (y is None) and (x is None or torch.allclose(x, y)) for x, y in zip(a, b, strict=True))


def compiled_graphs(fn: Any) -> int:
    calls = (
        name.startswith("__compiled_fn_") for entry in _C.code_entries(fn.__code__) for name in entry.code.co_names
    )
    return sum(calls)


def attempt(case: Case, at: Moment, times: int, error: type[BaseException], everywhere: bool) -> tuple[bool, list[str]]:
    """Interrupt one compile at a moment: (whether it came, what is wrong afterwards)."""
    argand.reset()
    plain = new_function(case.source)
    compiled = argand.compile(plain, backend=case.backend, dynamic=case.dynamic)
    tracer = Tracer(at, times, error, everywhere)
    outcome = ""
    swallowed: list[Any] = []  # raised in a finalizer, from where CPython lets nothing out
    sys.unraisablehook = swallowed.append
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = ambient()
        try:
            traced(tracer, lambda: case.results(compiled))
        except error:
            outcome = "raised"
        except BaseException as other:
            outcome = f"{type(other).__name__}: {other}"
        after = ambient()
    # A trace function may raise where no signal arrives, at the end of an `except`: CPython then keeps what was handled.
    ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(None))
    sys.unraisablehook = sys.__unraisablehook__
    problems = [f"{key}: {before[key]!r} -> {after[key]!r}" for key in before if after[key] != before[key]]
    if tracer.raised and outcome != "raised" and not issubclass(error, Exception) and not swallowed:
        problems.append(f"the exception was lost ({outcome or 'nothing was raised'})")
    problems += [f"held: {name}" for name in held_locks()]
    return tracer.raised, problems or check_next_call(case, plain, compiled)


def check_next_call(case: Case, plain: Any, compiled: Any) -> list[str]:
    """What is wrong with the call after an interrupted one."""
    expected = case.results(new_function(case.source))
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            problems = [] if same(case.results(compiled), expected) else ["another result"]
    except BaseException as other:
        return [f"the next call raised {type(other).__name__}: {other}"]
    problems += [str(warning.message).partition("\n")[0] for warning in given]
    return problems if compiled_graphs(plain) else [*problems, "nothing was compiled afterwards"]


def moments(case: Case, everywhere: bool) -> list[tuple[Moment, int]]:
    """Every moment of a compile, with its first occurrence and its last."""
    case.results(argand.compile(new_function(case.source), backend=case.backend, dynamic=case.dynamic))  # imports
    argand.reset()
    compiled = argand.compile(new_function(case.source), backend=case.backend, dynamic=case.dynamic)
    tracer = Tracer(None, 0, Stop, everywhere)
    traced(tracer, lambda: case.results(compiled))
    found = [(moment, times) for moment, last in tracer.counts.items() for times in sorted({1, last})]
    return sorted(found)


def sweep(
    case: Case, error: type[BaseException], stride: int, offset: int = 0, everywhere: bool = False
) -> Iterator[tuple[Moment, list[str]]]:
    """Every `stride`-th moment, with what is wrong after an exception there."""
    for at, times in moments(case, everywhere)[offset % stride :: stride]:
        came, problems = attempt(case, at, times, error, everywhere)
        if came:
            yield at, problems


CASES = [
    Case(backend, train, dynamic)
    for backend in ("eager", "aot_eager", "native")
    for train in (False, True)
    for dynamic in (None, True)
] + [Case("eager", source=BROKEN), Case("native", True, source=BROKEN)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="interrupt at every so many lines")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--error", choices=[*EXCEPTIONS], default="KeyboardInterrupt")
    parser.add_argument("--everywhere", action="store_true", help="at lines of torch and the library too")
    parser.add_argument("--case", type=int, default=-1, help="only this one")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    bad = 0
    begin = time.time()
    for number, case in enumerate(CASES):
        if options.case >= 0 and number != options.case:
            continue
        tried = 0
        for at, problems in sweep(case, EXCEPTIONS[options.error], options.stride, options.offset, options.everywhere):
            tried += 1
            if problems:
                bad += 1
                where = f"{at[0].removeprefix(OWN)}:{at[1]} {at[2]}"
                print(f"{case.backend} train={case.train} dynamic={case.dynamic} {where}: {problems}", flush=True)
            if time.time() - begin > options.seconds:
                break
        print(
            f"{number} {case.backend} train={case.train} dynamic={case.dynamic}: {tried} moments, {bad} problems so "
            f"far, {time.time() - begin:.0f} s",
            flush=True,
        )
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
