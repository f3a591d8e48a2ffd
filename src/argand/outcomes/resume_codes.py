"""Resume functions of the process, told apart by the user's function and the place in it where they go on.

There is one code object for each, whether this process broke the graph there or loaded what another made of that.
"""

from __future__ import annotations

import itertools
import weakref
from types import CodeType
from typing import Final, NamedTuple

from argand.bytecode.per_code import PerCode
from argand.quick_dataclasses import dataclass

NUMBERS: Final = itertools.count()
"""Numbers of `__compiled_fn_<n>`, `__stored_fn_<n>` and `__resume_at_<offset>_<n>`, unique in the process."""


class Place(NamedTuple):
    """Where a resume function goes on.

    Fields:
        offset: of the instruction, in the user's function.
        layout: what the slots of the stack hold there.
        names: the locals that it is given.
    """

    offset: int
    layout: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a resume function's code is a part of."""

    code: weakref.ref[CodeType]
    place: Place


class Parts:
    """The codes of resume functions. Safe to use from several threads."""

    def __init__(self) -> None:
        self._codes: PerCode[dict[Place, CodeType]] = PerCode()  # by the user's code, which they live as long as
        self._origins: PerCode[Origin] = PerCode()  # by their own

    def clear(self) -> None:
        """Forget all (argand.reset)."""
        self._codes.clear()
        self._origins.clear()

    def of(self, code: CodeType) -> Origin | None:
        """What a resume function's code is a part of; None for other code."""
        return self._origins.get(code)

    def users(self, code: CodeType) -> CodeType:
        """The user's function that a code is a part of: itself, if it is no resume function's."""
        origin = self._origins.get(code)
        return (origin.code() if origin is not None else None) or code

    def enter(self, users: CodeType, place: Place, code: CodeType) -> CodeType:
        """The code of the resume function at a place: `code`, if there was none that is the same but for its label."""
        by_place = self._codes.get(users)
        if by_place is None:
            by_place = self._codes.add(users, {})
        known = by_place.setdefault(place, code)
        if known is not code and unlabelled(known) != unlabelled(code):
            return code
        self._origins.set(known, Origin(weakref.ref(users), place))
        return known


def labelled(code: CodeType, label: str) -> CodeType:
    """The code of a resume function under another label, its last constant (`bytecode.resume.under_users_name`)."""
    return code.replace(co_consts=(*code.co_consts[:-1], label))


def unlabelled(code: CodeType) -> CodeType:
    """The code of a resume function as it is in every process."""
    return labelled(code, "")


def label_of(code: CodeType) -> str:
    """`__resume_at_<offset>_<n>` of a resume function."""
    return str(code.co_consts[-1])


def new_label(offset: int) -> str:
    """A label that no resume function has."""
    return f"__resume_at_{offset}_{next(NUMBERS)}"


PARTS: Final = Parts()
