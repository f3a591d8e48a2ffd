"""Exceptions of signal handlers and other threads that interrupt argand: they are no errors of what they interrupt."""

from __future__ import annotations

import inspect
import itertools
import sys
from opcode import opmap
from types import FrameType, TracebackType

from argand.own_code import OWN_FOLDER


def let_pass(error: BaseException | None) -> None:
    """Raise the exception from outside that an error is, or comes from; where there is none, nothing happens.

    Who takes any exception for a failure of what it tried, and goes on, asks this first. `ArgandError`, graph breaks
    and exceptions that captured code is to see ask it as they are made.
    """
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen or (one.__traceback__ is not None and _is_earlier(one.__traceback__)):
            continue
        seen.add(id(one))
        if isinstance(one, Exception) and is_of_handler(one):
            raise one
        pending += (one.__cause__, one.__context__)


def is_of_handler(error: BaseException) -> bool:
    """Whether one of the calls that an exception left is that of a signal handler, which is given what it interrupts,
    or another thread has sent it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        interrupted, traceback = traceback.tb_frame, traceback.tb_next
        if not _is_own(traceback.tb_frame) and _is_given(traceback.tb_frame, interrupted):
            return True
    return traceback is not None and _is_sent(error, traceback)


_ENTRY, _BACKWARD = opmap["RESUME"], opmap["JUMP_BACKWARD"]
_AFTER_YIELD, _PLACE = 1, 3  # of an entry's argument: the place is what these bits say
_CALLS = {code for name, code in opmap.items() if name.startswith(("CALL", "PRECALL"))}  # 3.11 does some in PRECALL
_NOT_SENDING = {*sys.stdlib_module_names, "argand", "numpy", "torch"}


def _is_sent(error: BaseException, last: TracebackType) -> bool:
    """Whether an exception came up where CPython asks for those of other threads, and nothing else raises: where a
    function begins or a generator goes on, and at the end of a loop's round; or behind a call, whose own it could be,
    but that it says nothing and is of a class of the program's."""
    if last.tb_lasti < 0:  # the frame had not begun: what stands in for its code raised
        return False
    operation, argument = last.tb_frame.f_code.co_code[last.tb_lasti : last.tb_lasti + 2]
    if operation in _CALLS:
        return not error.args and type(error).__module__.partition(".")[0] not in _NOT_SENDING
    return operation == _BACKWARD or (operation == _ENTRY and argument & _PLACE <= _AFTER_YIELD)


def _is_given(handler: FrameType, interrupted: FrameType) -> bool:
    code = handler.f_code
    before = code.co_argcount + code.co_kwonlyargcount
    rest = code.co_varnames[before : before + bool(code.co_flags & inspect.CO_VARARGS)]
    given: list[object] = []
    for name in (*code.co_varnames[: code.co_argcount], *rest):
        value = handler.f_locals.get(name)
        given += value if type(value) is tuple else [value]
    return any(type(number) is int and frame is interrupted for number, frame in itertools.pairwise(given))


def _is_earlier(traceback: TracebackType) -> bool:
    """Whether the program handles the exception itself, around the call of what argand compiled."""
    caught = traceback.tb_frame
    if _is_own(caught):
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not caught:
        frame = frame.f_back
    return frame is not None


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_FOLDER)
