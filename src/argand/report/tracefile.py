"""The line format of structured traces: one file per process, one record per line, its payload in indented lines below.

    V1121 13:32:44.840000 1390 argand/capture/driver/frame.py:114] {"dynamo_start": {...}, "frame_id": 0, ...}

In: record kind, fields, compile id, payload. Out: appended bytes. Nothing here ever raises into the program that is
being compiled: where the file cannot be written there is one warning, and the trace ends.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argand._core import _C
from argand._core.calls import locked
from argand.events import CompileId
from argand.report.records import digest_of

PREFIX = "dedicated_log_torch_trace_"
_BIGGEST = 2**63 - 1


def process_rank() -> int | None:
    """The rank of this process in torch.distributed; from `RANK` (torchrun sets it) before that is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:
        try:
            if distributed.is_available() and distributed.is_initialized():
                return int(distributed.get_rank())
        except Exception:  # half imported, or being torn down
            pass
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def to_json(value: Any) -> bytes:
    """`value` as one line of JSON: what JSON has no word for becomes text."""
    import orjson

    try:
        return orjson.dumps(value, default=str)
    except (TypeError, ValueError):  # numbers beyond 64 bits, lone surrogates, keys that are no strings, cycles
        return json.dumps(_plain(value, 0), allow_nan=False).encode()


def _plain(value: Any, depth: int) -> Any:
    """`value` in the terms of strict JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _BIGGEST else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < 40:
        if isinstance(value, dict):
            return {clean(str(key)): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, depth + 1) for item in value]
    return clean(str(value))


def clean(text: str) -> str:
    """Text that survives being read line by line: no carriage return before a line feed, no lone surrogate."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "backslashreplace").decode()
    return text


class TraceFile:
    """The trace file of this process, in a directory that may be shared with others.

    Opened by the first record. A forked child opens a file of its own. Any thread may write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.path: Path | None = None
        self._begin()
        own = weakref.ref(self)

        def forked() -> None:
            mine = own()
            if mine is not None:
                mine._begin()

        os.register_at_fork(after_in_child=forked)

    def _begin(self) -> None:
        """Nothing open, nothing interned: at the start, and in a forked child (its parent's file is not its own)."""
        self.lock = threading.RLock()
        self._file = -1
        self.dead = False  # could not be written: nothing is tried again
        self._interned: dict[str, int] = {}
        self._rank: int | None = None
        self.path = None

    @property
    def rank(self) -> int | None:
        """The rank of this process, None while it is not known."""
        if self._rank is None:
            self._rank = process_rank()
        return self._rank

    @locked
    def intern(self, text: str) -> int:
        """The number that stands for a string in this file; written down the first time."""
        number = self._interned.get(text)
        if number is None:
            number = self._interned[text] = len(self._interned)
            self.write("str", [clean(text), number], None, where=("argand/report/tracefile.py", 0))
        return number

    def stack(self, frames: Iterable[tuple[str, int, str]]) -> list[dict[str, Any]]:
        """(file name, line, function) of each frame, outermost first, as a record holds them."""
        return [{"line": line, "name": name, "filename": self.intern(filename)} for filename, line, name in frames]

    def write(
        self,
        kind: str,
        fields: Any,
        compile_id: CompileId | None,
        *,
        payload: str | None = None,
        time_ns: int | None = None,
        where: tuple[str, int] = ("argand", 0),
    ) -> None:
        """Append one record.

        Arguments:
            kind, fields: the record's name and what it says.
            payload: the text below it; its digest goes into the record.
            time_ns: of the wall clock; None is now.
            where: argand's source line that made it.
        """
        if self.dead:
            return
        record: dict[str, Any] = {kind: fields}
        if self.rank is not None:
            record["rank"] = self.rank
        if compile_id is not None:
            if compile_id.autograd is not None:
                record["compiled_autograd_id"] = compile_id.autograd
            if compile_id.frame is not None:
                record["frame_id"] = compile_id.frame
                record["frame_compile_id"] = compile_id.recompile
            record["attempt"] = compile_id.attempt
        body = b""
        if payload is not None:
            text = clean(payload).encode()
            record["has_payload"] = digest_of(text)
            body = b"\n\t" + text.replace(b"\n", b"\n\t")
        line = _prefix(time.time_ns() if time_ns is None else time_ns, where).encode() + to_json(record) + body + b"\n"
        self._append(line)

    @locked
    def _append(self, data: bytes) -> None:
        try:
            if self._file < 0:
                self._open()
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self.dead = True
            warnings.warn(f"argand: no structured trace in {self.directory}: {error}", stacklevel=2)

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        rank = "" if self.rank is None else f"rank_{self.rank}_"
        handle, name = tempfile.mkstemp(prefix=f"{PREFIX}{rank}", suffix=".log", dir=self.directory)
        self._file, self.path = handle, Path(name)

    def close(self) -> None:
        """Close the file; what is written afterwards opens a new one."""
        _C.call_locked(self.lock, self._close)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._begin()


def _prefix(time_ns: int, where: tuple[str, int]) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(seconds))
    path = where[0].replace(":", "/").replace("\n", " ") or "argand"
    return f"V{stamp}.{rest // 1000:06d} {threading.get_native_id()} {path}:{where[1]}] "
