"""Calls programs eagerly and compiled, and compares what becomes of the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import argand


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, as text, or the class and the words of what it raises."""
    try:
        return repr(fn(*args))
    except Exception as error:
        return type(error), str(error)


class Agreeing:
    """Calls a program eagerly and compiled, with whatever its arguments are by then.

    Arguments:
        fn: takes a tensor before its other arguments.
        dynamic: as of `argand.compile`.
        shape: of the tensor.
    """

    def __init__(self, fn: Callable[..., Any], dynamic: bool | None = None, *, shape: tuple[int, ...] = (3, 4)) -> None:
        self.fn = fn
        self.compiled = argand.compile(fn, backend="eager", dynamic=dynamic)
        self.x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)

    def __call__(self, *args: Any) -> Any:
        """What eager gives or raises; the compiled call agrees."""
        return self.of(lambda: args)

    def of(self, made: Callable[[], tuple[Any, ...]]) -> Any:
        """The same, of arguments that are made anew for each of the two calls."""
        wanted = outcome(self.fn, self.x.clone(), *made())
        found = outcome(self.compiled, self.x.clone(), *made())
        assert found == wanted, (found, wanted)
        return wanted


def agree(
    fn: Callable[..., Any], *calls: tuple[Any, ...], dynamic: bool | None = None, shape: tuple[int, ...] = (2,)
) -> None:
    """A program agrees with eager in each of some calls."""
    agreeing = Agreeing(fn, dynamic, shape=shape)
    for args in calls or ((),):
        agreeing(*args)
