"""What is rounded to 16 bits before anybody sees it: float32 numbers between need not be right to their last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from argand.codegen.analysis import is_half
from argand.ir.loops import LoopBlock, LoopBody, Value, statements_of

Users = Mapping[int, Sequence[Value]]
_SEEN_WHOLE = frozenset(("store", "reduction", "scan", "indirect", "bitcast"))


def users_of(body: LoopBody) -> Users:
    """The statements that take each value, by its id."""
    users: dict[int, list[Value]] = {}
    for statement in statements_of(body):
        for arg in statement.args:
            taken = arg.result if isinstance(arg, LoopBlock) else arg
            if isinstance(taken, Value):
                users.setdefault(taken.id, []).append(statement)
    return users


def is_coarse(value: Value, users: Users) -> bool:
    """Whether only the sum of a float32 number and 1 is used, and what comes of it is rounded to 16 bits."""
    return value.dtype is torch.float32 and all(
        user.op == "add" and any(_is_one(arg) for arg in user.args) and _rounds(user, users)
        for user in users.get(value.id, ())
    )


def _is_one(arg: object) -> bool:
    return isinstance(arg, Value) and arg.op == "constant" and arg.args[0] == 1


def _rounds(value: Value, users: Users) -> bool:
    """Whether all that is computed from a value is rounded to 16 bits."""
    for user in users.get(value.id, ()):
        if user.op == "to_dtype" and is_half(user.dtype):
            continue
        if user.op in _SEEN_WHOLE or not user.dtype.is_floating_point or not _rounds(user, users):
            return False
    return bool(users.get(value.id))
