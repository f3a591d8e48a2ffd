"""GPUs at run time: their kernels, from Triton source text to callables that launch, and what surrounds a launch.

* `device`: the GPU itself: what kind it is, its driver, its memory, its time.
* `kernels`: the way in is `kernels.load`: the text of a module of `@triton.jit` functions goes in, and how each is
  compiled (`kernels.spec`); one callable a kernel comes out, `kernel(gx, gy, gz, *tensors, *ints)`.
* `cuda_graphs`: whole calls, recorded once and replayed.
* `operators`: what is no kernel of the schedule's: matrix products by a library, attention with functions of scores.

Imports go up this list only. Triton is imported where something has to be compiled or interpreted, never before.
"""
