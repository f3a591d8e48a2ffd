"""One launch for several finished kernels.

`small_kernels` joins neighbours, `equal_kernels` kernels of equal loops, `segments` kernels that do the same to buffers
of any sizes.
"""
