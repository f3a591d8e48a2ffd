"""From fused kernels to one freestanding C++ file.

In: `schedule.kernel.KernelPlan`s and `runtime.toolchain.IsaInfo`. Out: `CppSource`: text that `runtime.toolchain`
compiles. `analysis` finds what depends on what, `plan` chooses loop order and vector variable, `loops` prints a
stage, `statements` a statement, `reduce` accumulators, `kernel` the function, `prelude` the declarations; `overrides`
is the table of C++ expressions. `repeated_stages` and `shared_forms` print once what is alike but for numbers.
"""

from argand.codegen.cpp.kernel import CppOptions, CppSource, generate
from argand.codegen.cpp.overrides import CppOverrides

__all__ = ["CppOptions", "CppOverrides", "CppSource", "generate"]
