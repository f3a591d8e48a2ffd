"""Checks: what is run to see whether a graph fails, for a backend and for the native compiler alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from argand.autograd import trace_inference, wrap
from argand.backends import aot_eager, native
from argand.backends.registry import lookup_backend
from argand.config import config
from argand.debug import accuracy, gpus
from argand.debug.accuracy import AccuracyError, run_forward_backward
from argand.debug.minify.surgery import clone_inputs, output_node, steady
from argand.debug.trial.isolation import mark


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the process and thread in which a graph was compiled.

    Arguments:
        grad: gradients are recorded.
        inference: inference mode.
        autocast: dtype of CPU autocast, None when it is off.
        gpu_autocast: the same of GPUs.
        threads: of torch.
    """

    grad: bool = True
    inference: bool = False
    autocast: torch.dtype | None = None
    threads: int = 0
    gpu_autocast: torch.dtype | None = None

    @classmethod
    def now(cls) -> Surroundings:
        """Of this thread."""
        cast, threads = gpus.autocast(), torch.get_num_threads()
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return cls(grad, inference, cast.get("cpu"), threads, cast.get("cuda"))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run under this state."""
        threads = torch.get_num_threads()
        with contextlib.ExitStack() as stack:
            if self.threads and self.threads != threads:
                torch.set_num_threads(self.threads)
                stack.callback(torch.set_num_threads, threads)
            cast = {"cpu": self.autocast, "cuda": self.gpu_autocast}
            stack.enter_context(gpus.autocast_as({kind: dtype for kind, dtype in cast.items() if dtype is not None}))
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield


@dataclass(frozen=True, slots=True)
class BackendCheck:
    """Compiles a torch-level graph with a backend, runs it, and (`accuracy`) compares with eager.

    Arguments:
        backend: name or callable.
        options: keyword arguments for it.
        after: "dynamo" compiles with the backend; "aot" traces to ATen and gives that to the native compiler (or to
            the backend "aot_eager"), without gradients.
        accuracy: wrong results are failures too.
        run: also call what was compiled; False when compiling is what failed.
        surroundings: the state under which it failed.
        tolerance: relative; 0 is that of the dtype.
        calls: how often the compiled graph is called, every second time with the elements of its inputs moved on; what
            each call returned is looked at after the last.
    """

    backend: str | Callable[..., Any] = "native"
    options: dict[str, Any] = field(default_factory=dict)
    after: str = "dynamo"
    accuracy: bool = False
    run: bool = True
    surroundings: Surroundings = field(default_factory=Surroundings)
    tolerance: float = 0.0
    calls: int = 1

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Raise as the graph fails; return when it does not."""
        fallback_random = bool(config.fallback_random) or self.accuracy
        # What the user sees must be seen here too, and nothing may start another search.
        settings = {"repro_after": "", "suppress_errors": False, "fallback_random": fallback_random}
        with self.surroundings.restored(), steady(), config.patch(settings):
            mark("compile")
            compiled = self.compile(gm, clone_inputs(inputs))
            if not self.run and not self.accuracy:
                return
            gradients = self.surroundings.grad and self.after == "dynamo"
            made = []
            for number in range(self.calls):
                given = _turned(inputs, number % 2)
                arguments = clone_inputs(given)
                torch.manual_seed(0)
                actual = run_forward_backward(compiled, arguments, gradients=gradients, at=mark)
                made.append((given, arguments, actual))
            if self.accuracy:
                mark("accuracy")
                for given, arguments, actual in made:
                    compare_with_eager(gm, given, arguments, actual, gradients, self.tolerance)

    def eagerly(self) -> BackendCheck:
        """The check of what the graph does without the compiler."""
        return replace(self, backend="eager", options={}, after="dynamo", accuracy=False, run=True)

    def compile(self, gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """A callable for the graph."""
        if self.after == "aot":
            return compile_aten(gm, inputs, self.backend)
        return lookup_backend(self.backend)(gm, inputs, **self.options)


def _turned(inputs: Sequence[Any], by: int) -> list[Any]:
    """The same inputs, their elements moved on: what a call leaves for the next one shows only where they differ."""
    if not by:
        return list(inputs)
    made = clone_inputs(inputs)
    seen: set[int] = set()
    with torch.no_grad():
        for value in made:
            dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
            if dense and value.dim() and id(value) not in seen and not value.is_quantized:
                seen.add(id(value))
                with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written to
                    value.detach().copy_(value.detach().roll(by))
    return made


def compile_aten(gm: fx.GraphModule, inputs: list[Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The stages from the ATen graph on: passes, lowering, scheduling, code generation."""
    with torch.no_grad():
        program = trace_inference(gm, inputs)
        if backend == "aot_eager":
            return wrap(program, aot_eager.run_eagerly(program))
        return wrap(program, native.compile_program(program), boxed=True)


def compare_with_eager(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    written: Sequence[Any],
    actual: tuple[Any, list[torch.Tensor | None]],
    gradients: bool = True,
    tolerance: float = 0.0,
) -> None:
    """Compare a compiled graph's results, gradients and writes to its inputs with eager's, in its dtypes and float64.

    Arguments:
        gm: the graph.
        inputs: what both ran on (not written to).
        written: the compiled run's inputs, after it.
        actual: its results and gradients (`run_forward_backward`).

    Raises:
        AccuracyError: they differ.
    """
    arguments = clone_inputs(inputs)
    torch.manual_seed(0)
    expected = run_forward_backward(gm.forward, arguments, gradients=gradients)
    wide, wide_arguments = _in_float64(gm, inputs, gradients)
    tol = tolerance or None
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    results: Any = output_node(gm.graph).args[0]
    flat = isinstance(results, (tuple, list)) and isinstance(expected[0], (tuple, list))
    for number, part in enumerate(expected[0] if flat else [expected[0]]):
        got = actual[0][number] if flat else actual[0]
        arbiter = None if wide is None else wide[0][number] if flat else wide[0]
        found = accuracy.compare(part, got, arbiter, tol=tol, strides=True)
        if found is not None:
            node = results[number] if flat else results
            raise AccuracyError(found, getattr(node, "name", str(number)))
    for number, name in enumerate(names):
        arbiter = wide_arguments[number] if wide_arguments else None
        found = accuracy.compare(arguments[number], written[number], arbiter, tol=tol)
        if found is not None:
            raise AccuracyError(found, name)
        arbiter = None if wide is None else wide[1][number]
        found = accuracy.compare(expected[1][number], actual[1][number], arbiter, tol=tol)
        if found is not None:
            raise AccuracyError(found, f"gradient of {name}")


def _in_float64(gm: fx.GraphModule, inputs: Sequence[Any], gradients: bool) -> tuple[Any, list[Any] | None]:
    """Eager's results, gradients and written inputs in float64; None where the graph cannot run so."""
    if not any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs):
        return None, None
    arguments = [accuracy.widened(value) for value in inputs]
    arguments = [a.clone() if a is b and isinstance(a, torch.Tensor) else a for a, b in zip(arguments, inputs)]
    try:
        torch.manual_seed(0)
        with gpus.autocast_as({}):
            return run_forward_backward(accuracy.in_float64(gm).forward, arguments, gradients=gradients), arguments
    except Exception:  # an op without a float64 kernel, a dtype that the program insists on
        return None, None
