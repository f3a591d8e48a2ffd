"""Functions under `functools.lru_cache`: what a call gives is what an earlier call, perhaps in another world, gave.

Of plain arguments the cache itself answers, while capturing and in a guard, as it does in eager: a plain result is
compared, any other is an object from before the frame, found by asking the cache. Captured code computes anew what the
cache does not have yet and the graph computes, where that cannot be told from a cached result: where nothing was read
that can change. So it does with numbers that vary (einops' sizes), as long as nobody changes or keeps the result, of
which the cache has one alone.
"""

from __future__ import annotations

import functools
import gc
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import fx

from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import is_a, raw_iter
from argand.capture.facts.sources import CallSource, ConstSource, Source
from argand.capture.facts.typefacts import is_heap
from argand.capture.facts.values.symbolic import SymbolicInt, SymbolicSize
from argand.capture.objects import keys
from argand.capture.record.guards import Guard
from argand.capture.record.tensor_attributes import any_written as tensors_written
from argand.capture.sizes import symbolic_tensors
from argand.capture.world import pending_effects
from argand.errors import GraphBreak, graph_break

_LASTING = types.FunctionType | type
_TUPLES = (tuple, torch.Size, SymbolicSize)
_STEADY = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type


class _Question:
    """A call of a cached function. Arguments that are objects, which are guarded, are not kept alive by it."""

    def __init__(self, fn: Any, args: list[object], kwargs: dict[str, object]) -> None:
        self.fn = fn
        self.args = [value if is_a(value, _LASTING) else _weak(value) for value in args]
        self.kwargs = {name: value if is_a(value, _LASTING) else _weak(value) for name, value in kwargs.items()}

    def __call__(self) -> object:
        args = [value() if type(value) is weakref.ref else value for value in self.args]
        named = {name: value() if type(value) is weakref.ref else value for name, value in self.kwargs.items()}
        return self.fn(*args, **named)


def _weak(value: object) -> object:
    return weakref.ref(value) if _is_identity(value) else value


def _is_identity(value: object) -> bool:
    """Whether an object of a Python class is a key by which object it is."""
    cls = type(value)
    own = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__ and type(cls) is type
    return own and is_heap(cls) and cls.__weakrefoffset__ != 0


class _Entry:
    """What a cache holds for a key, found without a call, which the cache would count.

    Arguments:
        table: the cache's own dict. It is asked for keys of plain values alone: others would be kept alive.
        held: what it holds: the result, or a link of C code's around it.
    """

    def __init__(self, interp: Interpreter, ask: _Question, args: list[object], kwargs: dict[str, object]) -> None:
        self.table, self.key, self.held = _table(interp, ask.fn), _key(interp, args, kwargs), NULL
        if any(type(value) is weakref.ref for value in (*ask.args, *ask.kwargs.values())):
            self.table, self.key = {}, None
        else:
            self.held = interp.unread(self.table.get, self.key, NULL)

    def is_there(self) -> bool:
        """Whether the cache holds what it held."""
        return self.held is not NULL and self.table.get(self.key) is self.held


class Answer:
    """A guard: the cache gives what it gave."""

    def __init__(self, ask: _Question, value: object, entry: _Entry) -> None:
        self.ask, self.value, self.entry = ask, value, entry

    def __call__(self, _: object) -> bool:
        if self.entry.is_there():
            return True
        result = self.ask()
        return result is self.value or (type(result) is type(self.value) and bool(result == self.value))


class Cached:
    """What a source reads: what the cache gives for these arguments. Each attempt at a frame makes an equal one."""

    def __init__(self, ask: _Question, value: object, entry: _Entry) -> None:
        self.ask, self.entry = ask, entry
        self.value = value if entry.held is not NULL else None
        self.__name__ = str(ask.fn.__wrapped__.__qualname__)
        given = (*ask.args, *itertools.chain.from_iterable(ask.kwargs.items()))
        self._same = (ask.fn, given, tuple(map(type, given)))

    def __eq__(self, other: object) -> bool:
        return type(other) is Cached and self._same == other._same

    def __hash__(self) -> int:
        return hash(self._same)

    def __call__(self, _: object) -> object:
        return self.value if self.entry.is_there() else self.ask()


