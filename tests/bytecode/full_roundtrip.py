"""Round trip of every code object that can be compiled from installed sources, with counts.

    PYTHONPATH=src python tests/bytecode/full_roundtrip.py stdlib [more directories or files...]

Compiles the sources (never imports them), then for each code object, nested ones included, checks that
`encode(decode(code), code)` gives equal bytecode, constants, names, exception table, positions and no larger stack.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from types import CodeType

from argand.bytecode.decode import decode
from argand.bytecode.encode import const_key, encode


def source_files(root: str) -> Iterator[str]:
    """Python files below a directory (or the file itself); "stdlib" names the standard library."""
    if root == "stdlib":
        root = sysconfig.get_path("stdlib")
    if os.path.isfile(root):
        yield root
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("site-packages", "__pycache__"))
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.join(folder, name)


def code_objects(path: str) -> Iterator[CodeType]:
    """All code objects of a source file; none when it does not compile on this Python."""
    try:
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            todo = [compile(file.read(), path, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, UnicodeDecodeError):
        return
    while todo:
        code = todo.pop()
        yield code
        todo.extend(const for const in code.co_consts if isinstance(const, CodeType))


def differences(code: CodeType) -> list[str]:
    """Names of the attributes that a round trip changes; empty when it changes none."""
    again = encode(decode(code), code)
    found = []
    if again.co_code != code.co_code:
        found.append("co_code")
    if again.co_names != code.co_names or again.co_varnames != code.co_varnames:
        found.append("names")
    if (again.co_cellvars, again.co_freevars) != (code.co_cellvars, code.co_freevars):
        found.append("cells")
    if [const_key(value) for value in again.co_consts] != [const_key(value) for value in code.co_consts]:
        found.append("co_consts")
    if again.co_exceptiontable != code.co_exceptiontable:
        found.append("co_exceptiontable")
    if list(again.co_positions()) != list(code.co_positions()):
        found.append("co_positions")
    if list(again.co_lines()) != list(code.co_lines()):
        found.append("co_lines")
    if again.co_linetable != code.co_linetable:
        found.append("co_linetable")
    if again.co_stacksize > code.co_stacksize:
        found.append("co_stacksize")
    if again != code:
        found.append("==")
    return found


def main(roots: list[str]) -> int:
    """Print counts for each root; returns the number of code objects that differ."""
    failed = 0
    for root in roots:
        counts: Counter[str] = Counter()
        begin = time.perf_counter()
        for path in source_files(root):
            counts["files"] += 1
            for code in code_objects(path):
                counts["code objects"] += 1
                counts["bytes"] += len(code.co_code)
                try:
                    found = differences(code)
                except Exception as error:
                    found = [f"{type(error).__name__}: {error}"]
                counts["smaller stack"] += not found and encode(decode(code), code).co_stacksize < code.co_stacksize
                if found:
                    counts["different"] += 1
                    if counts["different"] <= 10:
                        print(f"{path}:{code.co_firstlineno} {code.co_qualname}: {', '.join(found)}")
        failed += counts["different"]
        seconds = time.perf_counter() - begin
        version = ".".join(map(str, sys.version_info[:3]))
        print(
            f"Python {version} {root}: " + ", ".join(f"{n} {what}" for what, n in counts.items()) + f", {seconds:.0f} s"
        )
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:] or ["stdlib"]), 1))
