"""What is tried, and what trying it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

Check = Callable[[fx.GraphModule, list[Any]], Any]
"""Raises (or crashes, or hangs) where a graph fails on its inputs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attempt, and the whole search, may take.

    Arguments:
        attempt_seconds: an attempt that takes longer hangs.
        memory: bytes that an attempt may take beyond what the process has; 0 is no limit.
        total_seconds: after so long the smallest program so far is the result; 0 is no limit.
    """

    attempt_seconds: float = 60.0
    memory: int = 0
    total_seconds: float = 0.0
