"""Checks: what is run to see whether a graph fails, for a backend and for the native compiler alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from argand.autograd import trace_inference, wrap
from argand.backends import eager, native
from argand.backends.registry import lookup_backend
from argand.config import config
from argand.debug.tensors import clone_inputs, steady
from argand.debug.trial.eager import compare_with_eager, run_forward_backward
from argand.debug.trial.isolation import mark
from argand.debug.trial.surroundings import Surroundings
from argand.quick_dataclasses import dataclass


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
            calls = []
            for number in range(self.calls):
                given = _turned(inputs, number % 2)
                arguments = clone_inputs(given)
                torch.manual_seed(0)
                actual = run_forward_backward(compiled, arguments, gradients=gradients, at=mark)
                calls.append((given, arguments, actual))
            if self.accuracy:
                mark("accuracy")
                for given, arguments, actual in calls:
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
    turned = clone_inputs(inputs)
    seen: set[int] = set()
    with torch.no_grad():
        for value in turned:
            dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
            if dense and value.dim() and id(value) not in seen and not value.is_quantized:
                seen.add(id(value))
                with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written to
                    value.detach().copy_(value.detach().roll(by))
    return turned


def compile_aten(gm: fx.GraphModule, inputs: list[Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The stages from the ATen graph on: passes, lowering, scheduling, code generation."""
    with torch.no_grad():
        program = trace_inference(gm, inputs)
        if backend == "aot_eager":
            return wrap(program, eager.run_eagerly(program))
        return wrap(program, native.compile_program(program), boxed=True)
