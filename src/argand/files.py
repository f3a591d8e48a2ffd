"""The one place where argand reads files that may not be what it expects.

A name may lead to a FIFO, a device, a link, a file of somebody else, or one of any size. `read` looks before it opens,
opens so that nothing blocks, looks again at what it opened, and reads no more than a limit. Every refusal is an
`UnusableFile`, an OSError whose text is a sentence about the file. `tests/test_ground_rules.py` holds every other
module to it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from argand.errors import ConfigError

SCRIPT_BYTES = 64 << 20  # more than any program that somebody wrote
_CHUNK = 1 << 20
_SEAL = b"\nargand sha256 "
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnusableFile(OSError):
    """A file that is not read. `reason` says why, as what follows the file's name ("is a FIFO, not a file")."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = Path(path)
        self.reason = reason


def read(path: str | Path, limit: int, *, own: bool = True) -> bytes:
    """The content of a regular file.

    Arguments:
        limit: bytes; a file that is larger is refused.
        own: the file must belong to this user, nobody else may be able to write to it, and the name must not be a link.
            False is for files that the user names.

    Raises:
        UnusableFile: it is no such file.
        OSError: it is not there, or cannot be read.
    """
    descriptor = open_file(path, limit, own=own)
    try:
        parts: list[bytes] = []
        left = limit + 1  # a file may have grown, and those in /proc have no size
        while left > 0:
            part = os.read(descriptor, min(left, _CHUNK))
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    raise UnusableFile(path, f"has more than {limit} bytes")


def open_file(path: str | Path, limit: int, *, own: bool = True) -> int:
    """A descriptor of a regular file, as `read` demands it; raises the same."""
    try:
        _check(path, os.stat(path, follow_symlinks=not own), limit, own)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(path, flags | (os.O_NOFOLLOW if own else 0))
    except ValueError as error:  # a NUL in the name
        raise UnusableFile(repr(str(path)), "is no name of a file") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # became a link, or a socket, meanwhile
            raise UnusableFile(path, "is not a file") from error
        raise
    try:
        _check(path, os.fstat(descriptor), limit, own)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str | Path, info: os.stat_result, limit: int, own: bool) -> None:
    if not stat.S_ISREG(info.st_mode):
        kind = next((text for test, text in _KINDS if test(info.st_mode)), "something else")
        raise UnusableFile(path, f"is {kind}, not a file")
    if info.st_size > limit:
        raise UnusableFile(path, f"has {info.st_size} bytes, more than {limit}")
    if own:
        reason = not_own(info)
        if reason:
            raise UnusableFile(path, reason)


def not_own(info: os.stat_result) -> str:
    """Why a file or directory is not this user's alone; empty when it is."""
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}, not to you"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by others"
    return ""


def read_text(path: str | Path, limit: int, *, own: bool = True) -> str:
    """The content of a text file in UTF-8. Raises as `read`."""
    try:
        return read(path, limit, own=own).decode("utf8")
    except UnicodeDecodeError as error:
        raise UnusableFile(path, f"is not text in UTF-8 (byte {error.start})") from error


def read_script(path: str | Path) -> bytes:
    """The text of a Python file that the user names.

    Raises:
        ConfigError: there is none, or it is no Python file.
    """
    try:
        source = read(path, SCRIPT_BYTES, own=False)
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, UnusableFile):
            reason = error.reason
        raise ConfigError(f"{printable(str(path))}: {reason}", remedy="name a Python file") from error
    if b"\0" in source:
        raise ConfigError(f"{printable(str(path))} is a binary file", remedy="name a Python file")
    return source


def read_json(path: str | Path, limit: int) -> Any:
    """What a JSON file says. Raises as `read`."""
    return parse_json(read(path, limit), path)


