"""Opens records of frames whose capture failed: `argand replay FILE`.

A record may come from anywhere, and may be damaged. Opening one runs nothing of it, there is no pickle in it, and it is
compared with a schema before anything is made of it; `RecordError` is all that a file can cause. Replaying runs the
recorded function, so that takes the user's word for it (`--trust`), unless the file is the user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import marshal
import os
import re
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from argand import files
from argand.config import config
from argand.debug.frame_records.record_objects import Builder
from argand.debug.frame_records.record_schema import RecordError, check_call
from argand.quick_dataclasses import dataclass

FORMAT = 2
SEAL = "seal.txt"
_MAX_JSON, _MAX_CODE, _MAX_MEMBERS = 64 << 20, 16 << 20, 100_000
_AGAIN = "record the failure again"
_MEMBER = re.compile(r"record\.json|code\.bin|seal\.txt|tensors/\d{1,9}\.bin")
_FIELDS = {"format": int, "python": str, "torch": str, "platform": str, "function": str, "place": str, "source": str,
           "error": str, "grad": bool, "frame": list, "args": list, "skipped": list, "sha256": str}  # fmt: skip


@dataclass(slots=True)
class Record:
    """An opened record: nothing of it has run.

    Arguments:
        path: the file.
        data: `record.json`.
        content: all of the file.
        is_own: this user wrote the file, and nobody else may write to it.
    """

    path: Path
    data: dict[str, Any]
    content: bytes
    is_own: bool

    def describe(self) -> str:
        """What it is a record of; safe to print."""
        data = self.data
        lines = [f"{data['function']} ({data['place']}), Python {data['python']}, torch {data['torch']}"]
        lines += [f"capture failed: {data['error']}"]
        skipped = data["skipped"]
        lines += [f"not recorded: {text}" for text in skipped[:8]]
        lines += [f"and {len(skipped) - 8} more"] if len(skipped) > 8 else []
        return files.printable("\n".join(lines), 1000)

    @property
    def source(self) -> str:
        """The recorded function's source; safe to print."""
        return files.printable(self.data["source"], 1000)


@contextlib.contextmanager
def _refusing(path: Path, what: str, remedy: str = _AGAIN) -> Iterator[None]:
    """Whatever a file makes parsers raise inside is one RecordError."""
    try:
        yield
    except RecordError:
        raise
    except (Exception, SystemExit) as error:  # of an imported module too
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise RecordError(f"{path} {what}: {text[:300]}", remedy=remedy) from error


def open_record(path: Path) -> Record:
    """Read a record's description; runs nothing.

    Raises:
        RecordError: it is no record, is corrupt, or of another format.
    """
    with _refusing(path, "is no record of argand", "give a file that replay_record_enabled wrote"):
        descriptor = files.open_file(path, _max_file(), own=False)
        with open(descriptor, "rb") as stream:
            info = os.fstat(descriptor)
            is_own = not files.not_own(info)
            content = stream.read(info.st_size)
        with _archive(path, content) as archive:
            data = json.loads(_member(archive, "record.json", _MAX_JSON).decode(), object_pairs_hook=_unique)
    if not isinstance(data, dict) or any(type(data.get(key)) is not kind for key, kind in _FIELDS.items()):
        if isinstance(data, dict) and type(data.get("format")) is int and data["format"] != FORMAT:
            raise _other_format(path, data["format"])
        raise RecordError(f"{path} is a corrupt record", remedy=_AGAIN)
    if data["format"] != FORMAT:
        raise _other_format(path, data["format"])
    if not all(isinstance(text, str) for text in data["skipped"]):
        raise RecordError(f"{path} is a corrupt record", remedy=_AGAIN)
    return Record(path, data, content, is_own)


def _max_file() -> int:
    """Bytes that a record may have: what the setting allows for tensors, and room for the rest."""
    return (int(config.replay_record_limit) + 256) << 20


def _other_format(path: Path, number: int) -> RecordError:
    return RecordError(f"{path} has format {number:.20g}, not {FORMAT}", remedy="use the argand that wrote it")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice")
    return members


