"""The search index: a bounded table of words and the pages that hold them, loaded by the page on the first search."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from argand.quick_dataclasses import dataclass

_WORD = re.compile(r"[a-z_](?:[a-z0-9_.]{0,59}[a-z0-9_])")
_PER_TEXT = 1500


@dataclass(slots=True)
class SearchIndex:
    """Pages to find, and which words each holds.

    Arguments:
        limit: the most (word, page) pairs.
    """

    limit: int
    docs: list[list[str]] = field(default_factory=list)
    words: dict[str, list[int]] = field(default_factory=dict)
    pairs: int = 0
    truncated: bool = False

    def add(self, kind: str, title: str, detail: str, href: str, words: Iterable[str] = ()) -> None:
        """Add a page.

        Arguments:
            kind: "artifact", "compile", "graph break", ...
            title, detail: shown in the results, and searched as text.
            href: relative to the run's folder.
            words: from `words_of`.
        """
        if len(self.docs) >= 50_000:
            self.truncated = True
            return
        number = len(self.docs)
        self.docs.append([kind, title[:300], detail[:300], href])
        for word in words:
            if self.pairs >= self.limit:
                self.truncated = True
                return
            self.words.setdefault(word, []).append(number)
            self.pairs += 1

    def as_data(self) -> dict[str, Any]:
        return {"docs": self.docs, "words": self.words, "truncated": self.truncated}


def words_of(text: str) -> list[str]:
    """The distinct words of a text (identifiers, in lower case), at most 1,500 of them."""
    words = dict.fromkeys(_WORD.findall(text.lower()))
    return list(words)[:_PER_TEXT]
