"""One launch for several finished kernels.

`small` joins neighbours, `alike` kernels of equal loops, `segments` kernels that do the same to buffers of any sizes.
"""
