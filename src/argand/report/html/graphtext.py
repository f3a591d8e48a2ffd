"""The text of an FX graph, read back: its nodes and the user's lines that they came from.

Two spellings: torch's readable one (`# File: a.py:3 in f, code: x + 1`) and argand's (`# a.py:3 in f: x + 1`).
"""

from __future__ import annotations

import re

from argand.quick_dataclasses import dataclass

_TORCH_PLACE = re.compile(r"#\s*File: (?P<file>.+?):(?P<line>\d+) in (?P<name>[^,]+)(?:, code: (?P<code>.*))?$")
_ARGAND_PLACE = re.compile(r"#\s*(?P<file>\S.*?):(?P<line>\d+) in (?P<name>[^:]+): (?P<code>.*)$")
_NODE = re.compile(r'^\s*(?P<name>[A-Za-z_]\w*)\s*(?::\s*"[^"]*")?\s*=\s*(?P<call>[^=].*)$')
_HEAD = re.compile(r"^\s*def forward\(")
_PARAMETER = re.compile(r"(?:^|[,(])\s*(?!self\b)([A-Za-z_]\w*)\s*(?=[:,)])")
_REUSE = re.compile(r"\s*(?:;\s*)[\w\s=]+= None\s*(?:#.*)?$")
_ANNOTATION = re.compile(r'"[^"]*"')


@dataclass(frozen=True, slots=True)
class UserLine:
    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class GraphLine:
    """One line of a graph's text.

    Arguments:
        text: the line.
        node: the FX node that it makes, or "".
        parameters: the placeholders, on the line of `def forward`.
        user: the user's lines, innermost last.
    """

    text: str
    node: str = ""
    parameters: tuple[str, ...] = ()
    user: tuple[UserLine, ...] = ()


def place_in(line: str) -> UserLine | None:
    """The user's line that a comment names."""
    if "#" not in line and "<-" not in line and "//" not in line:
        return None
    place = _TORCH_PLACE.search(line) or _ARGAND_PLACE.search(line)
    if not place:
        return None
    return UserLine(place["file"], int(place["line"][:9]), place["name"].strip(), (place["code"] or "").strip())


def read_graph(text: str) -> list[GraphLine]:
    """The lines of a graph. A comment with a place holds for the nodes below it, up to the next such comment."""
    lines: list[GraphLine] = []
    user: tuple[UserLine, ...] = ()
    in_comment = False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("#"):
            place = place_in(stripped)
            if place is not None:
                user = (*user, place) if in_comment else (place,)
            in_comment = place is not None
            lines.append(GraphLine(line, user=user if place is not None else ()))
            continue
        in_comment = False
        if _HEAD.match(line):
            lines.append(GraphLine(line, parameters=tuple(_PARAMETER.findall(_ANNOTATION.sub("", line)))))
            user = ()
            continue
        node = _NODE.match(line)
        if node:
            lines.append(GraphLine(line, node["name"], user=user))
        else:
            lines.append(GraphLine(line))
    return lines


def normal(text: str) -> list[str]:
    """A graph's lines without what differs between two prints of equal graphs: reuse notes and blank lines."""
    return [
        _REUSE.sub("", line).rstrip()
        for line in text.split("\n")
        if line.strip() and not line.strip().startswith("del ")
    ]


def operations(text: str) -> list[str]:
    """What each node calls, in order."""
    names = []
    for line in read_graph(text):
        if line.node:
            call = line.text.partition("=")[2].strip()
            name = re.match(r"([\w.]+)\(", call)
            if name:
                names.append(name[1])
    return names
