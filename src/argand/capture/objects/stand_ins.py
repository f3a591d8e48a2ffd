"""Objects that stand for the program's values while it is captured: nothing that the program sees may tell.

CPython and torch name the class of what they refuse. A class of stand-ins that stands for one class has its name there
(`__name__`, which C code prints); a text that names one of the others ends the graph, so that the program's own
instruction says it. `object`'s own methods look at the stand-in itself.
"""

from __future__ import annotations

import re
from typing import Any, Final

from argand.capture.facts.values.array_value import Method, Traced
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicBool, SymbolicSize
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.objects import generators
from argand.errors import GraphBreak, graph_break

_CLASSES: Final = frozenset({Method, Traced, TaintedText, SymbolicBool, SymbolicSize, *SYMBOLIC})
_NAMED: Final = re.compile(
    r"\b(Traced|TaintedText|TextProxy|Trampoline|NativeIterator|Symbolic[A-Z]\w+|argand\.capture)\b"
)
_SAYS_NOTHING: Final = frozenset({"__init__", "__init_subclass__", "__subclasshook__", "__new__"})


def is_stand_in(obj: object) -> bool:
    """Whether an object is of a class of argand's own, in place of one that the program has."""
    return type(obj) in _CLASSES or type(obj) is generators.TracedGenerator


def refuse_named(exc: BaseException) -> None:
    """End the graph where the text of an exception names a stand-in.

    Raises:
        GraphBreak: it does.
    """
    for arg in vars(BaseException)["args"].__get__(exc):
        if type(arg) is str and _NAMED.search(arg):
            raise graph_break(
                kind="exception about a value that is not known",
                context=type(exc).__name__,
                hints=("Let the compiled function not raise.",),
            )


def refuse_inspection(method: Any, obj: object) -> None:
    """End the graph where a method of `object`'s would look at a stand-in.

    Raises:
        GraphBreak: it would.
    """
    if method.__objclass__ is object and is_stand_in(obj) and method.__name__ not in _SAYS_NOTHING:
        raise inspected(f"object.{method.__name__}")


def inspected(what: str) -> GraphBreak:
    """The graph break for what would look at the stand-in and not at the value."""
    return graph_break(kind="value that is not known inspected", context=what)
