"""Programs of `bench/breadth.py`, written out as users write them; none is in the demo, and nothing is tuned for one.

`PROGRAMS[name]()` gives a module with random weights and its arguments; a step takes 2 to 500 ms on two cores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from . import attention, blocks, classifiers, convolutions, further, images, sequences, structures

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

PROGRAMS: dict[str, Callable[[], Made]] = {
    **attention.PROGRAMS,
    **convolutions.PROGRAMS,
    **sequences.PROGRAMS,
    **structures.PROGRAMS,
    **blocks.PROGRAMS,
    **images.PROGRAMS,
    **further.PROGRAMS,
    **classifiers.PROGRAMS,
}
