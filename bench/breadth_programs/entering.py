"""Where programs enter that are a class each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
PROGRAMS: dict[str, Callable[[], Made]] = {}


def program(name: str, inputs: Callable[[], tuple[torch.Tensor, ...]]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a module's class under a name, with what makes its arguments."""

    def enter(module: type[nn.Module]) -> type[nn.Module]:
        PROGRAMS[name] = lambda: (module().eval(), inputs())
        return module

    return enter
