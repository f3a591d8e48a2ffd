"""The disk cache of compiled kernels and programs: content-addressed, shared by processes, safe to lose at any time.

In: a key and a function that builds a shared object, or the image of a GPU kernel. Out: the path of what it built. One
entry is `<key>.so`, `<key>.cpp` (the source, for reading) and `<key>.json` (key and digest of the .so); a GPU's has
other suffixes, and what a process made of a whole program is one file, `<key>.program`. Entries appear by rename, so
that a reader never sees half of one; a lock file keeps two processes from building the same thing; an entry that is not
what was written is set aside as `.corrupt`. Whatever goes wrong here, kernels are built in a directory of this
process's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from argand import events, files
from argand.config import config
from argand.errors import CacheError, ToolchainError
from argand.quick_dataclasses import dataclass
from argand.runtime import kernel_directories
from argand.runtime.remote import REMOTE

VERSION = 2
_TRIM_SECONDS = 300
MAX_BYTES = 512 << 20  # the least recently used entries go before the cache outgrows this
LEFTOVERS = 16  # files of each kind that are kept for looking at: sources that did not compile, what was set aside
_LEFTOVER_SECONDS = 7 * 86400
UNSTORED = "not-stored"  # the note that counts for which reasons outcomes are not stored
_COUNTED, _LINE = 128, 200  # texts that are counted in a note, and characters of each
_LIBRARY_BYTES, _NOTE_BYTES, _RECORD_BYTES, _KEPT_BYTES = 256 << 20, 64 << 10, 4 << 10, 8 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entry.

    Arguments:
        product, source: suffixes of what was built and of the text that it was built from; "" where that is not kept.
    """

    product: str
    source: str


LIBRARY, DEVICE_IMAGE, PROGRAM = Kind(".so", ".cpp"), Kind(".kernel", ".py"), Kind(".program", "")
OUTCOME = Kind(".outcome", "")
_KINDS = (LIBRARY, DEVICE_IMAGE, PROGRAM, OUTCOME)


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


def directory() -> Path:
    """Where kernels are kept: private to the user.

    Raises:
        CacheError: the directory belongs to somebody else, or the user has none.
        OSError: it cannot be made.
    """
    root = kernel_directories.shared_root()
    if not (root / "kernels").is_dir():
        _checked_directory.cache_clear()
    return _checked_directory(str(root))


@lru_cache(maxsize=16)
def _checked_directory(text: str) -> Path:
    return kernel_directories.checked_directory(Path(text))


class _Warned:
    """Whether a warning told of trouble with the cache."""

    def __init__(self) -> None:
        self.once = False

    def tell(self, text: str) -> None:
        """Warn, once."""
        if not self.once:
            self.once = True
            warnings.warn(f"argand: {files.printable(text)}", stacklevel=2)


_warned = _Warned()


def reset() -> None:
    """Forget which warnings were given."""
    _warned.once = False
    REMOTE.reset()


def _unusable(error: Exception) -> str:
    """Note that the shared directory cannot be used; why."""
    where = str(config.cache_dir) or "the user's cache directory"
    text = str(error.cause if isinstance(error, CacheError) else error)
    remedy = error.remedy if isinstance(error, CacheError) and error.remedy else "make room or set ARGAND_CACHE_DIR"
    events.emit("cache", "runtime", text, outcome="unusable", directory=where)
    return f"compiled kernels are not kept in {where}: {text}\nWhat to do: {remedy}."


def _shared_directory() -> Path | None:
    """The cache directory; None when it is off or cannot be used."""
    if not config.cache:
        return None
    try:
        return directory()
    except (CacheError, OSError, ValueError) as error:
        _unusable(error if not isinstance(error, ValueError) else CacheError(f"no directory: {error}"))
        return None


# ----------------------------------------------------------------------- notes


