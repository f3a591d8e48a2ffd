"""For which backwards compiled autograd is on, and what it does with one.

Torch offers no place where one could ask for the engine's calls: `backward()` and `grad()` both call
`torch.autograd._engine_run_backward`. That name stands for `run_backward` while anybody wants compiled autograd, and is
put back when nobody does.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from argand import events
from argand._core.calls import uncaptured
from argand._core.node_layout import node_layout
from argand.backends.registry import Backend, check_backend
from argand.config import config
from argand.engine.callbacks import Callbacks, by_the_engine
from argand.engine.entries import Entry, entries
from argand.engine.node_state import NotRecorded
from argand.engine.recording import Recorder
from argand.engine.reducers import known
from argand.engine.replay import Run, Varied, replay
from argand.engine.structure import Structure, structure_of
from argand.graph import compat, thread_state
from argand.locks import fork_safe_lock


class _Activity:
    """Who wants compiled autograd."""

    def __init__(self) -> None:
        self.backend: contextvars.ContextVar[str | Backend | None] = contextvars.ContextVar("backend", default=None)
        self.contexts = 0
        self.replaced: Run | None = None
        self.lock = fork_safe_lock()

    def enter(self, change: int) -> None:
        """Count contexts, and put the engine's entry in place or back."""
        with self.lock:
            self.contexts += change
            wanted = self.contexts > 0 or config.compiled_autograd
            namespace: Any = torch.autograd
            variable: Any = namespace.Variable
            if wanted and self.replaced is None:
                self.replaced = namespace._engine_run_backward
                namespace._engine_run_backward = run_backward
                variable._execution_engine = Callbacks(variable._execution_engine)
            elif not wanted and self.replaced is not None:
                if namespace._engine_run_backward is run_backward:
                    namespace._engine_run_backward = self.replaced
                    self.replaced = None
                    if isinstance(variable._execution_engine, Callbacks):
                        variable._execution_engine = variable._execution_engine.engine

    def chosen(self) -> str | Backend | None:
        """The backend for backwards that this thread asks for; None where compiled autograd is off."""
        return self.backend.get() or ("native" if config.compiled_autograd else None)


_activity = _Activity()


@contextlib.contextmanager
def compiled_autograd(*, backend: str | Backend = "native") -> Iterator[None]:
    """Backwards that this thread asks for inside are recorded once per structure of autograd's graph, and compiled.

    Arguments:
        backend: as for `argand.compile`.
    """
    check_backend(backend)
    token = _activity.backend.set(backend)
    _activity.enter(1)
    try:
        yield
    finally:
        _activity.enter(-1)
        _activity.backend.reset(token)


def follow_config() -> None:
    """`config.compiled_autograd` has changed."""
    _activity.enter(0)


def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """What `backward()` and `grad()` call: the engine, or what was compiled of an equal backward."""
    engine = _activity.replaced or torch.autograd.graph._engine_run_backward
    backend = _activity.chosen()
    if backend is None or not outputs or not isinstance(outputs[0], torch.Tensor):
        return engine(outputs, *args, **kwargs)
    known.count()
    if torch._C._current_graph_task_id() != -1:
        with by_the_engine():
            return engine(outputs, *args, **kwargs)
    began = time.perf_counter()
    sketch = _sketch(outputs, args)
    small = entries.small.get(sketch)
    if small is not None:
        results = engine(outputs, *args, **kwargs)
        if time.perf_counter() - began > _MUCH * small:  # another backward that begins in the same way
            entries.small.pop(sketch, None)
        return results
    if entries.is_vain(sketch) or _is_others(outputs, args):
        return engine(outputs, *args, **kwargs)
    grads, keep, create, inputs = args[:4]
    try:
        if torch.is_anomaly_enabled():
            raise NotRecorded("anomaly mode looks at each node")
        unreached = bool(args[4] if args[4:] else kwargs["allow_unreachable"])
        returned = not kwargs.get("accumulate_grad")
        structure = uncaptured(_structure, outputs, grads, (bool(keep), bool(create)), inputs, returned, unreached)
    except NotRecorded as refused:
        entries.tell_once(str(refused))
        entries.was_vain(sketch)
        return engine(outputs, *args, **kwargs)
    except RuntimeError:  # something is freed, or was written to: the engine says so where it meets it
        return engine(outputs, *args, **kwargs)
    entry = entries.find(structure.key)
    gpu = structure.gpu
    entries.was_vain(sketch, entry is not None and entry.recorded is None)
    if entry is not None and (entry.recorded is None or entry.trial.is_engines_turn()):
        del structure
        return _timed(entry, sketch, gpu, engine, outputs, args, kwargs)
    if gpu is not None:  # has threads of its own in the engine
        engine = functools.partial(_in_this_thread, engine)
    if entry is None:
        return _record(structure, engine, outputs, args, kwargs)
    compiled = functools.partial(entries.run, entry, backend)
    try:
        results = uncaptured(replay, structure, entry.recorded, compiled, outputs, grads, keep, engine)
    except Varied:
        entry.recorded = None
        raise
    _finish(entry, gpu)
    entry.trial.took(time.perf_counter() - began, ours=True)
    return results


