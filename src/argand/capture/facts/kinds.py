"""The test of an object's real type, and its real `__dict__`: what asks nothing of the program's own code."""

from __future__ import annotations

import collections
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeGuard, TypeVar, overload

from argand import errors
from argand.capture.facts.handlers import Function

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@overload
def is_a(obj: object, cls: type[T]) -> TypeGuard[T]: ...
@overload
def is_a(obj: object, cls: object) -> bool: ...
def is_a(obj: object, cls: Any) -> bool:
    """`isinstance` by real type only: the builtin also asks `obj.__class__`, which may run the program's own code."""
    return issubclass(type(obj), cls)


def per_class(fn: Callable[[type], T]) -> Callable[[type], T]:
    """Decorator: computed once per class, without keeping classes alive or asking metaclasses for hashes."""
    results: dict[int, tuple[weakref.ref[type], T]] = {}

    def of_class(cls: type) -> T:
        entry = results.get(id(cls))
        if entry is not None and entry[0]() is cls:
            return entry[1]
        result = fn(cls)
        key = id(cls)
        results[key] = (weakref.ref(cls, lambda ref: forget(key, ref)), result)
        return result

    def forget(key: int, ref: object) -> None:
        entry = results.get(key)
        if entry is not None and entry[0] is ref:
            del results[key]

    return of_class


mro_of: Final[Function] = type.__dict__["__mro__"].__get__
"""`__mro__` of a class, past any of its metaclass."""
_SIZED: Final[tuple[Any, ...]] = (dict, list, tuple, set, frozenset, collections.deque, str, bytes)
_module_of: Final[Function] = type.__dict__["__module__"].__get__
_class_namespace: Final[Function] = type.__dict__["__dict__"].__get__


_NONE: Final = -1
_HIDDEN: Final = -2


@per_class
def _namespace_place(cls: type) -> int:
    """Which class of the MRO has the descriptor of `__dict__`; not the descriptor, which would keep the class alive."""
    for i, klass in enumerate(mro_of(cls)):
        descriptor = _class_namespace(klass).get("__dict__")
        if descriptor is not None:
            return i if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType) else _HIDDEN
    return _NONE


def namespace(obj: object) -> Any:
    """The `__dict__` that an object really has, past any `__getattribute__`; None if it has none.

    Raises:
        GraphBreak: its class hides it behind a `__dict__` of its own.
    """
    cls = type(obj)
    place = _namespace_place(cls)
    if place == _NONE:
        return None
    if place == _HIDDEN:
        raise errors.graph_break(
            kind="namespace that the class defines itself", context=f"{type(obj).__module__}.{type(obj).__qualname__}"
        )
    return _class_namespace(mro_of(cls)[place])["__dict__"].__get__(obj)


_ASKED_OF_CLASSES: Final = ("__eq__", "__ne__", "__hash__", "__getattribute__")


def answers_itself(cls: type) -> bool:
    """Whether Python code of its metaclass runs where a class is compared, hashed or read.

    Capture does all of that with the classes that it meets, for its own ends. Asked anew each time: metaclasses change.
    """
    meta = type(cls)
    if meta is type:
        return False
    for klass in mro_of(meta):
        if klass is type:
            return False
        own = _class_namespace(klass)
        if any(name in own and type(own[name]) is not types.WrapperDescriptorType for name in _ASKED_OF_CLASSES):
            return True
    return False


def module_of(cls: type) -> str:
    """`__module__` of a class, past any of its metaclass; "" where it is no text."""
    try:
        module = _module_of(cls)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def is_numpy_array(cls: type) -> bool:
    """Whether a class is that of numpy's arrays, and no subclass."""
    return cls.__name__ == "ndarray" and module_of(cls) == "numpy"


def is_numpy_scalar(cls: type) -> bool:
    """Whether objects of a class are scalars of numpy's (an array of no dimensions is none)."""
    return module_of(cls) == "numpy" and any(
        base.__name__ == "generic" and module_of(base) == "numpy" for base in mro_of(cls)
    )


def c_part(base: type, obj: object, name: str) -> object:
    """What C code of `base` keeps in an object of a subclass: its `__getattribute__` is not asked, as C does not."""
    return _class_namespace(base)[name].__get__(obj)


def is_struct_sequence(cls: type) -> bool:
    """Whether a class is made by C like `os.stat_result`: a tuple with names that its own constructor fills."""
    return cls.__base__ is tuple and "n_unnamed_fields" in _class_namespace(cls)


def raw_length(obj: Any) -> int:
    """`len` of a container, past any `__len__` of its class."""
    for base in _SIZED:
        if is_a(obj, base):
            return int(base.__len__(obj))
    return len(obj)


def raw_items(obj: dict[K, V]) -> Iterable[tuple[K, V]]:
    """`items` of a dict in its order, which for an OrderedDict is not that of the dict underneath.

    Raises:
        GraphBreak: methods of dict were called on an OrderedDict, which does not know of it.
    """
    if not is_a(obj, collections.OrderedDict):
        return dict.items(obj)
    try:
        return list(collections.OrderedDict.items(obj))
    except (KeyError, RuntimeError):
        raise errors.graph_break(
            kind="OrderedDict out of step", context=type(obj).__qualname__, skip_frame=True
        ) from None


def raw_iter(obj: object) -> Iterator[object]:
    """`iter` of a list, tuple, set or deque, past any `__iter__` of its class."""
    return next(base for base in _SIZED if is_a(obj, base)).__iter__(obj)


def held_items(obj: object) -> Iterator[object]:
    """An iterator over everything that a container holds: keys and values of a dict."""
    return itertools.chain.from_iterable(raw_items(obj)) if is_a(obj, dict) else raw_iter(obj)


def raw_item(obj: object, index: int) -> object:
    """An item of a list or tuple, past any `__getitem__` of its class."""
    base: Any = list if is_a(obj, list) else tuple
    return base.__getitem__(obj, index)


def attributes_of(fn: Function) -> dict[str, object]:
    """The attributes that were set on a callable: for a bound method, on its function."""
    while type(fn) is types.MethodType:
        fn = fn.__func__
    attributes = None if _namespace_place(type(fn)) == _HIDDEN else namespace(fn)
    return attributes if attributes is not None else {}
