"""Tables of names written as text: compact, and one edit away from another name."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()
