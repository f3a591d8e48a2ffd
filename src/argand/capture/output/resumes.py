"""Resume functions of the process: one for each place in a user's function and shape of its state there.

A resume function is always made from the user's own code, also when another resume function breaks the graph, so that
every round of a loop goes on in the same one.

Transformed code calls resume functions as its last act. Where a loop lies ahead this would nest one call for each
round, so there a resume function returns a `Continuation` instead of calling the next one, and the frame that called
the first of them (the user's) runs a loop that calls what it is given.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import CodeType

from argand.bytecode.decode import decode
from argand.bytecode.flow import reachable
from argand.bytecode.instruction import Instruction
from argand.bytecode.per_code import PerCode
from argand.bytecode.resume import ResumeCode, StackSlot, build_resume_code, resume_name, under_users_name
from argand.outcomes.resume_codes import NUMBERS, PARTS, Place, label_of
from argand.quick_dataclasses import dataclass


class Handled(str):
    """Name of the temporary for a stack slot where PUSH_EXC_INFO saved the exception handled before: it holds the one
    handled since."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Resume:
    """A resume function's code and what its callers must know.

    Fields:
        body: the code and its arguments; it carries the name of the user's function.
        name: `__resume_at_<offset>_<n>`, the global that holds the function where it needs no closure.
        loops: whether a loop can be reached in it; then it may return a `Continuation`.
        layout: the slots of the stack where it begins.
    """

    body: ResumeCode
    name: str
    loops: bool
    layout: tuple[StackSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class _Origin:
    """The user's code that a resume function is a part of: its resume functions live as long as it does."""

    code: weakref.ref[CodeType]
    instructions: Sequence[Instruction]
    by_offset: Mapping[int, Instruction]


class Resumes:
    """All resume functions made so far. Safe to use from several threads."""

    def __init__(self) -> None:
        self._by_place: PerCode[dict[tuple[object, ...], Resume]] = PerCode()  # by the user's code
        self._origins: PerCode[_Origin] = PerCode()  # of the user's code, and of that of resume functions
        self._resumes: PerCode[weakref.ref[Resume]] = PerCode()  # by the resume function's code, which it holds

    def of(self, code: CodeType) -> Resume | None:
        """The resume function whose code this is; None for a user's function."""
        reference = self._resumes.get(code)
        return reference() if reference is not None else self._loaded(code)

    def of_users(self, code: CodeType) -> CodeType | None:
        """The user's code that a resume function is a part of; the code itself where it is the user's."""
        origin = self._origins.get(code)
        return code if origin is None else origin.code()

    def _loaded(self, code: CodeType) -> Resume | None:
        """The resume function whose code an earlier process made."""
        part = PARTS.of(code)
        users = None if part is None else part.code()
        if part is None or users is None:
            return None
        instructions = decode(users)
        target = next(inst for inst in instructions if inst.offset == part.place.offset)
        layout = [StackSlot(slot) for slot in part.place.layout]
        resume = self.get(users, instructions, target, layout, part.place.names)
        return resume if resume.body.code is code else None

    def get(
        self,
        code: CodeType,
        instructions: Sequence[Instruction],
        target: Instruction,
        layout: Sequence[StackSlot],
        names: Sequence[str],
    ) -> Resume:
        """The resume function for going on at `target`, made if it does not exist yet.

        Arguments:
            code, instructions: the code that was broken; may be that of a resume function.
            target, layout, names: as for `build_resume_code`.
        """
        origin = self._origin(code, instructions)
        offset = -1 if target.offset is None else target.offset
        own = origin.code()
        goal = origin.by_offset.get(offset)  # not `target`, which may be of another thread's decoding
        if own is None or goal is None or goal.opname != target.opname:  # one that only this resume function has
            own, origin, goal = code, _Origin(weakref.ref(code), instructions, {}), target
        resumes = self._by_place.get(own)
        if resumes is None:
            resumes = self._by_place.add(own, {})
        key = (goal.offset, id(goal), tuple(layout), tuple(names))
        resume = resumes.get(key)
        return resume or resumes.setdefault(key, self._make(own, origin, goal, layout, names))

    def _origin(self, code: CodeType, instructions: Sequence[Instruction]) -> _Origin:
        origin = self._origins.get(code)
        if origin is None:
            by_offset = {inst.offset: inst for inst in instructions if inst.offset is not None}
            origin = self._origins.add(code, _Origin(weakref.ref(code), instructions, by_offset))
        return origin

    def _make(
        self, code: CodeType, origin: _Origin, goal: Instruction, layout: Sequence[StackSlot], names: Sequence[str]
    ) -> Resume:
        name = resume_name(goal, next(NUMBERS))
        plain = build_resume_code(code, origin.instructions, goal, layout, names, name)
        body = under_users_name(plain, code)
        if goal.offset is not None and code not in self._resumes:
            place = Place(goal.offset, tuple(slot.value for slot in layout), tuple(names))
            body = replace(body, code=PARTS.enter(code, place, body.code))
            name = label_of(body.code)
        resume = Resume(body, name, has_loop(origin.instructions, goal), tuple(layout))
        self._origins.set(resume.body.code, origin)
        self._resumes.set(resume.body.code, weakref.ref(resume))
        return resume


def has_loop(instructions: Sequence[Instruction], start: Instruction) -> bool:
    """Whether code that runs from `start` on may run in circles."""
    index = {inst: i for i, inst in enumerate(instructions)}
    return any(inst.target is not None and index[inst.target] <= index[inst] for inst in reachable(instructions, start))
