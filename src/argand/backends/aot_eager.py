"""Backend "aot_eager": the functional ATen graph, run by eager's kernels. Tells whether tracing is at fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from argand.backends.common import compile_inference
from argand.backends.compile_watchers import Compiler
from argand.backends.eager import run_eagerly


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Trace to a functional ATen graph and run that with eager kernels.

    A graph that cannot be traced, and one whose gradients are needed, runs eagerly, with a "fallback" event.
    """
    return compile_inference(gm, example_inputs, Compiler("aot_eager", run_eagerly))
