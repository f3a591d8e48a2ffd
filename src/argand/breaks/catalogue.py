"""All pages, by subject. Whoever needs them imports this module then: nothing that runs a program does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from argand.breaks.page import Page, read_pages

_FILES = "values raising effects native numpy containers objects attributes generators tensors torch functions limits"
_FOLDER = Path(__file__).with_name("pages")
SUBJECTS = tuple(read_pages((_FOLDER / f"{name}.md").read_text("utf-8")) for name in _FILES.split())


@cache
def pages() -> dict[str, Page]:
    """Every page by its id."""
    return {page.id: page for _, subject in SUBJECTS for page in subject}
