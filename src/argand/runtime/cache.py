"""The disk cache of compiled kernels: content-addressed, shared by processes, safe to lose at any time.

In: a key and a function that builds a shared object. Out: the path of the shared object. One entry is `<key>.so`,
`<key>.cpp` (the source, for reading) and `<key>.json` (the digest of the .so). Entries appear by rename, so that a
reader never sees half of one; a lock file keeps two processes from building the same thing; an entry whose digest is
wrong is set aside as `.corrupt`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from argand import events
from argand.config import config, default_cache_dir
from argand.errors import CacheError

VERSION = 1
_TRIM_SECONDS = 300
MAX_BYTES = 512 << 20  # the least recently used entries go when the cache outgrows this


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is in the cache.

    Arguments:
        directory: where it is.
        entries: number of compiled files.
        bytes: their size, sources included.
        corrupt: files that were set aside.
    """

    directory: Path
    entries: int
    bytes: int
    corrupt: int


def digest(text: str) -> str:
    """A key for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:40]


_COMMENT = re.compile(r"[ \t]*//[^\n]*")


def code_only(text: str) -> str:
    """C++ text without its comments: moving the user's lines does not change what is compiled."""
    return _COMMENT.sub("", text)


@lru_cache(maxsize=1)
def _private_directory() -> Path:
    """For this process only: used when the cache is off or its directory cannot be trusted."""
    import atexit

    made = tempfile.mkdtemp(prefix="argand-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def directory() -> Path:
    """Where kernels are kept: private to the user.

    Raises:
        CacheError: the directory belongs to somebody else, or others may write into it.
    """
    root = default_cache_dir()
    if not (root / "kernels").is_dir():
        _checked_directory.cache_clear()
    return _checked_directory(str(root)) / "kernels"


@lru_cache(maxsize=16)
def _checked_directory(text: str) -> Path:
    root = Path(text)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "kernels").mkdir(mode=0o700, exist_ok=True)
    for folder in (root, root / "kernels"):
        _check_owner(folder)
    return root


