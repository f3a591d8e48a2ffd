"""Compiled kernels in the disk cache: each by what it depends on, so that another process compiles nothing."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from argand import files
from argand.errors import GpuError
from argand.quick_dataclasses import dataclass
from argand.runtime import cache
from argand.runtime.gpu.device.kernel_image import Image, parse
from argand.runtime.gpu.device.target import GpuTarget, triton_version
from argand.runtime.gpu.kernels import triton_compile
from argand.runtime.gpu.kernels.spec import LaunchSpec

_BYTES = 64 << 20
# A text in quotes, which is kept, or a comment, which does not change what is compiled.
_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|[ \t]*\#[^\n]*""")
_DEF = re.compile(r"def (\w+)\(")
_SPANS_LINES = ('"""', "'''", "\\\n", "\f")  # where what stands at the margin may belong to a function
_BLANK = re.compile(r"\n\s*\n")
# What else triton's compiler heeds. Of its own variables, these say where things are kept, not what is made.
_HEEDED = ("TRITON_", "LLVM_", "MLIR_", "DISABLE_", "USE_IR_LOC", "NVPTX_", "PTXAS")
_NOT_HEEDED = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_INTERPRET", "TRITON_PRINT_AUTOTUNING")


@dataclass(frozen=True)
class Request:
    """One kernel to be compiled.

    Arguments:
        text: a module that has this kernel and no other.
        spec, target: how.
        aligned: for pointers that are multiples of 16.
    """

    text: str
    spec: LaunchSpec
    target: GpuTarget
    aligned: bool = True

    @functools.cached_property
    def key(self) -> str:
        """A digest of everything that the machine code depends on."""
        options = sorted(triton_compile.options_of(self.spec).items())
        parts = (code_only(self.text), self.spec, self.target, self.aligned, options, triton_version(), _environment())
        return cache.digest("\0".join(map(str, (*parts, cache.VERSION))))


def code_only(text: str) -> str:
    """Python text without its comments: where the user's lines are does not change what is compiled."""
    return _BLANK.sub("\n", _COMMENT.sub(lambda match: match.group(1) or "", text)).strip()


def _environment() -> list[tuple[str, str]]:
    names = (name for name in os.environ if name.startswith(_HEEDED) and name not in _NOT_HEEDED)
    return [(name, os.environ[name]) for name in sorted(names)]


def single_texts(text: str, names: Iterable[str]) -> dict[str, str]:
    """For each kernel of a module, the module without the others.

    A kernel so is compiled once, whatever graph it is in.

    Raises:
        GpuError: the text is not Python, or lacks one of them.
    """
    wanted = dict.fromkeys(names)
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # as Python itself reads it
    lines = [line + "\n" for line in text.split("\n")]  # other ends of lines, in a comment, say, are none to Python
    places = _by_ast(text) if any(mark in text for mark in _SPANS_LINES) else _by_margin(lines)
    places = {name: place for name, place in places.items() if name in wanted}
    missing = [name for name in wanted if name not in places]
    if missing:
        raise GpuError(f"the text has no kernel {missing[0]!r}")
    begins, end = sorted((*place, name) for name, place in places.items()), 0
    between = []  # the module without all of them, cut where each was
    for begin, after, _ in begins:
        between.append("".join(lines[end:begin]))
        end = after
    between.append("".join(lines[end:]))
    texts = {}
    for number, (begin, after, name) in enumerate(begins, 1):
        texts[name] = "".join((*between[:number], *lines[begin:after], *between[number:]))
    return texts


def _by_ast(text: str) -> dict[str, tuple[int, int]]:
    """Of each function of a module, its first line, counted from 0, and the line behind it."""
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise GpuError(f"the text of the kernels is not Python: {error}") from error
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    firsts = [min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1 for node in functions]
    return {node.name: (first, node.end_lineno or node.lineno) for node, first in zip(functions, firsts)}


def _by_margin(lines: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The same, thirty times as fast: a function is indented, and nothing else at its margin belongs to it."""
    places: dict[str, tuple[int, int]] = {}
    name, begin, last, decorated = "", 0, 0, -1
    for number, line in enumerate(lines):
        if line[0] in " \t\n#)":
            last = number + 1 if line[0] in " \t)" and line.strip() else last
            continue
        if name:
            places[name] = begin, last
        header = _DEF.match(line)
        name = header.group(1) if header is not None else ""
        begin, last = (decorated if decorated >= 0 else number), number + 1
        decorated = -1 if line[0] != "@" else decorated if decorated >= 0 else number
    if name:
        places[name] = begin, last
    return places


def get_image(request: Request) -> Image:
    """The machine code of a kernel: from the cache, or compiled.

    What cannot be read (another process deleted it; it is damaged, and so is its record) is built again: first for all,
    then for this process alone.

    Raises:
        GpuError: Triton refuses it.
        ToolchainError: it can be written nowhere.
    """
    key = request.key

    def build(folder: Path) -> Path:
        path, kept = folder / "kernel", str(folder.parent / f"{key}{cache.DEVICE_IMAGE.source}")
        image = triton_compile.compile_image(
            request.text, request.spec, request.target, aligned=request.aligned, filename=kept
        )
        path.write_bytes(image.dump())
        return path

    trouble: Exception = GpuError("")
    for shared in (True, True, False):
        path = cache.get_or_build(key, request.text, build, shared=shared, kind=cache.DEVICE_IMAGE)
        try:
            return parse(files.read(path, _BYTES))
        except OSError as error:
            trouble = error
        except GpuError as error:
            trouble = error
            cache.discard(path, error.cause)
    raise GpuError(f"kernel {request.spec.name} cannot be read back from the cache: {trouble}") from trouble
