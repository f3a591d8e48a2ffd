"""Runs the script once, in a forked child, in one of several ways, and keeps what its compiled functions return."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import json
import linecache
import os
import random
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from argand import events
from argand.backends.interop import torch_compile_observed
from argand.backends.registry import Backend, lookup_backend
from argand.capture.facts.code.directives import is_compiling
from argand.config import config
from argand.debug import gpus
from argand.debug.doctor.records import CallRecord, Kept, Run, read, write
from argand.debug.observe import JOINT, Observer, place_of, stand_in
from argand.debug.tensors import clone_strided, named_leaves
from argand.debug.trial.isolation import RUNNER, mark, run_isolated
from argand.debug.trial.rounding import nudged, shake
from argand.debug.trial.scope import modules_of, plain_state
from argand.graph.trees import mapped
from argand.quick_dataclasses import dataclass

_MAX_CALLS = 400  # calls of compiled functions whose results are kept
_COUNTED = 14  # calls of one function after which what is alive is counted
_REPEATS, _REPEAT_SECONDS = 7, 10.0  # calls that are made again to see what they leave behind
_MAX_HISTORY = 2000  # nodes of autograd that are looked at for leaves
_BEFORE = "what the call before returned, now"


@dataclass(frozen=True, slots=True)
class Script:
    """What is run.

    Arguments:
        path: the file; "" with `source`.
        arguments: of its command line.
        is_module: `path` is the name of a module.
        source: the text, where it is not that of the file (while it is made smaller).
    """

    path: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    source: str = ""

    def run(self) -> None:
        """Run it as `__main__` in this process."""
        sys.argv = [self.path, *self.arguments]
        if self.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.path, run_name="__main__", alter_sys=True)
            return
        sys.path.insert(0, str(Path(self.path).resolve().parent))
        if not self.source:
            runpy.run_path(self.path, run_name="__main__")
            return
        linecache.cache[self.path] = (len(self.source), None, self.source.splitlines(keepends=True), self.path)
        main = ModuleType("__main__")
        main.__file__ = self.path
        sys.modules["__main__"] = main
        exec(compile(self.source, self.path, "exec"), main.__dict__)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run the script.

    Arguments:
        name: for people.
        eager: compiled functions run as they were written.
        backend: used instead of every backend that the script names; "" leaves them.
        fresh: everything compiled is forgotten before each call.
        settings: of argand.config.
        torch: torch.compile is answered by torch, with this backend ("" is the script's own); None: by argand.
        count: live tensors are counted after calls (which takes time).
        empty_cache: compiled kernels are kept in a directory of this run.
        nudge: not 0: eager operations are rounded otherwise, each number in another way (`rounding.Nudged`).
        shaken: objects lie elsewhere than in other runs.
    """

    name: str
    eager: bool = False
    backend: str = ""
    fresh: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    torch: str | None = None
    count: bool = False
    empty_cache: bool = False
    nudge: int = 0
    shaken: bool = False


PLAIN = Mode("eager (not compiled)", eager=True)
OWN = Mode("as the script says")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits of one run, and how it is run.

    Arguments:
        seconds: after which it hangs.
        memory: bytes beyond what the process has; 0 is any number.
        threads: of torch in the child, where `one_thread` took them from this process: the script then runs in the main
            thread (it may handle signals). 0: it runs in another thread, which has OpenMP's threads for itself.
    """

    seconds: float = 120.0
    memory: int = 0
    threads: int = 0


GraphBackend = Callable[["Recorder", Backend, Any], Backend]


def run_script(script: Script, mode: Mode, folder: Path, allowed: Allowed, graphs: GraphBackend | None = None) -> Run:
    """Run the script in a child process.

    Arguments:
        folder: where the child writes; made here.
        graphs: replaces each backend, in the child.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run_isolated(
        lambda: _in_child(script, mode, folder, graphs, allowed.threads),
        time_limit=allowed.seconds,
        memory_limit=allowed.memory,
        main_thread=allowed.threads > 0,
    )
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((folder / "facts.json").read_text())
    printed = folder / "stdout.txt"
    text = printed.read_text(errors="replace") if printed.exists() else ""
    return Run(mode.name, outcome, read(folder), text, facts)


