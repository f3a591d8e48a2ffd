"""Values that only the running program knows and that capture lets through as long as nobody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from argand.capture.facts.name_tables import words
from argand.capture.facts.values.symbolic import SymbolicNumber
from argand.errors import GraphBreak, graph_break


class TaintedText:
    """What formatting a tensor gives: a text that depends on the tensor's values, which are not known.

    Also a number that is drawn anew at each run (`like` is 0.0 then).

    It may be dropped, stored, formatted into another text or put into an exception. No `str`, so that native code can
    never take its content for the real one; whatever else is asked of it ends the graph.

    Arguments:
        sequence: of the root instruction that made it: where the graph must end instead.
        like: a value of its type.
        numbers: the numbers that vary of which it is made, with nothing that only the running program knows.
    """

    __slots__ = ("like", "numbers", "sequence")

    def __init__(self, sequence: int, like: Any = "", numbers: Sequence[SymbolicNumber] = ()) -> None:
        self.like = like
        self.numbers = numbers
        self.sequence = sequence


def formatted_tensor(text: TaintedText) -> GraphBreak:
    """The graph break for a use of such a value: where it was made, so that the real one is made there.

    Raises:
        Restart: it is made of numbers, which are constants from here on.
    """
    for number in text.numbers:
        number.number()
    if text.like == "":
        stop = graph_break(
            kind="data-dependent text",
            explanation="A text that contains the values of a tensor is needed while the graph is captured.",
        )
    else:
        stop = graph_break(
            kind="random number of Python's",
            explanation="A number that Python's random module draws at each call is needed while capturing.",
        )
    if text.sequence >= 0:
        stop.sequence = text.sequence
    return stop


def _refuse(self: TaintedText, *args: object, **kwargs: object) -> object:
    raise formatted_tensor(self)


for _name in words(
    """
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow neg pos abs round
    trunc floor ceil complex eq ne lt le gt ge hash bool len iter contains getitem str repr format reduce_ex reduce int
    float index bytes copy deepcopy
    """
):
    setattr(TaintedText, f"__{_name}__", _refuse)
