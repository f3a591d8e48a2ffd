"""What Python functions compute from besides their arguments, in words: of code that torch runs while it traces.

No guard watches what such code reads, so all of it is told: bytecode, defaults, closures, and what its names stand for
in its module, in modules that it names, and so on. What has no words, or may read the world, is `Unknown`.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import torch

from argand.graph.operators.namespaces import OPERATORS, is_others
from argand.outcomes import fingerprints
from argand.outcomes.references import DESCRIPTORS, reached

_PURE: Final = frozenset((
    "math", "cmath", "operator", "functools", "itertools", "typing", "typing_extensions", "collections",
    "collections.abc", "numbers", "warnings", "contextlib", "abc", "types", "__future__", "builtins",
))  # fmt: skip
"""Modules of Python's whose functions give what their arguments say, or nothing."""
_WORLDLY: Final = frozenset((
    "getattr", "eval", "exec", "compile", "globals", "locals", "vars", "open", "input", "id", "hash", "dir", "format",
    "format_map", "attrgetter", "methodcaller", "backends", "_C",
))  # fmt: skip
"""Names by which code reads what its names do not tell, and those with two underscores at both ends are such, too."""
_CHECKED: Final = "checked"
"""Where torch notes that a fake ran once."""
_VERSIONED: Final = ("numpy", "triton")
_OPERATORS: Final = (type(torch.ops), torch._ops._OpNamespace)
_OF_C: Final = (types.BuiltinFunctionType, *DESCRIPTORS)
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_LIBRARIES: Final = (TORCH, os.path.dirname(os.__file__) + os.sep)


class Unknown(Exception):
    """What an operator is made of has no words."""


