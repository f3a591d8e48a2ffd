"""Stages of a kernel that do the same to other buffers, or at other places: one text, in a loop over a table of the
buffers' positions and of the numbers that differ.

Layers that are alike bring such stages, one for each parameter that is copied, say; so does what puts tensors together.
So a kernel's text, and the time that the compiler takes, hardly grow with the number of layers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from argand.codegen.cpp.numbers_apart import COMMENT, Apart, stand_ins, without_numbers
from argand.quick_dataclasses import dataclass

_LEAST: Final = 3  # stages that make a table
_POINTER: Final = re.compile(r"\b(?:in|out)_ptr\d+\b")

Declaration = tuple[str, int]
"""The type of a pointer to a buffer, and its position among the arguments."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a stage does, and what it does it to.

    Arguments:
        lines: its text.
        parts: the same without numbers.
        form: without names and comments, too.
        names: of pointers.
    """

    lines: list[str]
    parts: Apart
    form: str
    names: Sequence[str]


def with_tables(stages: Sequence[list[str]], pointers: Mapping[str, Declaration]) -> Iterator[list[str]]:
    """The lines of a kernel's stages, in order.

    Arguments:
        stages: the lines of each.
        pointers: the buffers' names.
    """
    if len(stages) < _LEAST:
        yield from stages
        return
    for _, group in itertools.groupby((_stage(lines, pointers) for lines in stages), lambda stage: stage.form):
        run = list(group)
        if len(run) < _LEAST or not run[0].names:
            yield from (stage.lines for stage in run)
        else:
            yield _table(run, pointers)


def _stage(lines: list[str], pointers: Mapping[str, Declaration]) -> _Stage:
    names: dict[str, int] = {}

    def placed(match: re.Match[str]) -> str:
        return f"{names.setdefault(match[0], len(names))}:{pointers[match[0]][0]}"

    parts = without_numbers("\n".join(lines))
    return _Stage(lines, parts, _POINTER.sub(placed, COMMENT.sub("", parts.text)), tuple(names))


def _table(run: Sequence[_Stage], pointers: Mapping[str, Declaration]) -> list[str]:
    names = run[0].names
    chosen, parameters = stand_ins((stage.parts.numbers for stage in run), "own")
    rows = [
        ", ".join([*(str(pointers[name][1]) for name in stage.names), *(column[number] for column in parameters)])
        for number, stage in enumerate(run)
    ]
    told = [_comments(stage.lines) for stage in run]
    declared = [f"{pointers[name][0]} {name} = ({pointers[name][0]})ptrs[row[{at}]];" for at, name in enumerate(names)]
    declared += [f"const i64 {name} = row[{at}];" for at, name in enumerate(parameters.values(), len(names))]
    lines = run[0].parts.filled(chosen).split("\n")
    return [
        "  {",
        f"    static const i64 rows[{len(run)}][{len(names) + len(parameters)}] = {{",
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
