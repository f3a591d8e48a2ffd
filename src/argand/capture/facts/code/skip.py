"""Which code objects are never captured; decided once per code object."""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from argand.bytecode.decode import ambiguous_names
from argand.capture.facts.handlers import Function
from argand.own_code import OWN_FOLDER

_HERE = OWN_FOLDER + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_TORCH_CAPTURED = (
    os.path.join(_TORCH, "nn", "modules") + os.sep,
    os.path.join(_TORCH, "nn", "functional.py"),
    os.path.join(_TORCH, "nn", "utils") + os.sep,
    os.path.join(_TORCH, "optim") + os.sep,
)
_TORCH_NEVER = (
    os.path.join(_TORCH, "nn", "modules", "module.py"),
    os.path.join(_TORCH, "nn", "modules", "lazy.py"),
    os.path.join(_TORCH, "optim", "lr_scheduler.py"),  # counts and rates on plain numbers
    os.path.join(_TORCH, "optim", "lbfgs.py"),  # asks for the value of each loss
)
_STDLIB = os.path.dirname(os.__file__) + os.sep  # sysconfig, which says so, too, takes 1 ms
_TESTS = os.path.join(_STDLIB, "test") + os.sep
_SITE = (os.path.join(_STDLIB, "site-packages"), os.path.join(_STDLIB, "dist-packages"))
_NEVER_PACKAGES = (
    "_pytest", "pytest", "pluggy", "hypothesis", "coverage", "xdist", "execnet", "rich", "tqdm", "typer", "numpy",
    "typing_extensions",
)  # fmt: skip
_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>"))
"""Before Python 3.12, functions: part of the graph of the code around them, or left to Python."""
_GENERATOR = 0x20 | 0x80 | 0x100 | 0x200


@functools.lru_cache(maxsize=65536)
def skipped_file(filename: str) -> bool:
    """Whether no function of this file is captured (as a frame of its own; inlining is another matter)."""
    if filename.startswith(("<frozen", "<eval_with_key>", "<torch_package>", "<argand ")):
        return True
    if filename.startswith(_HERE):
        return True
    if filename.startswith(_TORCH):
        return filename in _TORCH_NEVER or not filename.startswith(_TORCH_CAPTURED)
    if filename.startswith(_STDLIB):
        return not filename.startswith((*_SITE, _TESTS)) or _installed(filename) in _NEVER_PACKAGES
    return _installed(filename) in _NEVER_PACKAGES


@functools.lru_cache(maxsize=65536)
def library_of(filename: str) -> str:
    """The installed package, or module of Python's library, that a file belongs to; "" for the program's own files."""
    installed = _installed(filename)
    if installed:
        return installed
    if filename.startswith(_TORCH):
        return "torch"
    if filename.startswith(_STDLIB) and not filename.startswith(_TESTS):
        return filename[len(_STDLIB) :].split(os.sep)[0].removesuffix(".py")
    return ""


def makes_named_tuple(code: types.CodeType) -> bool:
    """Whether this is `__new__` of a named tuple, which stores what it gets."""
    return code.co_names == ("_tuple_new",)


def is_of_library(code: types.CodeType) -> bool:
    """Whether code is a library's: of its files, or what it makes of text for a class (`__init__` of a data class)."""
    return bool(library_of(code.co_filename)) or (code.co_filename == "<string>" and code.co_name == "__init__")


def _installed(filename: str) -> str:
    parts = filename.split(os.sep)
    for i, part in enumerate(parts[:-1]):
        if part in ("site-packages", "dist-packages") or (i and _holds_packages(os.sep.join(parts[: i + 1]))):
            return parts[i + 1].removesuffix(".py")
    return ""


@functools.lru_cache(maxsize=4096)
def _holds_packages(folder: str) -> bool:
    """Whether packages were installed to a folder of the program's choice (`pip install --target`)."""
    if folder not in sys.path:
        return False
    with contextlib.suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


def computes_nothing(code: types.CodeType) -> bool:
    """Whether code is of an installed package that has nothing of torch's: a parser, a log, a reader of settings."""
    package = _installed(code.co_filename)
    return bool(package) and not _has_torch(package)


@functools.lru_cache(maxsize=4096)
def _has_torch(package: str) -> bool:
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    names = [str(vars(module).get("__name__")) for module in modules if type(module) is types.ModuleType]
    values = [value for module in modules if type(module) is types.ModuleType for value in list(vars(module).values())]
    names += [str(vars(value).get("__name__")) for value in values if type(value) is types.ModuleType]
    names += [str(value.__module__) for value in values if type(value) is types.FunctionType]
    names += [str(vars(value).get("__module__")) for value in values if issubclass(type(value), type)]
    return not names or any("torch" in name for name in names)


