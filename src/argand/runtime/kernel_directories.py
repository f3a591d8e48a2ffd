"""Directories for compiled kernels, and locks: whose they are, which are in use, and what dead processes left.

Locks are `flock`s: the system releases them when a process dies. A lock on a directory says that it is in use, so
whatever can be locked is a leftover. A lock on a file also has a *beat*: whoever holds it touches it while it gets
on, so that those who wait for a process that was stopped do not wait long.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from argand import files, threads
from argand.config import default_cache_dir
from argand.errors import CacheError

PATIENCE = 3.0  # seconds without a beat after which a lock's holder counts as stopped
_ANOTHER = "set ARGAND_CACHE_DIR to a directory of your own"

# ----------------------------------------------------------------------- the shared directory


def shared_root() -> Path:
    """The cache's directory.

    Raises:
        CacheError: there is none (no home directory, say).
    """
    try:
        root = default_cache_dir()
    except (RuntimeError, OSError, KeyError) as error:
        raise CacheError(f"this user has no directory for caches: {error}", remedy=_ANOTHER) from error
    if str(root).startswith("~"):  # nobody knows this user's home
        raise CacheError("this user has no home directory, so no directory for caches", remedy=_ANOTHER)
    return Path(os.path.abspath(root))


def checked_directory(root: Path) -> Path:
    """`root`/kernels, made where it is missing.

    Raises:
        CacheError: one of the two belongs to somebody else.
        OSError: they cannot be made.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / "kernels"
    for place in (root, folder):
        if place.is_symlink():  # to keep a cache on another disk is usual, but a link of somebody else leads anywhere
            _check_owner(place, os.lstat(place))
        if place is folder:
            _make_directory(folder)
        info = os.stat(place)
        _check_owner(place, info)
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.chmod(place, info.st_mode & 0o700)
    return folder


def _make_directory(folder: Path) -> None:
    """Make it where it is missing, in the place of a file or of a link that leads nowhere.

    Whatever is a directory stays, for another process may have made it a moment ago, and work in it.
    """
    for _ in range(3):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if folder.is_dir():
            return
        with contextlib.suppress(OSError):
            folder.unlink()
    raise files.UnusableFile(folder, "is in the way, and cannot be removed")


def _check_owner(place: Path, info: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        raise CacheError(
            f"{place} belongs to user {info.st_uid}, not to you: code from it will not be run", remedy=_ANOTHER
        )


# ----------------------------------------------------------------------- locks


@functools.cache
def _opened() -> dict[int, bool]:
    """Descriptors of what this process locks, and whether it has. A forked child has copies, and would hold it too."""
    opened: dict[int, bool] = {}

    def drop() -> None:
        for descriptor in opened:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        opened.clear()

    os.register_at_fork(after_in_child=drop)
    return opened


def beat() -> None:
    """Tell those who wait for locks of this process that it gets on."""
    for descriptor, locked in list(_opened().items()):
        if locked:
            with contextlib.suppress(OSError):
                os.utime(descriptor)


def lock(descriptor: int, patience: float, limit: float = 0.0) -> bool:
    """Lock an open file or directory; where its file system has no locks, that is taken as done.

    Arguments:
        patience: seconds without a beat of the holder after which this gives up.
        limit: seconds after which it gives up in any case; 0 is `patience`.
    """
    start, pause, last, seen = time.monotonic(), 0.002, time.monotonic(), 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR):
                return True  # a file system without locks
        now, beaten = time.monotonic(), os.fstat(descriptor).st_mtime_ns
        if beaten != seen:
            seen, last = beaten, now
        if now - last >= patience or now - start >= (limit or patience):
            return False
        threads.check_ending()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.01)


@contextlib.contextmanager
def locked(path: Path, patience: float, limit: float = 0.0) -> Iterator[int | None]:
    """Hold the lock of a file, which is made where it is missing; gives its descriptor, None when it stays taken.

    What is in the file's place and is no file of this user goes.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = _open_own(path)
    try:
        _opened()[descriptor] = False
        taken = lock(descriptor, patience, limit)
        if taken:
            _opened()[descriptor] = True
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        yield descriptor if taken else None
    finally:
        _close(descriptor)


def _open_own(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    flags |= os.O_CLOEXEC
    for _ in range(3):
        try:
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode) or files.not_own(info):
                files.remove(path)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES):
                raise
            files.remove(path)
            continue
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise files.UnusableFile(path, "is in the way, and cannot be removed")


def _close(descriptor: int) -> None:
    locked = _opened().pop(descriptor, None)
    with contextlib.suppress(OSError):
        if locked:
            _unlock(descriptor)
        if locked is not None:  # else a fork has closed it
            os.close(descriptor)


def _unlock(descriptor: int) -> None:
    """Also for a child that was forked as the descriptor was opened."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


# ----------------------------------------------------------------------- directories in use


@contextlib.contextmanager
def work_directory(folder: Path) -> Iterator[Path]:
    """A new directory in `folder`, in use until the end of the block, when it goes.

    Raises:
        OSError: it cannot be made.
    """
    path, descriptor = _new_directory(folder, ".build-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _close(descriptor)


def _new_directory(folder: Path, prefix: str) -> tuple[Path, int]:
    """A new directory, and a descriptor that keeps it locked."""
    for _ in range(10):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # taken for a leftover before it was locked
        _opened()[descriptor] = False
        if lock(descriptor, 0.0) and path.exists():
            _opened()[descriptor] = True
            return path, descriptor
        _close(descriptor)
    raise OSError(errno.EAGAIN, "new directories disappear", str(folder))


def remove_left(path: Path) -> None:
    """Delete a directory that `work_directory` made, if no living process uses it. It goes while it is locked here: who
    has made it and not yet locked it finds it gone, and makes another."""
    descriptor = -1
    try:
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode):
            files.remove(path)
        elif not files.not_own(info):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if lock(descriptor, 0.0):
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class _Private:
    """Directories of this process alone, one for each place; gone when it ends."""

    def __init__(self) -> None:
        self.by_place: dict[str, tuple[Path, int, int]] = {}  # path, descriptor of its lock, process

    def get(self, place: str) -> Path:
        """The directory in `place`; raises OSError where there can be none."""
        path, _, process = self.by_place.get(place, (None, -1, -1))
        if path is not None and process == os.getpid() and path.is_dir():
            return path
        path, descriptor = _new_directory(Path(place), "argand-kernels-")
        if not self.by_place:
            threads.at_end(self.remove)
        self.by_place[place] = path, descriptor, os.getpid()
        for other in Path(place).glob("argand-kernels-*"):
            if other != path:
                remove_left(other)
        return path

    def remove(self) -> None:
        """Delete them."""
        for path, _, process in self.by_place.values():
            if process == os.getpid():  # a forked child must not delete its parent's
                shutil.rmtree(path, ignore_errors=True)


_private = _Private()


def private_directories() -> Iterator[Path]:
    """Directories that only this process uses, in the order in which to try them."""
    places = ["/dev/shm"] if os.path.isdir("/dev/shm") else []
    with contextlib.suppress(OSError):
        places.insert(0, tempfile.gettempdir())
    for place in dict.fromkeys(places):
        with contextlib.suppress(OSError):
            yield _private.get(place)
