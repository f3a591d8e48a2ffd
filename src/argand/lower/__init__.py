"""Lowering: a functional ATen graph in, a loop program out.

In: `graph.nodes.program.AtenProgram`. Out: `ir.loops.Program`: loop nests recorded define-by-run, calls of ATen
kernels, and the buffers between them. `lower.lower` makes it, `lower.dump` prints it, `lower.verify` checks it.
"""

from argand.lower.driver import lower

__all__ = ["lower"]
