"""What an attribute found in a class gives when it is read through an instance or the class: the descriptor protocol.

Python code of a descriptor is interpreted. Native descriptors have a rule that says what they read, are read as guarded
attributes, or end the graph.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from typing import Any, Final

from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import c_part, is_a, module_of
from argand.capture.facts.overlays import DELETED
from argand.capture.facts.sources import AttrSource, ConstSource, TypeAttrSource
from argand.capture.facts.typefacts import TypeFacts
from argand.capture.objects import instances
from argand.errors import graph_break

_NATIVE_DESCRIPTORS: Final = frozenset(
    {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
)
MEMBERS: Final = frozenset({types.MemberDescriptorType, types.GetSetDescriptorType})


def is_data_descriptor(facts: TypeFacts, kind: type) -> bool:
    """Whether instances of `kind` in a class body take precedence over the instance's own dict."""
    if kind is types.FunctionType:
        return False
    if kind is property or kind in MEMBERS:
        return True
    return facts.lookup(kind, "__set__") is not NULL or facts.lookup(kind, "__delete__") is not NULL


def function_of(interp: Interpreter, function: object, cls: type) -> object:
    """A function found in a class, given back. One with cells (that calls `super()`) becomes an outer object:
    captured code makes such functions too, and those are made anew where the graph ends."""
    if type(function) is not types.FunctionType or function.__closure__ is None:
        return function
    if interp.local_classes:
        for owner in cls.__mro__ or ():
            if id(owner) in interp.local_classes:
                held = vars(owner).values()
                if any(value is function or getattr(value, "__func__", None) is function for value in held):
                    return function
    interp.load_function(function)
    return function


def bind(interp: Interpreter, meta: Any, obj: object, cls: type, name: str = "") -> object:
    """What a class attribute `meta` gives when read through an instance (`obj` NULL: through the class)."""
    kind = type(meta)
    if obj is None:  # an instance, which `__get__` called from Python takes for none at all
        return _bind_none(interp, meta, kind)
    if kind is types.FunctionType:
        function_of(interp, meta, cls)
        return meta if obj is NULL else types.MethodType(meta, obj)
    if kind in interp.fast and kind not in _NATIVE_DESCRIPTORS and kind not in MEMBERS:
        return _noted(interp, meta, cls, name)
    if kind is property:
        return _read_property(interp, meta, obj, name)
    if kind is classmethod:
        return _bind_classmethod(interp, meta, cls)
    if kind is staticmethod:
        return function_of(interp, c_part(staticmethod, meta, "__func__"), cls)
    if kind in _NATIVE_DESCRIPTORS:
        if obj is NULL:
            return interp.unread(meta.__get__, None, cls)
        return interp.unread(meta.__get__, interp.shadow(obj) if kind is not types.WrapperDescriptorType else obj, cls)
    if kind in MEMBERS:
        return read_member(interp, meta, obj, cls)
    getter = interp.types.lookup(kind, "__get__")
    if getter is NULL:
        return _noted(interp, meta, cls, name)
    if obj is not NULL and getter is _CACHED_GET:
        return _read_cached_property(interp, meta, obj)
    if not is_a(getter, types.WrapperDescriptorType | types.MethodDescriptorType):
        if is_a(getter, types.FunctionType) and getter in _ENUM_GETTERS and obj is not NULL and meta.fget is not None:
            return interp.call(meta.fget, (obj,))
        return interp.call(getter, (meta, None if obj is NULL else obj, cls))  # which CPython does not bind
    return _bind_native(interp, meta, getter, obj, cls, name)


def _noted(interp: Interpreter, meta: object, cls: type, name: str) -> object:
    """Data that a class holds."""
    if interp.state.loads is not None:
        interp.state.loads.append((TypeAttrSource(ConstSource(cls), name), meta))
    return meta


_CACHED_GET: Final = functools.cached_property.__get__
_ENUM_GETTERS: Final = (enum.property.__get__, types.DynamicClassAttribute.__get__)
_FIELD: Final = type(collections.namedtuple("_Pair", "a").a)  # type: ignore[attr-defined]
_BINDERS: Final = frozenset({types.MethodType, type(functools.lru_cache(maxsize=None)(len)), super})
"""Native classes whose `__get__` stores the object in a bound method, and looks at nothing of it."""


def lookup_special(interp: Interpreter, obj: object, name: str) -> object:
    """A special method, looked up on the type and bound; NULL if there is none."""
    cls = type(obj)
    method = interp.types.lookup(cls, name)
    return NULL if method is NULL else bind(interp, method, obj, cls)


def call_special(interp: Interpreter, obj: object, name: str, *args: object) -> Any:
    """What a special method answers."""
    return interp.call(lookup_special(interp, obj, name), args)


def _bind_none(interp: Interpreter, meta: type, kind: type) -> object:
    """What an attribute of `type(None)`, whose namespace never changes, gives when read through None."""
    if kind in interp.fast and kind not in _NATIVE_DESCRIPTORS and kind not in MEMBERS:
        return meta
    if kind in _NATIVE_DESCRIPTORS or kind in MEMBERS:
        return interp.unread(getattr, None, meta.__name__)
    raise graph_break(
        kind="native descriptor used by hand",
        context=f"{kind.__name__} of None",
        explanation=f"A {kind.__name__} is bound to None, which Python code cannot do as C code does.",
        hints=("Call the function itself.",),
    )


