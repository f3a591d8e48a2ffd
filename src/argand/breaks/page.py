"""What there is to say of one kind of graph break, and how the files of `pages/` say it.

Such a file has a heading for its subject and one for each kind. Below that of a kind: what the program does, then, as
"Why: ...", why that cannot be in a graph, and either "Not shown: ...", why there are no examples, or an example as a
difference. A line of it that begins with "-" is of the program that breaks, one with "+" of the program that no longer
does, one with a space of both. "Also: ..." names kinds that come with it, "Needs: ..." packages that the example
imports besides torch, "Since: ..." the version of Python that it needs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from argand.breaks.kinds import IDS, REMEDIES
from argand.quick_dataclasses import dataclass

HEAD: Final = ("import torch", "import argand")
DECORATOR: Final = "@argand.compile"
CALL: Final = "print(f(torch.ones(3)))"
_LABEL: Final = re.compile(r"(Why|Not shown|Also|Needs|Since): ")
_DEFINITION: Final = re.compile(r"@|(?:async )?def |class ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One kind of graph break, for the reader who met it.

    Arguments:
        kind: its name, a key of `kinds.IDS`.
        what: what the program does.
        why: why that cannot be in a graph.
        programs: the examples as whole programs: "before", "after"; none where the page has none.
        unshown: why there are no examples.
        also: kinds that come with it in the program before.
        needs: packages that the examples import besides torch.
        since: the version of Python that the examples need: (3, 12) is 3.12.
    """

    kind: str
    what: str
    why: str
    programs: dict[str, str]
    unshown: str
    also: tuple[str, ...]
    needs: tuple[str, ...]
    since: tuple[int, ...]

    @property
    def id(self) -> str:
        """Such as "AG0001"."""
        return IDS[self.kind]

    @property
    def remedy(self) -> str:
        """What to do instead, or why there is nothing to do."""
        return REMEDIES[self.kind]

    @property
    def condition(self) -> str:
        """What the examples need, in words; "" when every installation has it."""
        versions = [f"Python {'.'.join(map(str, self.since))} or later"] if self.since > (3, 11) else []
        return ", ".join([*versions, *self.needs])


def read_pages(text: str) -> tuple[str, tuple[Page, ...]]:
    """The subject of a file, and its pages."""
    _, subject, *sections = re.split(r"^##? ", text, flags=re.MULTILINE)
    return subject.strip(), tuple(_page(section.rstrip()) for section in sections)


def _page(section: str) -> Page:
    kind, *lines = section.split("\n")
    said: dict[str, list[str]] = {"What": []}
    label = "What"
    prose = list(itertools.takewhile(lambda line: line[0] not in " -+", lines))
    for line in prose:
        if labelled := _LABEL.match(line):
            label = labelled[1]
            said[label] = []
        said[label].append(line.removeprefix(f"{label}: "))
    texts = {label: " ".join(parts) for label, parts in said.items()}
    example = lines[len(prose) :]
    return Page(
        kind=kind,
        what=texts["What"],
        why=texts["Why"],
        programs={"before": _program(example, "+"), "after": _program(example, "-")} if example else {},
        unshown=texts.get("Not shown", ""),
        also=tuple(texts["Also"].split("; ")) if "Also" in texts else (),
        needs=tuple(texts["Needs"].split("; ")) if "Needs" in texts else (),
        since=tuple(map(int, texts.get("Since", "3.11").split("."))),
    )


def _program(example: Sequence[str], other: str) -> str:
    """One side of an example as a whole program; `other` marks the lines of the other side.

    It gets `HEAD`, the `DECORATOR` for `f` where nothing is compiled otherwise, and `CALL` where it defines an `f` that
    it does not call.
    """
    lines = _spaced([line[1:] for line in example if not line.startswith(other)])
    imports = list(itertools.takewhile(lambda line: line.startswith(("import ", "from ")), lines))
    rest = "\n".join(lines[len(imports) :]).strip("\n")
    if "\ndef f(" in f"\n{rest}" and not re.search(r"(?<!def )\bf\(", rest):
        rest += f"\n\n\n{CALL}" if lines[-1].startswith(" ") else f"\n{CALL}"
    return "\n".join([*imports, *HEAD, "", "", rest, ""])


def _spaced(lines: Sequence[str]) -> list[str]:
    """With the blank lines around definitions that a module has, and with the decorator."""
    decorated = any("argand.compile" in line for line in lines)
    spaced: list[str] = []
    statement = ""  # the module's, that the line is in
    for line in lines:
        begins = _DEFINITION.match(line.lstrip())
        previous = spaced[-1] if spaced else ""
        if line and line[0] not in " )]}":
            if spaced and (begins or _DEFINITION.match(statement)) and not previous.startswith("@"):
                spaced += ["", ""]
            statement = line
        elif begins and statement.startswith("class ") and line[4] != " ":
            if previous != statement and not previous.lstrip().startswith("@"):
                spaced.append("")
        if not decorated and re.match(r"(async )?def f\(", line):
            spaced.append(DECORATOR)
        spaced.append(line)
    return spaced