def parse_json(data: bytes, path: str | Path) -> Any:
    """`data`, read from `path`, as JSON.

    Raises:
        UnusableFile: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf8"))
    except RecursionError as error:
        raise UnusableFile(path, "is nested too deeply") from error
    except ValueError as error:
        raise UnusableFile(path, f"is not JSON ({error})") from error


def seal(path: Path) -> None:
    """Write the checksum of a file at its end, where formats that are read from an index (zip) look past it."""
    with path.open("r+b") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0, os.SEEK_END)
        stream.write(_SEAL + digest.encode() + b"\n")


def open_sealed(path: str | Path, limit: int, *, own: bool = True) -> BinaryIO:
    """A file that `seal` wrote a checksum into, open at its beginning. One whose checksum is another is set aside.

    Raises:
        UnusableFile: it has no checksum, or that of another content.
        OSError: it is not there, or cannot be read.
    """
    stream = os.fdopen(open_file(path, limit, own=own), "rb")
    try:
        length = len(_SEAL) + 65
        content = max(os.fstat(stream.fileno()).st_size - length, 0)
        stream.seek(content)
        end = stream.read(length)
        stream.seek(0)
        if not end.startswith(_SEAL) or end[len(_SEAL) : -1] != _digest(stream, content):
            raise UnusableFile(path, "is damaged: its checksum is that of another content" + aside(path, limit))
        stream.seek(0)
    except BaseException:
        stream.close()
        raise
    return stream


def _digest(stream: BinaryIO, length: int) -> bytes:
    whole = hashlib.sha256()
    while length > 0 and (part := stream.read(min(length, _CHUNK))):
        whole.update(part)
        length -= len(part)
    return whole.hexdigest().encode()


def sealed_json(data: dict[str, Any]) -> str:
    """`data` as JSON with its checksum, which `read_sealed_json` compares."""
    return json.dumps({**data, "sha256": _checksum(data)})


def read_sealed_json(path: str | Path, limit: int, *, own: bool = True) -> dict[str, Any]:
    """What was given to `sealed_json`. A file whose checksum is another, or that is not such JSON, is set aside.

    Raises:
        UnusableFile: it is no such file.
        OSError: it is not there, or cannot be read.
    """
    content = read(path, limit, own=own)
    try:
        data = parse_json(content, path)
        if not isinstance(data, dict) or data.pop("sha256", None) != _checksum(data):
            raise UnusableFile(path, "is damaged: its checksum is that of another content")
    except UnusableFile as error:
        raise UnusableFile(path, error.reason + aside(path, limit)) from error
    return data


def _checksum(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def aside(path: str | Path, limit: int) -> str:
    """Set a damaged file aside, if it is one and not a link to another: what to say of that, after a reason."""
    path = Path(path)
    if not stat.S_ISREG(path.lstat().st_mode):
        return ""
    set_aside(path, limit)
    return f" (it is now {path.name}.corrupt)"


def printable(text: str, width: int = 0) -> str:
    """`text` from elsewhere, for a terminal: what is neither a printable character nor the end of a line is escaped.

    Escape sequences and marks that turn the direction of writing make a terminal show something else than is there.

    Arguments:
        width: characters of each line that are kept; 0 keeps all.
    """
    lines = (line if not width or len(line) <= width else line[:width] + "..." for line in text.split("\n"))
    safe = ("".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line) for line in lines)
    return "\n".join(safe)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that readers see either whole or not at all; what is in its place, be it a directory, goes."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        move(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside one that the user names, which it replaces at the end: readers see the old or the whole new one."""
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def move(source: str | Path, target: Path) -> None:
    """Rename a file to `target`; what is in its place, be it a directory, goes."""
    try:
        os.replace(source, target)
    except (IsADirectoryError, NotADirectoryError):
        remove(target)
        os.replace(source, target)


def open_append(path: str | Path, mode: int = 0o600) -> int:
    """A descriptor with which to write at the end of a file that the user names, made where it is missing.

    A FIFO that nobody reads is an OSError, where opening it would wait for a reader.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, mode)
    os.set_blocking(descriptor, True)
    return descriptor


def remove(path: Path) -> None:
    """Delete whatever is there; what cannot be deleted stays."""
    try:
        path.unlink()
    except (IsADirectoryError, PermissionError):  # the second is what macOS says of a directory
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass


def set_aside(path: Path, limit: int) -> None:
    """Rename what is at `path` to `<name>.corrupt`, for looking at; only files of up to `limit` bytes are kept."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            remove(path)
            return
        move(path, path.with_name(path.name + ".corrupt"))
    except OSError:
        remove(path)