def _bind_native(interp: Interpreter, meta: Any, getter: Any, obj: object, cls: type, name: str) -> object:
    """What a descriptor gives whose `__get__` is C code: by a rule that says what it reads, or as a guarded attribute.

    Raises:
        GraphBreak: it would look into an object from outside in a way that no guard can follow.
    """
    owner = getter.__objclass__
    if owner is property:
        return _read_property(interp, meta, obj, name)
    if owner is classmethod:
        return _bind_classmethod(interp, meta, cls)
    if owner is staticmethod:
        return c_part(staticmethod, meta, "__func__")
    binds = owner in _BINDERS or interp.types.lookup(type(meta), "__call__") is not NULL  # also functions of Cython
    if obj is NULL or binds or not interp.is_outer(obj):
        return interp.unread(meta.__get__, None if obj is NULL else interp.shadow(obj), cls)
    if owner is _FIELD and is_a(obj, tuple):
        return interp.outer_item(obj, meta.__reduce__()[1][0])
    if not name or interp.types.lookup(cls, name) is not meta:
        raise graph_break(
            kind="native descriptor used by hand",
            context=f"{type(meta).__name__} of {cls.__name__}",
            explanation=f"{type(meta).__name__}.__get__ is native code that would look into an object from outside.",
        )
    return _guarded_attribute(interp, meta, obj, cls, name)


def _bind_classmethod(interp: Interpreter, meta: object, cls: type) -> object:
    func = c_part(classmethod, meta, "__func__")
    if type(func) is types.FunctionType:
        return interp.unread(types.MethodType, function_of(interp, func, cls), cls)
    getter = interp.types.lookup(type(func), "__get__")
    if getter is NULL:
        return interp.unread(types.MethodType, func, cls)
    return bind(interp, func, cls, type(cls))


def _read_property(interp: Interpreter, meta: property, obj: object, name: str) -> object:
    if obj is NULL:
        return meta
    getter = c_part(property, meta, "fget")
    if getter is None:
        raise interp.throw(property_error(meta, obj, name, "getter"))
    return interp.call(getter, (obj,))


def property_error(meta: property, obj: object, name: str, what: str) -> AttributeError:
    """CPython's message, by asking the property, which lacks the function, for one of another class of the name."""
    instance = type(type(obj).__name__, (), {"__qualname__": type(obj).__qualname__})()
    try:
        if what == "getter":
            property.__get__(meta, instance)
        elif what == "setter":
            property.__set__(meta, instance, None)
        else:
            property.__delete__(meta, instance)
    except AttributeError as e:
        return AttributeError(*e.args)
    return AttributeError(name)


def _read_cached_property(interp: Interpreter, meta: object, obj: object) -> object:
    name = interp.getattr(meta, "attrname")
    value = NULL if name is None else instances.own_value(interp, obj, name)
    if value is not NULL:  # a subclass made it a data descriptor
        return value
    if name is None:
        text = "Cannot use cached_property instance without calling __set_name__ on it."
        raise interp.throw(TypeError(text))
    value = interp.call(interp.getattr(meta, "func"), (obj,))
    instances.write_instance(interp, obj, name, value)
    return value


_LAZY: Final = frozenset({"__bound__", "__constraints__", "__default__", "__value__"})


def read_member(interp: Interpreter, meta: Any, obj: object, cls: type) -> object:
    """A slot or an attribute that C code computes."""
    if obj is NULL:
        return meta
    name = meta.__name__
    if name == "__class__":
        return type(obj)
    if name == "__dict__":
        return instances.instance_dict(interp, obj)
    if name in _LAZY and module_of(cls) == "typing":
        raise graph_break(
            kind="native code that calls Python",
            context=f"{cls.__name__}.{name}",
            explanation="The attribute is evaluated when first read, by code that knows nothing of captured writes.",
        )
    if interp.is_outer(obj):
        value = interp.read_overlay(obj, name)
        if value is not NULL:
            if value is DELETED:
                raise instances.missing(interp, obj, name)
            return value
        return _guarded_attribute(interp, meta, obj, cls, name)
    return interp.unread(meta.__get__, interp.shadow(obj), cls)


def _guarded_attribute(interp: Interpreter, meta: Any, obj: object, cls: type, name: str) -> object:
    """What C code gives for an attribute of an outer object, or that it gives none: read again by the guards."""
    try:
        value = meta.__get__(obj, cls)
    except AttributeError as e:
        error = e
    except Exception as e:
        raise graph_break(
            kind="attribute that raises",
            context=f"{cls.__name__}.{name}",
            explanation=f"Reading {name} of a {cls.__name__} raises {type(e).__name__}, which no guard can follow.",
        ) from None
    else:
        return interp.state.load_source(AttrSource(interp.source(obj), name), value)
    interp.state.guard(interp.source(obj), "not_has_attr", name)
    raise interp.observe(error)
