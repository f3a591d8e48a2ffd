"""Which loop nodes share a kernel, and the kernel that they become.

`group` says whether two groups of nodes may be one, `fuse` chooses, `loops` orders what remains of their loops, `emit`
writes the `KernelPlan`.
"""
