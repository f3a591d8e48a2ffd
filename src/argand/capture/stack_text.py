"""Where in the program an operation stands, as a traceback prints it."""

from __future__ import annotations

import types
from typing import Any

from argand.capture.per_code import of_code


@of_code
def frame_text(code: types.CodeType, lineno: int) -> tuple[str, str]:
    from argand.capture.state import user_line

    line = user_line(code, lineno)
    text = f'  File "{line.filename}", line {line.lineno}, in {line.function}\n'
    if line.text:
        text += f"    {line.text}\n"
    short = f"{line.filename}:{line.lineno} in {line.function}"
    return text, f"{short}: {line.text}" if line.text else short


def stack_trace(frames: list[Any]) -> tuple[str, str]:
    """(stack as a traceback prints it, innermost line as "file:line in function: text") of interpreter frames."""
    shown = [frame_text(frame.code, frame.lineno) for frame in frames if not getattr(frame, "quiet", False)]
    if not shown:
        return "", ""
    return "".join([text for text, _ in shown]), shown[-1][1]
