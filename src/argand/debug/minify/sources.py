"""Objects of the user's process as source code: the backend under test, replaced lowerings, changed settings."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from argand.codegen.cpp import overrides as of_cpp
from argand.codegen.triton import overrides as of_triton
from argand.config import SECRETS, config
from argand.debug.minify.code import NotCode, literal, path_of
from argand.debug.trial.scope import names_in
from argand.graph.nodes.meta import attribute
from argand.lower.lowerings import REGISTRY

_OWN_SETTINGS = (
    "repro_", "trace.", "log", "verbose", "debug", "output_code", "base_dir", "cache_dir", "check_numerics",
    "audit_rate", "replay_", "suppress_errors", "compile_", "metrics", "disable",
)  # fmt: skip


class Definitions:
    """Collects statements that define names, in the order in which they must run.

    Attributes:
        lines: the statements.
        paths: folders that must be searched for modules besides those that any process searches.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.paths: list[str] = []
        self._defined: dict[str, Any] = {}

    def name_of(self, value: Any, wish: str = "") -> str:
        """An expression for `value`; what it needs is defined first.

        Raises:
            NotCode: it has no source.
        """
        if isinstance(value, str) or not callable(value):
            return literal(value)
        try:
            path = path_of(value)
            module = path.rpartition(".")[0]
            if module:
                self._import(path.split(".")[0] if path.startswith("torch.") else _module_of(value, module))
            return path
        except NotCode:
            pass
        if isinstance(value, functools.partial):
            name = self.name_of(value.func)
            keywords = [f"{key}={self.name_of(item)}" for key, item in value.keywords.items()]
            self._import("functools")
            return f"functools.partial({', '.join([name, *map(self.name_of, value.args), *keywords])})"
        if isinstance(value, (types.FunctionType, type)):
            return self._define(value, wish or value.__name__)
        return self._from_script(value)

    def _import(self, module: str) -> None:
        while module not in sys.modules and "." in module:  # torch.ops.aten is made by asking for it, not by importing
            module = module.rpartition(".")[0]
        root = _root_of(module)
        if root:  # it may import others of the user's, from wherever this process finds them
            own = [
                str(Path(place).resolve()) for place in sys.path if place and not _is_installed(Path(place).resolve())
            ]
            self.paths += [place for place in dict.fromkeys([root, *own]) if place not in self.paths]
        line = f"import {module}"
        if line not in self.lines:
            self.lines.insert(0, line)

    def _define(self, value: Any, name: str) -> str:
        if name in self._defined:
            if self._defined[name] is value:
                return name
            raise NotCode(f"two objects are called {name}")
        try:
            text = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            return self._from_script(value)
        self._defined[name] = value
        if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
            name = "replacement" if name == "<lambda>" else name
            text = f"{name} = {_lambda_text(value)}"
        else:
            body = ast.parse(text).body[0]
            if isinstance(body, (ast.FunctionDef, ast.ClassDef)) and body.decorator_list:
                start = body.lineno - 1  # what decorated it has done so already
                text = "\n".join(text.splitlines()[start:])
        for needed, item in _free_names(value).items():
            self._bind(needed, item)
        self.lines += ["", text.rstrip(), ""]
        return value.__name__ if "lambda" not in value.__name__ else name

    def _bind(self, name: str, value: Any) -> None:
        """Make `name` stand for `value`."""
        if name in self._defined:
            return
        if isinstance(value, types.ModuleType):
            self._defined[name] = value
            self._import(value.__name__)
            if value.__name__ not in sys.modules:
                self.lines.append(f"{name} = {value.__name__}")
                return
            line = f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
            if line not in self.lines:
                self.lines.insert(0, line)
            return
        text = self.name_of(value, name)
        if text != name:
            self._defined[name] = value
            self.lines.append(f"{name} = {text}")

    def _from_script(self, value: Any) -> str:
        """An object that is found in a module's file, by running that file's definitions."""
        module = inspect.getmodule(value) or inspect.getmodule(type(value))
        file = getattr(module, "__file__", None)
        names = [name for name, item in vars(module).items() if item is value] if module is not None else []
        if not file or not names:
            raise NotCode(f"{value!r} has no source and is in no module")
        self._import("argand.debug.repro")
        return f"argand.debug.repro.from_script({str(Path(file).resolve())!r}, {names[0]!r})"


