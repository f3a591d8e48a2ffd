"""Printed loops, and the numbers in them that may as well be parameters: sizes, strides and offsets.

Numbers that the speed of a loop hangs on stay in the text: how many lanes a vector has or its rest, how often a short
loop runs, divisors, and the distances between places that are read of one buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from argand.quick_dataclasses import dataclass

MARK: Final = "\0"
_STAGE: Final = "\n  {\n"  # begins in a kernel's text
COMMENT: Final = re.compile(r"\s*//.*")
_SHORT: Final = 8  # rounds of a loop that the compiler may want to know
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:LL)?(?![\w.])")
_NAME: Final = r"[a-z]\w*"
_END: Final = rf"(?:{_NAME} \+ )?\d+(?:LL)?|{_NAME}"
_LOOP: Final = re.compile(
    rf"\s*for \(i64 (\w+) = (?P<begin>{_END}); \1 < (?P<end>{_END}); (?:\+\+\1|\1 \+= (?P<step>\d+))\)(?: \{{)?"
)
_PIECES: Final = ("_begin = ", "_block = ")  # in the head of a loop whose rounds are loops themselves
_LIMIT: Final = re.compile(
    rf"\s*const i64 {_NAME} = (?:min_i64\({_NAME}(?: [+*] \d+)?, \d+(?:LL)?\)|(?:{_NAME} \+ )?[1-9]\d*);"
)
_TERM: Final = rf"(?:(?:\d+(?:LL)?\*)?{_NAME}|\d+(?:LL)?)"
_PLACE: Final = re.compile(rf"\b((?:in|out)_ptr\d+)(?: \+ |\[)(?P<index>{_TERM}(?: [+-] {_TERM})*)(?=[\],)])")
_LANES: Final = "(int l)"  # the places of lanes, one by one


@dataclass(frozen=True, slots=True)
class Apart:
    """A text without its numbers.

    Arguments:
        text: with `MARK` for each.
        numbers: in order.
    """

    text: str
    numbers: Sequence[str]

    def filled(self, stand_ins: Sequence[str]) -> str:
        """The text with something else for each number."""
        return "".join(part for pair in zip(self.text.split(MARK), [*stand_ins, ""]) for part in pair)


def without_numbers(text: str) -> Apart:
    """Take the text of a kernel, or of a stage, apart."""
    numbers: list[str] = []
    return Apart(_STAGE.join(_marked(stage, numbers) for stage in text.split(_STAGE)), numbers)


def _marked(text: str, numbers: list[str]) -> str:
    near = _read_at_distances(text)

    def mark(match: re.Match[str]) -> str:
        numbers.append(match[0])
        return MARK

    def marked(line: str) -> str:
        code, slashes, comment = line.partition("//")
        if (loop := _LOOP.fullmatch(code)) is not None:
            if not _is_short(loop):
                head, by, step = code.rpartition("; ")
                whole = any(word in head for word in _PIECES)
                code = _NUMBER.sub(mark, code) if whole else _NUMBER.sub(mark, head) + by + step
        elif _LIMIT.fullmatch(code):
            code = _NUMBER.sub(mark, code)
        elif _LANES not in code:
            code = _PLACE.sub(lambda place: place[0] if place[1] in near else _NUMBER.sub(mark, place[0]), code)
        return code + slashes + comment

    return "\n".join(map(marked, text.split("\n")))


def stand_ins(rows: Iterable[Sequence[str]], stem: str) -> tuple[list[str], dict[tuple[str, ...], str]]:
    """What stands for the numbers of texts that are equal without them: a number that all share, else a parameter.

    Arguments:
        rows: the numbers of each text.
        stem: what names of parameters begin with.

    Returns:
        a stand-in for each number; what the parameters are in each text -> their names.
    """
    parameters: dict[tuple[str, ...], str] = {}
    chosen = [
        column[0] if len(set(column)) == 1 else parameters.setdefault(column, f"{stem}{len(parameters)}")
        for column in zip(*rows)
    ]
    return chosen, parameters


def _is_short(loop: re.Match[str]) -> bool:
    """Whether the head of a loop says that it runs a few times."""
    begin, end = (bound.rpartition(" ")[2].removesuffix("LL") for bound in (loop["begin"], loop["end"]))
    if not end.isdigit():
        return False
    return int(end) - (int(begin) if begin.isdigit() else 0) < _SHORT * int(loop["step"] or 1)


def _read_at_distances(text: str) -> frozenset[str]:
    """Pointers of which a stage reads several places that are a fixed distance apart."""
    offsets: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for place in _PLACE.finditer(text):
        words = f"+ {place['index']}".split(" ")
        terms = [sign + term for sign, term in zip(words[::2], words[1::2])]
        fixed = tuple(term for term in terms if _NUMBER.fullmatch(term[1:]))
        steps = sorted(re.sub(rf"{_NAME}$", "", term) for term in terms if term not in fixed)
        offsets.setdefault((place[1], *steps), set()).add(fixed)
    return frozenset(pointer for (pointer, *_), seen in offsets.items() if len(seen) > 1)
