"""Faults of the code for GPUs: `import plants_gpu; plants_gpu.install("triton_wrong_neg")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLANTS: dict[str, Callable[[], None]] = {}


def plant(function: Callable[[], None]) -> Callable[[], None]:
    PLANTS[function.__name__] = function
    return function


def install(name: str) -> None:
    """Plant a fault in this process."""
    PLANTS[name]()


@plant
def triton_wrong_neg() -> None:
    """Kernels compute `2 * x` for `-x`."""
    from argand.codegen.triton import functions

    functions.TABLE["neg"] = lambda dtype, args: f"(2 * {args[0]})"


@plant
def triton_refused_neg() -> None:
    """Triton does not take what is printed for `-x`."""
    from argand.codegen.triton import functions

    functions.TABLE["neg"] = lambda dtype, args: f"tl.no_such_function({args[0]})"


@plant
def triton_wrong_lowering() -> None:
    """`-x` is lowered to `x * 2`."""
    import torch

    from argand.lower.lowerings import REGISTRY

    REGISTRY.entries[torch.ops.aten.neg.default] = REGISTRY.entries[torch.ops.aten.exp.default]


@plant
def triton_swapped_inputs() -> None:
    """Launches hand over the first two inputs the wrong way round."""
    from argand.codegen.host import gpu

    launching: Any = gpu.launching

    def swapped(plan: Any, spec: Any, tensors: list[str], *args: Any, **kwargs: Any) -> list[str]:
        if len(plan.inputs) > 1:
            tensors = [tensors[1], tensors[0], *tensors[2:]]
        found: list[str] = launching(plan, spec, tensors, *args, **kwargs)
        return found

    gpu.launching = swapped
