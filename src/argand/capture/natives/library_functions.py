"""Handlers of the standard library's C functions and of Python functions that need special treatment."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _thread
import binascii
import cmath
import collections
import dataclasses
import enum
import functools
import importlib
import itertools
import math
import operator
import random
import re
import struct
import types
import unicodedata
from typing import Any

from argand.capture.facts.classify import HINTS_WITH_PARTS
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.sources import CallSource
from argand.capture.natives.builtin_methods import comparing, keeping, known_iterator, read_only
from argand.capture.natives.iteration_functions import fold, hashed_items
from argand.capture.natives.rows import (
    OPTIONS,
    Native,
    called,
    enter_rows,
    iterated,
    iterated_later,
    iterated_or_refused,
    kept,
    listed,
    operation,
    plain,
    resolved,
    tested,
)
from argand.capture.objects import iteration, keys, names, polyfills
from argand.capture.objects.call_protocol import calls, classes, lru_caches, native_handlers
from argand.capture.objects.call_protocol.native_handlers import (
    BREAK_MODULES,
    PURE_MODULES,
    SAFE_NEW,
    STORING_NEW,
    Args,
    add_callable_objects,
    add_class_methods,
    add_functions,
    add_methods,
    constructor,
    function,
    method,
    native_on_constants,
    pure,
    python_object_in_native,
)
from argand.errors import graph_break

PURE_MODULES.update(
    {"re", "sre_parse", "sre_compile", "json", "json.encoder", "json.decoder", "textwrap", "string", "fnmatch",
     "keyword", "typing", "difflib", "colorsys", "ast", "dis", "base64", "html", "shlex", "packaging.version",
     "importlib.metadata", "importlib.util",
     "re._compiler", "re._parser", "statistics", "fractions", "numbers"}
)  # fmt: skip
_SYSTEM = "The operating system is asked or told something, which must happen at each call."
_DECIMALS = "Decimal arithmetic rounds as the thread's decimal context says, which guards do not see."
_DIGESTS = "Digests of growing data are not captured."
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
        # modules of C code, of which no function is called that has no row
        "posix": _SYSTEM,
        "sys": "What the interpreter does and knows is not captured.",
        "gc": "What the garbage collector does and knows is not captured.",
        "atexit": "Functions that run at exit are entered at each call.",
        "time": "Clocks go on: they must be read at each call.",
        "datetime": "Clocks go on, time zones and the locale may change: they must be read at each call.",
        "decimal": _DECIMALS,
        "_decimal": _DECIMALS,
        "unicodedata": "Old versions of Unicode are not captured.",
        "array": "Arrays of C numbers are not captured: no guard looks at their contents.",
        "io": "File access is not captured.",
        "_io": "File access is not captured.",
        "_pickle": "Pickling is not captured.",
        "_random": "Python's random numbers change with each call.",
        "_thread": "Threads and locks are not captured.",
        "_queue": "Threads and locks are not captured.",
        "_contextvars": "Variables of contexts are not captured.",
        "_weakref": "Who refers weakly to an object is not captured.",
        "_hashlib": _DIGESTS,
        "_blake2": _DIGESTS,
        "zlib": "Streams of compressed data are not captured.",
    }
)


# ---- operator, math ------------------------------------------------------------------------------------------------


def parts_of(fn: Any) -> tuple[object, ...]:
    """What an itemgetter or attrgetter gets; name, arguments and keyword arguments of a methodcaller."""
    constructor, rest = fn.__reduce__()
    if type(fn) is not operator.methodcaller:
        return tuple(rest)
    if constructor is operator.methodcaller:
        return rest[0], tuple(rest[1:]), {}
    return constructor.args[0], tuple(rest), constructor.keywords


def _parts(interp: Interpreter, fn: Function) -> Any:
    """`parts_of` a getter, guarded if it existed before."""
    parts = parts_of(fn)
    if not interp.is_outer(fn):
        return parts
    return interp.shadow(interp.state.load_source(CallSource(interp.source(fn), parts_of), parts))


def _itemgetter(interp: Interpreter, fn: Function, obj: object) -> object:
    keys = _parts(interp, fn)
    values = tuple(interp.getitem(obj, key) for key in keys)
    return values[0] if len(keys) == 1 else values


def _attrgetter(interp: Interpreter, fn: Function, obj: object) -> object:
    values = []
    for path in _parts(interp, fn):
        value = obj
        for name in path.split("."):
            value = interp.getattr(value, name)
        values.append(value)
    return values[0] if len(values) == 1 else tuple(values)


def _methodcaller(interp: Interpreter, fn: Function, obj: object) -> object:
    name, positional, named = _parts(interp, fn)
    positional = interp.shadow(positional)
    return interp.call(interp.getattr(obj, name), positional, dict(interp.shadow(named)))


def _generic_alias(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """`list[int](...)`."""
    instance = interp.call(fn.__origin__, args, kwargs)
    try:
        interp.setattr(instance, "__orig_class__", fn)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError | TypeError):
            raise
    return instance


add_callable_objects(_generic_alias, types.GenericAlias)
for _getter, _does in (
    (operator.itemgetter, _itemgetter), (operator.attrgetter, _attrgetter), (operator.methodcaller, _methodcaller),
):  # fmt: skip
    add_callable_objects(Native(_does, counts=1, itself=True).handler(), _getter)

_OWN = {math.floor, math.ceil, math.trunc, math.prod, *resolved("math.fsum math.dist math.sumprod[python>=3.12]")}
for _module in (math, cmath, struct, binascii, unicodedata):
    add_functions(pure, *[f for f in vars(_module).values() if is_a(f, types.BuiltinFunctionType) and f not in _OWN])


@operation(math.prod, options="start")
def _prod(interp: Interpreter, values: object, start: object = 1) -> object:
    return fold(interp, math.prod, polyfills.multiply_items, values, start)


@function(*resolved("math.fsum math.dist math.sumprod[python>=3.12]"))
def _of_iterables(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return pure(interp, fn, [iteration.to_list(interp, arg) for arg in args], kwargs)


# ---- itertools -----------------------------------------------------------------------------------------------------


enter_rows({
    "itertools.chain": Native(takes=(iterated_later,), reads=OPTIONS),
    "itertools.compress itertools.zip_longest itertools.pairwise": Native(takes=(iterated_or_refused,), reads=OPTIONS),
    "itertools.product": Native(takes=(listed,), reads=OPTIONS),
    "itertools.permutations itertools.combinations itertools.combinations_with_replacement":
        Native(takes=(listed, plain), reads=1),
    "itertools.cycle itertools.islice itertools.tee itertools.batched[python>=3.12]":
        Native(takes=(iterated_or_refused, plain), reads=1),
    "itertools.filterfalse itertools.dropwhile itertools.takewhile itertools.starmap":
        Native(takes=(tested, iterated_or_refused), reads=OPTIONS),
    "itertools.count": pure,
    "itertools.repeat": Native(takes=(kept, keys.to_index), named={"times": keys.to_index}),
    "itertools.groupby": Native(takes=(iterated, called), named={"iterable": iterated, "key": called}),
})  # fmt: skip


@operation(itertools.accumulate, counts=(0, 2), options="iterable func initial")
def _accumulate(interp: Interpreter, iterable: object, func: Function | None = None, **initial: object) -> object:
    step = interp.trampoline(operator.add if func is None else func)
    return interp.unread(itertools.accumulate, iteration.native_iterable(interp, iterable), step, **initial)


def _chain_from_iterable(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    later = functools.partial(iteration.native_iterable_later, interp)
    if type(args[0]) in (list, tuple):
        return itertools.chain(*map(later, interp.shadow(args[0])))
    return itertools.chain.from_iterable(map(later, iteration.native_iterable(interp, args[0])))


add_class_methods(itertools.chain, _chain_from_iterable, "from_iterable")
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


@operation(functools.reduce, counts=(2, 3))
def _reduce(interp: Interpreter, step: object, values: object, *initial: object) -> object:
    try:
        items = iteration.get_iter(interp, values)
    except ObservedException as observed:
        if is_a(observed.value, TypeError):
            return interp.unread(functools.reduce, max, 0)  # raises, in its own words whatever the reason
        raise
    return interp.polyfill(polyfills.reduce_items, step, items, *(initial or (None,)), bool(initial))


@function(functools.partial)
def _partial(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if args:
        classes.refuse_nested_partial(interp, args[0])
    return interp.unread(fn, *args, **kwargs)


SAFE_NEW.add(functools.partial)
STORING_NEW.add(functools.partial)


@method(functools.partial, "__call__")
def _call_partial(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    """As its base does it, from a class that derives from it."""
    return calls.call_partial(interp, owner, args, kwargs)


_key_type = type(functools.cmp_to_key(len))  # type: ignore[arg-type]
_comparison_key_type = type(functools.cmp_to_key(len)(0))  # type: ignore[arg-type]
add_callable_objects(constructor, _key_type)
add_methods(_comparison_key_type, comparing, "__lt__ __le__ __eq__ __ne__ __gt__ __ge__")

_lru_wrapper = type(functools.lru_cache(maxsize=None)(len))


def _cache_clear(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    if id(owner.__wrapped__) not in interp.local_functions:
        if name == "cache_info":
            lru_caches.count(owner)
        raise graph_break(
            kind="lru_cache statistics", context=name, explanation="The state of a functools.lru_cache is not captured."
        )
    if name == "cache_info":
        return interp.native(lru_caches.results(interp, owner).info)
    interp.lru_caches.pop(id(owner), None)
    return None


add_methods(_lru_wrapper, _cache_clear, "cache_clear cache_info")
add_methods(_lru_wrapper, read_only, "__get__")


# ---- copies, collections, enum, abc --------------------------------------------------------------------------------


@function(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    mapping = interp.shadow(args[0])
    return interp.unread(fn, mapping, hashed_items(interp, args[1], lambda key: interp.unread(fn, mapping, key)))


@function(collections.OrderedDict)
def _ordered_dict(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 1:
        return interp.native(fn, *args, **kwargs)
    mapping: Any = collections.OrderedDict()
    interp.call(mapping.update, args, kwargs)
    return mapping


@function(collections.defaultdict)
def _defaultdict(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    mapping = interp.unread(fn, *args[:1])
    if len(args) > 2:
        return interp.native(fn, *args, **kwargs)
    interp.call(mapping.update, args[1:], kwargs)
    return mapping


@function(collections.namedtuple, dataclasses.make_dataclass, dataclasses._process_class)  # type: ignore[attr-defined]
def _class_factory(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    args = [interp.plain(arg) for arg in args]
    if fn is dataclasses._process_class and id(args[0]) not in interp.local_classes:  # type: ignore[attr-defined]
        return NotImplemented
    if fn is collections.namedtuple:
        kwargs = {"module": interp.frames[-1].globals.get("__name__"), **kwargs}
    cls = interp.unread(fn, *args, **kwargs)
    interp.types.forget()
    interp.renew_facts()
    interp.note_local_class(cls)
    return cls


@function(_abc._abc_register)
def _abc_register(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2 and id(args[0]) in interp.local_classes:
        return interp.native(fn, *args, **kwargs)
    raise native_handlers.unknown_native(fn)  # it changes what isinstance() answers, at every call


@function(enum.EnumMeta.__call__)
def _enum_call(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 2 and is_a(args[0], type):
        member = interp.unread(fn, *[interp.plain(arg) for arg in args], **kwargs)
        if is_a(member, type):
            interp.note_local_class(member)
        return member
    return NotImplemented


@function(enum.EnumMeta.__new__, enum.EnumMeta.__prepare__.__func__)  # type: ignore[attr-defined]
def _enum_new(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    member = interp.unread(fn, *args, **kwargs)
    if is_a(member, type):
        interp.note_local_class(member)
    return member


# ---- locks (of local objects: cached_property and the like) --------------------------------------------------------


def _lock(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if interp.is_outer(owner):
        raise graph_break(kind="lock", context=name)
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


for _kind in (_thread.RLock, _thread.LockType):
    SAFE_NEW.add(_kind)
    add_methods(_kind, _lock, "acquire release __enter__ __exit__")
add_methods(_thread.LockType, _lock, "locked")


# ---- regular expressions -------------------------------------------------------------------------------------------

_pattern_methods = "match fullmatch search findall split finditer __eq__ __hash__ __repr__ __copy__ __deepcopy__"
add_methods(re.Pattern, read_only, _pattern_methods)
add_methods(
    re.Match, read_only, "group groups groupdict start end span expand __getitem__ __repr__ __copy__ __deepcopy__"
)
known_iterator(type(re.finditer("a", "b")))


@function(re._compile)  # type: ignore[attr-defined]
def _compiled(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A pattern that is known, without the module's tables of what it compiled before."""
    if kwargs or len(args) != 2:
        return NotImplemented
    flags = interp.getattr(args[1], "value") if is_a(args[1], re.RegexFlag) else args[1]
    if is_a(args[0], re.Pattern) and type(flags) is int and not flags:
        return args[0]
    return native_on_constants(interp, fn, [args[0], flags], kwargs)


