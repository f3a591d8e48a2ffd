"""Archives of the disk cache: the signed entries of the fleet's cache in a tar file, for machines without a server."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from argand import files
from argand.errors import CacheError
from argand.runtime import cache, remote

_MEMBERS, _BYTES = 100_000, 8 << 30


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
        with (
            os.fdopen(files.open_file(path, _BYTES, own=False), "rb") as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for number, member in enumerate(archive):
                if number >= _MEMBERS:
                    break
                content = archive.extractfile(member) if member.isfile() and member.size <= remote.MAX_PACKED else None
                try:
                    if content is None:
                        raise remote.Unsigned("no entry")
                    cache.put(member.name, *remote.unpack(member.name, content.read(), key))
                    taken += 1
                except remote.Unsigned:
                    refused += 1
    except tarfile.TarError as error:
        raise CacheError(
            f"{path} is no archive of a cache: {error}", remedy="make one with `argand cache export`"
        ) from error
    return taken, refused


def _key() -> bytes:
    key = remote.fleet_key()
    if not key:
        raise CacheError(
            "archives are signed, and there is no key",
            remedy="set ARGAND_REMOTE_CACHE_KEY to the secret that the fleet shares",
        )
    return key
