"""Lets somebody above look at how ATen programs are compiled, while a backend runs (the minifier, the checker).

Stages know nobody above them: who wants to watch sets `watching` around a call of a backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from torch import fx

from argand.backends.registry import Backend
from argand.graph.nodes.program import AtenProgram

CompileProgram = Callable[[AtenProgram], Callable[..., Any]]
Watcher = Callable[[CompileProgram, str, bool], CompileProgram]

_watcher: ContextVar[Watcher | None] = ContextVar("argand_program_watcher", default=None)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Backends called inside compile ATen programs through what `watcher` makes of their compile function.

    Arguments:
        watcher: called with the compile function, the backend's name, and whether compiled programs take one list.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def compiled_through(function: Backend, watcher: Watcher) -> Backend:
    """A backend that compiles ATen programs through what `watcher` makes of their compile function."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        with watching(watcher):
            return function(gm, example_inputs, **options)

    return compile_graph


def watched(compile_program: CompileProgram, backend: str, boxed: bool) -> CompileProgram:
    """`compile_program`, or what the watcher made of it."""
    watcher = _watcher.get()
    return compile_program if watcher is None else watcher(compile_program, backend, boxed)
