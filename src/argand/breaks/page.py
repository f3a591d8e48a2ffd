"""What there is to say of one kind of graph break."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from argand.breaks.kinds import IDS, REMEDIES
from argand.quick_dataclasses import dataclass

HEAD: Final = ("import torch", "import argand")
CALL: Final = "print(f(torch.ones(3)))"
# A blank line before a definition of the module, or between the last line of one and the module's next line.
_AROUND_DEFINITION: Final = re.compile(r"^( .*)\n\n(?=\S)|\n\n(?=@|(?:async )?def |class )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One kind of graph break, for the reader who met it.

    Arguments:
        kind: its name, a key of `ids.IDS`.
        what: what the program does.
        why: why that cannot be in a graph.
        before: a program that shows it, without the imports that all examples begin with, without the `CALL` that
            most end with, and with one blank line between definitions.
        after: the same program without the break, or what stands there instead of lines of `before`.
        unshown: why there are no examples.
        also: kinds that come with it in `before`.
        needs: packages that the examples import besides torch.
        since: the version of Python that the examples need: (3, 12) is 3.12.
    """

    kind: str
    what: str
    why: str
    before: str = ""
    after: str | Mapping[str, str] = ""
    unshown: str = ""
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 11)

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

    @property
    def programs(self) -> dict[str, str]:
        """The examples as whole programs: "before", "after"; none where the page has none."""
        after = self.after if isinstance(self.after, str) else "".join(self._mended_lines(self.after))
        return {"before": program(self.before), "after": program(after)} if self.before else {}

    def _mended_lines(self, instead: Mapping[str, str]) -> Iterator[str]:
        """The lines of `before`, each of those in `instead` as what stands there, lines or none, for it."""
        for line in self.before.splitlines(keepends=True):
            text, indentation = line.strip(), line[: -len(line.lstrip())]
            lines = instead.get(text, text).splitlines() if text else [""]
            yield from (f"{indentation}{new}\n" for new in lines)


def program(example: str) -> str:
    """An example as a whole program: with `HEAD`, and with `CALL` where it defines an `f` that it does not call.

    Definitions have the two blank lines around them that they have in a module.
    """
    body = _AROUND_DEFINITION.sub(r"\1\n\n\n", re.sub(r"\n{3,}", "\n\n", textwrap.dedent(example).strip("\n")))
    lines = body.splitlines()
    imports = list(itertools.takewhile(lambda line: line.startswith(("import ", "from ")), lines))
    rest = "\n".join(lines[len(imports) :]).strip("\n")
    if "\ndef f(" in f"\n{rest}" and not re.search(r"(?<!def )\bf\(", rest):
        rest += f"\n\n\n{CALL}" if lines[-1].startswith(" ") else f"\n{CALL}"
    return "\n".join([*imports, *HEAD, "", "", rest, ""])
