"""GPU kernels at run time: from Triton source text to callables that launch.

In: the text of a Python module of `@triton.jit` functions, and how each is compiled (`spec`). Out: one callable a
kernel, `kernel(gx, gy, gz, *tensors, *ints)`. `load` is the way in; `interpreter` runs kernels on CPU tensors. Triton
is imported where something has to be compiled or interpreted, never before.
"""