def one_thread() -> int:
    """Take torch's threads from this process, which children then have; how many these are.

    OpenMP keeps the threads that a thread had with it, and a forked child, which has none of them, would wait for them.
    """
    threads: int = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def _in_child(script: Script, mode: Mode, folder: Path, graphs: GraphBackend | None, threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
    sys.stdout.flush()
    file = os.open(folder / "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    recorder = Recorder(folder, mode, graphs)
    settings = {"fallback_random": True, "suppress_errors": False, "repro_after": "", **mode.settings}
    if mode.empty_cache:
        settings["cache_dir"] = str(folder / "cache")
    kept = shake() if mode.shaken else []
    with config.patch(settings), recorder.installed():
        try:
            with nudged(mode.nudge):
                script.run()
        except SystemExit as end:
            _end_of_fork(recorder, end)
            if end.code not in (None, 0):
                raise RuntimeError(f"exit code {end.code}") from end
        except BaseException as error:
            _end_of_fork(recorder, error)
            raise
        finally:
            _end_of_fork(recorder, None)
            _flush()
            recorder.finish()
            kept.clear()


def _end_of_fork(recorder: Recorder, error: BaseException | None) -> None:
    """In a process that the script forked and that comes to the script's end: end as it would without us."""
    if os.getpid() == recorder.process:
        return
    code: Any = 1
    if error is None:
        code = 0
    elif not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is None or isinstance(error.code, int):
        code = error.code or 0
    else:
        print(error.code, file=sys.stderr)
    _flush()
    os._exit(code & 0xFF)


def _flush() -> None:
    """Write what the script printed; it may have closed its output or taken it away."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class _Here(threading.local):
    """What a thread of the program is at.

    Arguments:
        depth: compiled functions that it is in.
        raised: exceptions that capture met in the call.
        returned: by the call before: later ones must leave that alone.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.raised: list[list[str]] = []
        self.returned: list[tuple[str, torch.Tensor]] = []


class Recorder(Observer):
    """Stands between the script and its compiled functions.

    Arguments:
        folder: where records go.
        mode: how the script is run.
        graphs: replaces each backend.
    """

    def __init__(self, folder: Path, mode: Mode, graphs: GraphBackend | None = None) -> None:
        self.folder = folder
        self.mode = mode
        self.graphs = graphs
        self.kept = Kept()
        self.numbers = itertools.count()
        self.process = os.getpid()  # what it forks tries graphs out, or loads data
        self.here = _Here()
        self.leaves: dict[str, torch.Tensor] = {}
        self.facts: dict[str, Any] = {"backends": [], "recompiles": [], "breaks": [], "compiles": 0, "fallbacks": []}
        self.facts["suppressed"] = []
        self.function_calls: dict[str, int] = {}
        self.spans: list[str] = []
        self.current = ""
        self.at_end: Callable[[], None] | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Compiled functions are observed, and `torch.compile` is answered, meanwhile."""
        names = ("span_begin", "span_end", "recompiles", "graph_breaks", "fallback", "suppressed", "frame_raised")
        unsubscribe = events.bus.subscribe(self._event, names)
        JOINT.observer = self
        saved = torch.autograd.backward, torch.autograd.grad
        torch.autograd.backward = self._backward(saved[0], "backward")
        torch.autograd.grad = self._backward(saved[1], "grad")
        try:
            with self._answers():
                yield
        finally:
            torch.autograd.backward, torch.autograd.grad = saved
            JOINT.observer = None
            unsubscribe()

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        if self.mode.torch is None:
            with front_door("answer_torch_compile")(backend="native"):
                yield
            return
        chosen: str | Callable[[Any], Any] = self.mode.torch
        graphs = self.graphs
        if graphs is not None:
            chosen = functools.partial(graphs, self, lookup_backend)
        with torch_compile_observed(chosen, self.function, lambda name: self._note("backends", name)):
            yield

    def _event(self, event: events.Event) -> None:
        if event.name == "span_begin":
            self.spans.append(str(event.stage))
            if event.data.get("span") == "capture_frame":
                self.facts["compiles"] += 1
            mark(f"compile: {event.stage}")
        elif event.name == "span_end":
            if self.spans:
                self.spans.pop()
            mark(f"compile: {self.spans[-1]}" if self.spans else "run")
        elif event.name == "recompiles":
            self._note("recompiles", [event.data.get("function", ""), list(event.data.get("reasons", ()))[:2]])
        elif event.name == "fallback":
            self._note("fallbacks", [event.stage, event.text()[:300]])
        elif event.name == "frame_raised":
            self.here.raised.append([str(event.data.get("function", "")), event.text()[:500]])
        elif event.name == "suppressed":
            self._note("suppressed", [str(event.data.get("function", "")), event.text()[:500]])
        else:
            self._note("breaks", event.text()[:500])

    def _note(self, name: str, value: Any) -> None:
        if value not in self.facts[name] or name == "recompiles":
            self.facts[name].append(value)

    # --------------------------------------------------------------------------- the observer

    def backend(self, function: Backend, asked: str | Backend) -> Backend:
        name = asked if isinstance(asked, str) else f"<callable> {getattr(asked, '__name__', type(asked).__name__)}"
        self._note("backends", name)
        if self.graphs is not None:
            return self.graphs(self, function, asked)
        if self.mode.backend:
            chosen = lookup_backend(self.mode.backend)
            return lambda gm, inputs, **options: chosen(gm, inputs)
        return function

    def function(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        owner = getattr(original, "__self__", None)
        named = original  # a module with hooks is called whole, not its forward alone
        if isinstance(owner, torch.nn.Module) and getattr(original, "__name__", "") == "_wrapped_call_impl":
            named = type(owner).forward
        name = getattr(named, "__qualname__", type(named).__name__)
        place = place_of(named)
        run = original if self.mode.eager else compiled

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.here.depth or os.getpid() != self.process:
                return run(*args, **kwargs)
            return self._call(run, original, name, place, args, kwargs)

        return stand_in(original, call)

    def _call(
        self, run: Callable[..., Any], original: Any, name: str, place: str, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        state = plain_state(original, args, kwargs)
        record = CallRecord(name, place, state=state, compiles=self.facts["compiles"], thread=_thread())
        number = next(self.numbers)
        keep = number < _MAX_CALLS
        modules = modules_of(original, args) if keep else {}
        if keep:
            write(self.folder, number, record)
            self._note_leaves(args, kwargs, modules)
        if self.mode.fresh:
            front_door("reset")()
        self.current = f"{name} call {number}"
        self.here.raised.clear()
        compiles = self.facts["compiles"]
        try:
            with self._timed(record, "run"):
                result = run(*args, **kwargs)
        except Exception as raised:  # the program may catch it
            record.raised = f"{type(raised).__name__}: {raised}"[:500]
            if keep:
                write(self.folder, number, record)
            raise
        for function, error in self.here.raised:
            if function == name.rpartition(".")[2]:  # it did not raise, though capture says that it does
                self._note("suppressed", [function, error])
        if keep:
            self.kept.flatten(result, "the result", record.values)
            self.kept.flatten((args, kwargs), "the arguments", record.values)
            for key, module in modules.items():
                for buffer, value in module._buffers.items():
                    if value is not None:
                        self.kept.flatten(value, f"{key}{buffer}", record.values)
            for where, tensor in self.here.returned:
                self.kept.flatten(tensor, where, record.values)
            self.here.returned = [] if self.mode.count else _memory_of(result)
            record.ended = True
            write(self.folder, number, record)
            if self.mode.count:
                del modules
                self._count(record, self.facts["compiles"] != compiles)
                write(self.folder, number, record)
                self._repeat(run, name, place, args, kwargs)
        return result

    @contextlib.contextmanager
    def _timed(self, record: CallRecord, stage: str) -> Iterator[None]:
        """Inside, the program is in a compiled function, or in the backward of one."""
        mark(stage)
        self.here.depth += 1
        start = time.perf_counter()
        try:
            yield
            gpus.synchronize()
        finally:
            self.here.depth -= 1
            mark("script")
        record.seconds = time.perf_counter() - start

    def _repeat(self, run: Callable[..., Any], name: str, place: str, args: tuple[Any, ...], kwargs: Any) -> None:
        """Call a function again some times, on copies: a leak shows in few programs' own calls."""
        if self.function_calls.get(name) != 1:
            return
        start = time.perf_counter()
        self.here.depth += 1
        try:
            for _ in range(_REPEATS):
                record = CallRecord(name, place, ended=True)
                number = next(self.numbers)
                compiles = self.facts["compiles"]
                with contextlib.suppress(Exception):
                    run(*mapped(args, _copied), **mapped(kwargs, _copied))
                self._count(record, self.facts["compiles"] != compiles)
                write(self.folder, number, record)
                if time.perf_counter() - start > _REPEAT_SECONDS:
                    break
        finally:
            self.here.depth -= 1

    def _count(self, record: CallRecord, compiled: bool) -> None:
        """What is alive after the first calls of a function; what a compile keeps is no leak, nor what calls hold that
        other threads are in."""
        count = self.function_calls[record.function] = self.function_calls.get(record.function, 0) + 1
        if not compiled and not _thread() and 1 < count <= _COUNTED:
            record.held = alive()

    def _note_leaves(self, args: Any, kwargs: Any, modules: dict[str, torch.nn.Module]) -> None:
        leaves: dict[str, Any] = {}
        for position, value in enumerate((*args, *kwargs.values())):
            if isinstance(value, torch.Tensor):
                leaves[f"argument {position}"] = value
        for key, module in modules.items():
            leaves.update({f"{key}{n}": p for n, p in module._parameters.items() if p is not None})
        for name, value in leaves.items():
            if value.requires_grad and value.is_leaf:
                self.leaves[name] = value
            elif value.requires_grad:
                known = {id(leaf) for leaf in self.leaves.values()}
                for number, leaf in enumerate(leaves_behind(value)):
                    if id(leaf) not in known:
                        self.leaves[f"{name}, leaf {number}"] = leaf

    def _backward(self, saved: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`torch.autograd.backward` or `grad`, whose gradients are noted like the results of a call."""

        @functools.wraps(saved)
        def differentiate(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self.here.depth or os.getpid() != self.process:
                return saved(*args, **kwargs)
            record = CallRecord(name, "", thread=_thread())
            number = next(self.numbers)
            if number < _MAX_CALLS:
                write(self.folder, number, record)
            with self._timed(record, "backward"):
                result = saved(*args, **kwargs)
            if number < _MAX_CALLS:
                if result is not None:
                    self.kept.flatten(result, "the gradient", record.values)
                for leaf_name, leaf in self.leaves.items():
                    if leaf.grad is not None:
                        self.kept.flatten(leaf.grad, f"the gradient of {leaf_name}", record.values)
                record.ended = True
                write(self.folder, number, record)
            return result

        return differentiate

    def finish(self) -> None:
        """Write what was noted."""
        if self.at_end is not None:
            self.at_end()
        for key in ("recompiles", "breaks", "fallbacks"):
            del self.facts[key][200:]
        self.facts["threads"] = torch.get_num_threads()
        (self.folder / "facts.json").write_text(json.dumps(self.facts))


def _thread() -> str:
    """The name of this thread; "" of the one that runs the script."""
    here = threading.current_thread()
    return "" if here is threading.main_thread() or here.name == RUNNER else here.name


def front_door(name: str) -> Any:
    """A function of `argand.api`, as a script would call it (this package is below that module)."""
    return getattr(importlib.import_module("argand.api"), name)


def alive() -> dict[str, int]:
    """How many tensors and other objects the process holds, and how much memory."""
    gc.collect()
    objects = gc.get_objects()
    counts = {"tensors": sum(1 for item in objects if issubclass(type(item), torch.Tensor)), "objects": len(objects)}
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
        counts["bytes"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if gpus.in_use():
        counts["bytes"] = counts.get("bytes", 0) + sum(
            map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))
        )
    return counts


def _copied(value: Any) -> Any:
    """For another call: tensors are copies, other things are the same."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return value
    with torch.no_grad():
        return clone_strided(value.detach()).requires_grad_(value.requires_grad)


def leaves_behind(value: torch.Tensor) -> list[torch.Tensor]:
    """The leaves from which a tensor was computed, under autograd, in the order of its history."""
    todo: list[Any] = [value.grad_fn]
    seen: set[Any] = set()
    leaves: list[torch.Tensor] = []
    while todo and len(seen) < _MAX_HISTORY:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return leaves


def _memory_of(result: Any) -> list[tuple[str, torch.Tensor]]:
    """The memory of what a call returned, with names."""
    return [
        (where, leaf.detach())
        for where, leaf in named_leaves(result, _BEFORE, 8)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.device.type != "meta"
    ][:64]
