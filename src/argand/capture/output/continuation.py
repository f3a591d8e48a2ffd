"""What transformed code calls around resume functions; stored code too, in processes that import no more of capture."""

from __future__ import annotations


class Continuation(tuple):  # type: ignore[type-arg]
    """(function, arguments): what the frame that runs a chain of resume functions has to call next."""

    __slots__ = ()


def leave_out_caller(exc: BaseException) -> None:
    """Drop the entry of the frame that called a resume function: to the program, both are one frame."""
    traceback = exc.__traceback__
    if traceback is not None and traceback.tb_next is not None:
        exc.__traceback__ = traceback.tb_next
