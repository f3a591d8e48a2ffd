"""From a schedule's kernels to their source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argand.codegen.host.module import KernelSource
from argand.config import config
from argand.errors import InternalError
from argand.ir.kernel import KernelPlan, Schedule

if TYPE_CHECKING:
    import torch

    from argand.codegen.triton.spec import TritonSource


def kernel_source(schedule: Schedule) -> KernelSource | None:
    """C++ or Triton for every different kernel of a schedule, as its device's target says; None when it has none."""
    kernels = schedule.kernels()
    if not kernels:
        return None
    plans: dict[str, dict[torch.device, list[KernelPlan]]] = {"cpp": {}, "triton": {}}
    for plan in kernels:
        target = schedule.targets[plan.device]
        if target.name not in plans:
            raise InternalError(f"nobody prints kernels of the target {target.name}")
        plans[target.name].setdefault(plan.device, []).append(plan)
    triton = _triton(schedule, plans["triton"])
    return _cpp([plan for group in plans["cpp"].values() for plan in group], triton)


def _cpp(kernels: list[KernelPlan], triton: dict[torch.device, TritonSource]) -> KernelSource:
    if not kernels:
        return KernelSource("", {}, triton=triton)
    from argand.codegen import cpp
    from argand.runtime.toolchain import isa_for

    source = cpp.generate(kernels, isa_for(int(config.cpp.simdlen)))
    return KernelSource(source.text, source.kernel_symbols, source.flagged, source.parts, triton)


def _triton(schedule: Schedule, kernels: dict[torch.device, list[KernelPlan]]) -> dict[torch.device, TritonSource]:
    if not kernels:
        return {}
    from argand.codegen.triton import generate

    return {device: generate(plans, schedule.targets[device].processors) for device, plans in kernels.items()}