def behind(interp: Interpreter, fn: object) -> object:
    """The function that a cached function calls, whatever has become of its attribute `__wrapped__`.

    Raises:
        GraphBreak: that is not the function any more; C code keeps the function itself.
    """
    wrapped = fn.__dict__.get("__wrapped__", NULL)
    if any(part is wrapped for part in interp.unread(gc.get_referents, fn)):
        return wrapped
    raise graph_break(kind="cached function with another wrapped one", context="functools.lru_cache")


class Lent(NamedTuple):
    """A container of a result of numbers that vary, of which a cache has one; what is in it; the call's arguments."""

    value: object
    items: list[object]
    args: list[object]


class Results:
    """What a cached function gave in this capture; of one that captured code made, it is all of its cache.

    Fields:
        held: by key, what was asked for last at the end.
        lent: by id, the containers of results of numbers that vary.
        most: how many results are kept.
    """

    def __init__(self, interp: Interpreter, fn: Any) -> None:
        self.fn = fn
        given = fn.__dict__.get("cache_parameters")
        limits: dict[str, int | None] = interp.unread(given) if is_a(given, types.FunctionType) else {}
        self.most = limits.get("maxsize")
        self.typed = bool(limits.get("typed"))
        self.held: dict[object, object] = {}
        self.lent: dict[int, Lent] = {}
        self.hits = self.misses = 0

    def info(self) -> tuple[object, ...]:
        """`cache_info()`."""
        return functools._CacheInfo(self.hits, self.misses, self.most, len(self.held))

    def keep(self, key: object, result: object) -> None:
        """As the cache of a function that captured code made does."""
        self.misses += 1
        if self.most is None or self.most > len(self.held):
            self.held[key] = result
        elif self.most > 0:
            del self.held[next(iter(self.held))]
            self.held[key] = result


def results(interp: Interpreter, fn: object) -> Results:
    """Those of a cached function."""
    known = interp.lru_caches.get(id(fn))
    if not is_a(known, Results):
        known = interp.lru_caches[id(fn)] = Results(interp, fn)
    return known


_counted: weakref.WeakSet[object] = weakref.WeakSet()
"""Functions whose `cache_info()` was asked for where code is captured: their calls are left to their caches."""


def count(fn: object) -> None:
    """The program asks how often a function was called, and what its cache had then."""
    _counted.add(fn)


def _left_to_its_cache(interp: Interpreter, fn: object) -> bool:
    if any("cache_info" in frame.code.co_names for frame in interp.frames):
        count(fn)
    return any(counted is fn for counted in _counted)


