"""Everything that can be in a file's place: used on each file that argand writes and reads again."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OTHER_TYPES = (None, True, 7, -1, 1.5, 10**400, "text", "", "\ud800", [], [1], {}, {"a": 1})


def _gone(path: Path) -> bytes:
    """What was there, which is removed."""
    data = path.read_bytes()
    path.unlink()
    return data


def fifo(path: Path) -> None:
    _gone(path)
    os.mkfifo(path)


def link_to_endless_device(path: Path) -> None:
    _gone(path)
    path.symlink_to("/dev/zero")


def link_to_another_file(path: Path) -> None:
    data = _gone(path)
    other = path.parent.parent / "elsewhere"
    other.write_bytes(data)
    path.symlink_to(other)


def link_to_nothing(path: Path) -> None:
    _gone(path)
    path.symlink_to("nowhere")


def link_to_itself(path: Path) -> None:
    _gone(path)
    path.symlink_to(path.name)


def directory(path: Path) -> None:
    _gone(path)
    path.mkdir()
    (path / "inside").write_text("x")


def unix_socket(path: Path) -> None:
    _gone(path)
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name[-60:])
        os.rename(path.name[-60:], path.name)
    finally:
        os.chdir(here)


def missing(path: Path) -> None:
    _gone(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def junk(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(5000))


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(10 << 30)


def nested(path: Path) -> None:
    path.write_bytes(b'{"a":' * 800 + b"[" * 200_000)


def not_unicode(path: Path) -> None:
    path.write_bytes(b'{"cxx": "\xff\xfe", "sha256": "\xc3"}')


def no_permission(path: Path) -> None:
    path.chmod(0)


def writable_by_all(path: Path) -> None:
    path.chmod(0o666)


def other_owner(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)


MUTATIONS: tuple[Callable[[Path], None], ...] = (
    fifo, link_to_endless_device, link_to_another_file, link_to_nothing, link_to_itself, directory, unix_socket,
    missing, empty, junk, cut, one_bit, huge, nested, not_unicode, no_permission, writable_by_all, other_owner,
)  # fmt: skip


def retyped(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """`data` with each value in turn replaced by one of every other JSON type, or gone; and what was changed."""
    for other in OTHER_TYPES:
        if type(other) is not type(data) or other != data:
            yield f"{'/'.join(map(str, path))} = {other!r:.20}", other
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        for what, changed in retyped(value, (*path, key)):
            made = copy.copy(data)
            made[key] = changed
            yield what, made
    if isinstance(data, dict):
        for key in data:
            yield f"without {'/'.join(map(str, (*path, key)))}", {k: v for k, v in data.items() if k != key}


def every_damage(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """(name, what does it) for a file; JSON files also get each of their values replaced."""
    for mutation in MUTATIONS:
        yield mutation.__name__, mutation
    try:
        data = json.loads(path.read_bytes())
    except ValueError:
        return
    if isinstance(data, dict):
        for what, changed in retyped(data):
            text = json.dumps(changed)
            yield what, lambda path, text=text: path.write_text(text)


def restore(copy_of: Path, folder: Path) -> None:
    """`folder` as `copy_of` is."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() or folder.is_symlink():
        folder.unlink()
    shutil.copytree(copy_of, folder)
