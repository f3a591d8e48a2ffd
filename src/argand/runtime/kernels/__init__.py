"""Kernels of argand's own for a CPU that do not depend on the program: products of matrices, the steps of a
GRU or an LSTM.

In: tensors. Out: what a library's function would compute. `background_kernels` compiles their C++ while graphs are
compiled (`background_libraries` does so with that of graphs), `timed_choice` finds whether one is faster than the
library's, and `recurrent` defines the operators of recurrent layers.
"""
