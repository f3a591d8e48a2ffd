"""What a structured trace is made of: one `Record` per line, its payload left in the file until somebody asks.

The names are those of the trace format that torch.compile and argand write (docs/trace.md).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from dataclasses import field
from pathlib import Path
from typing import Any

from argand.quick_dataclasses import dataclass

_RANK = re.compile(r"_rank_(\d{1,9})(?:_|\.)")


@dataclass(frozen=True, slots=True)
class TraceId:
    """A compile id as the trace spells it: `[frame/recompile_attempt]`, with `!n/` in front under compiled autograd.

    Arguments:
        frame: which code object; None before a frame is known.
        recompile: how many times it was compiled before; None with `frame`.
        attempt: how many times this compile was begun anew.
        compiled_autograd: which graph of compiled autograd, or None.
    """

    frame: int | None
    recompile: int | None
    attempt: int = 0
    compiled_autograd: int | None = None

    def __str__(self) -> str:
        head = "" if self.compiled_autograd is None else f"!{self.compiled_autograd}/"
        frame = "-" if self.frame is None else str(self.frame)
        recompile = "-" if self.recompile is None else str(self.recompile)
        tail = f"_{self.attempt}" if self.attempt else ""
        return f"[{head}{frame}/{recompile}{tail}]"

    @property
    def directory(self) -> str:
        """The name of this id's folder in a report: `-_0_0_1`; always safe as a file name."""
        parts = (self.compiled_autograd, self.frame, self.recompile, self.attempt)
        return "_".join("-" if part is None else str(part) for part in parts)

    @property
    def compile(self) -> TraceId:
        """The id without its attempt."""
        return TraceId(self.frame, self.recompile, 0, self.compiled_autograd)


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a stack, outermost first in a stack; `source` is the line's text when the trace has it."""

    filename: str
    line: int
    name: str
    source: str = ""

    def __str__(self) -> str:
        head = f"{self.filename}:{self.line} in {self.name}"
        return f"{head}\n    {self.source}" if self.source else head


@dataclass(frozen=True, slots=True)
class Payload:
    """The indented lines that follow a record, read from the file when asked for.

    Arguments:
        path: the trace file (never a name that the trace itself gives).
        offset: where the first payload line begins.
        length: bytes in the file, with the tabs and without the last line feed.
        lines: how many lines it has.
        digest: the md5 that the record announces, "" when it announces none.
    """

    path: Path
    offset: int
    length: int
    lines: int
    digest: str = ""

    @property
    def size(self) -> int:
        """Bytes of the text (UTF-8)."""
        return max(self.length - self.lines, 0)

    def read(self, limit: int | None = None) -> bytes:
        """The payload as bytes, at most about `limit` of them.

        Raises:
            OSError: the trace file is gone.
        """
        wanted = self.length if limit is None else min(self.length, limit)
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return dedent(file.read(wanted))

    def text(self, limit: int | None = None) -> str:
        """The payload as text; bytes that are no UTF-8 become U+FFFD."""
        return self.read(limit).decode("utf-8", "replace")

    def open(self) -> io.BytesIO:
        """The payload as a binary stream."""
        return io.BytesIO(self.read())

    def json(self) -> Any:
        """The payload parsed as JSON.

        Raises:
            ValueError: it is none.
        """
        import orjson

        return orjson.loads(self.read())

    def intact(self) -> bool:
        """Whether the payload is what the record's digest says (True without a digest)."""
        return not self.digest or self.digest == digest_of(self.read())


def dedent(raw: bytes) -> bytes:
    """Payload lines as in the file, without the tab in front of each."""
    text = raw.replace(b"\n\t", b"\n")
    return text[1:] if text.startswith(b"\t") else text


def digest_of(payload: bytes) -> str:
    """The hash by which a record names its payload."""
    return hashlib.md5(payload, usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class Record:
    """One record of a trace.

    Arguments:
        index: running number among the records of the reader, from 0.
        kind: the record's name: "dynamo_start", "artifact", "compilation_metrics", ...; "unknown" when it has none.
        fields: the object under that name; other JSON values are put under "value".
        id: the compile that it belongs to, or None.
        stack: the record's stack, outermost frame first, file names resolved.
        rank: the process's rank, or None.
        time: "MMDD HH:MM:SS.ffffff" of the writer's clock.
        thread: as the writer gives it.
        pathname, lineno: the writer's source line.
        payload: the text that belongs to the record, or None.
        file: the trace file that it came from.
        extra: further top-level entries.
    """

    index: int
    kind: str
    fields: dict[str, Any]
    id: TraceId | None
    stack: tuple[StackFrame, ...]
    rank: int | None
    time: str
    thread: int
    pathname: str
    lineno: int
    payload: Payload | None = None
    file: Path | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """An artifact's own name; the kind for other records."""
        if self.kind in ("artifact", "dump_file", "link"):
            given = self.fields.get("name")
            if isinstance(given, str) and given:
                return given
        return self.kind


def trace_files(source: str | os.PathLike[str]) -> list[Path]:
    """The trace files that a path stands for: the file itself, or the logs of a directory, by rank and name.

    Without any in the directory itself, those of the folders in it (one per host, say).
    """
    path = Path(source)
    if not path.is_dir():
        return [path]
    named: list[Path] = []
    for pattern in ("dedicated_log_torch_trace_*.log", "*.log", "*/dedicated_log_torch_trace_*.log"):
        named = named or list(path.glob(pattern))
    return sorted((entry for entry in named if entry.is_file()), key=lambda entry: (rank_of(entry), entry.name))


def rank_of(path: Path) -> int:
    """The rank that a trace file's name gives; -1 without one."""
    rank = _RANK.search(path.name)
    return int(rank[1]) if rank else -1
