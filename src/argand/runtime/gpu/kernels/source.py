"""Source text of kernels as a module: `triton.jit` asks for the lines of a function, and finds them here."""

from __future__ import annotations

import linecache
from types import ModuleType

from argand.runtime.cache import digest


def execute(text: str, filename: str = "") -> ModuleType:
    """The module that `text` makes.

    Its lines are known to `linecache`, so that `inspect` finds the source of each function without a file on disk.

    Arguments:
        text: what `codegen.triton` wrote, or the user edited.
        filename: shown in tracebacks and in the line tables of machine code.
    """
    name = f"argand_kernels_{digest(text)}"
    filename = filename or f"{name}.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = ModuleType(name)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module