def _archive(path: Path, content: bytes) -> zipfile.ZipFile:
    """The zip file, whose members are those of a record and not larger than a record's may be."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    names = archive.namelist()
    if len(names) > _MAX_MEMBERS or len(set(names)) != len(names) or not all(map(_MEMBER.fullmatch, names)):
        raise RecordError(f"{path} holds other files than a record does", remedy=_AGAIN)
    # zip compresses at most about a thousand times
    if sum(info.file_size for info in archive.infolist()) > min(_max_file(), 1100 * len(content)):
        raise RecordError(f"{path} says that it holds more than it can", remedy=_AGAIN)
    return archive


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > limit:
        raise RecordError(f"{name} of the record has {info.file_size} bytes, more than {limit}", remedy=_AGAIN)
    with archive.open(info) as stream:
        return stream.read(info.file_size + 1)


def seal(archive: zipfile.ZipFile) -> str:
    """A digest of everything in a record."""
    whole = hashlib.sha256()
    for name in sorted(archive.namelist()):
        if name != SEAL:
            whole.update(f"{name} {hashlib.sha256(_member(archive, name, _max_file())).hexdigest()}\n".encode())
    return whole.hexdigest()


def rebuild(record: Record, *, trust: bool = False) -> tuple[types.FunctionType, tuple[Any, ...]]:
    """The recorded function and its raw arguments.

    Arguments:
        trust: the file may come from anybody.

    Raises:
        RecordError: it is not the user's own (and not trusted), is corrupt, or was made by another Python.
    """
    if not trust and not record.is_own:
        raise RecordError(
            f"{record.path} is not yours alone, and replaying runs code that is in it",
            remedy="pass --trust if you know where it comes from",
        )
    here = ".".join(map(str, sys.version_info[:2]))
    if record.data["python"] != here:
        raise RecordError(
            f"the record was made by Python {record.data['python'][:20]}, this is {here}, whose bytecode differs",
            remedy=f"replay it with Python {record.data['python'][:20]}",
        )
    with (
        _refusing(record.path, "is corrupt or needs what this machine does not have", f"{_AGAIN}, or install it"),
        _archive(record.path, record.content) as archive,
    ):
        check_call(record.data["frame"], record.data["args"])
        packed = _member(archive, "code.bin", _MAX_CODE)
        if hashlib.sha256(packed).hexdigest() != record.data["sha256"]:
            raise RecordError(f"{record.path} is corrupt", remedy=_AGAIN)
        if _member(archive, SEAL, 100).decode() != seal(archive):
            raise RecordError(f"{record.path} is corrupt: it is not what was written", remedy=_AGAIN)
        codes = marshal.loads(packed)  # the very bytes that were written: damaged ones could crash Python
        builder = Builder(lambda name: _member(archive, name, _max_file()), codes)
        function = builder.frame(record.data["frame"])
        args = tuple(map(builder.value, record.data["args"]))
        _check_call(record.path, function.__code__, args)
        if builder.elsewhere:
            devices = " and ".join(sorted(builder.elsewhere))
            text = f"the record's tensors were on {devices}, not to be had here: on the CPU now"
            warnings.warn(text, stacklevel=2)
    return function, args


def _check_call(path: Path, code: types.CodeType, raw: tuple[Any, ...]) -> None:
    """Refuse arguments that are not those of the code."""
    kinds = [tuple] * bool(code.co_flags & 0x04) + [dict] * bool(code.co_flags & 0x08)
    plain = code.co_argcount + code.co_kwonlyargcount
    if len(raw) != plain + len(kinds) or any(type(item) is not kind for item, kind in zip(raw[plain:], kinds)):
        raise RecordError(f"{path} is corrupt: its arguments are not those of its code", remedy=_AGAIN)


def call_of(function: types.FunctionType, raw: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Any]:
    """A function that calls its argument as the recorded frame was called."""
    code = function.__code__
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    plain = list(raw[:positional])
    names = code.co_varnames[positional : positional + keyword]
    keywords = dict(zip(names, raw[positional : positional + keyword]))
    rest = list(raw[positional + keyword :])
    if code.co_flags & 0x04 and rest:
        plain += rest.pop(0)
    if code.co_flags & 0x08 and rest:
        keywords.update(rest.pop(0))
    return lambda target: target(*plain, **keywords)
