"""The folder that a report is written into: payloads stream in, pages replace each other whole."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from argand import files
from argand.quick_dataclasses import dataclass
from argand.report.records import Payload

_CHUNK = 1 << 20
_DEVICE = re.compile(rb"\b(cuda|xpu):\d+")


@dataclass(frozen=True, slots=True)
class Stored:
    """A payload's facts.

    Arguments:
        digest: of its text; `alike`: of its text without the numbers of devices, which differ from rank to rank.
    """

    size: int
    lines: int
    digest: str
    alike: str


class Folder:
    """Files below one directory, named by relative POSIX paths that `file_names` made safe.

    Arguments:
        root: created when missing.
        live: somebody may be reading: files are replaced whole.
    """

    def __init__(self, root: Path, live: bool = False) -> None:
        self.root = root
        self.live = live
        root.mkdir(parents=True, exist_ok=True)
        self._folders: set[str] = set()

    def path(self, name: str) -> Path:
        """The file of that name, its folder made.

        Raises:
            ValueError: the name leaves the folder.
        """
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\\" in part or ":" in part for part in parts):
            raise ValueError(f"not a name within the report: {name!r}")
        path = self.root.joinpath(*parts)
        parent = "/".join(parts[:-1])
        if parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(parent)
        return path

    def store(self, name: str, payload: Payload) -> Stored:
        """Copy a payload, without its tabs, in pieces."""
        digest, alike = hashlib.blake2b(digest_size=12), hashlib.blake2b(digest_size=12)
        size = 0
        with open(payload.path, "rb") as source, open(self.path(name), "wb") as target:
            source.seek(payload.offset)
            left = payload.length
            after_newline = True  # the tab in front of the first line
            while left > 0:
                raw = source.read(min(_CHUNK, left))
                if not raw:
                    break
                left -= len(raw)
                text = raw.replace(b"\n\t", b"\n")
                if after_newline and text.startswith(b"\t"):
                    text = text[1:]
                after_newline = raw.endswith(b"\n")
                target.write(text)
                digest.update(text)
                alike.update(_DEVICE.sub(rb"\1", text))
                size += len(text)
        return Stored(size, payload.lines, digest.hexdigest(), alike.hexdigest())

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file; of a live report so that a reader sees either the old or the new one."""
        path = self.path(name)
        data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        with files.replacing(path) if self.live else contextlib.nullcontext(path) as target:
            target.write_bytes(data)

    def read(self, name: str, limit: int | None = None) -> str:
        """A file's text, at most `limit` bytes of it; "" when there is none."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read(-1 if limit is None else limit).decode("utf-8", "replace")
        except OSError:
            return ""
