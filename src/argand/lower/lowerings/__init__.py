"""Lowering rules, one file per family.

In: an ATen overload with lowered arguments and a `Context`. Out: lowered tensors. Importing this package fills
`REGISTRY`.
"""

from argand.lower.lowerings import (  # noqa: F401 (each registers its rules)
    activations,
    bits,
    creation,
    depthwise,
    distances,
    drill,
    functions,
    gradients,
    kernels,
    norms,
    pads,
    places,
    pointwise,
    pools,
    random,
    reductions,
    resize,
    samples,
    shape,
    training,
    views,
)
from argand.lower.registry import REGISTRY

__all__ = ["REGISTRY"]
