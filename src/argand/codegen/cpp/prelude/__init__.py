"""The text that every generated file starts with.

In: the generated kernels' text. Out: the sections of the files `*.h` beside this one that it uses (a section
starts at a line `//@ name`), each after those that it needs. The files are freestanding: they include nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_FILES = ("core.h", "convert.h", "math.h", "tables.h", "single.h", "special.h")
_NAME = re.compile(r"[A-Za-z_]\w*")
_VECTOR = re.compile(r"([iuf](?:8|16|32|64))x(\d+)")
_APART = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")}
_TYPEDEF = "typedef vec<{0}, {1}> {0}x{1};"


@lru_cache(maxsize=1)
def _sections() -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Section texts in file order, and the other sections that each one mentions."""
    texts: dict[str, str] = {}
    for name in _FILES:
        parts = re.split(r"^//@ (\w+)\n", (Path(__file__).parent / name).read_text(), flags=re.MULTILINE)
        texts.update(zip(parts[1::2], parts[2::2]))
    needs = {}
    for name, text in texts.items():
        needs[name] = frozenset(_NAME.findall(_without_comments(text))) & texts.keys() - {name}
    return texts, needs


@lru_cache(maxsize=1)
def _order() -> tuple[str, ...]:
    """Sections, those that others need first: lookup in a template finds only what was declared before it."""
    texts, needs = _sections()
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in order:
            for other in texts:
                if other in needs[name]:
                    visit(other)
            order[name] = None

    for name in texts:
        visit(name)
    return tuple(order)


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def words(kernels: str) -> frozenset[str]:
    """All words of C++ text: `prelude` has one section or another for some of them."""
    return frozenset(_without_comments(kernels).translate(_APART).split())


def prelude(used: frozenset[str]) -> str:
    """The declarations that C++ text of these `words` needs."""
    texts, needs = _sections()
    wanted = {"core"} | (used & texts.keys())
    todo = list(wanted)
    while todo:
        for name in needs[todo.pop()] - wanted:
            wanted.add(name)
            todo.append(name)
    text = "".join(texts[name] for name in _order() if name in wanted)
    vectors = sorted({v.groups() for v in map(_VECTOR.fullmatch, used) if v}, key=lambda v: (v[0], int(v[1])))
    typedefs = "\n".join(_TYPEDEF.format(*vector) for vector in vectors)
    return text + typedefs + "\n"
