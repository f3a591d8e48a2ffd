"""Stages of a kernel that do the same to other buffers: one text, in a loop over a table of the buffers' positions.

Layers that are alike bring such stages, one for each parameter that is copied, say. So a kernel's text, and the time
that the compiler takes, hardly grow with the number of layers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_LEAST: Final = 3  # stages that make a table
_POINTER: Final = re.compile(r"\b(?:in|out)_ptr\d+\b")
_COMMENT: Final = re.compile(r"//.*")

Declaration = tuple[str, int]
"""The type of a pointer to a buffer, and its position among the arguments."""


def with_tables(stages: Sequence[list[str]], pointers: Mapping[str, Declaration]) -> Iterator[list[str]]:
    """The lines of a kernel's stages, in order.

    Arguments:
        stages: the lines of each.
        pointers: the buffers' names.
    """
    forms = [_form("\n".join(lines), pointers) for lines in stages]
    for _, group in itertools.groupby(range(len(stages)), lambda number: forms[number][0]):
        run = list(group)
        if len(run) < _LEAST or not forms[run[0]][1]:
            yield from (stages[number] for number in run)
        else:
            yield _table([(stages[number], forms[number][1]) for number in run], pointers)


def _form(text: str, pointers: Mapping[str, Declaration]) -> tuple[str, tuple[str, ...]]:
    """What a stage does, without the names of what it does it to; and these names."""
    names: dict[str, int] = {}

    def placed(match: re.Match[str]) -> str:
        return f"{names.setdefault(match[0], len(names))}:{pointers[match[0]][0]}"

    return _POINTER.sub(placed, _COMMENT.sub("", text)), tuple(names)


def _table(run: Sequence[tuple[list[str], tuple[str, ...]]], pointers: Mapping[str, Declaration]) -> list[str]:
    lines, names = run[0]
    rows = [", ".join(str(pointers[name][1]) for name in own) for _, own in run]
    told = [_comments(own) for own, _ in run]
    declared = [f"{pointers[name][0]} {name} = ({pointers[name][0]})ptrs[row[{at}]];" for at, name in enumerate(names)]
    return [
        "  {",
        f"    static const i32 rows[{len(run)}][{len(names)}] = {{",
        *(f"      {{{row}}},{comment}" for row, comment in zip(rows, told)),
        "    };",
        "    for (const auto& row : rows) {",
        *(f"      {line}" for line in declared),
        *(f"    {line}" for line in lines if not line.lstrip().startswith("//")),
        "    }",
        "  }",
    ]


def _comments(lines: Sequence[str]) -> str:
    """What a stage says of itself, behind its row."""
    said = [line.strip().removeprefix("// ") for line in lines if line.lstrip().startswith("//")]
    return f"  // {'; '.join(said)}" if said else ""
