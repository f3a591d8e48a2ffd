"""Breaks that only follow from another: a loop, or comprehension, that Python runs because its body broke the graph."""

from __future__ import annotations

from types import CodeType

from argand.bytecode.resume import resume_label
from argand.errors import BreakReason

_OUTSIDE = "that existed before the compiled function"
_BEFORE_A_BREAK = {
    "iterator from outside": "iterator from before a graph break",
    "native object from outside": "native object from before a graph break",
}
LOOP = "loop that goes on after a graph break"
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
# What walks a container: a program that has none of these in a variable has them all the same, in its loops.
_OF_LOOPS = frozenset(
    f"{name}iterator"
    for name in ("list_", "tuple_", "dict_key", "dict_value", "dict_item", "set_", "range_", "longrange_", "str_",
                 "str_ascii_", "bytes_", "bytearray_", "list_reverse")
) | {"enumerate", "zip", "map", "filter", "reversed"}  # fmt: skip


def in_terms_of_the_program(reason: BreakReason, code: CodeType) -> BreakReason:
    """The reason why a frame breaks, where the iterator that it met is one that an earlier break left behind.

    Arguments:
        reason: changed in place.
        code: of the frame.
    """
    comprehension = code.co_name in _COMPREHENSIONS
    resumed = resume_label(code) is not None
    if reason.kind == "iterator from outside" and reason.context in _OF_LOOPS and (comprehension or resumed):
        what = "comprehension" if comprehension else "loop"
        reason.kind = LOOP
        reason.explanation = (
            f"Python runs this {what}, because the graph broke in it; each round is compiled by itself."
        )
        reason.hints = (f"Remove the graph break in the {what}, which is reported too.",)
    elif _OUTSIDE in reason.explanation and resumed:  # perhaps the function made it itself
        reason.kind = _BEFORE_A_BREAK.get(reason.kind, reason.kind)
        reason.explanation = reason.explanation.replace(_OUTSIDE, "that existed before the graph broke")
        reason.hints = ("Remove the graph break before it, which is reported too.", *reason.hints)
    return reason
