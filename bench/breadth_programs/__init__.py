"""Programs of `bench/breadth.py`, written out as users write them; none is in the demo, and nothing is tuned for one.

`PROGRAMS[name]()` gives a module with random weights and its arguments; a step takes 2 to 500 ms on two cores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from . import (  # noqa: F401  these enter their programs
    attention,
    blocks,
    classifiers,
    convolutions,
    entering,
    fields,
    further,
    images,
    sequences,
    series,
    structures,
)

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

PROGRAMS: dict[str, Callable[[], Made]] = {
    **attention.PROGRAMS,
    **convolutions.PROGRAMS,
    **sequences.PROGRAMS,
    **structures.PROGRAMS,
    **blocks.PROGRAMS,
    **images.PROGRAMS,
    **entering.PROGRAMS,  # of fields, further and series
    **classifiers.PROGRAMS,
}
