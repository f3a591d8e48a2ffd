"""argand under torch.compile: as one of its backends, and `torch.compile` looked at from outside."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from argand import events
from argand.backends.registry import lookup_backend
from argand.errors import UserLine
from argand.graph.compat import storage_address
from argand.graph.nodes.meta import user_stack
from argand.graph.nodes.module_text import module_text

_LIMIT = 64  # compiled versions kept per graph: past that, further shapes run eagerly


def argand_for_torch_compile(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Entry point of `torch.compile(model, backend="argand")`.

    torch's own capture hands over graphs whose sizes may be symbolic; each combination of argument metadata that really
    occurs is compiled once, as constants.

    Arguments:
        gm: torch-level graph; example_inputs: fake tensors and symbolic numbers.
        options: `backend`: name of the argand backend ("native").
    """
    chosen = dict(options.pop("options", None) or {}, **options)
    inner = lookup_backend(chosen.pop("backend", "native"))
    versions: dict[tuple[Any, ...], Callable[..., Any]] = {}
    compile_id = _torchs_compile_id()

    def call(*args: Any) -> Any:
        key = (torch.is_grad_enabled(), _sharing(args), *[_key(arg) for arg in args])
        version = versions.get(key)
        if version is None:
            if len(versions) >= _LIMIT:
                return gm.forward(*args)
            events.bus.prepare()
            with events.bus.compiling(compile_id), _announced(gm, len(versions)):
                version = versions[key] = inner(gm, [_plain(arg) for arg in args], **chosen)
        return version(*args)

    return call


@contextlib.contextmanager
def _announced(gm: fx.GraphModule, entries: int) -> Iterator[None]:
    """What argand's own capture says of a frame and its graph, of a graph that torch captured."""
    stack = next((frames for node in gm.graph.nodes if (frames := user_stack(node))), ())
    place = stack[0] if stack else UserLine("", 0, "")
    with events.span("torch_compile", "backends", function=place.function):
        events.emit(
            "frame_start",
            "backends",
            lambda: [(line.filename, line.lineno, line.function) for line in stack[:1]],
            function=place.function,
            filename=place.filename,
            lineno=place.lineno,
            entries=entries,
        )
        events.emit("graph", "backends", lambda: module_text(gm), graph=gm)
        with events.span("backend", "backends", backend="native"):
            yield


def _torchs_compile_id() -> events.CompileId | None:
    """The id under which torch.compile compiles now: what argand says about its graphs goes by it too."""
    from torch._guards import CompileContext

    theirs = CompileContext.current_trace_id()
    if theirs is None or theirs.compile_id.frame_id is None or theirs.compile_id.frame_compile_id is None:
        return None
    return events.CompileId(theirs.compile_id.frame_id, theirs.compile_id.frame_compile_id, theirs.attempt)


def _sharing(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Which tensors share memory, as the position of the first that does; empty when none do."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.layout is torch.strided]
    storages = [storage_address(tensor) for tensor in tensors]
    return tuple(map(storages.index, storages)) if len(set(storages)) < len(storages) else ()


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return (tuple(arg.shape), arg.stride(), arg.dtype, arg.device, arg.requires_grad)
    return (type(arg), _plain(arg))


def _plain(arg: Any) -> Any:
    if isinstance(arg, torch.SymInt):
        return int(arg)
    if isinstance(arg, torch.SymFloat):
        return float(arg)
    if isinstance(arg, torch.SymBool):
        return bool(arg)
    return arg


@contextlib.contextmanager
def torch_compile_observed(
    backend: str | Callable[[Any], Any], observe: Callable[[Any, Any], Any], noted: Callable[[str], Any]
) -> Iterator[None]:
    """Meanwhile `torch.compile` is torch's own, with another backend, and what it makes is looked at.

    Arguments:
        backend: used instead of the one that the program names; "" leaves it; a callable makes one of that.
        observe: called with a compiled function and the original; the program gets what it returns.
        noted: told the name of each backend that the program asks for.
    """
    original = torch.compile

    def compile_observed(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return functools.partial(compile_observed, **kwargs)
        asked = kwargs.get("backend", "inductor")
        noted(asked if isinstance(asked, str) else getattr(asked, "__name__", type(asked).__name__))
        if backend:
            chosen = backend if isinstance(backend, str) else backend(asked)
            kwargs = {"backend": chosen, **{k: v for k, v in kwargs.items() if k in ("fullgraph", "dynamic")}}
        compiled = original(model, **kwargs)
        if isinstance(model, torch.nn.Module):
            compiled.forward = observe(compiled.forward, model.forward)
            return compiled
        return observe(compiled, model)

    torch.compile = compile_observed
    try:
        yield
    finally:
        torch.compile = original
