"""The way in: Triton source text and specs → callables that launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argand.runtime.gpu import interpreter
from argand.runtime.gpu.spec import launch_spec


def load_triton_kernels(text: str, specs: Mapping[str, Any], device: str) -> list[Any]:
    """Compile (or find in the cache) the kernels of a host module.

    Arguments:
        text: a Python module of `@triton.jit` functions.
        specs: by kernel name; what `launch_spec` takes.
        device: "cuda:1", "cuda" (the current one), or "cpu": interpreted.
    """
    wanted = [launch_spec(name, literal) for name, literal in specs.items()]
    return list(interpreter.load(text, wanted))
