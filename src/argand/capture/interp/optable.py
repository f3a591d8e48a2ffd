"""Registration of opcode handlers: names and version ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from argand.capture.facts.frames import Frame, Handler, Prepare
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter

FIRST = (3, 11)
LAST = (3, 13)

HANDLERS: dict[tuple[str, tuple[int, int], tuple[int, int]], tuple[Handler, Prepare | None]] = {}
"""(opcode, first version, last version) -> handler; filled by `opcode` at import."""

ROOT_HANDLERS: dict[str, tuple[Handler, Prepare | None]] = {}
"""Handlers of the root frame, whose arguments are read lazily."""

_ASYNC = "async code is not captured: it runs eagerly"
UNSUPPORTED: dict[str, tuple[tuple[int, int], tuple[int, int], str]] = {
    "BEFORE_ASYNC_WITH": (FIRST, LAST, _ASYNC),
    "END_ASYNC_FOR": (FIRST, LAST, _ASYNC),
    "GET_AITER": (FIRST, LAST, _ASYNC),
    "GET_ANEXT": (FIRST, LAST, _ASYNC),
    "GET_AWAITABLE": (FIRST, LAST, _ASYNC),
    "ASYNC_GEN_WRAP": (FIRST, (3, 11), _ASYNC),
    "PRINT_EXPR": (FIRST, (3, 11), "printing an expression happens only in an interactive session"),
    "IMPORT_STAR": (FIRST, (3, 11), "`from module import *` happens only at module level"),
}
"""Opcodes that end the graph, with first and last version and the reason."""

H = TypeVar("H", bound=Handler)


def opcode(
    *names: str, since: tuple[int, int] = FIRST, until: tuple[int, int] = LAST, prepare: Prepare | None = None
) -> Callable[[H], H]:
    """Register a handler for opcodes in a range of Python versions."""

    def register(handler: H) -> H:
        for name in names:
            HANDLERS[name, since, until] = (handler, prepare)
        return handler

    return register


def enter(
    table: Mapping[str, Handler], since: tuple[int, int] = FIRST, until: tuple[int, int] = LAST, *, on_top: bool = False
) -> None:
    """Register handlers that are one expression: names of opcodes, what is done.

    Arguments:
        on_top: what is given says what becomes of the topmost value, which it gets in the frame's place.
    """
    for names, does in table.items():
        opcode(*names.split(), since=since, until=until)(_on_top(does) if on_top else does)


def _on_top(does: Function) -> Handler:
    def handler(interp: Interpreter, frame: Frame, arg: object) -> None:
        frame.stack[-1] = does(interp, frame.stack[-1], arg)

    return handler


def root_opcode(*names: str) -> Callable[[H], H]:
    """Register the handler that the root frame uses in place of the ordinary one."""

    def register(handler: H) -> H:
        for name in names:
            ROOT_HANDLERS[name] = (handler, None)
        return handler

    return register
