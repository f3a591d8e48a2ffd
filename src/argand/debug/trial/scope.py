"""What a function can see: functions, modules, and plain values in arguments, cells, globals and attributes."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import torch

from argand.debug import gpus

_SCALARS = (int, float, bool, str, type(None), torch.dtype, torch.device)
_LIMIT = 4000
_TOO_DEEP = 6
MISSING = object()


def contents_of(cell: types.CellType) -> Any:
    """What a cell holds; `MISSING` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def functions_of(function: Any, depth: int = 0) -> list[types.FunctionType]:
    """The Python function behind a callable, and those in its closure."""
    function = getattr(function, "__func__", function)
    if isinstance(function, functools.partial):
        return functions_of(function.func, depth)
    if isinstance(function, torch.nn.Module):
        return functions_of(type(function).forward, depth)
    if not isinstance(function, types.FunctionType) or depth > _TOO_DEEP:
        return []
    inner = [f for cell in function.__closure__ or () for f in functions_of(contents_of(cell), depth + 1)]
    return [function, *inner]


def roots_of(function: Any, arguments: Any) -> list[torch.nn.Module]:
    """Modules that a function may use: its own, those in its arguments, its closure and the globals it names."""
    roots: list[torch.nn.Module] = []

    def look(value: Any, depth: int = 0) -> None:
        if isinstance(value, torch.nn.Module):
            roots.append(value)
        elif isinstance(value, (list, tuple)) and depth < _TOO_DEEP:
            for item in value:
                look(item, depth + 1)
        elif isinstance(value, dict) and depth < _TOO_DEEP:
            look(tuple(value.values()), depth + 1)

    look(getattr(function, "__self__", None))
    look(function)
    look(arguments)
    for fn in functions_of(function):
        look([contents_of(cell) for cell in fn.__closure__ or ()])
        look([fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__])
    return roots


def written_globals(function: Any) -> list[tuple[dict[str, Any], str]]:
    """Globals that a function assigns, or that it names and that are containers."""
    by_place: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    for fn in functions_of(function):
        written = {i.argval for i in dis.get_instructions(fn) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
        for name in fn.__code__.co_names:
            if name in written or type(fn.__globals__.get(name)) in (list, dict, set):
                by_place[id(fn.__globals__), name] = (fn.__globals__, name)
    return list(by_place.values())


def modules_of(function: Any, arguments: Any) -> dict[str, torch.nn.Module]:
    """Modules that a function may use, with the modules in them, by a prefix for names of what is in them."""
    modules: dict[str, torch.nn.Module] = {}
    seen: set[int] = set()
    for number, root in enumerate(roots_of(function, arguments)):
        for path, module in root.named_modules():
            if id(module) not in seen:
                seen.add(id(module))
                head = "" if not number else f"module {number}: "
                modules[f"{head}{path}{'.' if path else ''}"] = module
    return modules


def plain_state(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Plain values that `function` can see, as text, by where they are: what guards are about."""
    state: dict[str, str] = {}
    seen: set[int] = set()
    for number, value in enumerate(args):
        _look(value, f"argument {number}", state, seen)
    for name, value in kwargs.items():
        _look(value, f"argument {name}", state, seen)
    for fn in functions_of(function):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            _look(contents_of(cell), f"variable {name}", state, seen)
        for name in names_in(fn.__code__):
            if name in fn.__globals__:
                _look(fn.__globals__[name], f"global {name}", state, seen)
    _look(getattr(function, "__self__", None), "self", state, seen)
    state["gradients recorded"] = repr(torch.is_grad_enabled())
    state["autocast"] = repr(gpus.autocast())
    state["default dtype"] = repr(torch.get_default_dtype())
    state["inference mode"] = repr(torch.is_inference_mode_enabled())
    return state


def names_in(code: types.CodeType) -> list[str]:
    """Names that code, or code inside it, refers to outside of its own variables."""
    names = list(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            names += names_in(item)
    return list(dict.fromkeys(names))


def _look(value: Any, where: str, state: dict[str, str], seen: set[int], depth: int = 0) -> None:
    if len(state) > _LIMIT or depth > 8:
        return
    if isinstance(value, _SCALARS):
        state[where] = repr(value)[:80]
        return
    if isinstance(value, torch.Tensor):
        layout = f"{value.dtype} {list(value.shape)}"
        if value.layout is torch.strided:
            layout += f" stride {list(value.stride())}"
        state[where] = layout + (" requires grad" if value.requires_grad else "")
        return
    if isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)):
        if isinstance(value, types.FunctionType):
            state[where] = f"function {value.__qualname__}:{value.__code__.co_firstlineno}"
        return
    if value is None or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple)):
        state[f"len({where})"] = str(len(value))
        for number, item in enumerate(value[:64]):
            _look(item, f"{where}[{number}]", state, seen, depth + 1)
    elif isinstance(value, dict):
        state[f"keys of {where}"] = repr(list(value)[:64])[:200]
        for key, item in list(value.items())[:64]:
            if isinstance(key, (str, int)):
                _look(item, f"{where}[{key!r}]", state, seen, depth + 1)
    elif isinstance(value, torch.nn.Module):
        for name, item in vars(value).items():
            if name in ("_modules", "_parameters", "_buffers"):
                for inner, held in item.items():
                    _look(held, f"{where}.{inner}", state, seen, depth + 1)
            elif not name.startswith("_"):
                _look(item, f"{where}.{name}", state, seen, depth + 1)
    elif getattr(value, "__dict__", None) is not None and not type(value).__module__.startswith(("torch", "argand")):
        for name, item in list(vars(value).items())[:64]:
            _look(item, f"{where}.{name}", state, seen, depth + 1)


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is another value now, in words."""
    changes = []
    for where in {**before, **now}:
        if before.get(where) != now.get(where):
            changes.append(f"{where}: {before.get(where, 'absent')} -> {now.get(where, 'absent')}")
    return changes
