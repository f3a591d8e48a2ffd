"""Backend "eager": runs the captured graph as it is. Tells whether capture alone is at fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The graph's own forward."""
    return gm.forward
