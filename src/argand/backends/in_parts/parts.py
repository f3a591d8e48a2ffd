"""Parts of a graph that is cut for DistributedDataParallel, each compiled for the layouts of what arrives at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.config import config
from argand.errors import ArgandError, BackendCompilerFailed, CacheError
from argand.locks import fork_safe_lock
from argand.outcomes.resolver import module_of
from argand.runtime.recipes import Described, with_recipe

CompileGraph = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
_VERSIONS = 8  # of one part; calls with further layouts of its inputs run eagerly


class Part(Described):
    """One part: a compiled graph for each layout that values come with.

    Arguments:
        forward: its graph, as a function.
        module: gives the graph.
        inner: positions of the arguments that earlier parts make. The others are under the guards of the whole graph.
        compile_graph: as for `compile_split`.
        versions: what is compiled already: (key, callable) each.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        module: Callable[[], fx.GraphModule],
        inner: tuple[int, ...],
        compile_graph: CompileGraph,
        versions: Sequence[tuple[Any, Callable[..., Any]]] = (),
    ) -> None:
        self.forward, self.module, self.inner, self.compile_graph = forward, module, inner, compile_graph
        self.compile_id = events.bus.compile_id
        self.versions = dict(versions)
        self.lock = fork_safe_lock()
        with_recipe(self, "part under ddp", self._described)

    def _described(self) -> tuple[Any, ...]:
        if not self.versions:
            raise CacheError("what arrives at a part of the graph is known only when it is called")
        return self.forward, self.inner, list(self.versions.items())

    def prepare(self, args: list[Any] | None) -> None:
        """Compile it for such arguments; nothing where they are not known."""
        if args is not None:
            self._make(self._key(args), tuple(args))

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return (torch.is_grad_enabled(), *[_layout(args[i]) for i in self.inner])

    def __call__(self, *args: Any) -> Any:
        key = self._key(args)
        version = self.versions.get(key)
        if version is None:
            version = uncaptured(_C.call_locked, self.lock, _C.call_restoring, self._make, key, args)
        return version(*args)

    def _make(self, key: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
        version = self.versions.get(key)
        if version is None:
            version = self.forward
            if len(self.versions) < _VERSIONS:
                with events.bus.compiling(self.compile_id), events.span("compile_part", "backend"):
                    version = self._compiled(list(args))
            self.versions[key] = version
        return version

    def _compiled(self, args: list[Any]) -> Callable[..., Any]:
        """The part for these arguments. The parts before it may have run; there is no way back to capture, which would
        run the frame eagerly under `config.suppress_errors`: that is done here."""
        try:
            return self.compile_graph(self.module(), args)
        except BackendCompilerFailed as error:
            if not config.suppress_errors:
                raise
            events.emit("fallback", "backend", str(error), scope="graph", reason=str(error), backend="ddp")
            return self.forward


def stored_part(
    graph: Callable[..., Any], inner: tuple[int, ...], versions: list[tuple[Any, Callable[..., Any]]]
) -> Part:
    """A part that an earlier process compiled.

    Arguments:
        graph: of `resolver.run_graph`.
    """
    return Part(graph, lambda: module_of(graph), inner, _compile_late, versions)


def _compile_late(gm: fx.GraphModule, args: list[Any]) -> Callable[..., Any]:
    from argand.backends.native import native  # what is loaded as it is needs no compiler

    try:
        return native(gm, args)
    except ArgandError as error:
        raise BackendCompilerFailed("native", error, where=error.where) from error


def _layout(value: Any) -> Any:
    return value.requires_grad, value.shape, value.stride(), value.dtype


def writing_again(gm: fx.GraphModule) -> bool:
    """Whether a graph has a checkpoint whose backward writes to buffers."""
    return any("writes_again" in node.meta for node in gm.graph.nodes)
