"""Shared objects: looking at one before it is loaded, and loading it."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from argand import files
from argand.errors import InternalError

_BYTES = 256 << 20
_LOAD, _MANY = 1, 256  # the type of a segment that is mapped; a bound for how many there are


class Library:
    """A loaded shared object.

    Arguments:
        path: its file.
        handle: ctypes' handle.
    """

    __slots__ = ("_handle", "path")

    def __init__(self, path: Path, handle: ctypes.CDLL) -> None:
        self.path = path
        self._handle = handle

    def address(self, symbol: str) -> int:
        """The address of the function `symbol`."""
        try:
            function = getattr(self._handle, symbol)
        except AttributeError as error:
            raise InternalError(f"{self.path} has no function {symbol!r}") from error
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is None:
            raise InternalError(f"{self.path}: function {symbol!r} has no address")
        return address

    def function(self, symbol: str) -> ctypes._NamedFuncPointer:
        """`symbol` as a ctypes function `(void** pointers, int64_t* sizes)`."""
        function = getattr(self._handle, symbol)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = None
        return function  # ctypes has no name for what attribute access gives


def load(path: Path) -> Library:
    """Load a shared object; its OpenMP calls bind to the runtime that torch has loaded.

    Raises:
        InternalError: it is no shared object for this process.
    """
    problem = defect(path)
    if problem:
        raise InternalError(f"cannot load {path}: {problem}")
    try:
        return Library(path, ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError as error:
        if "GOMP_" not in str(error) and "omp_" not in str(error):
            raise InternalError(f"cannot load {path}: {error}") from error
    _publish_openmp()
    try:
        return Library(path, ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError as error:
        raise InternalError(f"cannot load {path}: {error}") from error


def _publish_openmp() -> None:
    """Make the symbols of the OpenMP runtime in this process visible to libraries loaded from now on."""
    with open("/proc/self/maps", encoding="utf8", errors="replace") as stream:
        mapped = openmp_in(stream)
    for path in sorted(mapped) or ["libgomp.so.1"]:
        ctypes.CDLL(path, mode=os.RTLD_GLOBAL)


def openmp_in(maps: Iterable[str]) -> set[str]:
    """The files of OpenMP runtimes among the lines of `/proc/self/maps`."""
    return {line.split(maxsplit=5)[-1].strip() for line in maps if re.search(r"/lib(gomp|iomp5|omp)[^/]*\.so", line)}


def defect(path: Path) -> str:
    """Why a file is no shared object that can be mapped here; empty when it is, as far as its headers tell.

    The loader maps what the headers say: pages beyond the end of a file that was cut are a SIGBUS, not an error.
    """
    if not sys.platform.startswith("linux"):
        return ""
    try:
        descriptor = files.open_file(path, _BYTES)
    except OSError as error:
        return str(error)
    try:
        size, head = os.fstat(descriptor).st_size, os.pread(descriptor, 64, 0)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return "it is not a shared object"
        if _machine(head) != _own_machine():
            return "it is for another kind of processor"
        if head[4] != 2:
            return ""  # the layout below is that of 64 bits
        begin, entry, count = *struct.unpack("=Q", head[32:40]), *struct.unpack("=HH", head[54:58])
        if entry < 56 or not 0 < count <= _MANY:
            return "its headers are damaged"
        table = os.pread(descriptor, entry * count, begin)
    except (OSError, OverflowError) as error:
        return str(error)
    finally:
        os.close(descriptor)
    if len(table) < entry * count:
        return "it is cut"
    for at in range(0, len(table), entry):
        kind, offset, length = (*struct.unpack_from("=I", table, at), *struct.unpack_from("=Q24xQ", table, at + 8)[:2])
        if kind == _LOAD and offset + length > size:
            return "it is cut"
    return ""


def _machine(head: bytes) -> bytes:
    """Class, byte order and processor of an ELF file."""
    return head[4:6] + head[18:20]


@functools.cache
def _own_machine() -> bytes:
    with open("/proc/self/exe", "rb") as stream:
        return _machine(stream.read(64))
