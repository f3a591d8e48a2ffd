"""All pages, by subject. Whoever needs them imports this module then: nothing that runs a program does."""

from __future__ import annotations

from functools import cache

from argand.breaks import (
    entries_values,
)
from argand.breaks.page import Page

SUBJECTS: tuple[tuple[str, tuple[Page, ...]], ...] = (
    ("Values that exist only when the program runs", entries_values.PAGES),
)


@cache
def pages() -> dict[str, Page]:
    """Every page by its id."""
    return {page.id: page for _, subject in SUBJECTS for page in subject}
