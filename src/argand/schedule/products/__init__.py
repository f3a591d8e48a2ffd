"""Products of matrices that are kernels of argand's own, or calls of something faster than ATen's product.

`kernels` proposes a product with the loops behind it as one kernel, `operands` adds the loops before it, `rules` knows
which calls are faster on a GPU.
"""
