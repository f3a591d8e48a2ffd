"""Variants of the native compiler that go as far as one stage: a slow, plain interpreter runs what that stage made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from argand.backends.compile_watchers import CompileProgram
from argand.backends.programs import generation
from argand.backends.targets import target_of
from argand.codegen.host.kernels import kernel_source
from argand.config import config
from argand.debug.tensors import detached
from argand.debug.trial.kernels import Launches, host_module
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.hints import size_hints
from argand.ir.interpret import flatten, interpret
from argand.lower import lower
from argand.lower.verify import verify
from argand.passes import pipeline
from argand.runtime import host as host_loader
from argand.runtime.gpu.kernels import load
from argand.schedule.reference import run_kernel, run_schedule

Boxed = Callable[[list[Any]], Any]


def variant_of(name: str) -> CompileProgram:
    """The variant that has this `__name__`."""
    function, _, count = name.partition(" ")
    variant: Callable[..., Any] = globals()[function]
    return variant(int(count)) if count else variant


def _boxed(run: Callable[[list[Any]], Iterable[Any]]) -> Boxed:
    def call(args: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            return tuple(run(list(map(detached, args))))

    return call


def _rewritten(program: AtenProgram, count: int | None = None) -> AtenProgram:
    """The program after passes; one for many sizes was made from traces that they have rewritten."""
    return program if program.scalars else pipeline.run_passes(program, pipeline.INFERENCE[:count])


def aten_graph(program: AtenProgram) -> Boxed:
    """No stage at all: eager's kernels."""
    return generation.eager_kernels(program)


def after_passes(count: int) -> CompileProgram:
    """The first passes, then eager's kernels."""

    def compile_program(program: AtenProgram) -> Boxed:
        return generation.eager_kernels(_rewritten(program, count))

    compile_program.__name__ = f"{after_passes.__name__} {count}"
    return compile_program


def loop_program(program: AtenProgram) -> Boxed:
    """Lowering."""
    loops = lower(_rewritten(program), targets=target_of)
    loops.mutations = []
    return _boxed(functools.partial(interpret, loops))


def schedule(program: AtenProgram) -> Boxed:
    """Scheduling."""
    return _boxed(functools.partial(run_schedule, generation.schedule_program(program)))


def kernel_text(program: AtenProgram) -> Boxed:
    """Generating the text of the kernels, of which the schedule is run all the same."""
    schedule = generation.schedule_program(program)
    with size_hints(schedule.hints):
        kernel_source(schedule)
    return _boxed(functools.partial(run_schedule, schedule))


def host_code(program: AtenProgram) -> Boxed:
    """The host module, with interpreted kernels."""
    schedule = generation.schedule_program(program)
    launches = Launches(schedule)

    def kernel(*args: Any) -> None:
        number, tensors = launches.take(args)
        with torch.no_grad():
            memory = {name: flatten(tensor) for name, tensor in tensors.items()}
            run_kernel(launches.steps[number], launches.sizes, memory)

    with _no_kernels():
        module = host_module(schedule, lambda plan, _: kernel)

    def call(args: list[Any]) -> Any:
        launches.begin(args)
        return module.call(args)

    return call


def loop_rules(program: AtenProgram) -> Boxed:
    """The rules of loop programs are looked at; what is run is the ATen graph."""
    with config.patch(verify_ir=False):
        loops = lower(_rewritten(program), targets=target_of)
    verify(loops)
    return generation.eager_kernels(program)


def schedule_rules(program: AtenProgram) -> Boxed:
    """The same of schedules."""
    generation.schedule_program(program)
    return generation.eager_kernels(program)


def _none_loaded(text: str, kernels: Mapping[str, Any], *_: Any) -> list[Any]:
    return [None] * len(kernels)


@contextlib.contextmanager
def _no_kernels() -> Iterator[None]:
    """Host modules are loaded without their kernels being compiled."""
    loaders: tuple[tuple[Any, str], ...] = ((host_loader, "load_kernels"), (load, "load_triton_kernels"))
    saved = [(module, name, getattr(module, name)) for module, name in loaders]
    for module, name in loaders:
        setattr(module, name, _none_loaded)
    try:
        yield
    finally:
        for module, name, loader in saved:
            setattr(module, name, loader)
