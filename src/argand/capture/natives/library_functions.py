"""Handlers of the standard library's C functions and of Python functions that need special treatment."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _thread
import cmath
import collections
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import math
import operator
import os
import posixpath
import random
import re
import struct
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any, Final

from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource
from argand.capture.natives.builtin_methods import comparing, keeping, known_iterator, read_only
from argand.capture.natives.iteration_functions import fold, hashed_items
from argand.capture.objects import (
    classes,
    iteration,
    keys,
    names,
    native_handlers,
    polyfills,
)
from argand.capture.objects.native_handlers import (
    BREAK_MODULES,
    CALLABLE_OBJECTS,
    CLASS_METHODS,
    KEEP,
    PURE_MODULES,
    SAFE_NEW,
    STORING_NEW,
    add_functions,
    add_methods,
    constructor,
    function,
    method,
    native_on_constants,
    pure,
)
from argand.capture.world import native_reads
from argand.errors import graph_break

Args = list[Any]
Kwargs = dict[str, Any]

PURE_MODULES.update(
    {"re", "sre_parse", "sre_compile", "json", "json.encoder", "json.decoder", "textwrap", "string", "fnmatch",
     "keyword", "typing", "difflib", "colorsys", "ast", "dis", "base64", "html", "shlex", "packaging.version",
     "importlib.metadata", "importlib.util",
     "unicodedata", "re._compiler", "re._parser", "statistics", "fractions", "numbers"}
)  # fmt: skip
BREAK_MODULES.update(
    {
        "threading": "Threads and locks are not captured.",
        "multiprocessing": "Processes are not captured.",
        "subprocess": "Running another program is not captured.",
        "socket": "Network access is not captured.",
        "asyncio": "Asynchronous code is not captured.",
        "tempfile": "File access is not captured.",
        "shutil": "File access is not captured.",
        "pathlib": "File access is not captured.",
        "pickle": "Pickling is not captured.",
        "random": "Python's random numbers change with each call.",
        "traceback": "Stack traces show argand's frames instead of the program's.",
        "unittest": "Test machinery is not captured.",
        "pdb": "The debugger cannot run in captured code.",
        "importlib._bootstrap": "Importing is not captured.",
    }
)


# ---- operator, math ------------------------------------------------------------------------------------------------


def parts_of(fn: Any) -> tuple[Any, ...]:
    """What an itemgetter or attrgetter gets; name, arguments and keyword arguments of a methodcaller."""
    made, rest = fn.__reduce__()
    if type(fn) is not operator.methodcaller:
        return tuple(rest)
    if made is operator.methodcaller:
        return rest[0], tuple(rest[1:]), {}
    return made.args[0], tuple(rest), made.keywords


def _parts(interp: Interpreter, fn: Any) -> Any:
    """`parts_of` a getter, guarded if it existed before."""
    parts = parts_of(fn)
    if not interp.is_outer(fn):
        return parts
    return interp.shadow(interp.state.load_source(CallSource(interp.source(fn), parts_of), parts))


def _itemgetter(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs:
        return interp.native(fn, *args, **kwargs)
    keys = _parts(interp, fn)
    values = tuple(interp.getitem(args[0], key) for key in keys)
    return values[0] if len(keys) == 1 else values


def _attrgetter(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs:
        return interp.native(fn, *args, **kwargs)
    values = []
    for path in _parts(interp, fn):
        value = args[0]
        for name in path.split("."):
            value = interp.getattr(value, name)
        values.append(value)
    return values[0] if len(values) == 1 else tuple(values)


def _methodcaller(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs:
        return interp.native(fn, *args, **kwargs)
    name, positional, named = _parts(interp, fn)
    positional = interp.shadow(positional)
    return interp.call(interp.getattr(args[0], name), positional, dict(interp.shadow(named)))


def _generic_alias(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`list[int](...)`."""
    made = interp.call(fn.__origin__, args, kwargs)
    try:
        interp.setattr(made, "__orig_class__", fn)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError | TypeError):
            raise
    return made


CALLABLE_OBJECTS[types.GenericAlias] = _generic_alias
CALLABLE_OBJECTS[operator.itemgetter] = _itemgetter
CALLABLE_OBJECTS[operator.attrgetter] = _attrgetter
CALLABLE_OBJECTS[operator.methodcaller] = _methodcaller

_OWN = {math.floor, math.ceil, math.trunc, math.prod, math.fsum, math.dist, math.hypot, math.gcd, math.lcm}
for _module in (math, cmath, struct):
    add_functions(pure, *[f for f in vars(_module).values() if is_a(f, types.BuiltinFunctionType) and f not in _OWN])


