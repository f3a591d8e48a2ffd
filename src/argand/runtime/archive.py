"""Archives of the disk cache: the signed entries of the fleet's cache in a tar file, for machines without a server."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from argand import files
from argand.errors import CacheError
from argand.runtime import cache, remote

_MEMBERS, _BYTES, _BLOCK = 100_000, 8 << 30, 512


def write(path: Path) -> int:
    """Write every entry of the disk cache to an archive; how many there are.

    Raises:
        CacheError: there is no key to sign them with, or no cache.
        OSError: the archive cannot be written.
    """
    key, count = _key(), 0
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, source, data in cache.whole_entries():
            packed = remote.pack(name, source, data, key)
            info = tarfile.TarInfo(name)
            info.size = len(packed)
            archive.addfile(info, io.BytesIO(packed))
            count += 1
    files.write_atomically(path, content.getvalue())
    return count


def read(path: Path) -> tuple[int, int]:
    """Put an archive's entries into the disk cache; how many were taken, and how many were not (unsigned, damaged).

    Raises:
        CacheError: there is no key to check signatures with, no cache, or this is no archive.
        OSError: it cannot be read.
    """
    key, taken, refused = _key(), 0, 0
    try:
        with os.fdopen(files.open_file(path, _BYTES, own=False), "rb") as stream:
            for name, content in itertools.islice(_members(stream), _MEMBERS):
                try:
                    if content is None:
                        raise remote.Unsigned("no entry")
                    cache.put(name, *remote.unpack(name, content, key))
                    taken += 1
                except remote.Unsigned:
                    refused += 1
    except tarfile.TarError as error:
        raise CacheError(
            f"{path} is no archive of a cache: {error}", remedy="make one with `argand cache export`"
        ) from error
    return taken, refused


def _members(stream: BinaryIO) -> Iterator[tuple[str, bytes | None]]:
    """Names and contents of an archive's files; None for what can be none of an entry's.

    The standard library's reader believes what a header says of sizes, and may read for ever.

    Raises:
        tarfile.TarError: a header is none, or the archive ends early.
    """
    left = os.fstat(stream.fileno()).st_size
    while (header := stream.read(_BLOCK)).strip(b"\0"):
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        left -= _BLOCK
        if not 0 <= info.size <= left:
            raise tarfile.ReadError(f"a file in it has {info.size} bytes")
        is_entry = info.isreg() and info.size <= remote.MAX_PACKED
        yield info.name, stream.read(info.size) if is_entry else None
        rest = -info.size % _BLOCK + (0 if is_entry else info.size)
        stream.seek(rest, os.SEEK_CUR)
        left -= info.size + -info.size % _BLOCK
    if len(header) < _BLOCK:
        raise tarfile.ReadError("it ends early")


def _key() -> bytes:
    key = remote.fleet_key()
    if not key:
        raise CacheError(
            "archives are signed, and there is no key",
            remedy="set ARGAND_REMOTE_CACHE_KEY to the secret that the fleet shares",
        )
    return key