def call(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    """One call of a cached function; calls with equal arguments give the same object within a capture."""
    made_here = id(fn.__wrapped__) in interp.local_functions
    if not made_here and _left_to_its_cache(interp, fn):
        raise graph_break(
            kind="lru_cache statistics",
            context=str(fn.__wrapped__.__qualname__),
            explanation="The program asks for cache_info(), which counts each call of the function.",
        )
    known = results(interp, fn)
    if not made_here and not kwargs and any(True for arg in args for _ in _numbers(arg)):
        return _of_numbers(interp, known, args)
    for value in (*args, *kwargs.values()):
        keys.check_hash(interp, value)
    key = interp.unread(functools._make_key, tuple(args), kwargs, known.typed)
    result = interp.unread(known.held.pop, key, NULL)
    if result is not NULL:
        known.hits += 1
        known.held[key] = result
        return result
    result = _computed(interp, fn, args, kwargs)
    if made_here:
        known.keep(key, result)
    else:
        known.held[key] = result
    return result


def _make_constants(state: CaptureState, args: Sequence[object]) -> NoReturn:
    """The numbers that vary among these are constants after all.

    Raises:
        Restart: always.
    """
    symbolic_tensors.give_up_numbers(state.graph, [number for arg in args for number in _numbers(arg)])


def _numbers(value: object) -> Iterator[SymbolicInt]:
    """Those that vary in an argument."""
    if type(value) is SymbolicInt:
        yield value
    elif is_a(value, tuple):
        for item in raw_iter(value):
            yield from _numbers(item)


def _mapped(value: object, number: Callable[[SymbolicInt], object]) -> object:
    """A plain value with what is made of each number that varies, or another value as it is."""
    if type(value) is SymbolicInt:
        return number(value)
    if type(value) is dict:
        return {_mapped(key, number): _mapped(item, number) for key, item in value.items()}
    if type(value) is list:
        return [_mapped(item, number) for item in raw_iter(value)]
    if type(value) in _TUPLES:
        return tuple(_mapped(item, number) for item in raw_iter(value))
    return value


def _of_numbers(interp: Interpreter, known: Results, args: list[object]) -> object:
    """A call with numbers that vary: what the function computes of them, where no cached result can be another.

    Raises:
        Restart: it can; the numbers are constants.
    """
    key = _mapped(tuple(args), lambda number: (SymbolicInt, number.expr))
    if not all(_is_plain(interp, value) or _is_plain(interp, _at_hints(value)) for value in args):
        _make_constants(interp.state, args)
    for value in args:
        if not any(True for _ in _numbers(value)):
            keys.check_hash(interp, value)
    result = interp.unread(known.held.get, key, NULL)
    if result is NULL:
        result = _of_numbers_alone(interp, known, args)
        known.held[key] = result
    return result


def _at_hints(value: object) -> object:
    return _mapped(value, lambda number: number.hint)


def _of_numbers_alone(interp: Interpreter, known: Results, args: list[object]) -> object:
    state, fn = interp.state, known.fn
    # Objects that another cache gave are everybody's: nobody changes what is in them.
    shared = [source for value in args if (source := state.source_of(value)) is not None and _is_answer(source)]
    guards, before, last = len(state.guards), pending_effects.effects(state), _last_node(state)
    try:
        with pending_effects.watching(state) as watched:
            value = interp.call(fn.__wrapped__, args, {})
    except (Exception, GraphBreak):
        _make_constants(state, args)
    of_shared = [id_ for id_ in watched.ids if any(_is_in(state.outer[id_], source) for source in shared)]
    steady = all(
        _is_steady(guard) or (guard.source is not None and any(_is_in(guard.source, source) for source in shared))
        for guard in list(state.guards)[guards:]
    ) and not any(_may_change(state, i) for i in watched.ids.difference(of_shared))
    effects = watched.changed or interp.types.overlay or not pending_effects.same_effects(state, before)
    if (
        not steady
        or effects
        or any(True for _ in _behind(state, last))
        or not _lend(interp, known, args, value, shared)
    ):
        _make_constants(state, args)
    with interp.suspended():
        cached = interp.unread(_Question(fn, [_at_hints(value) for value in args], {}).__call__)
    if repr(cached) != repr(_at_hints(value)):
        _make_constants(state, args)
    return value


def _is_answer(source: Source) -> bool:
    return is_a(source, CallSource) and is_a(source.key, Cached)


def _is_in(source: Source, whole: Source) -> bool:
    return any(step == whole for step in source.steps())


def _lend(interp: Interpreter, known: Results, args: list[object], value: object, shared: list[Source]) -> bool:
    """Whether a result is plain but for numbers; if its containers are changed or kept, that is seen at the end. Those
    of what another cache gave are its own, whoever asks."""
    if type(value) in (list, dict):
        if (source := interp.state.source_of(value)) is not None:
            return any(_is_in(source, one) for one in shared)
        if id(value) in known.lent:
            return False
        known.lent[id(value)] = Lent(value, _items(value), args)
        return all(_lend(interp, known, args, item, shared) for item in _items(value))
    if type(value) in _TUPLES:
        return all(_lend(interp, known, args, item, shared) for item in raw_iter(value))
    return type(value) is SymbolicInt or (interp.is_constant(value) and _is_hashable(value))


def _items(value: object) -> list[object]:
    return [*itertools.chain.from_iterable(value.items())] if is_a(value, dict) else [*raw_iter(value)]


def check_kept(state: CaptureState, obj: object) -> None:
    """Before an object is kept beyond the captured code.

    Raises:
        Restart: it stands for what a cache keeps too.
    """
    for known in state.interpreter.lru_caches.values():
        if is_a(known, Results) and (lent := known.lent.get(id(obj))) is not None:
            _make_constants(state, lent.args)


def check_end(state: CaptureState) -> None:
    """At the end of captured code.

    Raises:
        Restart: it changed what a cache keeps.
    """
    for known in state.interpreter.lru_caches.values():
        for lent in [*known.lent.values()] if is_a(known, Results) else ():
            if _is_changed(lent.value, lent.items):
                _make_constants(state, lent.args)


def _is_changed(value: object, items: list[object]) -> bool:
    now = _items(value)
    return len(now) != len(items) or any(a is not b for a, b in zip(now, items))


def _computed(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    if id(fn.__wrapped__) in interp.local_functions:
        return interp.call(fn.__wrapped__, args, kwargs)
    plain = all(_is_plain(interp, value) for value in (*args, *kwargs.values()))
    if plain and _is_kept(interp, fn, args, kwargs):
        return _answer(interp, fn, args, kwargs)
    state = interp.state
    guards, before, last = len(state.guards), pending_effects.effects(state), _last_node(state)
    with pending_effects.watching(state) as watched:
        value = interp.call(fn.__wrapped__, args, kwargs)
    if plain and value is None and _only_says(state, before) and not watched.changed:
        state.said.append((fn, [interp.plain(arg) for arg in args], dict(kwargs), interp.places()))
        return None
    alone = (
        pending_effects.same_effects(state, before) and not interp.types.overlay and _is_made_of_constants(state, last)
    )
    # What was read before is not seen to be read again: a function that adds no guard may read it all the same.
    if alone and plain and not watched.changed and not tensors_written(state):
        return _answer(interp, fn, args, kwargs)
    steady = all(map(_is_steady, list(state.guards)[guards:])) and not any(_may_change(state, i) for i in watched.ids)
    if steady and not watched.changed and not _draws(state, last):
        return value
    _C.skip_code(fn.__wrapped__.__code__, True)  # C code calls it, once for what it remembers: not worth compiling
    raise graph_break(kind="cached function that reads what can change", context=str(fn.__wrapped__.__qualname__))


def _only_says(state: CaptureState, before: Any) -> bool:
    """Whether a call said something (in a log, as a warning), which is to be said where the graph ends, and did
    nothing else. What it said is taken back: the cached function itself is to say it, once."""
    count = before[1][1]
    said = state.said[count:]
    if not said:
        return False
    del state.said[count:]
    if pending_effects.same_effects(state, before) and not state.interpreter.types.overlay:
        return True
    state.said += said
    return False


def _last_node(state: CaptureState) -> fx.Node:
    return next(iter(reversed(state.graph.graph.nodes)), state.graph.graph._root)


def _behind(state: CaptureState, last: fx.Node) -> Iterator[fx.Node]:
    node = last.next
    while node is not state.graph.graph._root:
        yield node
        node = node.next


def _draws(state: CaptureState, last: fx.Node) -> bool:
    """Whether operations recorded behind a node draw random numbers or write: not to be done at each call."""
    return any(node in state.graph.effectful or node in state.graph.writing for node in _behind(state, last))


def _is_made_of_constants(state: CaptureState, last: fx.Node) -> bool:
    """Whether operations recorded behind a node need no tensor from before it, draw no random numbers, and write to
    none: the function can run by itself, and what was recorded of it is not needed."""
    builder = state.graph
    own: set[fx.Node] = set()
    for node in _behind(state, last):
        own.add(node)
        if node.op != "call_function" or not own.issuperset(node.all_input_nodes):
            return False
    apart = not (builder.scopes or builder.entered or torch._C._len_torch_function_stack() > 1)
    return not own or (apart and not _draws(state, last))


def _is_plain(interp: Interpreter, value: object) -> bool:
    """Whether an argument is the same outside: a plain value, or an object from before that is a key as such."""
    if type(value) is tuple and not value:  # there is one empty tuple, wherever it was seen first
        return True
    if interp.is_outer(value):
        return _is_identity(value) and not interp.is_tensor(value)
    return interp.is_constant(value)


def _answer(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """What the cache itself gives, and must give again."""
    state = interp.state
    with interp.suspended():
        ask = _Question(fn, args, kwargs)
        value = interp.unread(ask.__call__)  # which may run the function, on purpose
    entry = _Entry(interp, ask, args, kwargs)
    if interp.is_constant(value) and not interp.is_outer(value) and _is_hashable(value):
        state.guards.add(CallSource(ConstSource(None), Answer(ask, value, entry)), "id", True, shown=False)
        return value
    return state.load_source(CallSource(ConstSource(None), Cached(ask, value, entry)), value)


def _is_hashable(value: object) -> bool:
    """Whether a plain value is one that nobody changes."""
    return all(_is_hashable(part) for part in value) if is_a(value, tuple) else not is_a(value, list | dict | set)


def _is_kept(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> bool:
    """Whether the cache has a value for these plain arguments, which is the answer whatever has changed since."""
    return interp.unread(dict.__contains__, _table(interp, fn), _key(interp, args, kwargs))


def _key(interp: Interpreter, args: list[object], kwargs: dict[str, object]) -> object:
    """The key of a call: the argument itself where there is one alone, an `int` or `str`; else a tuple, in which a mark
    comes before the names. Of other calls it is none that the cache has."""
    key: object = args[0] if len(args) == 1 and type(args[0]) in (int, str) else tuple(args)
    if kwargs:
        key = (*args, _mark(interp), *(part for pair in kwargs.items() for part in pair))
    return key


def _table(interp: Interpreter, fn: Any) -> dict[object, object]:
    """The dict in which C code keeps the results of a cached function: nothing but the garbage collector shows it."""
    tables = [t for t in interp.unread(gc.get_referents, fn) if type(t) is dict and t is not fn.__dict__]
    return tables[0] if tables else {}


def _mark(interp: Interpreter) -> object:
    """What stands before the names of keyword arguments in keys: found in a cache of our own."""
    ours = functools.lru_cache(lambda name: None)
    ours(name=1)
    key: Any = next(iter(_table(interp, ours)))
    return key[0]


def _may_change(state: CaptureState, number: int) -> bool:
    """Whether an object that was looked at, by its id, holds what programs change: no module, function or class."""
    obj = state.object_by_id(number)
    return not (is_a(obj, _STEADY) or _is_globals(obj))


def _is_globals(obj: object) -> bool:
    return type(obj) is dict and "__name__" in obj and "__builtins__" in obj


def _is_steady(guard: Guard) -> bool:
    """Whether a guard is on what programs do not replace: a module, a function or a class under its name, which may be
    one of Python's own, that no global hides."""
    if guard.source is None or is_a(guard.source, ConstSource):
        hides = guard.kind == "not_has_key" and is_a(guard.source, ConstSource) and _is_globals(guard.source.key)
        return hides or guard.kind in ("type", "type_version", "functions")
    if guard.kind == "type":  # a module that is guarded by identity is guarded by its class too
        return guard.args[0] is types.ModuleType
    return guard.kind == "id" and is_a(guard.args[0], _STEADY)
