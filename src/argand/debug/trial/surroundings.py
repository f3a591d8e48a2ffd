"""The state of process and thread in which something was called, so that it can be called in the same again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from argand.debug import gpus
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the process and thread in which something was compiled or called.

    Arguments:
        grad: gradients are recorded.
        inference: inference mode.
        autocast: dtype of CPU autocast, None when it is off.
        gpu_autocast: the same of GPUs.
        threads: of torch.
    """

    grad: bool = True
    inference: bool = False
    autocast: torch.dtype | None = None
    threads: int = 0
    gpu_autocast: torch.dtype | None = None

    @classmethod
    def now(cls) -> Surroundings:
        """Of this thread."""
        cast, threads = gpus.autocast(), torch.get_num_threads()
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return cls(grad, inference, cast.get("cpu"), threads, cast.get("cuda"))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run under this state."""
        threads = torch.get_num_threads()
        with contextlib.ExitStack() as stack:
            if self.threads and self.threads != threads:
                torch.set_num_threads(self.threads)
                stack.callback(torch.set_num_threads, threads)
            cast = {"cpu": self.autocast, "cuda": self.gpu_autocast}
            stack.enter_context(gpus.autocast_as({kind: dtype for kind, dtype in cast.items() if dtype is not None}))
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield
