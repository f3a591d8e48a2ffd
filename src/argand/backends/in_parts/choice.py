"""Which graphs are compiled in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from argand.backends.in_parts.buckets import ddp_to_cut
from argand.backends.in_parts.parts import CompileGraph, writing_again


def compile_in_parts(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    backend: str | Callable[..., Any],
    ahead: Callable[[], object],
) -> Callable[..., Any] | None:
    """The graph in parts; None where it is to be compiled whole.

    Arguments:
        gm: a captured graph; `example_inputs`: one value per placeholder.
        compile_graph: compiles one part, as a backend does. Raises BackendCompilerFailed.
        backend: whose calls it makes.
        ahead: tells whether parts are compiled before they are called.
    """
    if backend != "eager" and writing_again(gm):
        from argand.backends.in_parts.around_checkpoints import compile_around

        return compile_around(gm, example_inputs, compile_graph)
    if (ddp := ddp_to_cut()) is not None:
        from argand.backends.in_parts.cuts import compile_split

        return compile_split(gm, example_inputs, ddp, compile_graph, ahead=bool(ahead()), contest=backend == "native")
    return None
