"""From fused kernels to Triton functions for GPUs.

In: `ir.kernel.KernelPlan`s that `ir.target.gpu` allows. Out: `TritonSource`: text that `runtime.gpu` compiles and
launches. `axes` lays loops over blocks, `statements` prints a stage, `kernel` the function, `indices` index
expressions, `functions` is the table of expressions, `spec` how a kernel is launched.
"""

from argand.codegen.triton.kernel import generate
from argand.codegen.triton.spec import KernelSpec, TritonSource

__all__ = ["KernelSpec", "TritonSource", "generate"]
