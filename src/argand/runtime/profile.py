"""What compiled code shows in torch's profiler: regions, and with `config.cpp.enable_kernel_profile` every kernel.

The extension makes the ranges, while a profiler runs; without one, nothing is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from argand._core import _C
from argand.config import config
from argand.graph.profiler_compat import profiler_flag, profiler_range

Kernel = Callable[..., None]


def kernels_wanted() -> bool:
    """Whether each kernel is to appear."""
    return bool(config.cpp.enable_kernel_profile)


@functools.cache
def connect() -> None:
    """Tell the extension about torch's profiler, once in a process."""
    _C.set_profiler(*profiler_flag(), profiler_range, kernels_wanted)


def label(kernel: Kernel, name: str) -> None:
    """Let a kernel appear under this name. One whose profile was asked for when it was made appears always."""
    if not hasattr(kernel, "label"):
        return
    kernel.label = name
    if hasattr(kernel, "annotated"):
        kernel.annotated = kernels_wanted()


class ProfiledKernel:
    """Gives the runs of a kernel that is none of the extension's (Triton's own launchers) their ranges.

    Arguments:
        kernel: what runs.
        name: shown until `label` is set.
    """

    __slots__ = ("_kernel", "annotated", "label")

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self.label = name
        self.annotated = False

    def __call__(self, *args: Any) -> None:
        space, flag = profiler_flag()
        if space.get(flag) and (self.annotated or kernels_wanted()):
            with profiler_range(self.label):
                self._kernel(*args)
        else:
            self._kernel(*args)
