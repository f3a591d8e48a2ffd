"""Where torch's meta kernels and eager's CPU kernels disagree on a result's layout, the corrections.

`RULES` maps an op to `rule(made, *meta_args, **kwargs)`, which returns `made` re-laid; `METAS` replaces the meta kernel.
`tests/autograd/test_layouts.py` compares every op that op_db reaches with eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

Rule = Callable[..., Any]


def _as(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").contiguous(memory_format=memory_format)


RULES: dict[Any, Rule] = {}
METAS: dict[Any, Rule] = {}
