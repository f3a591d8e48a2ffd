"""Functions under `functools.lru_cache`: what a call gives is what an earlier call, perhaps in another world, gave.

Of plain arguments and results the cache itself answers, while capturing and in a guard, as it does in eager. Captured
code computes anew what is no plain value where that cannot be told from a cached result: where nothing was read that
can change.
"""

from __future__ import annotations

import functools
import gc
import types
from typing import Any

from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource, ConstSource
from argand.capture.objects import keys
from argand.capture.record.guards import Guard
from argand.capture.record.tensor_attributes import any_pending
from argand.errors import graph_break

_STEADY = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type


class Answer:
    """A guard: the cache gives what it gave."""

    def __init__(self, fn: Function, args: list[object], kwargs: dict[str, object], value: object) -> None:
        self.fn, self.args, self.kwargs, self.value = fn, args, kwargs, value

    def __call__(self, _: object) -> bool:
        result = self.fn(*self.args, **self.kwargs)
        return result is self.value or (type(result) is type(self.value) and bool(result == self.value))


def behind(interp: Interpreter, fn: object) -> object:
    """The function that a cached function calls, whatever has become of its attribute `__wrapped__`.

    Raises:
        GraphBreak: that is not the function any more; C code keeps the function itself.
    """
    wrapped = fn.__dict__.get("__wrapped__", NULL)
    if any(part is wrapped for part in interp.unread(gc.get_referents, fn)):
        return wrapped
    raise graph_break(
        kind="cached function with another wrapped one",
        context="functools.lru_cache",
        explanation="The attribute __wrapped__ of a cached function was replaced: it does not tell what a call runs.",
        hints=("Leave __wrapped__ as functools.lru_cache sets it.",),
    )


def call(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    """One call of a cached function; calls with equal arguments give the same object within a capture."""
    for value in (*args, *kwargs.values()):
        keys.check_hash(interp, value)
    cache = interp.lru_caches.setdefault(id(fn), (fn, {}))[1]
    key = interp.unread(functools._make_key, tuple(args), kwargs, False)
    result = interp.unread(cache.get, key, NULL)
    if result is NULL:
        result = cache[key] = _computed(interp, fn, args, kwargs)
    return result


def _computed(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    if id(fn.__wrapped__) in interp.local_functions:
        return interp.call(fn.__wrapped__, args, kwargs)
    if _is_kept(interp, fn, args, kwargs):
        kept = _asked(interp, fn, args, kwargs)
        if interp.is_constant(kept) and not interp.is_outer(kept):
            return _guarded(interp, fn, args, kwargs, kept)
    state = interp.state
    guards, nodes, pending = len(state.guards), state.graph.calls, any_pending(state)
    value = interp.call(fn.__wrapped__, args, kwargs)
    given = (*args, *kwargs.values())
    alone = state.graph.calls == nodes and not pending and not any_pending(state)
    # What was read before is not seen to be read again: a function that adds no guard may read it all the same.
    if alone and all(interp.is_constant(part) and not interp.is_outer(part) for part in (value, *given)):
        return _guarded(interp, fn, args, kwargs, _asked(interp, fn, args, kwargs))
    if all(map(_is_steady, list(state.guards)[guards:])):
        return value
    raise graph_break(
        kind="cached function that reads what can change",
        context=str(fn.__wrapped__.__qualname__),
        explanation="A function under functools.lru_cache gives what it computed once, whatever has changed since.",
        hints=("Pass what the function reads as an argument, or call it outside the compiled function.",),
    )


def _asked(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """What the cache itself gives."""
    with interp.suspended():
        return interp.unread(fn, *args, **kwargs)


def _guarded(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object], value: object) -> object:
    """The cache's answer, which it must give again."""
    state = interp.state
    state.guards.add(CallSource(ConstSource(None), Answer(fn, args, kwargs, value)), "id", True, shown=False)
    return value


def _is_kept(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> bool:
    """Whether the cache has a value for these plain arguments, which is the answer whatever has changed since.

    C code keeps it in a dict that nothing but the garbage collector shows.
    """
    if kwargs or not all(interp.is_constant(part) and not interp.is_outer(part) for part in args):
        return False
    key = args[0] if len(args) == 1 and type(args[0]) in (int, str) else tuple(args)
    for table in interp.unread(gc.get_referents, fn):
        if type(table) is dict and table is not fn.__dict__ and interp.unread(dict.__contains__, table, key):
            return True
    return False


def _is_steady(guard: Guard) -> bool:
    """Whether a guard is on what programs do not replace: a module, a function or a class under its name."""
    if guard.source is None or is_a(guard.source, ConstSource):
        return guard.kind in ("type", "type_version", "functions")
    if guard.kind == "type":  # a module that is guarded by identity is guarded by its class too
        return guard.args[0] is types.ModuleType
    return guard.kind == "id" and is_a(guard.args[0], _STEADY)
