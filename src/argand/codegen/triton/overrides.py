"""Another Triton expression for an op, for an experiment or to work around a wrong kernel.

    from argand.codegen.triton import overrides
    overrides.neg = lambda x: f"(2 * {x})"

The function gets operand texts and returns an expression that holds for blocks of any shape. The next compile uses it
(the text changes, so the cache cannot answer with the old kernel); `del overrides.neg` ends it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from argand.codegen.triton.functions import TABLE, Printer

DEFAULTS: dict[str, Printer] = dict(TABLE)


class Replacement:
    """The printer that a user's function is.

    Arguments:
        function: of operand texts.
    """

    def __init__(self, function: Callable[..., str]) -> None:
        self.function = function

    def __call__(self, dtype: torch.dtype, args: list[str]) -> str:
        return str(self.function(*args))


def replaced(op: str) -> bool:
    """Whether a user replaced the function of `op`."""
    return TABLE.get(op) is not DEFAULTS.get(op)


class _OverridesModule(types.ModuleType):
    """Lets `overrides.neg = f` replace the printer of `neg`."""

    def __getattr__(self, name: str) -> Any:
        printer = TABLE.get(name)
        if printer is None:
            raise AttributeError(f"the Triton code generator has no op {name!r}")
        if isinstance(printer, Replacement):
            return printer.function

        def default(*operands: str) -> str:
            return printer(torch.float32, list(operands))

        return default

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DEFAULTS:
            TABLE[name] = Replacement(value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in DEFAULTS:
            TABLE[name] = DEFAULTS[name]
        else:
            super().__delattr__(name)


sys.modules[__name__].__class__ = _OverridesModule
