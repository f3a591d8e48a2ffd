"""The catalogue as text: docs/graph-breaks.md, and pages for a terminal.

`python -m argand.breaks.render > docs/graph-breaks.md` writes the document anew.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from argand.breaks.catalogue import SUBJECTS, pages
from argand.breaks.page import Page

_HEAD = """\
# Graph breaks

Where argand cannot be sure that a graph computes what eager computes, the graph ends, Python runs the operation
itself, and the next graph begins behind it: results are right, speed is lost. Each kind of break has an id, which
`argand explain`, logs, traces, reports and the errors of `fullgraph=True` print. Here is a page for each: what the
program does, why that ends a graph, what to do, and a program before and after. A test runs every program: the first
breaks for this very reason, the second no longer, and both give eager's results. `argand breaks AG0001` prints a page
in the terminal, `argand breaks` lists them all. An id never changes its meaning.

(Made from `src/argand/breaks/` by `python -m argand.breaks.render > docs/graph-breaks.md`.)
"""


def document() -> str:
    """docs/graph-breaks.md."""
    return "\n".join(_document())


def _document() -> Iterator[str]:
    yield _HEAD
    for subject, group in SUBJECTS:
        links = ", ".join(f"[{page.id}](#{page.id.lower()}) {page.kind}" for page in group)
        yield f"- {subject}: {links}"
    for subject, group in SUBJECTS:
        yield f"\n## {subject}"
        for page in group:
            yield from _section(page)


def _section(page: Page) -> Iterator[str]:
    yield f'\n<a id="{page.id.lower()}"></a>\n\n### {page.id}: {page.kind}\n'
    yield f"{page.what}\n\n**Why.** {page.why}\n\n**What to do.** {page.remedy}"
    if page.unshown:
        yield f"\n**No example.** {page.unshown}"
    for title, example in _titled(page):
        yield f"\n{title}\n\n```python\n{example.rstrip()}\n```"


def _titled(page: Page) -> Iterator[tuple[str, str]]:
    needs = f" (needs {page.condition})" if page.condition else ""
    for when, example in page.programs.items():
        yield f"{when.capitalize()}{needs * (when == 'before')}:", example


def terminal(page: Page, width: int = 100) -> str:
    """A page as plain text."""
    parts = [f"{page.id}: {page.kind}", ""]
    for lead, text in (
        ("", page.what),
        ("Why: ", page.why),
        ("What to do: ", page.remedy),
        ("No example: ", page.unshown),
    ):
        if text:
            parts += [textwrap.fill(lead + text.replace("`", ""), width), ""]
    for title, example in _titled(page):
        parts += [title, "", textwrap.indent(example, "    ")]
    return "\n".join(parts).rstrip() + "\n"


def listing() -> str:
    """Every id with its kind, by subject."""
    parts = []
    for subject, group in SUBJECTS:
        parts += [subject, *(f"  {page.id}  {page.kind}" for page in group), ""]
    return "\n".join(parts)


def find(name: str) -> Page | None:
    """The page of an id ("AG0001", "ag0001", "1") or of a kind by its name."""
    number = name.upper().removeprefix("AG")
    known = pages().get(f"AG{number.zfill(4)}")
    return known or next((page for page in pages().values() if page.kind == name), None)


if __name__ == "__main__":
    sys.stdout.write(document() + "\n")
