"""Decomposition rules: one function per ATen op, which writes the op in smaller ones on a `metadata.builder.Builder`.

A rule takes the builder and the node's arguments as the op's schema orders them, and returns a node, a tuple with one
per result, or NotImplemented to leave the op whole. Values are computed as eager's kernels do: low-precision floats are
widened first and rounded once at the end.
"""

from argand.passes.decompositions import (
    encoders,
    folds,
    gradients,
    losses,
    masks,
    norms,
    places,
    products,
    reductions,
    resampling,
    sequences,
    shapes,
)
from argand.passes.decompositions.rules import RULES

__all__ = [
    "RULES", "encoders", "folds", "gradients", "losses", "masks", "norms", "places", "products", "reductions",
    "resampling", "sequences", "shapes",
]  # fmt: skip