@function(math.prod)
def _prod(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or not set(kwargs) <= {"start"}:
        return interp.native(fn, *args, **kwargs)
    return fold(interp, fn, polyfills.multiply_items, args[0], kwargs.get("start", 1))


@function(math.fsum, math.dist, math.hypot, math.gcd, math.lcm)
def _of_iterables(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if fn in (math.fsum, math.dist):
        args = [iteration.to_list(interp, arg) for arg in args]
    return pure(interp, fn, args, kwargs)


# ---- itertools -----------------------------------------------------------------------------------------------------


_INTO_TUPLES: Final = frozenset(
    (itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement)
)
"""Those that take all elements at once, for which they ask how many there will be."""


def _itertool(cls: type, callables: int = 0, plain_after: int | None = None) -> None:
    """(callables..., iterables..., plain values...)."""
    take: Callable[[Interpreter, Any], Any] = iteration.native_iterable
    if cls in _INTO_TUPLES:
        take = functools.partial(iteration.to_list, hint=True)
    elif cls is itertools.chain:
        take = iteration.native_iterable_later

    def handler(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
        ready: list[Any] = []
        for i, arg in enumerate(args):
            if i < callables:
                ready.append(interp.trampoline(bool if arg is None else arg))
            elif plain_after is not None and i >= plain_after:
                ready.append(interp.plain(arg))
            elif iteration.is_iterable(interp, arg):
                ready.append(take(interp, arg))
            else:
                ready.append(arg)
        native_reads.check(interp, fn, (*(ready[plain_after:] if plain_after is not None else ()), *kwargs.values()))
        return interp.unread(fn, *ready, **kwargs)

    add_functions(handler, cls)


_cls: Any
for _cls in (itertools.chain, itertools.compress, itertools.zip_longest, itertools.pairwise, itertools.product):
    _itertool(_cls)
for _cls in (itertools.cycle, itertools.islice, itertools.permutations, itertools.combinations,
             itertools.combinations_with_replacement, itertools.tee):  # fmt: skip
    _itertool(_cls, 0, 1)
for _cls in (itertools.filterfalse, itertools.dropwhile, itertools.takewhile, itertools.starmap):
    _itertool(_cls, 1)
add_functions(pure, itertools.count)
if hasattr(itertools, "batched"):
    _itertool(itertools.batched, 0, 1)


@function(itertools.repeat)
def _repeat(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What is repeated is handed on; how often is an index."""
    args = [*args[:1], *[keys.to_index(interp, times) for times in args[1:]]]
    kwargs = {key: keys.to_index(interp, value) if key == "times" else value for key, value in kwargs.items()}
    return interp.unread(fn, *args, **kwargs)


@function(itertools.accumulate)
def _accumulate(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    kwargs = dict(kwargs)
    func = args[1] if len(args) > 1 else kwargs.pop("func", None)
    step = interp.trampoline(operator.add if func is None else func)
    iterable = args[0] if args else kwargs.pop("iterable")
    return interp.unread(fn, iteration.native_iterable(interp, iterable), step, **kwargs)


@function(itertools.groupby)
def _groupby(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    key = args[1] if len(args) > 1 else kwargs.get("key")
    iterable = args[0] if args else kwargs["iterable"]
    return interp.unread(
        fn, iteration.native_iterable(interp, iterable), None if key is None else interp.trampoline(key)
    )


def _chain_from_iterable(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    later = functools.partial(iteration.native_iterable_later, interp)
    if type(args[0]) in (list, tuple):
        return itertools.chain(*map(later, interp.shadow(args[0])))
    return itertools.chain.from_iterable(map(later, iteration.native_iterable(interp, args[0])))


KEEP.append(itertools.chain)
CLASS_METHODS[id(itertools.chain), "from_iterable"] = _chain_from_iterable
_iterator: Any
for _iterator in (itertools.chain(), itertools.count(), itertools.cycle(()), itertools.repeat(0, 0),
        itertools.compress((), ()),
                  itertools.zip_longest(()), itertools.pairwise(()), itertools.product(), itertools.islice((), 0),
                  itertools.permutations(()), itertools.combinations((), 0), itertools.filterfalse(None, ()),
                  itertools.combinations_with_replacement((), 0), itertools.dropwhile(len, ()),
                  itertools.takewhile(len, ()),
                  itertools.starmap(len, ()), itertools.accumulate(()), itertools.groupby(()),
                  itertools.tee(())[0]):  # fmt: skip
    known_iterator(type(_iterator))
_groups = [group for _, group in itertools.groupby([1])]
known_iterator(type(_groups[0]))


# ---- functools -----------------------------------------------------------------------------------------------------


@function(functools.reduce)
def _reduce(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if not 2 <= len(args) <= 3 or kwargs:
        return interp.native(fn, *args, **kwargs)
    initial = args[2] if len(args) == 3 else None
    try:
        items = iteration.get_iter(interp, args[1])
    except ObservedException as observed:
        if is_a(observed.value, TypeError):
            return interp.unread(fn, max, 0)  # raises, in its own words whatever the reason
        raise
    return interp.polyfill(polyfills.reduce_items, args[0], items, initial, len(args) == 3)


@function(functools.partial)
def _partial(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if args:
        classes.refuse_nested_partial(interp, args[0])
    return interp.unread(fn, *args, **kwargs)


SAFE_NEW.add(functools.partial)
STORING_NEW.add(functools.partial)


@function(functools.cmp_to_key)
def _cmp_to_key(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    key = interp.unread(fn, *[interp.trampoline(arg) for arg in args], **kwargs)
    CALLABLE_KEYS.add(type(key))
    return key


CALLABLE_KEYS: set[type] = set()
_key_type = type(functools.cmp_to_key(len))  # type: ignore[arg-type]
_comparison_key_type = type(functools.cmp_to_key(len)(0))  # type: ignore[arg-type]
CALLABLE_OBJECTS[_key_type] = constructor
add_methods(_comparison_key_type, comparing, "__lt__ __le__ __eq__ __ne__ __gt__ __ge__")

_lru_wrapper = type(functools.lru_cache(maxsize=None)(len))


@function(_lru_wrapper)
def _make_lru(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    return interp.unread(fn, *args, **kwargs)


def _cache_clear(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> Any:
    if id(owner.__wrapped__) not in interp.local_functions:
        raise graph_break(
            kind="lru_cache statistics",
            context=name,
            explanation="The state of a functools.lru_cache is not captured.",
            hints=("Call cache_info() and cache_clear() outside of the compiled function.",),
        )
    if name == "cache_clear":
        interp.lru_caches.pop(id(owner), None)
        return None
    size = len(interp.lru_caches.get(id(owner), (None, {}))[1])
    return interp.native(lambda: functools._CacheInfo(0, size, 128, size))


add_methods(_lru_wrapper, _cache_clear, "cache_clear cache_info")
add_methods(_lru_wrapper, read_only, "__get__")


# ---- copies, collections, enum, abc --------------------------------------------------------------------------------


@function(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    mapping = interp.shadow(args[0])
    return interp.unread(fn, mapping, hashed_items(interp, args[1], lambda found: interp.unread(fn, mapping, found)))


def _known_constructor(cls: Any) -> None:
    def handler(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
        ready = [iteration.native_iterable(interp, arg) if i == 0 else arg for i, arg in enumerate(args)]
        native_reads.check(interp, fn, (*ready[1:], *kwargs.values()))
        return interp.unread(fn, *ready, **kwargs)

    add_functions(handler, cls)


_known_constructor(collections.deque)


@function(collections.OrderedDict)
def _ordered_dict(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        return interp.native(fn, *args, **kwargs)
    made: Any = collections.OrderedDict()
    interp.call(made.update, args, kwargs)
    return made


@function(collections.defaultdict)
def _defaultdict(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    made = interp.unread(fn, *args[:1])
    if len(args) > 2:
        return interp.native(fn, *args, **kwargs)
    interp.call(made.update, args[1:], kwargs)
    return made


@function(collections.namedtuple, dataclasses.make_dataclass, dataclasses._process_class)  # type: ignore[attr-defined]
def _class_factory(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    args = [interp.plain(arg) for arg in args]
    if fn is dataclasses._process_class and id(args[0]) not in interp.local_classes:  # type: ignore[attr-defined]
        return NotImplemented
    if fn is collections.namedtuple:
        kwargs = {"module": interp.frames[-1].globals.get("__name__"), **kwargs}
    made = interp.unread(fn, *args, **kwargs)
    interp.types.forget()
    interp.renew_facts()
    interp.note_local_class(made)
    return made


add_functions(pure, _abc._abc_init, _abc._abc_instancecheck, _abc._abc_subclasscheck)


@function(_abc._abc_register)
def _abc_register(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2 and id(args[0]) in interp.local_classes:
        return interp.native(fn, *args, **kwargs)
    raise native_handlers.unknown_native(fn)  # it changes what isinstance() answers, at every call


@function(enum.EnumMeta.__call__)
def _enum_call(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 2 and is_a(args[0], type):
        made = interp.unread(fn, *[interp.plain(arg) for arg in args], **kwargs)
        if is_a(made, type):
            interp.note_local_class(made)
        return made
    return NotImplemented


@function(enum.EnumMeta.__new__, enum.EnumMeta.__prepare__.__func__)  # type: ignore[attr-defined]
def _enum_new(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    made = interp.unread(fn, *args, **kwargs)
    if is_a(made, type):
        interp.note_local_class(made)
    return made


add_functions(pure, enum.auto, os.fspath, typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)


# ---- locks (of local objects: cached_property and the like) --------------------------------------------------------


def _lock(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> Any:
    if interp.is_outer(owner):
        raise graph_break(
            kind="lock",
            context=name,
            explanation="A lock that existed before the compiled function would be taken.",
            hints=("Take the lock outside of the compiled function.",),
        )
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


for _kind in (_thread.RLock, _thread.LockType):
    SAFE_NEW.add(_kind)
    add_methods(_kind, _lock, "acquire release locked __enter__ __exit__")
add_functions(constructor, _thread.RLock, _thread.allocate_lock)


# ---- regular expressions -------------------------------------------------------------------------------------------

_pattern_methods = "match fullmatch search findall split finditer __eq__ __hash__ __repr__ __copy__ __deepcopy__"
add_methods(re.Pattern, read_only, _pattern_methods)
add_methods(
    re.Match, read_only, "group groups groupdict start end span expand __getitem__ __repr__ __copy__ __deepcopy__"
)
known_iterator(type(re.finditer("a", "b")))


@method(re.Pattern, "sub", "subn")
def _sub(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> Any:
    if args:
        args = [interp.trampoline(args[0]), *args[1:]]
    if "repl" in kwargs:
        kwargs = {**kwargs, "repl": interp.trampoline(kwargs["repl"])}
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


@function(re.sub, re.subn)
def _re_sub(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    args = [interp.trampoline(arg) if i == 1 else arg for i, arg in enumerate(args)]
    if "repl" in kwargs:
        kwargs = {**kwargs, "repl": interp.trampoline(kwargs["repl"])}
    return interp.native(fn, *args, **kwargs)


# ---- what is harmless, what is ignored, what must be shown at each call --------------------------------------------


def by_type(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """Looks at nothing but the class of its argument."""
    for arg in args:
        if type(arg) not in interp.fast and interp.types.claims_a_class(type(arg)):
            return NotImplemented
    return interp.unread(fn, *args, **kwargs)


add_functions(pure, typing.get_origin, typing.get_args)
add_functions(
    native_on_constants, posixpath.join, posixpath.split, posixpath.splitext, posixpath.basename, posixpath.dirname,
    posixpath.normpath, posixpath.isabs, posixpath.commonprefix, posixpath.normcase, posixpath.splitdrive,
)  # fmt: skip
"""Of the functions of paths, those that compute on text: others read directories or settings of the process."""
add_functions(
    by_type, inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin,
    inspect.isroutine,
)  # fmt: skip


@function(typing.cast)
def _cast(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    return args[1] if len(args) == 2 else interp.native(fn, *args, **kwargs)


@function(importlib.import_module)
def _import_module(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    with interp.suspended():
        module = interp.native(fn, *args, **kwargs)
    return names.load_called(interp, module, args)


@function(warnings.warn, warnings.warn_explicit)
def _warn(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    interp.replay(fn, args, kwargs)
    return None


add_methods(types.SimpleNamespace, keeping, "__init__")


@function(random.random, random.Random.uniform)
def _drawn(interp: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A random number that the program may not even look at (layer dropout, outside of training): drawn at each run."""
    if fn is not random.random and args and args[0] is random._inst:
        fn, args = random.uniform, args[1:]
    count = 0 if fn is random.random else 2
    known = fn in (random.random, random.uniform)
    if not known or kwargs or len(args) != count or any(type(arg) not in (int, float) for arg in args):
        raise graph_break(
            kind="random number of Python's",
            explanation=BREAK_MODULES["random"],
            hints=("Draw it outside of the compiled function and pass it in, or use torch.rand.",),
        )
    interp.state.extra_effects.append((fn, list(args), {}))
    return interp.taint(0.0)
