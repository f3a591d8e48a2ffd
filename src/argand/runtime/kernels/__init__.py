"""Kernels of argand's own for a CPU that do not depend on the program: products of matrices, the steps of a GRU.

In: tensors. Out: what a library's function would compute. `ready` compiles their C++, `rivals` finds whether one is
faster than the library's, and `recurrent` defines the operators of recurrent layers.
"""
