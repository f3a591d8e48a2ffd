"""One launch for several finished kernels.

`small_kernels` joins neighbours, `parts` neighbours that write the same rows, `equal_kernels` kernels of equal loops,
`segments` kernels that do the same to buffers of any sizes.
"""
