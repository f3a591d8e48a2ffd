"""Values that are made anew of the tensors in the slots of a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from argand.capture.facts.values.symbolic import SymbolicFloat, SymbolicInt, SymbolicNumber, SymbolicSize

CONSTANTS: Final = frozenset((
    int, float, bool, complex, str, bytes, type(None), type(Ellipsis), range,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
))  # fmt: skip
"""Types of values that are the same for all."""
Fill = Callable[[list[object]], Any]
"""A value, of what is in the slots of a template."""


def is_constant(value: object) -> bool:
    """Whether a value is the same for all. Numbers that vary are: they belong to the capture."""
    cls = type(value)
    if cls is SymbolicInt or cls is SymbolicFloat:
        assert isinstance(value, SymbolicNumber)
        return id(value) not in value.dynamics.keys
    return cls in CONSTANTS or cls is SymbolicSize


def constant(value: object) -> Fill:
    return lambda slots: value


def sequence(cls: type, parts: list[Fill]) -> Fill:
    return lambda slots: cls([part(slots) for part in parts])


def named(parts: dict[str, Fill]) -> Fill:
    return lambda slots: {key: part(slots) for key, part in parts.items()}
