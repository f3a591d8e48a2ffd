"""Graphs for many sizes: one program for all sizes where there is one, else a few programs for exact sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.autograd import wrap
from argand.autograd.tracing.dynamic import trace_dynamic
from argand.autograd.tracing.dynamic_joint import trace_joint_dynamic
from argand.backends.compile_watchers import Compiler
from argand.backends.eager_contest import is_small
from argand.backends.small_graphs import left_to_eager
from argand.backends.training import beside, compile_joint
from argand.config import config
from argand.errors import AutogradError
from argand.graph import time_limit
from argand.interruptions import let_pass
from argand.locks import fork_safe_lock
from argand.runtime.recipes import with_recipe


def compile_dynamic(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Compiler,
    compile_exact: Callable[[Sequence[Any]], Callable[..., Any]],
    *,
    gradients: bool,
) -> Callable[..., Any]:
    """A callable for every size.

    Arguments:
        compiler: gets programs with expressions for sizes.
        compile_exact: compiles the graph for the sizes of its argument alone.
        gradients: the call's results are differentiated.
    """
    backend = compiler.backend
    exact = ExactSizes(gm, compile_exact, backend)
    counts = gm.meta["symbols"].counts
    otherwise = gm.forward if counts else exact.function()  # which sizes are 0 or 1 changes from call to call
    try:
        if gradients:
            with events.span("trace_joint", "autograd", backend=backend):
                joint = trace_joint_dynamic(gm, example_inputs, compiler.prepare)
            return compile_joint(
                joint, compiler, otherwise=otherwise, graph=gm.forward, beside=beside(gm, example_inputs), meta=gm.meta
            )
        with events.span("trace_dynamic", "autograd", backend=backend):
            program = trace_dynamic(gm, example_inputs, compiler.prepare)
        program.model = events.bus.number("model")
        compiler.show(program)
        run = compiler.compile_program(program)
    except Exception as error:  # whatever only code for many sizes runs into
        let_pass(error)
        if not isinstance(error, AutogradError) and config.verify_ir:
            raise
        reason = f"each size is compiled by itself: {error}"
        events.emit("fallback", "backend", reason, backend=backend, reason=reason, scope="sizes")
        if not counts:
            exact.prepare(example_inputs)
        return otherwise
    return wrap(program, run, boxed=compiler.boxed, otherwise=otherwise, untaped=True)


_MOST_MISSES: Final = 100
"""Calls in a row without a program for their sizes, after which none looks for one: each call has another number."""


class ExactSizes:
    """Compiles a graph for the sizes that come, a few of them; calls of further sizes run eagerly.

    Arguments:
        gm: the graph.
        compile_exact: makes a callable for the sizes of some inputs.
        backend: name for events.

    Fields:
        misses: calls in a row without a program for their sizes, since there are as many as there may be.
    """

    def __init__(
        self, gm: fx.GraphModule, compile_exact: Callable[[Sequence[Any]], Callable[..., Any]], backend: str
    ) -> None:
        self.gm = gm
        self.compile_exact = compile_exact
        self.backend = backend
        self.compile_id = events.bus.compile_id
        self.by_sizes: dict[Any, Callable[..., Any]] = {}
        self.misses = 0
        self.lock = fork_safe_lock()

    def prepare(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The callable for the sizes of `args`."""
        if self.misses >= _MOST_MISSES:
            return self.gm.forward
        key = tuple([_layout(arg) for arg in args])
        call = self.by_sizes.get(key)
        if call is not None:
            self.misses = min(self.misses, 1)
            return call
        if self.misses:
            self.misses += 1
            return self.gm.forward
        return uncaptured(_C.call_locked, self.lock, _C.call_restoring, self._make, key, args)

    def _make(self, key: Any, args: Sequence[Any]) -> Callable[..., Any]:
        call = self.by_sizes.get(key)
        if call is not None:
            return call
        with events.bus.compiling(self.compile_id):
            if len(self.by_sizes) >= int(config.exact_sizes_limit):
                reason = f"the graph was compiled for {len(self.by_sizes)} sizes already (config.exact_sizes_limit)"
                events.emit("fallback", "backend", reason, backend=self.backend, reason=reason, scope="sizes")
                self.misses = 1
                return self.gm.forward
            try:
                with time_limit.preparing(len(self.gm.graph.nodes)):
                    call = self.compile_exact(args)
            except time_limit.OutOfTime as late:
                reason = time_limit.took_too_long("a graph", late)
                events.emit("fallback", "backend", reason, backend=self.backend, reason=reason, scope="sizes")
                call = self.gm.forward
            if call == self.gm.forward and is_small(self.gm):
                call = left_to_eager(call, varies=True)
            self.by_sizes[key] = call
        return call

    def function(self) -> Callable[..., Any]:
        """The graph as a function."""

        def call(*args: Any) -> Any:
            return self.prepare(args)(*args)

        return with_recipe(call, "exact sizes", lambda: (self.gm.forward,))


def _layout(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride()
    return type(arg), arg