def read_note(name: str) -> dict[str, Any] | None:
    """Texts kept in the cache; None when there are none. A note that was changed is set aside."""
    folder = _shared_directory()
    if folder is None:
        return None
    path = folder / f"{name}.note"
    try:
        note = files.read_json(path, _NOTE_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        note = None
    if isinstance(note, dict) and all(isinstance(value, str) for value in note.values()):
        seal = note.pop("seal", "")
        if seal == _seal(note):
            return note
    forget_note(name)
    events.emit("cache", "runtime", f"{path}: not what was written; set aside", outcome="corrupt", path=str(path))
    return None


def write_note(name: str, note: dict[str, str]) -> None:
    """Keep a few texts in the cache."""
    folder = _shared_directory()
    if folder is not None:
        with contextlib.suppress(OSError):
            files.write_atomically(folder / f"{name}.note", json.dumps({**note, "seal": _seal(note)}).encode())


def forget_note(name: str) -> None:
    """Set a note aside, if there is one."""
    folder = _shared_directory()
    if folder is not None and os.path.lexists(folder / f"{name}.note"):
        files.set_aside(folder / f"{name}.note", _KEPT_BYTES)


def count(name: str, what: str) -> None:
    """Count something in a note, so that a later process can tell how often it was; two processes at once may lose one.

    Arguments:
        what: any text; its first line counts.
    """
    what, note = what.partition("\n")[0][:_LINE], read_note(name) or {}
    if what in note or len(note) < _COUNTED:
        write_note(name, {**note, what: str(int(note.get(what, "0")) + 1)})


def counted(name: str) -> list[tuple[str, int]]:
    """What was counted in a note, most frequent first."""
    counts = [(what, int(times)) for what, times in (read_note(name) or {}).items()]
    return sorted(counts, key=lambda one: -one[1])


def _seal(note: dict[str, Any]) -> str:
    return digest(json.dumps(note, sort_keys=True))


# ----------------------------------------------------------------------- entries


def get_or_build(
    key: str, source: str, build: Callable[[Path], Path], *, shared: bool = True, kind: Kind = LIBRARY
) -> Path:
    """What was built for `key`.

    Arguments:
        key: digest of everything that the result depends on.
        source: the source text, kept beside it.
        build: makes the file in the folder that it is given, when it is not in the cache.
        shared: False keeps it from other processes: what they left could not be loaded.
        kind: of the entry.

    Raises:
        ToolchainError: it cannot be built, or written anywhere.
        whatever else `build` raises.
    """
    if not config.cache or not shared:
        return _from_private(key + kind.product, source, build)
    trouble: Exception
    for again in (True, False):
        try:
            return _from_shared(directory(), key + kind.product, source, build)
        except (CacheError, OSError, ToolchainError) as error:
            if getattr(error, "hung", False):
                raise
            trouble = error
        except ValueError as error:  # a NUL in the directory's name
            trouble = CacheError(f"it has no usable name: {error}")
        if not again or not isinstance(trouble, (FileNotFoundError, ToolchainError)) or _is_there():
            break  # else somebody removed the cache meanwhile
    path = _from_private(key + kind.product, source, build)
    _warned.tell(_unusable(trouble))
    return path


def find(key: str, kind: Kind) -> bytes | None:
    """What `keep` was given for `key`; None when it is not in the cache, or damaged. Nobody is waited for.

    Arguments:
        key: digest of everything that the result depends on.
    """
    folder = _shared_directory()
    path = folder / (key + kind.product) if folder is not None else None
    data = _content(path) if path is not None else None
    if data is None and path is not None and config.remote_cache and (fetched := REMOTE.fetch(path.name)):
        data = fetched[1]
        with contextlib.suppress(OSError, CacheError):
            put(path.name, *fetched)
    events.emit("cache", "runtime", outcome="miss" if data is None else "hit", key=key, path=str(path))
    return data


def keep(key: str, data: bytes, kind: Kind) -> None:
    """Put an entry into the cache, if there is one; of two that are written at a time, one stays."""
    folder = _shared_directory()
    if folder is not None and len(data) <= _LIBRARY_BYTES:
        with contextlib.suppress(OSError, CacheError):
            put(key + kind.product, b"", data)
            REMOTE.offer(key + kind.product, b"", data)


def put(name: str, source: bytes, data: bytes) -> Path:
    """Write an entry whose content is known.

    Arguments:
        name: of the product's file; source: the text that it was built from, where that is kept.

    Raises:
        CacheError, OSError: it cannot be written.
    """
    path = directory() / name
    _make_room(path.parent, len(data) + len(source) + _RECORD_BYTES)
    if suffix := _kind(path).source:
        files.write_atomically(path.with_suffix(suffix), source)
    _write_record(path, data)
    files.write_atomically(path, data)
    return path


def whole_entries() -> Iterator[tuple[str, bytes, bytes]]:
    """Name, source and product of each entry that is whole, oldest first.

    Raises:
        CacheError: this user has no directory for caches.
    """
    for _, _, path in _entries(kernel_directories.shared_root() / "kernels"):
        data, suffix = _content(path), _kind(path).source
        if data is not None:
            with contextlib.suppress(OSError):
                yield path.name, files.read(path.with_suffix(suffix), _LIBRARY_BYTES) if suffix else b"", data


def _is_there() -> bool:
    with contextlib.suppress(OSError, CacheError):
        return (kernel_directories.shared_root() / "kernels").is_dir()
    return True


def _from_shared(folder: Path, name: str, source: str, build: Callable[[Path], Path]) -> Path:
    path = folder / name
    key = path.stem
    if _valid(path):
        events.emit("cache", "runtime", outcome="hit", key=key, path=str(path))
        return path
    limit = float(config.cpp.compile_timeout)
    with kernel_directories.locked(folder / f"{key}.lock", kernel_directories.PATIENCE, limit) as held:
        if _valid(path):  # another process built it while we waited
            events.emit("cache", "runtime", outcome="hit", key=key, path=str(path))
            return path
        if held is None:
            raise CacheError(
                f"a process that holds {key}.lock does not get on",
                remedy="end that process (a stopped one, perhaps), or run `argand cache clear`",
            )
        if config.remote_cache and _fetched(path):
            events.emit("cache", "runtime", outcome="hit", key=key, path=str(path))
            return path
        events.emit("cache", "runtime", outcome="miss", key=key, path=str(path))
        return _build_entry(path, source, build, bounded=True)


def _fetched(path: Path) -> bool:
    """Whether the fleet's cache had the entry, and it is on disk now."""
    fetched = REMOTE.fetch(path.name) or REMOTE.lead(path.name)
    if fetched is None:
        return False
    put(path.name, *fetched)
    return True


def _from_private(name: str, source: str, build: Callable[[Path], Path]) -> Path:
    trouble: Exception = ToolchainError("there is no directory for temporary files", remedy="set TMPDIR to one")
    for folder in kernel_directories.private_directories():
        path = folder / name
        if _valid(path):
            return path
        events.emit("cache", "runtime", outcome="miss", key=path.stem, path=str(path))
        try:
            return _build_entry(path, source, build, bounded=False)
        except ToolchainError as error:
            if not error.disk:  # another place would not help
                raise
            trouble = error
        except OSError as error:
            trouble = ToolchainError(f"kernels cannot be written: {error}", remedy="make room, or set TMPDIR")
    raise trouble


def _build_entry(path: Path, source: str, build: Callable[[Path], Path], *, bounded: bool) -> Path:
    begun = time.monotonic()
    with kernel_directories.work_directory(path.parent) as work:
        built = build(work)
        data = files.read(built, _LIBRARY_BYTES, own=False)  # in a folder of our own
        if bounded:
            _make_room(path.parent, len(data) + len(source.encode()) + _RECORD_BYTES)
        files.write_atomically(path.with_suffix(_kind(path).source), source.encode())
        _write_record(path, data)
        os.chmod(built, 0o700)
        files.move(built, path)
    if bounded and config.remote_cache:
        REMOTE.offer(path.name, source.encode(), data, time.monotonic() - begun)
    return path


def _write_record(path: Path, data: bytes) -> None:
    record = {"key": path.stem, "sha256": hashlib.sha256(data).hexdigest()}
    files.write_atomically(path.with_suffix(".json"), json.dumps(record).encode())


def _valid(path: Path) -> bool:
    """Whether the entry is there and whole; one that is not whole is set aside."""
    return _content(path) is not None


def _content(path: Path) -> bytes | None:
    """The entry's bytes; None when it is not there, or not whole: then it is set aside."""
    try:
        data = files.read(path, _LIBRARY_BYTES)
        record = files.read_json(path.with_suffix(".json"), _RECORD_BYTES)
        problem = "its record is unreadable"
        if isinstance(record, dict) and isinstance(record.get("sha256"), str):
            same = record["sha256"] == hashlib.sha256(data).hexdigest() and record.get("key") == path.stem
            problem = "" if same else "its content has changed"
    except FileNotFoundError:
        if not os.path.lexists(path):
            return None
        problem = "its record is missing"
    except OSError as error:
        problem = str(error)
    if problem:
        discard(path, problem)
        return None
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)
    return data


