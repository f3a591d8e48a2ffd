"""Scheduling: a loop program becomes an ordered list of fused kernels and extern calls.

In: `ir.loops.Program`. Out: `ir.kernel.Schedule`: `KernelPlan`s (read by codegen/cpp and codegen/triton) and
`ExternNode`s in the order in which the host module runs them, and the program's outputs and mutations.
"""
