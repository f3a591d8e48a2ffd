"""What there is to say of one kind of graph break."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass
from typing import Final

from argand.breaks.ids import IDS

HEAD: Final = ("import torch", "import argand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One kind of graph break, for the reader who met it.

    Arguments:
        kind: its name, a key of `ids.IDS`.
        what: what the program does.
        why: why that cannot be in a graph.
        remedy: what to do instead, or why there is nothing to do.
        before: a program that shows it, without the imports that all examples begin with.
        after: the same program without the break.
        unshown: why there are no examples.
        also: kinds that come with it in `before`.
        needs: packages that the examples import besides torch.
        since: the version of Python that the examples need: (3, 12) is 3.12.
    """

    kind: str
    what: str
    why: str
    remedy: str
    before: str = ""
    after: str = ""
    unshown: str = ""
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 11)

    @property
    def id(self) -> str:
        """Such as "AG0001"."""
        return IDS[self.kind]

    @property
    def condition(self) -> str:
        """What the examples need, in words; "" when every installation has it."""
        versions = [f"Python {'.'.join(map(str, self.since))} or later"] if self.since > (3, 11) else []
        return ", ".join([*versions, *self.needs])


def program(example: str) -> str:
    """An example as a whole program."""
    body = textwrap.dedent(example).strip("\n")
    lines = body.splitlines()
    imports = list(itertools.takewhile(lambda line: line.startswith(("import ", "from ")), lines))
    rest = "\n".join(lines[len(imports) :]).strip("\n")
    return "\n".join([*imports, *HEAD, "", "", rest, ""])