@method(re.Pattern, "sub", "subn")
def _sub(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if args:
        args = [interp.trampoline(args[0]), *args[1:]]
    if "repl" in kwargs:
        kwargs = {**kwargs, "repl": interp.trampoline(kwargs["repl"])}
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


# ---- what is harmless, what is ignored, what must be shown at each call --------------------------------------------


def by_type(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Looks at nothing but the class of its argument."""
    for arg in args:
        if type(arg) not in interp.fast and interp.types.claims_a_class(type(arg)):
            return NotImplemented
    return interp.unread(fn, *args, **kwargs)


def of_hint(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Looks at what a type hint is made of, and of all else only at the class."""
    hints = [arg for arg in (*args, *kwargs.values()) if is_a(arg, HINTS_WITH_PARTS)]
    if not hints:
        return by_type(interp, fn, args, kwargs)
    if any(module_of(type(hint)) not in ("typing", "types", "collections.abc") for hint in hints):
        return NotImplemented
    parts = interp.native(fn, *args, **kwargs)
    # A part may be an object, as in Annotated[int, Least(1)]: it has no source that it could be loaded from.
    if not all(
        is_a(part, enum.Enum) or interp.is_constant(part) for part in (parts if is_a(parts, tuple) else (parts,))
    ):
        raise python_object_in_native(fn, hints[0])
    return parts


enter_rows({
    "functools.cmp_to_key": Native(takes=(called,)),
    "functools._lru_cache_wrapper _thread.RLock _thread.allocate_lock": constructor,
    "collections.deque": Native(takes=(iterated, kept), reads=1),
    "_abc._abc_init _abc._abc_instancecheck _abc._abc_subclasscheck enum.auto os.fspath": pure,
    "typing.TypeVar typing.ParamSpec typing.TypeVarTuple": pure,
    "typing.get_origin typing.get_args": of_hint,
    "_operator._compare_digest zlib.crc32 zlib.adler32 zlib.compress zlib.decompress": pure,
    "typing.cast": Native(lambda interp, cls, value: value, counts=2),
    "re.sub re.subn": Native(takes=(kept, called, kept), named={"repl": called}, reads=0),
    # of the functions of paths, those that compute on text: others read directories or settings of the process
    "posixpath.join posixpath.split posixpath.splitext posixpath.basename posixpath.dirname": native_on_constants,
    "posixpath.normpath posixpath.isabs posixpath.commonprefix posixpath.normcase posixpath.splitdrive":
        native_on_constants,
    "inspect.isclass inspect.isfunction inspect.ismethod inspect.ismodule inspect.isbuiltin inspect.isroutine": by_type,
})  # fmt: skip


@function(importlib.import_module)
def _import_module(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    with interp.suspended():
        module = interp.native(fn, *args, **kwargs)
    return names.load_called(interp, module, args)


add_methods(types.SimpleNamespace, keeping, "__init__")


@function(random.random, random.Random.uniform)
def _drawn(interp: Interpreter, fn: Function, args: list[object], kwargs: Kwargs) -> object:
    """A random number that the program may not even look at (layer dropout, outside of training): drawn at each run."""
    if fn is not random.random and args and args[0] is random._inst:
        fn, args = random.uniform, args[1:]
    count = 0 if fn is random.random else 2
    known = fn in (random.random, random.uniform)
    if not known or kwargs or len(args) != count or any(type(arg) not in (int, float) for arg in args):
        raise graph_break(kind="random number of Python's", explanation=BREAK_MODULES["random"])
    interp.state.extra_effects.append((fn, list(args), {}))
    return interp.taint(0.0)
