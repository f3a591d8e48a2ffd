"""The two packed tables of a code object: exception table and line table, in the format of CPython 3.11 and later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from argand.bytecode.instruction import Positions
from argand.bytecode.opcodes import PY312


class TableEntry(NamedTuple):
    """A row of the exception table; `start`, `end` (exclusive) and `target` count code units (two bytes)."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def parse_exception_table(table: bytes) -> list[TableEntry]:
    """Unpack `co_exceptiontable` into rows, in the order of the table (ascending, not overlapping)."""
    values: list[int] = []
    value = 0
    for byte in table:
        value = (value << 6) | (byte & 63)
        if not byte & 64:
            values.append(value)
            value = 0
    return [
        TableEntry(start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1))
        for start, length, target, depth_lasti in zip(values[0::4], values[1::4], values[2::4], values[3::4])
    ]


def build_exception_table(entries: Iterable[TableEntry]) -> bytes:
    """Pack rows, given in ascending order, into `co_exceptiontable`."""
    out = bytearray()
    for entry in entries:
        first = True
        for value in (entry.start, entry.end - entry.start, entry.target, (entry.depth << 1) | entry.lasti):
            digits = [value & 63]
            while value := value >> 6:
                digits.append(64 | (value & 63))
            digits.reverse()
            if first:
                digits[0] |= 128  # marks the first byte of a row, for the interpreter's binary search
                first = False
            out += bytes(digits)
    return bytes(out)


def _varint(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(64 | (value & 63))
        value >>= 6
    out.append(value)


def _signed_varint(out: bytearray, value: int) -> None:
    _varint(out, (-value << 1) | 1 if value < 0 else value << 1)


def _line_entry(out: bytearray, positions: Positions | None, units: int, line: int) -> int:
    """Append one entry for at most eight code units; returns the line that the next delta counts from."""
    length = units - 1
    start, end, column, end_column = positions if positions is not None else (None, None, None, None)
    if start is None:
        out.append(0x80 | (15 << 3) | length)
        return line
    delta = start - line
    if column is None or end_column is None:
        if end is None or end == start:
            out.append(0x80 | (13 << 3) | length)
            _signed_varint(out, delta)
            return start
    elif end == start:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out.append(0x80 | ((column >> 3) << 3) | length)
            out.append(((column & 7) << 4) | (end_column - column))
            return start
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out.append(0x80 | ((10 + delta) << 3) | length)
            out.append(column)
            out.append(end_column)
            return start
    out.append(0x80 | (14 << 3) | length)
    _signed_varint(out, delta)
    _varint(out, (end if end is not None else start) - start)
    _varint(out, 0 if column is None else column + 1)
    _varint(out, 0 if end_column is None else end_column + 1)
    return start


def build_line_table(rows: Iterable[tuple[Positions | None, int]], firstlineno: int) -> bytes:
    """Pack `co_linetable`.

    Arguments:
        rows: (positions, number of code units) of each instruction in order.
        firstlineno: `co_firstlineno` of the new code; the table holds differences from it.
    """
    out = bytearray()
    line = firstlineno
    held: Positions | None = None
    held_units = 0

    def flush() -> None:
        nonlocal line, held_units
        while held_units > 0:
            line = _line_entry(out, held, min(held_units, 8), line)
            held_units -= 8

    for positions, units in rows:
        # Like the compilers of each version: from 3.12 on, neighbours with equal positions share entries.
        if not PY312 or positions != held:
            flush()
            held_units = 0
            held = positions
        held_units += units
    flush()
    return bytes(out)
