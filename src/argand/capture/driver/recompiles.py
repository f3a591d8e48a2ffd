"""Recompile messages: which guard failed, in the words of the program, and what the user can do about it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

from argand.bytecode.resume import STACK_PREFIX, stack_expressions
from argand.capture.facts.code.skip import library_of
from argand.capture.facts.name_tables import code_words, source_line
from argand.capture.facts.namespaces import ONCE
from argand.errors import UserLine
from argand.quick_dataclasses import dataclass

_LABEL = re.compile(r"(?:local|closure|global|builtin|constant) '(.*)' ([A-Z_]+)$", re.DOTALL)
_SHOWN = 3
_LIMIT = "raise argand.config.cache_size_limit if it takes only a few values"


@dataclass(frozen=True, slots=True)
class GuardFailure:
    """One guard of one compiled version that a call did not pass.

    Arguments:
        what: what changed, in the program's terms (`x.size()[0]`); empty when the detail says it all.
        detail: how it changed ("was 2, is now 4").
        remedy: what the user can do, one sentence.
        guard: the guard as `argand.explain(...).out_guards` shows it.
        version: number of the compiled version, newest first.
        where: the line of the program that made the guard necessary; None where that is not known.
    """

    what: str
    detail: str
    remedy: str
    guard: str
    version: int = 0
    where: UserLine | None = None

    def __str__(self) -> str:
        return f"{self.what} {self.detail}".strip()

    def as_dict(self) -> dict[str, object]:
        """JSON-able form."""
        where = self.where
        place = None if where is None else {"file": where.filename, "line": where.lineno, "text": where.text}
        return {"what": self.what, "detail": self.detail, "remedy": self.remedy, "guard": self.guard, "where": place}


@dataclass(frozen=True, slots=True)
class Needed:
    """What an entry of the code cache knows about the capture that made it.

    It holds nothing that leads to the program's objects: code objects are invisible to the cycle collector, and so are
    the entries that hang on them.

    Arguments:
        at: the user's line (code, number) that made each guard necessary, by the guard's label.
    """

    at: Mapping[str, tuple[weakref.ref[CodeType], int]]


@dataclass(frozen=True, slots=True)
class Recompile:
    """A call that no compiled version of a function fitted.

    Arguments:
        function, filename, lineno: the function.
        versions: how many compiled versions there were.
        failures: why each was refused, the newest version first, equal reasons once.
    """

    function: str
    filename: str
    lineno: int
    versions: int
    failures: tuple[GuardFailure, ...]

    def __str__(self) -> str:
        lines = [
            f"Recompiling {self.function} ({self.filename}:{self.lineno}), compiled {times(self.versions)} so far:"
        ]
        shown = self.failures[:_SHOWN]
        for failure in shown:
            lines.append(f"  {failure}    [{failure.guard}]")
            if failure.where is not None:
                lines.append("    needed by " + str(failure.where).replace("\n", "\n    "))
        if len(self.failures) > _SHOWN:
            lines.append(f"  ... and {len(self.failures) - _SHOWN} more reasons, of older versions")
        lines += [f"  What to do: {remedy}" for remedy in dict.fromkeys(f.remedy for f in shown)]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """JSON-able form."""
        return {
            "function": self.function,
            "file": self.filename,
            "line": self.lineno,
            "versions": self.versions,
            "failures": [failure.as_dict() for failure in self.failures],
        }


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def of_frame(code: CodeType, failures: Iterable[tuple[int, str, str]], entries: Iterable[Any]) -> Recompile:
    """The recompile of a frame, from what the guard trees said.

    Arguments:
        failures: (entry number, guard label, detail) of each compiled version, as `FrameInfo.failures`.
        entries: the compiled versions; what their payload knows of where guards were needed is used.
    """
    needed: dict[str, tuple[weakref.ref[CodeType], int]] = {}
    for entry in reversed(tuple(entries)):  # of equal guards the first version's counts
        if isinstance(entry.payload, Needed):
            needed.update(entry.payload.at)
    distinct: dict[tuple[str, str], GuardFailure] = {}
    count = 0
    for number, label, detail in failures:
        count += 1
        key = (label, detail)
        if key not in distinct:
            position = needed.get(label)
            owner = None if position is None else position[0]()  # an inlined function may be gone
            line = None if position is None or owner is None else _line(owner, position[1])
            failure = _failure(label, detail, number, line)
            distinct[key] = _in_words_of(code, failure)
    return Recompile(code_words(code), code.co_filename, code.co_firstlineno, count, tuple(distinct.values()))


_CELL = re.compile(r"cell\(C\['(\w+)'\]\)\.cell_contents|\b[LGC]\['(\w+)'\]")
_STACK = re.compile(rf"_*{STACK_PREFIX}\d+(?:[^\s\w'\[\](),.]\w+)?")
_LONGEST = 40  # characters of an expression by which a value without a name is called


def _in_words_of(code: CodeType, failure: GuardFailure) -> GuardFailure:
    """A failure without names that only compiled code has, and with advice that the reader can follow."""
    places = stack_expressions(code) if STACK_PREFIX in f"{failure.guard}{failure.what}" else {}

    def expression(name: re.Match[str]) -> str:
        line, first, last = places.get(name[0], (0, 0, 0))
        text = source_line(code.co_filename, line).encode()[first:last].decode(errors="replace").strip()
        return text if 0 < len(text) <= _LONGEST else "the value from before the graph break"

    def plain(text: str) -> str:
        return _STACK.sub(expression, _CELL.sub(lambda match: match[1] or match[2], text))

    remedy = failure.remedy
    library = library_of(code.co_filename)
    if library:
        more = "argand.compile(..., dynamic=True) serves all sizes; or " if "mark_dynamic" in remedy else ""
        remedy = (
            f"{more}leave this function of {library} out with argand.disable({code.co_name}), or raise "
            "argand.config.cache_size_limit; its own code need not be changed."
        )
    what, detail, guard = plain(failure.what), plain(failure.detail), plain(failure.guard)
    return replace(failure, what=what, detail=detail, guard=guard, remedy=plain(remedy))


def _line(code: CodeType, line: int) -> UserLine:
    return UserLine(code.co_filename, line, code_words(code), source_line(code.co_filename, line).strip())


_ONCE_REMEDY = (
    "nothing, it is compiled once more. Python puts __annotations__ into a class when an instance check of a protocol "
    "asks, __slotnames__ when an object is copied."
)


def _failure(label: str, detail: str, version: int, where: UserLine | None) -> GuardFailure:
    parsed = _LABEL.match(label)
    if parsed is None and re.search(r"[<>=]", label):
        return _expression(label, detail, version, where)
    name, kind = (parsed[1], parsed[2]) if parsed else ("", label.rpartition(" ")[2])
    if kind == ONCE:
        return GuardFailure("a class that was read", "changed meanwhile", _ONCE_REMEDY, kind, version, where)
    for pattern, description in _TABLE:
        match = re.match(pattern, detail, re.DOTALL)
        if match is not None:
            return GuardFailure(*_described(description, name, match), label, version, where)
    remedy = _SAME.format(it=name or "this")
    return GuardFailure(name or kind, f"({kind}): {detail}", remedy, label, version, where)


def _expression(label: str, detail: str, version: int, where: UserLine | None) -> GuardFailure:
    """A condition on sizes and numbers: `L['x'].size()[0] % 4 == 0`."""
    guard = _plain(label)
    said = re.sub(r"(was [^,]+), is ", r"\1, is now ", _plain(detail))
    wrong_type = re.match(r"expected an? (\w+)(?: of at most 64 bits)?, found (?:a longer )?(\w+)", said)
    if wrong_type is not None:
        name = re.split(r" [<>=!]", guard.lstrip("("))[0]
        return GuardFailure(*_described(_TYPE, name, wrong_type), guard, version, where)
    if re.search(r"size\(\)\[\d+\] (>= 2|!= [01])$", guard):
        remedy = "sizes 0 and 1 are always compiled for themselves; pad the tensor if they are frequent."
    else:
        remedy = (
            f"the compiled code holds only where {guard}: the program, or mark_dynamic, asked for it; it is compiled "
            "once for each outcome. If there are many, raise argand.config.cache_size_limit."
        )
    return GuardFailure("", said, remedy, guard, version, where)


def _plain(text: str) -> str:
    """Sources as the program writes them: `x` for `L['x']`."""
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", text)


# ---------------------------------------------------------------------- one row per kind of difference

Description = tuple[str, str, str]
"""What differs, how, and what to do: formats of the whole detail (`{0}`), its groups, `{name}`, and `{it}`."""

_CHANGED = "was {1}, is now {2}"
_BARE_NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"
_OF_TYPE = r"(?: \((?:int|float)\))?"
_TYPE = ("type({name})", _CHANGED, f"always pass the same type for {{name}}, or {_LIMIT}.")
_SAME = f"keep {{it}} the same from call to call, or {_LIMIT}."

_TABLE: tuple[tuple[str, Description], ...] = (
    (r"expected size (?=[01] |.* found [01]$)(-?\d+) at dim (\d+), found (-?\d+)$", (
        "{name}.size()[{2}]", "was {1}, is now {3}",
        "sizes 0 and 1 are always compiled for themselves; pad {name} if they are frequent.")),
    (r"expected size (-?\d+) at dim (\d+), found (-?\d+)$", (
        "{name}.size()[{2}]", "was {1}, is now {3}",
        "argand.mark_dynamic({name}, {2}) before the first call, or argand.compile(..., dynamic=True).")),
    (r"expected stride (-?\d+) at dim (\d+), found (-?\d+)$", (
        "{name}.stride()[{2}]", "was {1}, is now {3}",
        "call {name}.contiguous() before the compiled function, so that every call has the same memory layout.")),
    (r"expected (\d+) dims, found (\d+)$", (
        "{name}.dim()", _CHANGED,
        f"each number of dimensions is compiled for itself; reshape {{name}} to one rank, or {_LIMIT}.")),
    (r"expected requires_grad=(\w+), found (\w+)$", (
        "{name}.requires_grad", _CHANGED,
        "call {name}.detach() or {name}.requires_grad_() before the compiled function.")),
    (r"expected dtype (.+), found (.+)$", (
        "{name}.dtype", _CHANGED, f"convert {{name}} to one dtype before the compiled function, or {_LIMIT}.")),
    (r"expected device (.+), found (.+)$", (
        "{name}.device", _CHANGED, f"move {{name}} to one device before the compiled function, or {_LIMIT}.")),
    (r"expected layout (.+), found (.+)$", ("{name}.layout", _CHANGED, "pass tensors of one kind.")),
    (r"expected type (.+), found (.+)$", _TYPE),
    (r"expected the object (.+) at 0x\w+, found (.+) at 0x\w+$", (
        "{name}", "was {1}, is now another object: {2}",
        "keep one object in {name}: do not make a new one for each call (a lambda, a partial, a class).")),
    # a small tensor that the program keeps (`record.held_values`)
    (r".*\bcontents\b.*: expected b.*found b.*$", (
        "{name}", "holds other values, which decided a branch, a size or a number",
        "keep what {name} holds; once it has changed, the graph breaks where the program asks for its values.")),
    (r"(?:len: expected|expected length) (\d+), found (\d+)$", (
        "len({name})", _CHANGED,
        "keep the length of {name} fixed, or put its tensors into one (torch.stack, padding).")),
    (r"(\w+): expected (.+), found (.+)$", (
        "torch.{1}()", "was {2}, is now {3}",
        f"call the compiled function under one setting (grad mode, autocast, default dtype), or {_LIMIT}.")),
    (r"expected keys (.+), found (.+)$", (
        "the keys of {name}", _CHANGED, "keep the keys of {name}, and their order, fixed.")),
    (r".+ are (the same object|different objects)$", (
        "", "{0}", "pass the same object twice in every call, or in none.")),
    (rf"expected ({_BARE_NUMBER}{_OF_TYPE}), found (({_BARE_NUMBER}){_OF_TYPE})$", (
        "{name}", _CHANGED, f"make {{name}} a tensor (torch.tensor({{3}})), or {_LIMIT}.")),
    (r"expected (.+), found (.+)$", (
        "{name}", _CHANGED, f"keep {{name}} fixed, compile one function per value, or {_LIMIT}.")),
    (r".+ was .+, is .+", ("", "{0}", _SAME)),  # a condition, whose detail says old and new values itself
)  # fmt: skip


def _described(description: Description, name: str, match: re.Match[str]) -> Description:
    what, how, remedy = (text.format(match[0], *match.groups(), name=name, it=name or "this") for text in description)
    return what, how, remedy