def why_never(code: types.CodeType) -> str | None:
    """Why this code object cannot be captured whatever its arguments; None if it can."""
    if code.co_flags & _GENERATOR:
        return "it is a generator or coroutine"
    if skipped_file(code.co_filename):
        return "it belongs to Python, torch or argand itself"
    if code.co_filename.startswith(_TORCH) and code.co_name in (
        "__init__",
        "reset_parameters",
        "extra_repr",
        "__repr__",
    ):
        return "it sets up a module of torch's"
    if code.co_name == _DISPATCH:
        return "torch calls it within each operation"
    if code.co_filename == _LAZY:
        return "it sets up a lazy module, once"
    if "_make_wrapper_subclass" in code.co_names:
        return "it makes a tensor whose class says what operations do"
    if makes_named_tuple(code):
        return "it makes a named tuple"
    if code.co_name in _COMPREHENSIONS:
        return "it is a comprehension in which the graph broke: Python runs it, and what it calls is captured"
    if code.co_name in ("<module>", "<genexpr>") and not code.co_flags & 1:
        return "it is a module body"
    if not code.co_flags & 1:  # CO_OPTIMIZED: class bodies and executed text keep locals in a dict
        return "it is a class body"
    if ambiguous_names(code):
        return "two of its variables share a name"
    return None


def is_text_of_torch(code: types.CodeType, namespace: Mapping[str, object]) -> bool:
    """Whether a module of torch's made code from a text, as dataclasses' `__init__` is: no file tells of that."""
    return code.co_filename == "<string>" and str(namespace.get("__name__")).partition(".")[0] == "torch"


def is_torch(filename: str) -> bool:
    """Whether a file is part of torch."""
    return filename.startswith(_TORCH)


_LAZY = os.path.join(_TORCH, "nn", "modules", "lazy.py")
_DDP = os.path.join(_TORCH, "nn", "parallel", "distributed.py")
_DISPATCH = "__torch_dispatch__"
_COMPILER = tuple(os.path.join(_TORCH, name) + os.sep for name in ("_dynamo", "_inductor", "_functorch", "_export"))
_COMPILER += (os.path.join(_TORCH, "fx", "_symbolic_trace.py"), os.path.join(_TORCH, "utils", "tensorboard") + os.sep)


def with_callees(code: types.CodeType) -> bool:
    """Whether what this code calls is not captured either: imports, what sets up lazy modules, what an operation on a
    subclass of tensors does when it runs, torch.fx's tracer, what DistributedDataParallel does around its module's
    forward, what writes TensorBoard's files, and torch's own compiler, which compiles or leaves alone what it calls by
    its own rules."""
    filename = code.co_filename
    if filename.startswith("<frozen importlib") or filename == _LAZY or code.co_name in ("<module>", _DISPATCH):
        return True
    if filename == _DDP and code.co_name in ("_pre_forward", "_post_forward"):
        return True  # 700 calls for buffers: without the hook they take as long as in eager
    return filename.startswith(_COMPILER) and not filename.endswith("external_utils.py")


def with_frame(fn: Function) -> Callable[..., Any]:
    """`fn`, or a function that calls it, where calling it makes no frame of Python's that can be captured: a builtin,
    a function of torch's (`torch.vmap(f)`), a generator."""
    code = _code_of(fn)
    if code is not None and why_never(code) is None:
        return fn
    return in_frame(fn, str(getattr(fn, "__name__", type(fn).__name__)))


def in_frame(fn: Function, name: str) -> Callable[..., object]:
    """A function of that name that calls `fn`, with code of its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    code = call.__code__.replace(co_filename=f"<call of {name}>", co_firstlineno=1, co_name=name)
    return types.FunctionType(code, {"__name__": __name__, "__builtins__": builtins}, name, None, call.__closure__)


def _code_of(fn: Function) -> types.CodeType | None:
    """The code of the first frame of Python's that calling `fn` makes."""
    if isinstance(fn, functools.partial):
        return _code_of(fn.func)
    calls = (base.__dict__.get("__call__") for base in type(fn).__mro__)
    functions = (call for call in (getattr(fn, "__func__", fn), *calls) if isinstance(call, types.FunctionType))
    function = next(functions, None)
    return None if function is None else function.__code__
