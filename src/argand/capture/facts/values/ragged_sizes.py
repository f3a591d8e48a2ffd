"""Sizes in the ragged dim of nested tensors: numbers of torch's that are equal where the offsets are the same tensor.

They have no value that a program could see, but for the number in their text, which differs from call to call. They
are compared, and multiplied by constants; anything else ends the graph.
"""

from __future__ import annotations

import torch

from argand import errors
from argand.capture.facts.handlers import Function
from argand.capture.facts.values.symbolic import SymbolicNumber

RAGGED = torch.SymInt
"""The class of such sizes: no other number of this class is met in a capture."""
_DECIDED_BY_CLASS = ("__eq__", "__ne__")


def refused(what: str) -> errors.GraphBreak:
    """The break for what is not done with such a size in a graph."""
    return errors.graph_break(kind="ragged size of a nested tensor used", context=what)


def computed(native: Function, method: str, *operands: object) -> object:
    """What an operator gives of operands of which one is such a size.

    Raises:
        Exception: as torch does.
    """
    values = [_plain(operand, method) for operand in operands]
    with torch._C.DisableTorchFunction():
        return native(*values)


def _plain(operand: object, method: str) -> object:
    if not isinstance(operand, SymbolicNumber):
        return operand
    return operand.hint if method in _DECIDED_BY_CLASS else operand.number()  # never equal to a plain number
