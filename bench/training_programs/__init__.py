"""Programs of `bench/training.py`, written as users write them: of kinds that `breadth_programs` has not.

`PROGRAMS[name]()` gives a module with random weights, a batch, `loss(module, *batch)` and what makes its optimizer.
Noise is part of the batch, so that losses can be compared. A step takes 5 to 100 ms on two cores.
"""

from __future__ import annotations

from . import decisions, generative, images, language_models, representations, sequences
from .program import PROGRAMS, Made

__all__ = ["PROGRAMS", "Made", "decisions", "generative", "images", "language_models", "representations", "sequences"]
