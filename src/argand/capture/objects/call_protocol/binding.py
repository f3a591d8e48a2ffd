"""Arguments of a call → the fast locals of a new frame, by CPython's rules and with CPython's error messages."""

from __future__ import annotations

import types
from collections.abc import Iterable

from argand.bytecode.opcodes import CO_VARARGS, CO_VARKEYWORDS
from argand.capture.facts.frames import NULL, Program
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import (
    ConstSource,
    DictValueSource,
    FuncDefaultsSource,
    FuncDefaultsTupleSource,
    FuncKwdefaultsDictSource,
    FuncKwdefaultsSource,
    Source,
)

_VARIADIC = CO_VARARGS | CO_VARKEYWORDS


def bind_arguments(
    interp: Interpreter,
    func: types.FunctionType,
    program: Program,
    args: list[object],
    kwargs: dict[str, object] | None,
) -> list[object]:
    """Fast locals for a call of a Python function.

    Raises ObservedException(TypeError) with CPython's message where the arguments do not fit.
    """
    count = program.argcount
    if not kwargs and len(args) == count and not program.kwonly and not program.flags & _VARIADIC:
        fast = list(args)
        fast.extend([NULL] * (program.nslots - count))
        return fast
    return _bind_general(interp, func, program, args, kwargs or {})


def _bind_general(
    interp: Interpreter, func: types.FunctionType, program: Program, args: list[object], kwargs: dict[str, object]
) -> list[object]:
    code = program.code
    names = code.co_varnames
    count, kwonly, flags = program.argcount, program.kwonly, program.flags
    fast: list[object] = [NULL] * program.nslots
    total = count + kwonly
    given = len(args)
    fast[: min(given, count)] = args[:count]
    slot = total
    if flags & CO_VARARGS:
        fast[slot] = tuple(args[count:])
        slot += 1
    elif given > count:
        raise binding_error(interp, func, args, kwargs)
    extra: dict[str, object] | None = None
    if flags & CO_VARKEYWORDS:
        extra = fast[slot] = {}
    positional_only = code.co_posonlyargcount
    for name, value in kwargs.items():
        try:
            i = names.index(name, positional_only, total)
        except (ValueError, TypeError):
            if extra is None or not is_a(name, str):
                raise binding_error(interp, func, args, kwargs) from None
            extra[name] = value
            continue
        if fast[i] is not NULL:
            raise binding_error(interp, func, args, kwargs)
        fast[i] = value
    if given < count or kwonly:
        _fill_defaults(interp, func, fast, names, count, total, args, kwargs)
    return fast


def _fill_defaults(
    interp: Interpreter,
    func: types.FunctionType,
    fast: list[object],
    names: tuple[str, ...],
    count: int,
    total: int,
    args: list[object],
    kwargs: dict[str, object],
) -> None:
    defaults = func.__defaults__ or ()
    _guard_count(interp, func)
    first = count - len(defaults)
    for i in range(len(args), count):
        if fast[i] is NULL:
            if i < first:
                raise binding_error(interp, func, args, kwargs)
            fast[i] = default_value(interp, func, i - first, defaults[i - first])
    keyword_defaults = func.__kwdefaults__ or {}
    for i in range(count, total):
        if fast[i] is NULL:
            name = names[i]
            if name not in keyword_defaults:
                raise binding_error(interp, func, args, kwargs)
            fast[i] = keyword_default_value(interp, func, name, keyword_defaults[name])


_WITHIN = ".<locals>."  # in the name of a function that each call of another makes anew


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


def _compared(values: Iterable[object]) -> bool:
    """Whether the guard on inlined functions compares these defaults by value, as `_core/guard_functions.c` does."""
    return all(type(value) in _ATOMS for value in values)


def _guard_count(interp: Interpreter, func: types.FunctionType) -> None:
    """A function that may be another one of the same code next time has as many defaults then."""
    if id(func) in interp.local_functions:
        return
    base = interp.state.source_of(func)
    if base is None or not guarded_by_code(base, func):
        return
    for part, values in (
        (FuncDefaultsTupleSource(base), func.__defaults__),
        (FuncKwdefaultsDictSource(base), func.__kwdefaults__),
    ):
        if values is None:
            interp.state.guard(part, "is_none")
        else:
            interp.state.guard(part, "len", len(values))


def default_value(interp: Interpreter, func: types.FunctionType, index: int, value: object) -> object:
    """A positional default; mutable ones are outer objects of the function."""
    if id(func) in interp.local_functions:
        return value
    base = interp.state.source_of(func)
    if not guarded_by_code(base, func) and _compared(func.__defaults__ or ()):
        return value
    return interp.state.load_source(FuncDefaultsSource(base or ConstSource(func), index), value)


def keyword_default_value(interp: Interpreter, func: types.FunctionType, name: str, value: object) -> object:
    """A keyword-only default."""
    if id(func) in interp.local_functions:
        return value
    base = interp.state.source_of(func)
    if not guarded_by_code(base, func) and _compared((func.__kwdefaults__ or {}).values()):
        return value
    return interp.state.load_source(FuncKwdefaultsSource(base or ConstSource(func), name), value)


def _signature(func: types.FunctionType) -> str:
    code = func.__code__
    names = code.co_varnames
    count, kwonly = code.co_argcount, code.co_kwonlyargcount
    first = count - len(func.__defaults__ or ())
    parts = []
    for i in range(count):
        parts.append(names[i] if i < first else f"{names[i]}=None")
        if i + 1 == code.co_posonlyargcount:
            parts.append("/")
    slot = count + kwonly
    if code.co_flags & CO_VARARGS:
        parts.append("*" + names[slot])
        slot += 1
    elif kwonly:
        parts.append("*")
    for name in names[count : count + kwonly]:
        parts.append(f"{name}=None" if name in (func.__kwdefaults__ or {}) else name)
    if code.co_flags & CO_VARKEYWORDS:
        parts.append("**" + names[slot])
    return ", ".join(parts)


def binding_error(
    interp: Interpreter, func: types.FunctionType, args: list[object], kwargs: dict[str, object]
) -> BaseException:
    """CPython's own error for a call that does not fit, from an empty function of the same signature."""
    namespace: dict[str, Function] = {}
    text = _signature(func).replace(".", "_")
    exec(f"def probe({text}): pass", namespace)
    probe = namespace["probe"]
    probe.__qualname__ = func.__qualname__
    probe.__name__ = func.__name__
    try:
        probe(*[None] * len(args), **dict.fromkeys(kwargs))
    except TypeError as e:
        return interp.throw(TypeError(*e.args))
    return interp.throw(TypeError(f"{func.__qualname__}() got arguments that do not fit"))


def guarded_by_code(source: Source | None, function: types.FunctionType) -> bool:
    """Whether a function from here may next time be another one of the same code: with other defaults, other cells."""
    return (
        source is not None
        and (source.kind in ("local", "closure") or is_a(source, DictValueSource))  # hooks of a model that is a global
        and not is_a(source, ConstSource)
        and (bool(function.__closure__) or source.base is None or _WITHIN in function.__code__.co_qualname)
    )