def _check_owner(path: Path) -> None:
    if not hasattr(os, "geteuid"):
        return
    info = os.lstat(path)
    if info.st_uid != os.geteuid():
        raise CacheError(
            f"{path} belongs to user {info.st_uid}, not to you: code from it will not be run",
            remedy="set ARGAND_CACHE_DIR to a directory of your own",
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if stat.S_ISDIR(info.st_mode):
            with contextlib.suppress(OSError):
                os.chmod(path, info.st_mode & 0o700)
                return
        raise CacheError(f"others may write to {path}", remedy=f"chmod go-w {path}")


def _usable_directory() -> tuple[Path, bool]:
    """The cache directory, or a private one (and False) when it cannot be used."""
    if not config.cache:
        return _private_directory(), False
    try:
        return directory(), True
    except (CacheError, OSError) as error:
        events.emit("cache", "runtime", str(error), outcome="unusable", directory=str(default_cache_dir()))
        return _private_directory(), False


def read_note(name: str) -> str | None:
    """A small text kept in the cache; None when there is none."""
    folder, shared = _usable_directory()
    if not shared:
        return None
    try:
        _check_owner(folder / f"{name}.note")
        return (folder / f"{name}.note").read_text(encoding="utf8")
    except (OSError, CacheError):
        return None


def write_note(name: str, text: str) -> None:
    """Keep a small text in the cache."""
    folder, shared = _usable_directory()
    if shared:
        with contextlib.suppress(OSError):
            _write_atomically(folder / f"{name}.note", text.encode())


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    os.replace(temporary, path)


def get_or_build(key: str, source: str, build: Callable[[Path], Path]) -> Path:
    """The shared object for `key`.

    Arguments:
        key: digest of everything that the result depends on.
        source: the source text, kept beside it.
        build: makes the file in the folder that it is given, when it is not in the cache; what it raises passes
        through.
    """
    folder, shared = _usable_directory()
    path = folder / f"{key}.so"
    if _valid(path):
        events.emit("cache", "runtime", outcome="hit", key=key, path=str(path))
        return path
    with _lock(folder / f"{key}.lock", shared):
        if _valid(path):  # another process built it while we waited
            events.emit("cache", "runtime", outcome="hit", key=key, path=str(path))
            return path
        events.emit("cache", "runtime", outcome="miss", key=key, path=str(path))
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            made = build(Path(work))
            data = made.read_bytes()
            _write_atomically(folder / f"{key}.cpp", source.encode())
            _write_atomically(folder / f"{key}.json", json.dumps({"sha256": hashlib.sha256(data).hexdigest()}).encode())
            os.chmod(made, 0o700)
            os.replace(made, path)
    if shared:
        _trim_now_and_then(folder)
    return path


def _valid(path: Path) -> bool:
    """Whether the entry is there and whole; one that is not whole is set aside."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    try:
        _check_owner(path)
        record = json.loads(path.with_suffix(".json").read_bytes())
        problem = "" if record["sha256"] == hashlib.sha256(data).hexdigest() else "its content has changed"
    except CacheError as error:
        problem = str(error)
    except (OSError, ValueError, KeyError, TypeError):
        problem = "its record is missing or unreadable"
    if not problem:
        with contextlib.suppress(OSError):
            os.utime(path)
        return True
    with contextlib.suppress(OSError):
        os.replace(path, path.with_suffix(".so.corrupt"))
    events.emit("cache", "runtime", f"{path}: {problem}; set aside and rebuilt", outcome="corrupt", path=str(path))
    return False


@contextlib.contextmanager
def _lock(path: Path, shared: bool) -> Iterator[None]:
    """Hold a file lock; without one (no such system call) two processes may build the same thing, harmlessly."""
    if not shared:
        yield
        return
    try:
        import fcntl  # not `filelock`: importing that costs 60 ms, more than compiling a small kernel
    except ImportError:
        yield
        return
    with open(path, "ab") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)  # released when the file is closed, or the process dies
        yield


def keep_failed(source: Path) -> Path:
    """Keep a source file that did not compile where the error message can point at it."""
    folder, _ = _usable_directory()
    kept = folder / f"failed-{digest(source.read_text(encoding='utf8'))[:12]}.cpp"
    shutil.copyfile(source, kept)
    return kept


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes with its companions, path) of each entry, oldest first."""
    found = []
    for path in folder.glob("*.so"):
        with contextlib.suppress(OSError):
            info = path.stat()
            size = info.st_size + sum(_size(path.with_suffix(suffix)) for suffix in (".cpp", ".json"))
            found.append((info.st_mtime, size, path))
    return sorted(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remove(path: Path) -> None:
    for suffix in (".so", ".cpp", ".json", ".lock"):
        with contextlib.suppress(OSError):
            path.with_suffix(suffix).unlink()


def _trim_now_and_then(folder: Path) -> None:
    """Trim, unless some process did so in the last minutes: looking at ten thousand entries takes as long as compiling.

    How far the cache may outgrow its limit meanwhile is what compilers write in that time.
    """
    stamp = folder / ".trimmed"
    with contextlib.suppress(OSError):
        if 0 <= time.time() - stamp.stat().st_mtime < _TRIM_SECONDS:
            return
    with contextlib.suppress(OSError):
        stamp.touch()
    _trim(folder)


def _trim(folder: Path, limit: int = MAX_BYTES) -> int:
    """Remove the entries used longest ago until the rest fits into `limit` bytes; how many went."""
    entries = _entries(folder)
    total = sum(size for _, size, _ in entries)
    gone = 0
    for _, size, path in entries:
        if total <= limit:
            break
        _remove(path)
        total -= size
        gone += 1
    return gone


def stats() -> CacheStats:
    """What is in the cache."""
    folder = default_cache_dir() / "kernels"
    entries = _entries(folder)
    corrupt = len(list(folder.glob("*.corrupt")))
    return CacheStats(folder, len(entries), sum(size for _, size, _ in entries), corrupt)


def clear() -> int:
    """Remove everything; how many entries went. Libraries in use stay loaded."""
    folder = default_cache_dir() / "kernels"
    entries = _entries(folder)
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return len(entries)
