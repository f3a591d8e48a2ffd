"""What is offered natively and no row decides: a budget that only falls."""

from __future__ import annotations

import sys

import torch

from capture.natives import native_surface

BUDGET = {(3, 11): 9, (3, 12): 12, (3, 13): 12}[sys.version_info[:2]]
NEWEST_TORCH = (2, 13)
"""Whose functions are counted: an older one has some more that are gone."""


def test_budget_of_what_no_row_decides() -> None:
    lists = native_surface.uncovered()
    if tuple(map(int, torch.__version__.split(".")[:2])) != NEWEST_TORCH:
        return
    names = [path for paths in lists.values() for path in paths]
    assert len(names) <= BUDGET, f"{len(names)} natives without a row, of {BUDGET}: enter those that are new: {names}"
    assert len(names) == BUDGET, f"{len(names)} natives without a row, of {BUDGET}: lower BUDGET"


def test_what_is_listed_without_a_row_is_found() -> None:
    """The count is of natives that were looked at: those of known modules that have no row are in it."""
    assert "re.Pattern.scanner" in native_surface.uncovered()["re"]
    assert "parse_schema" in "".join(native_surface.uncovered()["torch"])
