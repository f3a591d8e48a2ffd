"""Where in the program an operation stands, as a traceback prints it."""

from __future__ import annotations

import types

from argand.capture.facts.frames import Frame
from argand.capture.facts.name_tables import source_line
from argand.capture.facts.per_code import of_code
from argand.errors import UserLine


@of_code
def frame_text(code: types.CodeType, lineno: int) -> tuple[str, str]:
    line = line_of_code(code, lineno)
    text = f'  File "{line.filename}", line {line.lineno}, in {line.function}\n'
    if line.text:
        text += f"    {line.text}\n"
    short = f"{line.filename}:{line.lineno} in {line.function}"
    return text, f"{short}: {line.text}" if line.text else short


def stack_trace(frames: list[Frame]) -> tuple[str, str]:
    """(stack as a traceback prints it, innermost line as "file:line in function: text") of interpreter frames."""
    texts = []
    innermost = ""
    for frame in frames:
        if not frame.quiet:
            pc, text, line = frame.shown
            if pc != frame.pc:
                text, line = frame_text(frame.code, frame.lineno)
                frame.shown = (frame.pc, text, line)
            texts.append(text)
            innermost = line
    return "".join(texts), innermost


@of_code
def line_of_code(code: types.CodeType, lineno: int | None) -> UserLine:
    """The line as errors and stack traces show it."""
    line = lineno or code.co_firstlineno
    return UserLine(code.co_filename, line, code.co_name, source_line(code.co_filename, line).strip())


def line_of_frame(frame: Frame) -> UserLine:
    """Position of a frame in the user's program: the text of the line, and the part of it that is being executed."""
    code = frame.code
    lineno = frame.lineno
    line = source_line(code.co_filename, lineno)
    text = line.strip()
    start, end = _columns(line, frame.instruction.positions) if text else (-1, -1)
    return UserLine(code.co_filename, lineno, code.co_name, text, start, end)


def _columns(line: str, positions: tuple[int | None, ...] | None) -> tuple[int, int]:
    """The characters of `line.strip()` that an instruction covers; (-1, -1): unknown.

    Arguments:
        positions: (line, last line, column, end column), columns in UTF-8 bytes.
    """
    if positions is None or positions[2] is None or positions[3] is None:
        return -1, -1
    first, last, column, end = positions
    raw, indent = line.encode(), len(line) - len(line.lstrip())
    start = len(raw[:column].decode(errors="replace")) - indent
    if first != last:
        return start, len(line.strip())
    return start, len(raw[:end].decode(errors="replace")) - indent
