"""Which stage of the native compiler makes a whole script go wrong, where no graph of it fails by itself.

As `stages` does for one graph: every program of the script is compiled as far as one stage, and what that made is
interpreted. A gradient that is wrong only for the gradients that the script's own loss sends back is found so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from argand.backends.registry import Backend
from argand.backends.watch import CompileProgram, watching
from argand.debug.doctor import stages
from argand.debug.doctor.child import GraphBackend, Mode, Recorder
from argand.passes import pipeline

UNCACHED: dict[str, Any] = {"cache": False, "reuse_graphs": False}


def through(variant: CompileProgram) -> GraphBackend:
    """ATen programs are compiled by `variant`, in the child."""

    def graphs(recorder: Recorder, function: Backend, asked: Any) -> Backend:
        def compile_graph(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
            with watching(lambda compile_program, name, boxed: variant):
                return function(gm, inputs, **options)

        return compile_graph

    return graphs


Fails = Callable[[Mode, GraphBackend | None], bool]


def blame_script(fails: Fails) -> tuple[str, str]:
    """The first stage after which the script goes wrong, and the pass in it.

    Arguments:
        fails: whether a run in a mode, with graphs compiled in another way, goes wrong as the script does.
    """
    for stage, part, mode, variant in _steps():
        if fails(mode, through(variant)):
            return stage, part or _guilty_pass(fails) if stage == "passes" else part
    scalar = Mode("compiled as scalar code", settings={**UNCACHED, "cpp.simdlen": 0})
    return ("codegen", "") if fails(scalar, None) else ("vector", "")


def _guilty_pass(fails: Fails) -> str:
    passes = pipeline.INFERENCE
    for count, one in enumerate(passes[:-1], 1):
        if fails(Mode(f"after the pass {one.name}"), through(stages._after_passes(count))):
            return one.name
    return passes[-1].name


def _steps() -> Iterator[tuple[str, str, Mode, CompileProgram]]:
    yield "passes", "prepare_joint", Mode("ATen graphs before passes"), stages._eager
    yield "passes", "", Mode("ATen graphs after all passes"), stages._after_passes(len(pipeline.INFERENCE))
    yield "lowering", "", Mode("the loop programs, interpreted"), stages._interpreted
    yield "fusion", "", Mode("the schedules, interpreted"), stages._scheduled
    yield "codegen", "", Mode("generating the text of the kernels"), stages._generated
    yield "host", "", Mode("the host modules, with interpreted kernels", settings=UNCACHED), stages._hosted
