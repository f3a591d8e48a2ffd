"""From a schedule's kernels to their C++ source."""

from __future__ import annotations

from argand.codegen.host.module import KernelSource
from argand.config import config
from argand.ir.kernel import Schedule


def kernel_source(schedule: Schedule) -> KernelSource | None:
    """C++ for every different kernel of a schedule; None when it has none."""
    kernels = schedule.kernels()
    if not kernels:
        return None
    from argand.codegen import cpp
    from argand.runtime.toolchain import isa_for

    made = cpp.generate(kernels, isa_for(int(config.cpp.simdlen)))
    return KernelSource(made.text, made.kernel_symbols, made.flagged, made.parts)