def _sketch(outputs: Sequence[Any], args: tuple[Any, ...]) -> Any:
    """What tells one backward from another before its structure is read: the first nodes, one behind the other."""
    node = outputs[0].grad_fn
    kinds = [type(node)]
    while node is not None and len(kinds) < _SKETCHED:
        edges = node.next_functions
        node = edges[-1][0] if edges else None
        kinds.append(type(node))
    return (*kinds, outputs[0].shape, len(outputs), *[len(one) for one in args[3:4]])


_SKETCHED = 6  # nodes


def _in_this_thread(engine: Run, *args: Any, **kwargs: Any) -> Any:
    """Run the engine with no thread of its own."""
    with compat.single_threaded_autograd():
        return engine(*args, **kwargs)


def _finish(entry: Entry, gpu: torch.device | None) -> None:
    """What runs on a GPU counts in a trial, too."""
    if gpu is not None and not entry.trial.over:
        torch.cuda.synchronize(gpu)


_MUCH = 4  # times as long as a backward that is too small to be compiled: then it is another one


def _timed(
    entry: Entry,
    sketch: Any,
    gpu: torch.device | None,
    engine: Run,
    outputs: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the engine, for which this may be a trial."""
    began = time.perf_counter()
    results = engine(outputs, *args, **kwargs)
    if entry.recorded is not None:
        _finish(entry, gpu)
        entry.trial.took(time.perf_counter() - began, ours=False)
        if entry.trial.engine_is_faster:
            entries.tell_once("a backward is so small that the engine is faster than reading its structure")
            entries.small[sketch] = min(entry.trial.engines)
    return results


def _is_others(outputs: Sequence[Any], args: tuple[Any, ...]) -> bool:
    """A backward of a tracer, of what has no data, or called in a way that is not known."""
    return (
        len(args) not in (4, 5)
        or len(args[0]) != len(outputs)
        or thread_state.cannot_capture()
        or compat.autocast_active()
        or any(not isinstance(output, torch.Tensor) or output.device.type == "meta" for output in outputs)
        or any(grad is not None and compat.is_transformed(grad) for grad in args[0])
        or (outputs[0].is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _structure(
    outputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    modes: tuple[bool, bool],
    inputs: Sequence[Any],
    returned: bool,
    unreached: bool,
) -> Structure:
    layout = node_layout()
    if layout is None:
        raise NotRecorded("it cannot be told whether there are hooks on the nodes of this torch's tape")
    if not returned and any(not isinstance(one, torch.Tensor) or not one.is_leaf for one in inputs):
        raise NotRecorded("gradients of tensors that are no leaves are to be accumulated")
    ends = tuple([get_gradient_edge(one) if isinstance(one, torch.Tensor) else one for one in inputs])
    structure = structure_of(outputs, grads, layout, ends, returned=returned, differentiable=modes[1])
    if None in structure.returned and not unreached:
        raise NotRecorded("an input does not lead to what is differentiated")
    structure.key = (
        structure.key,
        returned,
        unreached,
        modes,
        tuple([one.requires_grad for one in (*structure.tensors, *grads)]) if modes[1] else None,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    return structure


def _record(
    structure: Structure, engine: Run, outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the engine, and listen."""
    key = structure.key
    compile_id = entries.next_id(structure)
    if compile_id is None:
        entries.tell_once(
            "a structure came with more sizes and numbers than config.cache_size_limit allows, or there are too many"
        )
        return engine(outputs, *args, **kwargs)
    if any(not one.taken for one in structure.reduced.values()):
        entries.tell_once(
            "DistributedDataParallel's reducer sends gradients itself, after the graph: it has a communication hook of "
            "the program's, or options that such a hook cannot stand for"
        )
    events.bus.prepare()
    recorder = Recorder(structure, outputs, args[0])
    recorder.listen()
    try:
        with recorder:
            results = engine(outputs, *args, **kwargs)
    finally:
        recorder.stop()
    with events.bus.compiling(compile_id):
        try:
            recorded = recorder.recorded()
        except NotRecorded as refused:
            entries.tell_once(str(refused))
            entries.keep(key, structure, None)
        else:
            entries.keep(key, structure, recorded)
            events.emit("compiled_autograd_graph", "engine", recorded.text)
    return results
