"""Warnings that native code gives while the interpreter runs it for the program.

They would name argand's line instead of the program's, and be given once per capture instead of once per call: the
graph breaks there, and the program's own instruction warns.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from argand import errors

_ROOMS = tuple(f"argand.capture.{room}." for room in ("interp", "natives", "objects"))
"""Whose modules call native code for the program; torch's functions are called by others."""


@functools.cache
def _modules() -> dict[str, dict[str, object]]:
    """The namespaces of the modules of these rooms, by file."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_ROOMS)]
    return {str(module.__file__): vars(module) for module in modules}


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """While this is open, a warning about a line of argand's raises GraphBreak in the thread that opened it."""
    files = _modules()
    for namespace in files.values():
        namespace.pop("__warningregistry__", None)  # else it would be given once per line of argand's
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
        )

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
    try:
        yield
    finally:
        is_open = False
        if warnings._showwarnmsg is show:  # type: ignore[attr-defined]
            warnings._showwarnmsg = before  # type: ignore[attr-defined]
