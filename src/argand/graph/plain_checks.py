"""Torch's checks of sizes without the symbolic numbers that they ask for, whose module imports sympy (0.3 s)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from argand.graph import plain_symbols

_Result = TypeVar("_Result")

_SYMBOLIC = plain_symbols.SYMBOLIC
_NAME = "_check_with"
_of_torch = vars(torch).get(_NAME)


def _check_plainly(error: Any, holds: Any, message: Any) -> None:
    """`torch._check_with`: nothing to do where a plain condition holds, and the error where it does not."""
    if holds is False and callable(message) and issubclass(error, Exception) and not issubclass(error, Warning):
        raise error(str(message()))
    if holds is not True and _of_torch is not None:
        _of_torch(error, holds, message)


def with_plain_checks(func: Callable[..., _Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Result:
    """`func(*args, **kwargs)`, a kernel of torch's on tensors of plain sizes.

    Torch's own check stays where somebody has replaced it, or symbolic numbers are loaded already. Another thread that
    checks something meanwhile is given the same answers.
    """
    names = vars(torch)
    if _SYMBOLIC in sys.modules or _of_torch is None or names.get(_NAME) is not _of_torch:
        return func(*args, **kwargs)
    names[_NAME] = _check_plainly
    try:
        with plain_symbols.stood_in():
            return func(*args, **kwargs)
    finally:
        if names.get(_NAME) is _check_plainly:
            names[_NAME] = _of_torch
