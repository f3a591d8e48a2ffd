"""All pages, by subject. Whoever needs them imports this module then: nothing that runs a program does."""

from __future__ import annotations

from functools import cache

from argand.breaks import (
    entries_attributes,
    entries_containers,
    entries_effects,
    entries_functions,
    entries_generators,
    entries_limits,
    entries_native,
    entries_numpy,
    entries_objects,
    entries_raising,
    entries_tensors,
    entries_torch,
    entries_values,
)
from argand.breaks.page import Page

SUBJECTS: tuple[tuple[str, tuple[Page, ...]], ...] = (
    ("Values that exist only when the program runs", entries_values.PAGES),
    ("Operations that may raise", entries_raising.PAGES),
    ("Effects on the world outside", entries_effects.PAGES),
    ("Native code", entries_native.PAGES),
    ("numpy", entries_numpy.PAGES),
    ("Containers and keys", entries_containers.PAGES),
    ("Objects and classes", entries_objects.PAGES),
    ("Attributes", entries_attributes.PAGES),
    ("Generators and exceptions", entries_generators.PAGES),
    ("Tensors", entries_tensors.PAGES),
    ("torch's functions, objects and modes", entries_torch.PAGES),
    ("Functions given to functions", entries_functions.PAGES),
    ("Limits of capture", entries_limits.PAGES),
)


@cache
def pages() -> dict[str, Page]:
    """Every page by its id."""
    return {page.id: page for _, subject in SUBJECTS for page in subject}
