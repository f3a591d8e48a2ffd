"""How a backend compiles ATen programs, and who looks on while it does (the minifier, the checker).

Stages know nobody above them: who wants to watch sets `watching` around a call of a backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from torch import fx

from argand import events
from argand.backends.registry import Backend
from argand.graph.nodes.printing import readable
from argand.graph.nodes.program import AtenProgram
from argand.passes.rolling.first_look import may_have_loops
from argand.quick_dataclasses import dataclass
from argand.threads import bound

_SHOWN: Final = frozenset((
    "aot_inference_graph", "aot_forward_graph", "aot_backward_graph", "fx_graph", "aten_graph_after_pass",
))  # fmt: skip
CompileProgram = Callable[[AtenProgram], Callable[..., Any]]
Watcher = Callable[[CompileProgram, str, bool], CompileProgram]


@dataclass(frozen=True, slots=True)
class Compiler:
    """How a backend compiles ATen programs.

    Arguments:
        backend: its name, for events.
        compile_program: makes a callable of the graph's inputs from a program (one list argument when `boxed`).
        prepare: graph passes, applied to traces before they are generalised (graphs with symbolic sizes).
        joint_pass: a rewrite of the graph of forward and backward, before it is cut in two.
        gives_early: what it compiles heeds `AtenProgram.arrivals`.
        passes_early: and `AtenProgram.rewritten`: a program may come with the graph passes applied.
    """

    backend: str
    compile_program: CompileProgram
    boxed: bool = False
    prepare: Callable[[AtenProgram], AtenProgram] = lambda program: program
    joint_pass: Callable[[AtenProgram], Any] = lambda program: None
    gives_early: bool = False
    passes_early: bool = False

    def rewrite(self, program: AtenProgram) -> AtenProgram:
        """Apply the graph passes to a program of five layers, unless somebody looks at programs as they are traced, or
        may roll loops of it first."""
        if self.passes_early and not events.bus.sinks and _SHOWN.isdisjoint(events.bus.named):
            if not may_have_loops(program.graph):
                with events.span("passes", "passes"):
                    program = self.prepare(program)
                program.rewritten = True
        return program

    def show(self, program: AtenProgram) -> None:
        """Tell of a program without gradients that is compiled."""
        data = {"backend": self.backend, "model": program.model}
        events.emit("aot_inference_graph", "autograd", lambda: readable(program.graph), **data)


_watcher: ContextVar[Watcher | None] = ContextVar("argand_program_watcher", default=None)


def watching(watcher: Watcher) -> contextlib.AbstractContextManager[None]:
    """Backends called inside compile ATen programs through what `watcher` makes of their compile function.

    Arguments:
        watcher: called with the compile function, the backend's name, and whether compiled programs take one list.
    """
    return bound(_watcher, watcher)


def compiled_through(function: Backend, watcher: Watcher) -> Backend:
    """A backend that compiles ATen programs through what `watcher` makes of their compile function."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        with watching(watcher):
            return function(gm, example_inputs, **options)

    return compile_graph


def watched(compiler: Compiler) -> Compiler:
    """`compiler`, with what the watcher made of its compile function."""
    watcher = _watcher.get()
    if watcher is None:
        return compiler
    run = watcher(compiler.compile_program, compiler.backend, compiler.boxed)
    return replace(compiler, compile_program=run, gives_early=False, passes_early=False)