def _root_of(module: str) -> str:
    """The folder in which a module of the user's own is found; "" for installed ones."""
    top = module.split(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if top in ("argand", "torch") or top in sys.stdlib_module_names or not file:
        return ""
    path = Path(file).resolve()
    if _is_installed(path):
        return ""
    return str(path.parents[module.count(".") + (path.name == "__init__.py")])


def _is_installed(path: Path) -> bool:
    """Whether every process of this Python finds it: the standard library, installed packages, argand itself."""
    own = Path(__file__).resolve().parents[3]
    places = [own, *(Path(place).resolve() for place in sysconfig.get_paths().values())]
    return any(place == path or place in path.parents for place in places) or path.suffix == ".zip"


def _module_of(value: Any, module: str) -> str:
    own = getattr(value, "__module__", None)
    return own if own and module.startswith(own) else module


def _free_names(value: Any) -> dict[str, Any]:
    """What a function or class refers to outside itself."""
    if isinstance(value, type):
        referred: dict[str, Any] = {}
        for item in vars(value).values():
            function = getattr(item, "__func__", item)
            if isinstance(function, types.FunctionType):
                referred.update({k: v for k, v in _free_names(function).items() if v is not value})
        for base in value.__bases__:
            if base is not object:
                referred[base.__name__] = base
        return referred
    referred = {}
    for name in sorted(names_in(value.__code__)):
        if name in value.__globals__ and value.__globals__[name] is not value:
            referred[name] = value.__globals__[name]
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        if cell.cell_contents is not value:
            referred[name] = cell.cell_contents
    return referred


def _lambda_text(value: types.FunctionType) -> str:
    """The text of a lambda, which stands somewhere in a statement."""
    code = value.__code__
    lines = linecache.getlines(code.co_filename)
    for end in range(code.co_firstlineno, min(code.co_firstlineno + 20, len(lines)) + 1):
        text = textwrap.dedent("".join(lines[code.co_firstlineno - 1 : end])).strip()
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        fitting = [
            node for node in lambdas if [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount])
        ]
        if len(fitting) == 1:
            return ast.unparse(fitting[0])
        break
    raise NotCode(f"the source of a lambda at {code.co_filename}:{code.co_firstlineno} cannot be told")


def changed_settings() -> dict[str, Any]:
    """Settings that are not at their defaults and may change what is compiled, by dotted name."""
    settings: dict[str, Any] = {}
    for name, default, _help in config.describe():
        value = attribute(config, name)
        if value != default and name not in SECRETS and not name.startswith(_OWN_SETTINGS):
            settings[name] = value
    return settings


def setup_lines(definitions: Definitions) -> list[str]:
    """Statements that bring a new process into the state that matters: settings, replaced functions, `repro_setup`."""
    lines: list[str] = []
    settings = changed_settings()
    if settings:
        definitions._import("argand")
    lines += [f"argand.config.{name} = {literal(value)}" for name, value in settings.items()]
    setup = str(config.repro_setup)
    if setup:
        path = Path(setup)
        text = path.read_text() if "\n" not in setup and len(setup) < 1000 and path.is_file() else setup
        lines += ["# config.repro_setup", text.rstrip()]
    return [*lines, *_replaced_overrides(definitions), *_replaced_lowerings(definitions)]


def _replaced_overrides(definitions: Definitions) -> list[str]:
    lines = []
    for table in (of_cpp, of_triton):
        for name in table.DEFAULTS:
            if table.replaced(name):
                definitions._import(table.__name__)
                before = f"{table.__name__}.{name} = "
                lines.append(_said(before, definitions, getattr(table, name), name))
    return lines


def _replaced_lowerings(definitions: Definitions) -> list[str]:
    lines = []
    for op, entry in REGISTRY.entries.items():
        module = getattr(entry.rule, "__module__", "") or ""
        if module.startswith("argand."):
            continue
        definitions._import("argand.lower.lowerings")
        definitions._import("argand.lower.registry")
        table = f"argand.lower.lowerings.REGISTRY.entries[torch.ops.{op}] = argand.lower.registry.Entry("
        lines.append(_said(table, definitions, entry.rule, "rule") + (", True)" if entry.is_view else ")"))
    return lines


def _said(before: str, definitions: Definitions, value: Callable[..., Any], wish: str) -> str:
    try:
        return before + definitions.name_of(value, f"replaced_{wish}")
    except NotCode as error:
        return f"# not reproduced: {before}{value!r} ({error.cause})".replace("\n", " ")
