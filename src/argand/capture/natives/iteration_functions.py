"""Handlers of the builtin functions and types that iterate: iter, map, sorted, sum, list, dict..."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from argand._core import _C
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, STOP
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.natives.rows import (
    Native,
    called,
    enter_rows,
    iterated,
    kept,
    operation,
    plain,
    position,
    shadowed,
    tested,
)
from argand.capture.objects import descriptors, iteration, keys, operators, polyfills
from argand.capture.objects.call_protocol.native_handlers import HELPER_FILES, Args, constructor, function
from argand.capture.world import native_reads

# ---- iteration -----------------------------------------------------------------------------------------------------


@operation(iter, counts=(1, 2))
def _iter(interp: Interpreter, value: object, *sentinel: object) -> object:
    if not sentinel:
        return iteration.get_iter(interp, value)
    if interp.is_callable(value):
        return interp.call(polyfills.iterate_sentinel, (value, *sentinel))
    return interp.native(iter, value, *sentinel)


@operation(next, counts=(1, 2))
def _next(interp: Interpreter, iterator: object, *default: object) -> object:
    if interp.types.lookup(type(iterator), "__next__") is NULL:
        raise interp.throw(TypeError(f"'{_C.type_name(type(iterator))}' object is not an iterator"))
    has_next, value = iteration.next_value(interp, iterator)
    if has_next:
        return value
    if default:
        return default[0]
    raise interp.throw(StopIteration(value) if value is not None else StopIteration())


@operation(reversed)
def _reversed(interp: Interpreter, value: object) -> object:
    cls = type(value)
    if interp.types.python_level(cls, "__reversed__"):
        return descriptors.call_special(interp, value, "__reversed__")
    method = interp.types.lookup(cls, "__reversed__")  # which is asked first: a list's or dict's own looks inside
    sequence = interp.types.lookup(cls, "__getitem__") is not NULL
    if method is None or (method is NULL and not sequence):
        interp.note_class(cls)
        raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object is not reversible"))
    if method is NULL and interp.types.python_level(cls, "__getitem__", "__len__"):
        size = operators.length(interp, value)
        return interp.call(polyfills.iterate_reversed, (value, size))
    interp.check_known(value)
    run = interp.unread if is_a(value, CONTAINERS) else interp.native
    return run(reversed, interp.shadow(value))


class SortKey:
    """Lets native sorting compare with interpreted methods."""

    __slots__ = ("interp", "value")

    def __init__(self, interp: Interpreter, value: object) -> None:
        self.interp = interp
        self.value = value

    def __lt__(self, other: SortKey) -> bool:
        return bool(self.interp.enter(_less, (self.value, other.value), {}))


def _less(a: polyfills.Ordered, b: object) -> object:
    return bool(a < b)


HELPER_FILES.add(__file__)


def sort_list(interp: Interpreter, items: list[object], key: object, reverse: object) -> None:
    """Sort a list in place; where a comparison raises, it is left partly sorted, as CPython leaves it."""
    keys = items if key is None else [interp.call(key, (item,)) for item in items]
    resolved = [interp.plain(k) for k in keys]
    if not all(interp.benign(k) for k in resolved):
        resolved = [SortKey(interp, k) for k in keys]
    reverse = interp.truth(reverse)
    before, order = items.copy(), list(range(len(items)))
    try:
        native_reads.check(interp, list.sort, resolved, "compare")
        interp.unread(list.sort, order, key=resolved.__getitem__, reverse=reverse)
    finally:
        items[:] = [before[i] for i in order]


@operation(sorted, options="key reverse")
def _sorted(interp: Interpreter, values: object, key: object = None, reverse: object = False) -> object:
    items = list(iteration.to_list(interp, values, hint=True))
    sort_list(interp, items, key, reverse)
    return items


@function(min, max)
def _best(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    fast = interp.fast
    if not kwargs and len(args) > 1 and all(type(arg) in fast for arg in args):
        return interp.native(fn, *args)
    if not args or not set(kwargs) <= {"key", "default"} or (len(args) > 1 and "default" in kwargs):
        return interp.native(fn, *[interp.plain(arg) for arg in args], **kwargs)
    items = args if len(args) > 1 else args[0]
    if type(items) is range and kwargs.get("key") is None:
        return interp.native(fn, items, **kwargs)
    if iteration.is_settled(items):
        items = iteration.to_list(interp, items)
    key = kwargs.get("key")
    if type(items) is list and key is None and all(type(item) in fast for item in items):
        return interp.native(fn, items, **kwargs)
    has_default = "default" in kwargs
    return interp.polyfill(polyfills.pick_best, items, key, kwargs.get("default"), has_default, fn is max)


@operation(sum, counts=(1, 2), options="start")
def _sum(interp: Interpreter, values: object, start: object = 0) -> object:
    return fold(interp, sum, polyfills.sum_items, values, start)


_NUMBERS: frozenset[type] = frozenset((int, float, bool, complex))
_PLAIN: frozenset[type] = _NUMBERS | {str, bytes, type(None)}
"""Types whose values are true or not, and greater or not, whatever the program does."""


def fold(interp: Interpreter, fn: Function, polyfill: object, items: object, start: object) -> object:
    """`fn(items, start)`: numbers natively, which adds them more exactly than one by one; from the first other on, by
    `polyfill(items, start)`."""
    if type(start) in _NUMBERS and iteration.holds_only(interp, items, _NUMBERS):
        return interp.native(fn, iteration.native_iterable(interp, items), start=start)
    rest = iteration.get_iter(interp, items)
    if is_a(start, str | bytes | bytearray):
        return interp.native(fn, (), start)
    numbers = []
    item = iteration.iter_next(interp, rest)
    if type(start) in _NUMBERS:
        while type(item) in _NUMBERS:
            numbers.append(item)
            item = iteration.iter_next(interp, rest)
        start = interp.native(fn, numbers, start=start) if numbers else start
    if item is STOP:
        return start
    if type(rest) in (type(iter([])), type(iter(()))):
        return interp.polyfill(polyfill, [item, *rest], start)
    return interp.polyfill(polyfill, rest, interp.polyfill(polyfill, (item,), start))


@operation(any, given=(any, polyfills.any_items))
@operation(all, given=(all, polyfills.all_items))
def _any_all(interp: Interpreter, fn: Function, polyfill: Function, values: object) -> object:
    if iteration.holds_only(interp, values, _PLAIN):
        return interp.native(fn, iteration.native_iterable(interp, values))
    # Interpreted, so that it stops where it should and a tensor's truth breaks the graph at the right place.
    return interp.polyfill(polyfill, values)


# ---- containers ----------------------------------------------------------------------------------------------------


@operation(tuple)
def _tuple(interp: Interpreter, values: object) -> object:
    return values if type(values) is tuple else tuple(iteration.to_list(interp, values, hint=True))


@operation(set, given=(set,))
@operation(frozenset, given=(frozenset,))
def _set(interp: Interpreter, cls: Any, values: object) -> object:
    if type(values) is frozenset and cls is frozenset:
        return values
    source = iteration.native_elements(interp, values)
    if is_a(source, set | frozenset | dict):
        return interp.unread(cls, source)
    return interp.unread(cls, hashed_items(interp, source))


def hashed_items(interp: Interpreter, source: object, take: Callable[[list[Any]], object] | None = None) -> list[Any]:
    """Elements that native code is going to hash, up to the first that cannot be: there it raises.

    Arguments:
        take: given those that there were if the iteration raises.
    """
    items: list[object] = []
    try:
        for item in iteration.each(interp, source):
            keys.check_hash(interp, item, items)
            items.append(item)
            if type(item).__hash__ is None:
                break
    except ObservedException:
        if take is not None:
            take(items)
        raise
    return items


@function(dict)
def _dict(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 1:
        return interp.native(fn, *args, **kwargs)
    result: dict[object, object] = {}
    if args:
        update_dict(interp, result, args[0])
    result.update(kwargs)
    return result


def update_dict(interp: Interpreter, target: dict[Any, Any], values: Sequence[object]) -> None:
    """`dict.update(target, values)`."""
    items: Iterable[Any] | None = iteration.mapping_items(interp, values)
    if items is None:
        items = _pairs(interp, values)
    for key, value in items:
        keys.check_hash(interp, key, target)
        interp.unread(dict.__setitem__, target, key, value)


_PAIRS = frozenset((list, tuple, str))


def _pairs(interp: Interpreter, values: Iterable[object]) -> Iterator[Any]:
    for i, pair in enumerate(iteration.each(interp, values)):
        if type(pair) not in _PAIRS and iteration.is_iterable(interp, pair):
            try:
                pair = iteration.to_list(interp, iteration.get_iter(interp, pair), hint=True)
            except ObservedException as observed:
                if is_a(observed.value, TypeError):  # whatever it says
                    interp.unread(dict, [(0, 0)] * i + [None])  # raises
                raise
        pair = interp.shadow(pair)
        if not is_a(pair, list | tuple | str) or len(pair) != 2:
            interp.unread(dict, [(0, 0)] * i + [pair])  # raises
        yield pair


enter_rows({
    "list": Native(functools.partial(iteration.to_list, hint=True), counts=1),
    "map": Native(takes=(called, iterated)),
    "zip": Native(takes=(iterated,)),
    "filter": Native(takes=(tested, iterated), counts=2),
    "enumerate": Native(takes=(iterated, plain), named={"iterable": iterated, "start": kept}, reads=1),
    "range": Native(takes=(position,), reads=0),
    "slice": constructor,
    "object property staticmethod classmethod": constructor,
    "types.CellType types.MethodType types.SimpleNamespace": constructor,
    "types.MappingProxyType": Native(takes=(shadowed,)),
})  # fmt: skip


@function(types.FunctionType)
def _function_type(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    new_function = interp.unread(fn, *[interp.plain(arg) for arg in args], **kwargs)
    interp.note_local_function(new_function)
    return new_function
