"""Digests by which a later process tells that functions, classes and files are the ones that were captured."""

from __future__ import annotations

import collections
import functools
import hashlib
import marshal
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any, Final

FLAT: Final = 2
"""Version of marshal's format in which equal code objects are equal bytes: no references, which count users."""
ATOMS: Final = frozenset((type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)))
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
_C_PARTS: Final = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
namespace_of: Final[Callable[[type], types.MappingProxyType[str, Any]]] = type.__dict__["__dict__"].__get__
mro_of: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
"""`__mro__` of a class, past any of its metaclass, as those below."""
module_of: Final[Callable[[Any], Any]] = type.__dict__["__module__"].__get__
qualname_of: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
_flags: Final[Callable[[type], int]] = type.__dict__["__flags__"].__get__
_COPIER = "__slotnames__"  # CPython puts it into a class when an object of it is first copied or pickled
_COUNTING = "torch._dynamo.mutation_guard"  # once imported, it wraps two methods of nn.Module to count modules
_COUNTED = "___needs_generation_tag_patch"  # what it leaves there besides
_NUMBERED = "_autograd_function_id"  # torch numbers the classes of custom Functions in the order of their making
_DISABLED = "__dynamo_disable"  # a function that torch keeps from its compiler has it once it ran


def is_atom(value: object) -> bool:
    """Whether a value is a number, text or constant of Python's, of exactly that type."""
    return type(value) in ATOMS


def alike_everywhere(value: Any) -> bool:
    """Whether the text of a value has no addresses in it, and nothing in the order of hashes."""
    cls = type(value)
    if cls in (tuple, list):
        return all(map(alike_everywhere, value))
    if cls is dict:
        return all(map(alike_everywhere, value)) and all(map(alike_everywhere, value.values()))
    return cls in ATOMS or issubclass(cls, type)


def ordered_by_process(value: set[Any] | frozenset[Any]) -> bool:
    """Whether a set may iterate in another order in another process: numbers alone have the same hash in all."""
    return len(value) > 1 and not _NUMBERS.issuperset(map(type, value))


_NUMBERS: Final = frozenset((int, float, bool))


def digest(data: bytes) -> str:
    """A short digest."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def of_code(code: types.CodeType) -> str:
    """Of bytecode, constants, names and lines, nested code included; the folder that its file is in does not matter."""
    return digest(marshal.dumps(_without_file(code), FLAT))


def _without_file(code: types.CodeType) -> types.CodeType:
    consts = code.co_consts
    if any(type(const) is types.CodeType for const in consts):
        consts = tuple([_without_file(const) if type(const) is types.CodeType else const for const in consts])
    return code.replace(co_filename="", co_consts=consts)


def of_function(function: types.FunctionType) -> str:
    """Of a function's code, its defaults where they are plain, the module of its globals and its own attributes."""
    return digest(_function_text(function).encode())


def _function_text(function: types.FunctionType) -> str:
    parts = [of_code(function.__code__), str(function.__globals__.get("__name__"))]
    parts.append(str(len(function.__closure__ or ())))
    for value in function.__defaults__ or ():
        parts.append(_plain_text(value))
    for name, value in (function.__kwdefaults__ or {}).items():
        parts.append(f"{name}={_plain_text(value)}")
    for name, value in sorted(vars(function).items(), key=lambda item: str(item[0])):
        if name != _DISABLED:
            parts.append(f"{name}:{_plain_text(value)}")
    return "\n".join(parts)


def _plain_text(value: object) -> str:
    cls = type(value)
    if cls in ATOMS:
        return f"{cls.__name__} {value!r}"
    if cls in (tuple, list):
        items: Any = value
        return f"{cls.__name__}({','.join(map(_plain_text, items))})"
    return f"a {name_of(cls)}"


def name_of(cls: type) -> str:
    """Module and qualified name of a class."""
    return f"{module_of(cls)}.{qualname_of(cls)}"


class Classes:
    """Digests of what classes and their bases have under names that matter.

    Arguments:
        names: what was looked up; names that begin with an underscore always matter, for native code looks up special
            methods. None: everything matters.
    """

    def __init__(self, names: Collection[str] | None) -> None:
        self.names = names
        self._texts: dict[type, str | None] = {}

    def digest(self, cls: type) -> str | None:
        """None where a value cannot be told from another."""
        texts = [self._text(klass) for klass in mro_of(cls)]
        known = [text for text in texts if text is not None]
        return digest("\n".join(known).encode()) if len(known) == len(texts) else None

    def _text(self, klass: type) -> str | None:
        if klass not in self._texts:
            self._texts[klass] = self._namespace_text(klass)
        return self._texts[klass]

    def _namespace_text(self, klass: type) -> str | None:
        parts = [name_of(klass)]
        fixed = not _flags(klass) & _HEAP or _flags(klass) & _IMMUTABLE
        for name, value in () if fixed else sorted(namespace_of(klass).items(), key=lambda item: str(item[0])):
            if type(name) is not str or name in (_COPIER, _COUNTED):
                continue
            asked = self.names is None or name in self.names
            if name == _NUMBERED and not asked:
                continue
            if asked or name.startswith("_"):
                text = _member_text(value)
                if text is None and asked:
                    return None
                parts.append(f"{name}={text or name_of(type(value))}")
        return digest("\n".join(parts).encode())


