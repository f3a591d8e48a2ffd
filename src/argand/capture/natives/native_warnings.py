"""Warnings that native code gives while the interpreter runs it for the program.

They would name argand's line instead of the program's, and be given once per capture instead of once per call: the
graph breaks there, and the program's own instruction warns.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from argand import errors

_NAMES = (
    "interpreter", "operators", "attributes", "attribute_writes", "iteration", "access", "calls", "classes", "natives",
    "natives_builtins", "natives_iteration", "natives_library", "natives_logging", "natives_methods", "natives_objects",
    "natives_operator",
)  # fmt: skip
_MODULES = tuple(f"argand.capture.{name}" for name in _NAMES)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """While this is open, a warning about a line of argand's raises GraphBreak in the thread that opened it."""
    files: set[Any] = set()
    for name in _MODULES:
        if name not in sys.modules:
            continue
        module = vars(sys.modules[name])
        module.pop("__warningregistry__", None)  # else it would be given once per line of argand's
        files.add(module["__file__"])
    before: Any = warnings._showwarnmsg  # type: ignore[attr-defined]
    thread = threading.get_ident()
    is_open = True

    def show(message: Any) -> None:
        if not is_open or message.filename not in files or threading.get_ident() != thread:
            before(message)
            return
        raise errors.graph_break(
            kind="native code that warns",
            context=f"{message.category.__name__}: {message.message}",
            explanation="Native code gives a warning, which must name the program's line, at every call.",
            hints=("Do what the warning says.",),
        )

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
    try:
        yield
    finally:
        is_open = False
        if warnings._showwarnmsg is show:  # type: ignore[attr-defined]
            warnings._showwarnmsg = before  # type: ignore[attr-defined]
