"""Whether Python's builtins are its own: argand's code calls them, and a program may have put others in their place."""

from __future__ import annotations

import builtins

_NAMES = vars(builtins)
_OFTEN_REPLACED = frozenset(["print", "input", "open", "breakpoint", "help", "exit", "quit", "__import__"])
_PYTHONS = tuple((name, value) for name, value in _NAMES.items() if callable(value) and name not in _OFTEN_REPLACED)
_GONE = object()


def are_pythons() -> bool:
    """Whether no builtin that argand's own code calls has been replaced. Calls none of them."""
    get, gone = _NAMES.get, _GONE
    for name, value in _PYTHONS:  # noqa: SIM110 - all() is a builtin
        if get(name, gone) is not value:
            return False
    return True
