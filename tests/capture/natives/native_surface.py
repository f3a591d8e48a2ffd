"""What torch, Python's builtins and its library offer natively, and of that, what no row of capture's tables decides.

python tests/capture/natives/native_surface.py      the list

Counted are public functions, constructors and methods that are C code: functions written in Python are interpreted, down
to those. A name is covered where a handler, a row or a module's policy says what a call of it does, be it a graph break.
"""

from __future__ import annotations

import builtins
import importlib
import types
from collections.abc import Iterator
from typing import Final

import torch

import argand.capture.interp.handlers  # noqa: F401  (fills the tables)
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.torch_functions import torch_calls

MODULES: Final = (
    "builtins math cmath operator itertools functools collections collections.abc copy random time os os.path sys re json "
    "string enum dataclasses typing contextlib inspect types weakref numbers fractions decimal datetime statistics bisect "
    "heapq struct array io abc warnings logging threading gc hashlib zlib base64 binascii pickle textwrap unicodedata "
    "queue contextvars uuid secrets copyreg traceback platform pathlib shutil tempfile subprocess atexit"
).split()
TORCH: Final = ("torch", "torch.Tensor", "torch.nn.functional")
_METHODS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)
_CLASS_METHODS: Final = (types.ClassMethodDescriptorType, types.BuiltinFunctionType, staticmethod)
_SITE: Final = frozenset({"copyright", "credits", "exit", "help", "license", "quit"})
"""What the site module adds to the builtins, in Python."""


def uncovered() -> dict[str, list[str]]:
    """By module or class: what no row decides."""
    seen: set[int] = set()
    lists = {name: [*_of_module(name, seen)] for name in MODULES}
    lists.update({name: [*_of_torch(name)] for name in TORCH})
    return {name: paths for name, paths in lists.items() if paths}


def _of_module(name: str, seen: set[int]) -> Iterator[str]:
    module = importlib.import_module(name)
    for attribute in sorted(getattr(module, "__all__", None) or [key for key in vars(module) if key[0] != "_"]):
        value = getattr(module, attribute)
        path = f"{name}.{attribute}"
        if id(value) in seen or (module is builtins and attribute in _SITE):
            continue
        seen.add(id(value))
        if isinstance(value, type):
            yield from _of_class(path, value)
        elif isinstance(value, types.BuiltinFunctionType) and not _is_decided(value):
            yield path


def _of_class(path: str, cls: type) -> Iterator[str]:
    if not _is_made(cls):
        yield f"{path}()"
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, _METHODS):
            known = (id(value.__objclass__), name) in native_handlers.METHODS or _has_policy(value)
        elif isinstance(value, _CLASS_METHODS) and isinstance(fn := getattr(cls, name), types.BuiltinFunctionType):
            known = _is_decided(fn)
        else:
            continue
        if not known:
            yield f"{path}.{name}"


def _is_made(cls: type) -> bool:
    """Whether it is known what calls of a class do, as far as they are C code's."""
    if id(cls) in native_handlers.FUNCTIONS:
        return True
    new = next(vars(each)["__new__"] for each in cls.__mro__ if "__new__" in vars(each))
    if not isinstance(new, types.BuiltinFunctionType):
        return True  # interpreted
    owner = new.__self__
    assert isinstance(owner, type)
    return owner in native_handlers.SAFE_NEW or issubclass(owner, BaseException) or owner is type or _has_policy(new)


def _has_policy(fn: object) -> bool:
    return native_handlers.module_of_native(fn) in native_handlers.BREAK_MODULES  # type: ignore[arg-type]


def _is_decided(fn: types.BuiltinFunctionType) -> bool:
    owner = fn.__self__
    if id(fn) in native_handlers.FUNCTIONS or _has_policy(fn):
        return True
    if owner is None or isinstance(owner, types.ModuleType):
        return False
    methods = native_handlers.CLASS_METHODS if isinstance(owner, type) else native_handlers.METHODS
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return any((id(cls), fn.__name__) in methods for cls in classes)


def _of_torch(name: str) -> Iterator[str]:
    """Functions and methods. The classes in torch's namespace are those of TorchScript's compiler and its storages,
    whose objects no graph holds."""
    owner = importlib.import_module(name) if name != "torch.Tensor" else torch.Tensor
    for attribute in sorted(dir(owner)):
        fn = getattr(owner, attribute, None)
        is_native = isinstance(fn, (types.BuiltinFunctionType, *_METHODS))
        if attribute.startswith("_") or not is_native or torch_calls.is_overridable(fn):
            continue
        if fn not in torch_calls.HANDLERS and id(fn) not in native_handlers.FUNCTIONS and not _is_question(fn):
            yield f"{name}.{attribute}"


def _is_question(fn: object) -> bool:
    """Whether torch is asked for something that is guarded."""
    return fn.__name__.startswith(torch_calls._QUERY_PREFIXES)  # type: ignore[attr-defined]


if __name__ == "__main__":
    for place, paths in uncovered().items():
        print(place, len(paths), *(path.removeprefix(place + ".") for path in paths))
