"""A graph that changes whether gradients are recorded, and raises: stored code calls it too, and imports no more."""

from __future__ import annotations

from collections.abc import Callable

import torch

from argand.runtime.recipes import with_recipe


def put_back_grad(run: Callable[..., object]) -> Callable[..., object]:
    """A compiled graph that leaves grad mode as it found it when an operation in it raises."""

    def with_grad(*args: object) -> object:
        before = torch.is_grad_enabled()
        try:
            return run(*args)
        except BaseException:
            torch._C._set_grad_enabled(before)
            raise

    return with_recipe(with_grad, "put back grad mode", lambda: (run,))