_FIELD: Final = type(vars(collections.namedtuple("_Pair", "first"))["first"])
"""Of named tuples' classes; one holds its position and a text."""


def _member_text(value: Any) -> str | None:
    """What a class has under a name, in words that mean the same in another process; None where there are none."""
    cls = type(value)
    if cls is types.FunctionType:
        return f"def {of_function(_uncounted(value))}"
    if cls in ATOMS:
        return f"{cls.__name__} {value!r}"
    if cls in (staticmethod, classmethod):
        inner = _member_text(value.__func__)
        return None if inner is None else f"{cls.__name__} {inner}"
    if cls is property:
        parts = [_member_text(part) for part in (value.fget, value.fset, value.fdel)]
        return None if None in parts else f"property {parts}"
    if cls is functools.cached_property:
        return f"cached_property {_member_text(value.func)}"
    if cls in _C_PARTS:
        return f"{cls.__name__} {value.__objclass__.__qualname__}.{value.__name__}"
    if cls is _FIELD:
        return f"field {value.__reduce__()[1][0]}"
    if cls is types.BuiltinFunctionType:
        return f"builtin {value.__module__}.{value.__qualname__}"
    if issubclass(cls, type):
        return f"class {name_of(value)}"
    if cls is types.ModuleType:
        return f"module {value.__name__}"
    if cls in (tuple, frozenset):
        items = [_member_text(item) for item in value]
        known = [item for item in items if item is not None]
        if len(known) == len(items):
            return f"{cls.__name__}({','.join(known if cls is tuple else sorted(known))})"
    if issubclass(cls, Enum):  # from Python 3.12 on, classes hold their members themselves
        held = vars(value)
        return f"member {name_of(cls)}.{held.get('_name_')} {_plain_text(held.get('_value_'))}"
    if cls in (list, dict, set) or of_plain_objects(cls):  # what is read of it is guarded where it comes from
        return f"a {name_of(cls)}"
    return None


def _uncounted(function: types.FunctionType) -> types.FunctionType:
    """The method itself, where torch's compiler has wrapped it to count modules."""
    if function.__module__ != _COUNTING:
        return function
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    methods = [value for value in held if type(value) is types.FunctionType]
    return methods[0] if len(methods) == 1 else function


def of_plain_objects(cls: type) -> bool:
    """Whether objects of a class hold nothing but attributes: no C code but `object`'s keeps state in them."""
    return all(klass is object or _flags(klass) & _HEAP for klass in mro_of(cls)) and not _flags(cls) & _IMMUTABLE


Stamp = tuple[str, int, int, str]
"""A module's name, and its file's size, time of modification in nanoseconds, and digest of its content."""


def stamps(modules: Iterable[str]) -> list[Stamp]:
    """The stamps of the modules' files; those that have none are left out."""
    return [stamp for name in sorted(set(modules)) if (stamp := _stamp(name)) is not None]


@functools.lru_cache(maxsize=4096)
def _content(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as stream:
        return digest(stream.read())


def of_file(path: str) -> str:
    """Of a file's content; "" where there is none."""
    try:
        info = os.stat(path)
        return _content(path, info.st_size, info.st_mtime_ns)
    except OSError:
        return ""


def of_module(name: str) -> str:
    """Of the content of a module's file; "" where it has none."""
    return of_file(_file(name))


def _stamp(name: str) -> Stamp | None:
    path = _file(name)
    try:
        info = os.stat(path)
        return name, info.st_size, info.st_mtime_ns, _content(path, info.st_size, info.st_mtime_ns)
    except OSError:
        return None


def _file(name: str) -> str:
    path = getattr(sys.modules.get(name), "__file__", None)
    return path if type(path) is str else ""


def edited(known: Iterable[Stamp]) -> str:
    """The first of the modules whose file has another content now; "" when there is none."""
    for name, size, modified, content in known:
        path = _file(name)
        try:
            info = os.stat(path)
            same = info.st_size == size and info.st_mtime_ns == modified
            if not same and _content(path, info.st_size, info.st_mtime_ns) != content:
                return name
        except OSError:
            return name
    return ""
