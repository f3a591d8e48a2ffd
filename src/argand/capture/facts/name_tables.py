"""Names: tables of them written as text, and how messages call things."""

from __future__ import annotations

import functools
import linecache
from types import CodeType

from argand.capture.facts.handlers import Function
from argand.interruptions import let_pass


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def source_line(filename: str, line: int) -> str:
    """A line of a source file, "" if it cannot be read. `linecache` is left as it is: the program may look at it."""
    try:
        if filename in linecache.cache:
            return linecache.getline(filename, line)
        lines = _lines(filename)
    except Exception as error:  # the program has changed what reading takes, a codec: messages do without the line
        let_pass(error)
        return ""
    return lines[line - 1] if 0 < line <= len(lines) else ""


@functools.lru_cache(maxsize=64)
def _lines(filename: str) -> tuple[str, ...]:
    lines = tuple(linecache.getlines(filename))
    linecache.cache.pop(filename, None)
    return lines


_PUBLIC = (
    ("torch._C._VariableFunctions.", "torch."), ("torch._C._VariableFunctionsClass.", "torch."),
    ("torch._VariableFunctionsClass._unique2", "torch.unique"), ("torch._VariableFunctionsClass.", "torch."),
    ("torch._C._nn.", "torch.nn.functional."), ("torch._C._linalg.", "torch.linalg."),
    ("torch._C._special.", "torch.special."), ("torch._C._fft.", "torch.fft."),
    ("torch._C.TensorBase.", "torch.Tensor."), ("torch._C._TensorBase.", "torch.Tensor."),
    ("torch._tensor.Tensor.", "torch.Tensor."), ("_VariableFunctionsClass.", "torch."),
    ("TensorBase.", "torch.Tensor."), ("_TensorBase.", "torch.Tensor."),
    ("torch.compiler._disable.", "torch.compiler."), ("argand.capture.facts.code.directives.", "argand."),
    ("argand.api.", "argand."), ("builtins.", ""), ("__main__.", ""),
)  # fmt: skip


def public_name(name: str) -> str:
    """A qualified name as the program writes it: `torch.abs`, not the private place where torch keeps it."""
    for private, public in _PUBLIC:
        if name.startswith(private):
            return public + name[len(private) :]
    return name


def callable_words(fn: Function) -> str:
    """How messages call a torch function or tensor method that was called."""
    name = getattr(fn, "__name__", str(fn))
    qualname = str(getattr(fn, "__qualname__", name))
    module = getattr(fn, "__module__", None) or ("" if "." in qualname else "torch")
    return public_name(f"{module}.{qualname}" if module else qualname) + "()"


def code_words(code: CodeType) -> str:
    """The function that a code object belongs to, as the user knows it: `Model.forward`, `f.<locals>.g` as `g`."""
    qualname: str = code.co_qualname
    return qualname.rpartition("<locals>.")[2]


def place_of(code: CodeType) -> str:
    """`function (file:line)`."""
    return f"{code_words(code)} ({code.co_filename}:{code.co_firstlineno})"
