"""The table of opcodes: one handler for each, and the opcodes that argand refuses, with the reason.

`opcodes_*.py` fill it by decorator. A handler takes (interpreter, frame, argument) and changes the frame; see
`frames.Program` for what the argument is.
"""

from __future__ import annotations

from argand.bytecode.opcodes import VERSION
from argand.capture.facts.frames import Frame, Handler, Prepare
from argand.capture.interp import opcodes_basic, opcodes_build, opcodes_flow
from argand.capture.interp.optable import HANDLERS, ROOT_HANDLERS, UNSUPPORTED
from argand.errors import graph_break

__all__ = ["OPCODES", "ROOT_OPCODES", "opcodes_basic", "opcodes_build", "opcodes_flow"]


def _refuse(name: str, reason: str) -> Handler:
    def refuse(interp: object, frame: Frame, arg: object) -> None:
        raise graph_break(
            kind="unsupported Python construct",
            context=name,
            explanation=reason[:1].upper() + reason[1:] + ".",
        )

    return refuse


def _table(version: tuple[int, int]) -> dict[str, tuple[Handler, Prepare | None]]:
    table: dict[str, tuple[Handler, Prepare | None]] = {}
    for name, (first, last, reason) in UNSUPPORTED.items():
        if first <= version <= last:
            table[name] = (_refuse(name, reason), None)
    for (name, first, last), (handler, prepare) in HANDLERS.items():
        if first <= version <= last:
            table[name] = (handler, prepare)
    return table


OPCODES: dict[str, tuple[Handler, Prepare | None]] = _table(VERSION)
ROOT_OPCODES: dict[str, tuple[Handler, Prepare | None]] = {**OPCODES, **ROOT_HANDLERS}
