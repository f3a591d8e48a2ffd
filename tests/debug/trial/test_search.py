"""Delta debugging, of texts that fail where they hold certain letters."""

from __future__ import annotations

from dataclasses import dataclass

from argand.debug.trial.search import Proposals, Search, pieces


@dataclass(slots=True)
class TextSearch(Search[str]):
    needed: str = ""
    most: int = 1000

    @property
    def out_of_time(self) -> bool:
        return self.attempts >= self.most

    def key(self, candidate: str) -> str:
        return candidate

    def is_smaller(self, candidate: str) -> bool:
        return len(candidate) < len(self.smallest)

    def attempt(self, candidate: str) -> bool:
        return all(letter in candidate for letter in self.needed)

    def without_pieces(self, size: int) -> Proposals[str]:
        for piece in pieces(len(self.smallest), size):
            text = self.smallest
            yield text[: piece.start] + text[piece.stop :]

    def shrink(self) -> str:
        size = len(self.smallest)
        while size:
            self.apply(self.without_pieces(size))
            size //= 2
        return self.smallest


def test_what_fails_is_made_small() -> None:
    search = TextSearch("the quick brown fox jumps", needed="qx")
    assert search.shrink() == "qx"
    before = search.attempts
    again = TextSearch("the quick brown fox jumps", search.tried, needed="qx")
    assert again.shrink() == "qx" and again.attempts == 0 and 0 < before < 40


def test_the_smallest_so_far_is_the_result_when_time_is_up() -> None:
    search = TextSearch("the quick brown fox jumps", needed="qx", most=4)
    assert 2 < len(search.shrink()) < 25 and search.attempts == 4


def test_cuts_are_told_what_was_taken() -> None:
    answers: list[bool] = []

    def cut() -> Proposals[str]:
        for candidate in ("abcdefg", "abc", "ab", "b"):
            answers.append((yield candidate))

    search = TextSearch("abcdef", needed="b")
    assert search.apply(cut()) and answers == [False, True, True, True] and search.smallest == "b"
    search = TextSearch("abcdef", needed="z")
    assert not search.apply(cut()) and search.smallest == "abcdef"


def test_pieces_begin_at_the_end() -> None:
    assert [(piece.start, piece.stop) for piece in pieces(5, 2)] == [(4, 6), (2, 4), (0, 2)]
    assert list(pieces(0, 1)) == []
