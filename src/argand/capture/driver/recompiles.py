"""Recompile messages: which guard failed, in the words of the program, and what the user can do about it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
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
    payloads = [entry.payload for entry in entries]
    distinct: dict[tuple[str, str], GuardFailure] = {}
    count = 0
    for number, label, detail in failures:
        count += 1
        position = None
        for payload in payloads:
            if isinstance(payload, Needed):
                position = position or payload.at.get(label)
        key = (label, detail)
        if key not in distinct:
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
    for pattern, describe in _TABLE:
        match = re.match(pattern, detail, re.DOTALL)
        if match is not None:
            what, how, remedy = describe(name, kind, match)
            return GuardFailure(what, how, remedy, label, version, where)
    return GuardFailure(name or kind, f"({kind}): {detail}", _default_remedy(name), label, version, where)


def _expression(label: str, detail: str, version: int, where: UserLine | None) -> GuardFailure:
    """A condition on sizes and numbers: `L['x'].size()[0] % 4 == 0`."""
    guard = _plain(label)
    said = re.sub(r"(was [^,]+), is ", r"\1, is now ", _plain(detail))
    wrong_type = re.match(r"expected an? (\w+)(?: of at most 64 bits)?, found (?:a longer )?(\w+)", said)
    if wrong_type is not None:
        name = re.split(r" [<>=!]", guard.lstrip("("))[0]
        what, how, remedy = _type(name, "", wrong_type)
        return GuardFailure(what, how, remedy, guard, version, where)
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


# ---------------------------------------------------------------------- one function per kind of difference

Description = tuple[str, str, str]
Describe = Callable[[str, str, "re.Match[str]"], Description]


def _changed(old: str, new: str) -> str:
    return f"was {old}, is now {new}"


def _size(name: str, kind: str, match: re.Match[str]) -> Description:
    dim = int(match[2])
    remedy = f"argand.mark_dynamic({name}, {dim}) before the first call, or argand.compile(..., dynamic=True)"
    if match[1] in ("0", "1") or match[3] in ("0", "1"):
        remedy = f"sizes 0 and 1 are always compiled for themselves; pad {name} if they are frequent"
    return f"{name}.size()[{dim}]", _changed(match[1], match[3]), remedy + "."


def _stride(name: str, kind: str, match: re.Match[str]) -> Description:
    remedy = f"call {name}.contiguous() before the compiled function, so that every call has the same memory layout."
    return f"{name}.stride()[{match[2]}]", _changed(match[1], match[3]), remedy


def _rank(name: str, kind: str, match: re.Match[str]) -> Description:
    remedy = f"each number of dimensions is compiled for itself; reshape {name} to one rank, or " + _LIMIT + "."
    return f"{name}.dim()", _changed(match[1], match[2]), remedy


def _tensor_property(name: str, kind: str, match: re.Match[str]) -> Description:
    prop = match[1]
    remedies = {
        "dtype": f"convert {name} to one dtype before the compiled function, or " + _LIMIT,
        "device": f"move {name} to one device before the compiled function, or " + _LIMIT,
        "requires_grad": f"call {name}.detach() or {name}.requires_grad_() before the compiled function",
    }
    return f"{name}.{prop}", _changed(match[2], match[3]), remedies.get(prop, "pass tensors of one kind") + "."


def _type(name: str, kind: str, match: re.Match[str]) -> Description:
    return f"type({name})", _changed(match[1], match[2]), f"always pass the same type for {name}, or " + _LIMIT + "."


def _identity(name: str, kind: str, match: re.Match[str]) -> Description:
    remedy = f"keep one object in {name}: do not make a new one for each call (a lambda, a partial, a class)."
    return name, _changed(match[1], f"another object: {match[2]}"), remedy


def _state(name: str, kind: str, match: re.Match[str]) -> Description:
    remedy = "call the compiled function under one setting (grad mode, autocast, default dtype), or " + _LIMIT + "."
    return f"torch.{match[1]}()", _changed(match[2], match[3]), remedy


def _length(name: str, kind: str, match: re.Match[str]) -> Description:
    remedy = f"keep the length of {name} fixed, or put its tensors into one (torch.stack, padding)."
    return f"len({name})", _changed(match[1], match[2]), remedy


def _keys(name: str, kind: str, match: re.Match[str]) -> Description:
    return f"the keys of {name}", _changed(match[1], match[2]), f"keep the keys of {name}, and their order, fixed."


def _alias(name: str, kind: str, match: re.Match[str]) -> Description:
    return "", match[0], "pass the same object twice in every call, or in none."


def _number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?( \((int|float)\))?", text) is not None


def _value(name: str, kind: str, match: re.Match[str]) -> Description:
    old, new = match[1], match[2]
    if _number(old) and _number(new):
        remedy = f"make {name} a tensor (torch.tensor({new.split(' ')[0]})), or {_LIMIT}."
    else:
        remedy = f"keep {name} fixed, compile one function per value, or {_LIMIT}."
    return name, _changed(old, new), remedy


def _contents(name: str, kind: str, match: re.Match[str]) -> Description:
    """A small tensor that the program keeps (`record.held_values`)."""
    remedy = f"keep what {name} holds; once it has changed, the graph breaks where the program asks for its values."
    return name, "holds other values, which decided a branch, a size or a number", remedy


def _said(name: str, kind: str, match: re.Match[str]) -> Description:
    """An expression guard whose detail says old and new values itself."""
    return "", match[0], _default_remedy(name)


def _default_remedy(name: str) -> str:
    return f"keep {name or 'this'} the same from call to call, or {_LIMIT}."


_TABLE: tuple[tuple[str, Describe], ...] = (
    (r"expected size (-?\d+) at dim (\d+), found (-?\d+)$", _size),
    (r"expected stride (-?\d+) at dim (\d+), found (-?\d+)$", _stride),
    (r"expected (\d+) dims, found (\d+)$", _rank),
    (r"expected (requires_grad)=(\w+), found (\w+)$", _tensor_property),
    (r"expected (dtype|device|layout) (.+), found (.+)$", _tensor_property),
    (r"expected type (.+), found (.+)$", _type),
    (r"expected the object (.+) at 0x\w+, found (.+) at 0x\w+$", _identity),
    (r".*\bcontents\b.*: expected b.*found b.*$", _contents),
    (r"(\w+): expected (.+), found (.+)$", _state),
    (r"expected length (\d+), found (\d+)$", _length),
    (r"expected keys (.+), found (.+)$", _keys),
    (r".+ are (the same object|different objects)$", _alias),
    (r"expected (.+), found (.+)$", _value),
    (r".+ was .+, is .+", _said),
)