def discard(path: Path, problem: str) -> None:
    """Set an entry aside.

    Arguments:
        problem: what is wrong with it.
    """
    files.set_aside(path, _KEPT_BYTES)
    record = path.with_suffix(".json")
    if os.path.lexists(record):
        files.remove(record)
    events.emit("cache", "runtime", f"{path}: {problem}; set aside and rebuilt", outcome="corrupt", path=str(path))


# ----------------------------------------------------------------------- bounds


def keep_failed(source: Path) -> Path:
    """Keep a source file that did not compile where the error message can point at it."""
    try:
        text = files.read(source, _KEPT_BYTES)
        folder = _shared_directory() or next(kernel_directories.private_directories())
        kept = folder / f"failed-{hashlib.sha256(text).hexdigest()[:12]}.cpp"
        files.write_atomically(kept, text)
    except (OSError, StopIteration):
        return source
    _sweep(folder)
    return kept


def _files_in(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except ValueError:  # Python 3.13's, of a name that no folder can have
        return []


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes with its companions, path) of each entry, oldest first."""
    entries = []
    for path in (path for kind in _KINDS for path in _files_in(folder, f"*{kind.product}")):
        with contextlib.suppress(OSError):
            entries.append((path.lstat().st_mtime, sum(map(_size, _files(path))), path))
    return sorted(entries)


def _kind(path: Path) -> Kind:
    return next(kind for kind in _KINDS if kind.product == path.suffix)


def _files(path: Path) -> list[Path]:
    """What belongs to an entry, its lock not counted."""
    source = _kind(path).source
    return [path, path.with_suffix(".json"), *([path.with_suffix(source)] if source else [])]


def _size(path: Path) -> int:
    """Bytes that a file takes: a hole in it takes none."""
    try:
        info = path.lstat()
    except OSError:
        return 0
    return min(info.st_size, info.st_blocks * 512)


def _remove(path: Path) -> None:
    for file in (*_files(path), path.with_suffix(".lock")):
        files.remove(file)


def _make_room(folder: Path, size: int) -> None:
    """See to it that `size` more bytes fit.

    `.trimmed` holds how many bytes there are at most: what was counted at the time of the file, and what was written
    since. Counting ten thousand entries takes as long as compiling: that is done every few minutes, and at the limit.

    Raises:
        CacheError: they would never fit.
    """
    if size > MAX_BYTES:
        raise CacheError(
            f"kernels of {size} bytes are more than the cache may hold ({MAX_BYTES})", remedy="compile smaller graphs"
        )
    _sweep(folder)
    stamp = folder / ".trimmed"
    counted = stamp.lstat().st_mtime if os.path.lexists(stamp) else 0.0  # before the lock, which touches the file
    with kernel_directories.locked(stamp, 1.0) as descriptor:
        total = _noted(descriptor)
        if total < 0 or not 0 <= time.time() - counted < _TRIM_SECONDS:
            _trim(folder)
            total, counted = _total(folder), time.time()
        if total + size > MAX_BYTES:
            _trim(folder, min(MAX_BYTES - size, MAX_BYTES * 9 // 10))  # so that the next does not come here too
            total, counted = _total(folder), time.time()
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, f"{total + size:<{_NOTED}}".encode(), 0)  # for ftruncate ext4 waits, 4 ms
                os.utime(descriptor, (counted, counted))


_NOTED = 32  # characters of that number, and of the spaces behind it


def _noted(descriptor: int | None) -> int:
    """The bytes that `.trimmed` tells of; -1 when it tells of none."""
    text = b"" if descriptor is None else os.pread(descriptor, _NOTED, 0).rstrip()
    return int(text) if text.isdigit() else -1


def _total(folder: Path) -> int:
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        return sum(_size(Path(item.path)) for item in listing)
    return 0


def _sweep(folder: Path) -> None:
    """Remove what dead processes left, and all but the newest few files that are kept for looking at."""
    kept: dict[str, list[tuple[float, Path]]] = {"failed": [], "corrupt": []}
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for item in listing:
            name = item.name
            if name.startswith(".build-"):
                kernel_directories.remove_left(Path(item.path))
                continue
            kind = "failed" if name.startswith("failed-") else "corrupt" if name.endswith(".corrupt") else ""
            if kind or name.startswith(".new-"):
                path = Path(item.path)
                with contextlib.suppress(OSError):
                    age = time.time() - item.stat(follow_symlinks=False).st_mtime
                    if age > (_LEFTOVER_SECONDS if kind else _TRIM_SECONDS):
                        files.remove(path)
                    elif kind:
                        kept[kind].append((age, path))
    for group in kept.values():
        for _, path in sorted(group)[LEFTOVERS:]:
            files.remove(path)


def _trim(folder: Path, limit: int = -1) -> int:
    """Remove the entries used longest ago until the rest fits into `limit` bytes (`MAX_BYTES`); how many went."""
    entries = _entries(folder)
    limit = MAX_BYTES if limit < 0 else limit
    total = sum(size for _, size, _ in entries)
    if total <= limit:
        return 0
    for path in _files_in(folder, "*.corrupt"):
        files.remove(path)
    gone = 0
    for _, size, path in entries:
        if total <= limit:
            break
        _remove(path)
        total -= size
        gone += 1
    return gone


def stats() -> CacheStats:
    """What is in the cache.

    Raises:
        CacheError: this user has no directory for caches.
    """
    folder = kernel_directories.shared_root() / "kernels"
    entries = _entries(folder)
    corrupt = len(_files_in(folder, "*.corrupt"))
    return CacheStats(folder, len(entries), sum(size for _, size, _ in entries), corrupt)


def clear() -> int:
    """Remove everything; how many entries went. Libraries in use stay loaded, and what is being built is not touched.

    Raises:
        CacheError: this user has no directory for caches.
    """
    folder = kernel_directories.shared_root() / "kernels"
    entries = _entries(folder)
    for path in _files_in(folder, "*"):
        (kernel_directories.remove_left if path.name.startswith(".build-") else files.remove)(path)
    return len(entries)