class Reads:
    """The words of functions and of what they read.

    Arguments:
        operator: adds the words of an operator of a library's (`torch._ops.OpOverload` or its packet).
    """

    def __init__(self, operator: Callable[[Any], None]) -> None:
        self.words: list[str] = []
        self._operator = operator
        self._kept: dict[int, object] = {}
        self._names: set[str] = set()
        self._modules: dict[int, types.ModuleType] = {}
        self._held: set[tuple[int, str]] = set()

    def digest(self) -> str:
        """Of all words, with those of what any of the code may read of the modules that any of it names."""
        names, modules = 0, 0
        while (names, modules) != (len(self._names), len(self._modules)):
            names, modules = len(self._names), len(self._modules)
            for module in list(self._modules.values()):
                self._members(module)
        for name in sorted(self._names & vars(torch.Tensor).keys()):
            self._of_library(f"torch.Tensor.{name}", vars(torch.Tensor)[name])
        return fingerprints.digest("\n".join(self.words).encode())

    def value(self, value: Any) -> None:
        """Add the words of a value.

        Raises:
            Unknown: it has none.
        """
        cls = type(value)
        if fingerprints.is_atom(value) or cls in _NAMED:
            return self.words.append(f"{cls.__name__} {value!r}")
        if issubclass(cls, types.ModuleType):
            return self._module(value)
        if id(value) in self._kept:
            return self.words.append(f"again {[*self._kept].index(id(value))}")
        self._kept[id(value)] = value
        if cls in (tuple, list):
            self.words.append(f"{cls.__name__} {len(value)}")
            return self._values(value)
        if cls is dict and all(map(fingerprints.is_atom, value)):
            self.words.append(f"dict {[*value]}")
            return self._values(value.values())
        if cls is types.FunctionType:
            return self._function(value)
        if cls is partial:
            self.words.append("partial")
            return self._values((value.func, value.args, dict(value.keywords)))
        if cls in OPERATORS:
            return self._operator(value)
        if fingerprints.name_of(cls) == "torch._library.custom_ops.CustomOpDef":
            return self._operator(value._opoverload)
        if fingerprints.name_of(cls) == "triton.runtime.jit.JITFunction":
            return self.words.append(f"triton {value.cache_key}")
        self.words.append(self._named(value, cls))

    def _values(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)

    def _named(self, value: Any, cls: type) -> str:
        """The words of what belongs to Python or torch, and is told by its name."""
        is_class = issubclass(cls, type)
        if is_class or cls is types.BuiltinFunctionType:
            home = fingerprints.module_of(value) if is_class else value.__module__
            name = fingerprints.qualname_of(value) if is_class else value.__qualname__
            known = type(home) is str and (home in _PURE or home.partition(".")[0] == "torch")
            if known and value.__name__ not in _WORLDLY and (is_class or isinstance(value.__self__, types.ModuleType)):
                return f"{home}.{name}"
            if not is_class and vars(torch).get(value.__name__) is value:
                return f"torch.{value.__name__}"
        raise Unknown(f"reads a {fingerprints.name_of(cls)}")

    def _function(self, function: types.FunctionType) -> None:
        code, home = function.__code__, str(function.__module__)
        self.words.append(f"def {home}.{function.__qualname__}")
        of_torch = code.co_filename.startswith(_LIBRARIES)
        if of_torch and reached(home, function.__qualname__) is function:
            return
        self.words.append(fingerprints.of_code(code))
        self._values((function.__defaults__, function.__kwdefaults__, dict(vars(function))))
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            if of_torch and name == _CHECKED:
                continue
            try:
                self.value(cell.cell_contents)
            except ValueError as error:
                raise Unknown("has a closure that is not filled") from error
        if of_torch:  # made by a function of torch's, which reads torch
            return
        self.words.append(fingerprints.of_module(home))
        names = {name for each in _codes(code) for name in each.co_names}
        self._names |= names
        for name in sorted(names):
            if name in _WORLDLY or (name.startswith("__") and name.endswith("__")):
                raise Unknown(f"reads by {name}")
        for name in sorted(names):
            if name in function.__globals__:
                self.words.append(f"global {name}")
                self.value(function.__globals__[name])
        for name in _imported(code):
            if name not in sys.modules:
                raise Unknown(f"imports {name}")
            self.value(sys.modules[name])

    def _module(self, module: types.ModuleType) -> None:
        name = module.__name__
        root = name.partition(".")[0]
        if root in _VERSIONED:
            self.words.append(f"{name} {getattr(sys.modules[root], '__version__', None)}")
        elif root != "torch" and name not in _PURE and root in sys.stdlib_module_names:
            raise Unknown(f"reads module {name}")
        else:
            self.words.append(f"module {name}")
            self._modules[id(module)] = module

    def _members(self, module: types.ModuleType) -> None:
        """What the names in all code stand for in a module: of torch's and Python's, who has replaced what."""
        if type(module) is torch._ops._OpNamespace:
            names = {name for name in self._names if is_others(module.name) and _is_in(module.name, name)}
        elif module is torch.ops:
            names = {
                space for space in self._names if is_others(space) and any(map(partial(_is_in, space), self._names))
            }
        else:
            names = self._names & vars(module).keys()
        known = module.__name__.partition(".")[0] == "torch" or module.__name__ in _PURE
        for name in sorted(names):
            if (id(module), name) not in self._held:
                self._held.add((id(module), name))
                if known and not isinstance(module, _OPERATORS):
                    self._of_library(f"{module.__name__}.{name}", vars(module)[name])
                else:
                    self.words.append(f"{module.__name__}.{name}")
                    self.value(getattr(module, name))

    def _of_library(self, name: str, held: Any) -> None:
        """What torch or Python has under a name: a program may have put something else there."""
        cls = type(held)
        self.words.append(name)
        if cls is types.FunctionType and held.__code__.co_filename.startswith(_LIBRARIES):
            self.words.append(held.__qualname__)
            with contextlib.suppress(Unknown):  # a decorator's function, told by its code
                self.value(held)
        elif cls in _OF_C:
            self.words.append(held.__qualname__)
        else:
            self.value(held)


def _is_in(namespace: str, name: str) -> bool:
    return torch._C._jit_get_operation(f"{namespace}::{name}")[0] is not None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if type(const) is types.CodeType:
            yield from _codes(const)


def _imported(code: types.CodeType) -> Iterator[str]:
    """Modules that code imports itself."""
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname == "IMPORT_NAME":
                yield str(instruction.argval)
            elif instruction.opname == "MATCH_CLASS":
                raise Unknown("reads by names in a pattern")
