"""How exceptions travel through the interpreter: which are the user's, which are argand's own.

A user-level exception is always wrapped (`ObservedException`), so that a bug in the interpreter, which raises an
ordinary exception, is never mistaken for something that the user's program did.
"""

from __future__ import annotations

import os
from types import GeneratorType, TracebackType
from typing import Final, NoReturn

from argand.own_code import OWN_FOLDER


class ObservedException(BaseException):
    """An exception that the interpreted program raised, on its way to a handler of that program.

    Arguments:
        value: the exception object as the program would see it.
    """

    __slots__ = ("value",)

    def __init__(self, value: BaseException) -> None:
        super().__init__()
        self.value = value


class InternalFailure(BaseException):
    """A bug of argand inside a callback from native code; a BaseException so that native code does not swallow it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


OF_CAPTURE: Final = (Exception, ObservedException, InternalFailure)
"""What a bug of argand, or the program where nobody expects it to raise, may let out of a capture."""


def _traceback_of_no_caller() -> TracebackType:
    """A generator that has not begun has a frame that nobody called. The frame of a function would keep its callers'
    frames, with the arguments of the call for which this module is imported."""
    generator = (number for number in range(0))
    frame = generator.gi_frame if isinstance(generator, GeneratorType) else None
    assert frame is not None
    return TracebackType(None, frame, 0, frame.f_lineno)


CAPTURED_TRACEBACK: TracebackType | None = _traceback_of_no_caller()
"""What `__traceback__` of an exception is while captured code handles it: frames of captured code do not exist, and
those of argand would keep every value of the capture alive."""


class ExcState:
    """What CPython calls an exc_info item: the exception being handled, one per generator plus one for plain frames."""

    __slots__ = ("previous", "value")

    def __init__(self) -> None:
        self.value: BaseException | None = None
        self.previous: ExcState | None = None

    def topmost(self) -> BaseException | None:
        """The innermost exception that is being handled, in this item or those below."""
        item: ExcState | None = self
        while item is not None:
            if item.value is not None:
                return item.value
            item = item.previous
        return None


def chain_context(exc: BaseException, handled: BaseException | None) -> None:
    """Set `exc.__context__` as CPython does when `exc` is raised while `handled` is being handled (cycles broken)."""
    if handled is None or handled is exc:
        return
    node: BaseException = handled
    seen: set[int] = set()
    while (context := node.__context__) is not None:
        if context is exc:
            node.__context__ = None
            break
        if id(context) in seen:
            break
        seen.add(id(context))
        node = context
    exc.__context__ = handled


def raise_native(exc: BaseException) -> NoReturn:
    """Raise a user-level exception into native code, leaving its context and cause as they are."""
    context = exc.__context__
    traceback: TracebackType | None = exc.__traceback__
    try:
        raise exc.with_traceback(traceback)
    finally:
        exc.__context__ = context
        del exc, context, traceback  # the exception's traceback refers to this frame


CAPTURE_FOLDER: Final = os.path.join(OWN_FOLDER, "capture", "")


def innermost_file(error: BaseException) -> str:
    """The file of the innermost Python frame that an exception came through; "" for none."""
    traceback = error.__traceback__
    filename = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        traceback = traceback.tb_next
    return filename
