"""Values that are made anew of the tensors in the slots of a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

CONSTANTS: Final = frozenset((
    int, float, bool, complex, str, bytes, type(None), type(Ellipsis), range,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
))  # fmt: skip
"""Types of values that are the same for all."""
Fill = Callable[[list[object]], Any]
"""A value, of what is in the slots of a template."""


def constant(value: object) -> Fill:
    return lambda slots: value


def sequence(cls: type, parts: list[Fill]) -> Fill:
    return lambda slots: cls([part(slots) for part in parts])


def named(parts: dict[str, Fill]) -> Fill:
    return lambda slots: {key: part(slots) for key, part in parts.items()}
