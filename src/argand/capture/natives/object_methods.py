"""Handlers of methods of object, type, functions, descriptors and exceptions."""

from __future__ import annotations

import collections
import copyreg
import inspect
import types
import typing
from typing import Any

import torch

from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import c_part, is_a
from argand.capture.facts.overlays import DELETED
from argand.capture.facts.typefacts import CONTAINERS, is_heap
from argand.capture.natives.builtin_methods import COMPARISONS, comparing, keeping, read_only, textual
from argand.capture.natives.rows import operation_of
from argand.capture.objects import (
    attribute_writes,
    attributes,
    descriptors,
    generators,
    instances,
    iteration,
    operators,
    text,
)
from argand.capture.objects.call_protocol import classes, native_handlers
from argand.capture.objects.call_protocol.native_handlers import (
    Args,
    add_class_methods,
    add_methods,
    function,
    method,
    pure,
    python_object_in_native,
)
from argand.errors import graph_break

# ---- object, type, functions ---------------------------------------------------------------------------------------


@method(object, "__init__")
def _object_init(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if not args and not kwargs:
        return None
    return interp.unread(object.__init__, owner, *args, **kwargs)


operation_of("type", "__setattr__", counts=2)(attribute_writes.generic_write)
operation_of("type", "__delattr__", counts=1)(attribute_writes.generic_delete)


@operation_of("object", "__setattr__", counts=2)
def _object_setattr(interp: Interpreter, owner: object, name: str, value: object) -> None:
    if is_a(owner, type):
        interp.unread(object.__setattr__, owner, name, value)  # raises: classes have another
    attribute_writes.generic_write(interp, owner, name, value)


@operation_of("object", "__delattr__", counts=1)
def _object_delattr(interp: Interpreter, owner: object, name: str) -> None:
    if is_a(owner, type):
        interp.unread(object.__delattr__, owner, name)  # raises
    attribute_writes.generic_delete(interp, owner, name)


@operation_of("object", "__getattribute__", counts=1)
def _object_getattribute(interp: Interpreter, owner: object, name: str) -> object:
    if is_a(owner, type | types.ModuleType | types.MethodType):
        raise graph_break(
            kind="native code that calls Python",
            context=f"object.__getattribute__ of a {type(owner).__name__}",
            explanation="It looks past the class's own way to find attributes, which is not captured.",
        )
    if is_a(owner, types.FunctionType) or type(owner) in interp.fast:
        return interp.getattr(owner, name)
    return _present(interp, owner, name, attributes.generic_read(interp, owner, name))


@operation_of("type", "__getattribute__", counts=1)
def _type_getattribute(interp: Interpreter, owner: type, name: str) -> object:
    return _present(interp, owner, name, attributes.generic_class_read(interp, owner, type(owner), name))


@operation_of("types.ModuleType", "__getattribute__", counts=1)
def _module_getattribute(interp: Interpreter, owner: types.ModuleType, name: str) -> object:
    return _present(interp, owner, name, attributes.read_module(interp, owner, name))


def _present(interp: Interpreter, owner: object, name: str, value: object) -> object:
    if value is NULL:
        raise instances.missing(interp, owner, name)
    return value


@method(object, "__eq__", "__ne__")
@method(type, "__eq__")
def _object_eq(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1:
        return interp.native(getattr(object, name), owner, *args, **kwargs)
    if name == "__ne__":
        return operators.rich(interp, "__ne__", owner, args[0])
    return True if operators.identical(interp, owner, args[0]) else NotImplemented


operation_of("object", "__str__")(text.to_repr)


@operation_of("object", "__repr__")
def _object_repr(interp: Interpreter, owner: object) -> object:
    interp.pin(owner)
    return interp.unread(object.__repr__, owner)


@method(object, "__format__")
def _object_format(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if args == [""]:
        return text.to_str(interp, owner)
    return interp.native(object.__format__, owner, *args)


@method(object, "__hash__", "__dir__", "__sizeof__", "__subclasshook__", "__lt__", "__le__", "__gt__", "__ge__")
@method(type, "__hash__")
def _object_plain(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return interp.native(getattr(object, name), owner, *args, **kwargs)


@method(object, "__reduce_ex__", "__reduce__")
def _object_reduce(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    facts = interp.types
    asked = is_a(facts.lookup(type(owner), "__getattribute__"), types.FunctionType)
    old = name == "__reduce__" or not args or type(args[0]) is not int or args[0] < 2
    if name == "__reduce_ex__":
        custom = facts.lookup(type(owner), "__reduce__")
        bound = interp.try_attr(owner, "__reduce__") if asked else NULL  # as C code looks it up, also if it is object's
        if custom is not NULL and custom is not object.__reduce__:  # also of a C class: an exception's, an iterator's
            return interp.call(custom, [owner]) if bound is NULL else interp.call(bound, [])
    if asked and old:
        raise native_handlers.unknown_native(getattr(object, name))  # it would run natively
    if asked:
        return _reduce_with_hooks(interp, owner)
    for hook in ("__getstate__", "__getnewargs_ex__", "__getnewargs__"):
        if is_a(facts.lookup(type(owner), hook), types.FunctionType):
            return _reduce_with_hooks(interp, owner)
    if interp.is_outer(owner) and not (is_heap(type(owner)) or is_a(owner, CONTAINERS)):
        return interp.native(getattr(object, name), owner, *args, **kwargs)
    if not old and is_a(owner, _WITH_ITEMS):
        return _reduce_with_hooks(interp, owner)
    if interp.is_outer(owner) and not is_a(owner, CONTAINERS):
        if old:
            raise native_handlers.unknown_native(getattr(object, name))  # another way to copy, with other errors
        return _reduce_with_hooks(interp, owner)
    return interp.native(getattr(object, name), interp.shadow(owner), *args, **kwargs)


def _reduce_with_hooks(interp: Interpreter, owner: object) -> Any:
    """`object.__reduce_ex__(2)` for a plain instance, its hooks interpreted."""
    cls = type(owner)
    items = is_a(owner, _WITH_ITEMS)
    if (is_a(owner, CONTAINERS) and not items) or interp.types.lookup(cls, "__getnewargs_ex__") is not NULL:
        raise _not_copied(cls)
    args: tuple[Any, ...] = (cls,)
    hook = interp.types.lookup(cls, "__getnewargs__")
    if is_a(hook, types.FunctionType):
        given = interp.call(hook, [owner])
        if not is_a(given, tuple):
            raise interp.throw(TypeError(f"__getnewargs__ should return a tuple, not '{_C.type_name(type(given))}'"))
        args += tuple(iteration.to_list(interp, given))
    elif hook is not NULL:  # of a class derived from str, bytes, a number...
        args += interp.native(hook, owner)
    own = interp.types.lookup(cls, "__getstate__") is object.__getstate__
    if own and len(args) == 1 and not items and _holds_more(cls, len(_slot_names(interp, cls))):
        raise _not_copied(cls)
    state = _state(interp, owner)
    listed = iteration.get_iter(interp, owner) if is_a(owner, list) else None
    return (copyreg.__newobj__, args, state, listed, _items(interp, owner) if is_a(owner, dict) else None)  # type: ignore[attr-defined]


_WITH_ITEMS = (list, dict)


def _items(interp: Interpreter, owner: object) -> object:
    return iteration.get_iter(interp, interp.call(interp.getattr(owner, "items"), []))


def _state(interp: Interpreter, owner: object) -> object:
    """What `__getstate__` gives."""
    getstate = interp.getattr(owner, "__getstate__")
    hook = interp.types.lookup(type(owner), "__getstate__")
    if hook is object.__getstate__ and is_a(getstate, types.BuiltinMethodType):
        bound = getstate.__self__
        if bound is owner or bound is interp.shadow(owner):
            return _object_getstate(interp, owner)
    return interp.call(getstate, [])


@operation_of("object", "__getstate__")
def _object_getstate(interp: Interpreter, owner: object) -> object:
    namespace = _own_namespace(interp, owner)
    state = None if namespace is NULL else dict(interp.shadow(namespace)) or None
    slots = _slot_state(interp, owner)
    return (state, slots) if slots else state


@method(collections.OrderedDict, "__reduce__")
def _ordered_reduce(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    entry = interp.state.shadow_origin.get(id(owner))  # the attributes are read of what it stands for
    state = _state(interp, owner if entry is None else entry.original)
    return type(owner), (), state, None, _items(interp, owner)


def _own_namespace(interp: Interpreter, owner: object) -> object:
    """An instance's `__dict__`, which copying takes past a `__getattribute__` of the class; NULL without one."""
    if is_a(interp.types.lookup(type(owner), "__getattribute__"), types.FunctionType):
        return attributes.generic_read(interp, owner, "__dict__")
    return interp.try_attr(owner, "__dict__")


def _slot_state(interp: Interpreter, owner: object) -> dict[str, object]:
    slots = {}
    for name in _slot_names(interp, type(owner)):
        held = interp.try_attr(owner, name)
        if held is not NULL:
            slots[name] = held
    return slots


def _holds_more(cls: type, slots: int) -> bool:
    """Whether objects of a class have more than a namespace and slots: fields of C code, which are not copied."""
    known = slots + (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0)
    return cls.__basicsize__ > object.__basicsize__ + known * tuple.__itemsize__


def _slot_names(interp: Interpreter, cls: type) -> list[str]:
    """What `__slots__` of the class and its bases said when it was first asked, which copyreg notes in the class."""
    facts = interp.types
    facts.rely_on(cls)
    facts.names.add("__slotnames__")
    known = vars(cls).get("__slotnames__")
    if any((id(klass), name) in facts.overlay for klass in cls.__mro__ for name in ("__slots__", "__slotnames__")):
        raise _not_copied(cls)
    if known is None:
        if "__slotnames__" in vars(cls):
            return []
        known = interp.unread(copyreg._slotnames, cls)  # type: ignore[attr-defined]
        facts.forget()
    if type(known) is not list or not all(type(name) is str for name in known):
        raise _not_copied(cls)
    return list(interp.shadow(attributes.class_value(interp, cls, "__slotnames__", known)))


def _not_copied(cls: type) -> BaseException:
    return graph_break(kind="copying an object", context=cls.__name__)


@method(object, "__init_subclass__")
def _init_subclass(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return interp.native(object.__init_subclass__, *args, **kwargs)


def _object_init_subclass(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if args or kwargs:
        return interp.native(fn, *args, **kwargs)
    return None


add_class_methods(object, _object_init_subclass, "__init_subclass__")
add_class_methods(object, lambda interp, fn, args, kwargs: NotImplemented, "__subclasshook__")


@method(type, "__call__")
def _type_call(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    return classes.type_call(interp, owner, args, kwargs)


@method(type, "__new__")
def _type_new(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return classes.new_type(interp, args[0], args[1:], kwargs)


@method(type, "__init__")
def _type_init(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return None


@method(type, "__instancecheck__", "__subclasscheck__")
def _type_check(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    if type(value) is generators.TracedGenerator:
        return owner is types.GeneratorType or owner is object
    return interp.native(getattr(type, name), owner, *args)


add_methods(type, read_only, "mro __or__ __ror__ __repr__ __prepare__ __dir__ __sizeof__")
add_class_methods(type, lambda interp, fn, args, kwargs: {}, "__prepare__")


add_methods(types.FunctionType, keeping, "__get__")


@method(types.FunctionType, "__call__")
@method(types.MethodType, "__call__")
@method(types.BuiltinFunctionType, "__call__")
def _function_call(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    return interp.call(owner, args, kwargs)


@method(types.MethodType, "__reduce__")
@method(types.BuiltinFunctionType, "__reduce__")
def _reduce_of_bound(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """What pickle makes a bound method from: the object is the program's, and is read as such."""
    held = interp.getattr(owner, "__self__")
    if args or kwargs or held is None or type(held) is types.ModuleType:
        return interp.native(getattr(cls, name), owner, *args, **kwargs)
    return getattr, (held, interp.getattr(owner, "__name__"))


def _object_to_bind(args: Args) -> Any:
    """The object in the arguments of a `__get__`, for which None stands for none."""
    return NULL if args[0] is None else args[0]


def _class_to_bind(interp: Interpreter, args: Args) -> Any:
    """The class in the arguments of a `__get__`; that of the object where none is given."""
    if args[0] is None and (len(args) < 2 or args[1] is None):
        raise interp.throw(TypeError("__get__(None, None) is invalid"))
    return args[1] if len(args) > 1 and args[1] is not None else type(args[0])


@method(types.MethodType, "__get__[python>=3.13]", "__eq__", "__hash__")
@method(types.BuiltinFunctionType, "__eq__", "__hash__")
@method(types.MethodDescriptorType, "__get__", "__call__")
@method(types.WrapperDescriptorType, "__get__", "__call__")
@method(types.MemberDescriptorType, "__get__", "__set__", "__delete__")
@method(types.GetSetDescriptorType, "__get__", "__set__", "__delete__")
def _descriptor(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    if name == "__call__":
        return interp.call(owner, args, kwargs)
    if name == "__get__" and args:
        return descriptors.bind(interp, owner, _object_to_bind(args), _class_to_bind(interp, args))
    if name in ("__set__", "__delete__") and args and interp.is_outer(args[0]):
        interp.state.write_overlay(args[0], owner.__name__, args[1] if name == "__set__" else DELETED)
        return None
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


@method(property, "__get__", "__set__", "__delete__", "getter", "setter", "deleter", "__init__")
@method(classmethod, "__get__", "__init__")
@method(staticmethod, "__get__", "__init__", "__call__")
def _property_methods(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    if name == "__get__" and args:
        return descriptors.bind(interp, owner, _object_to_bind(args), _class_to_bind(interp, args), "")
    part = {"__set__": "fset", "__delete__": "fdel"}.get(name)
    function = None if part is None or cls is not property else c_part(property, owner, part)
    if function is not None:
        return interp.call(function, args)
    if name == "__call__":
        return interp.call(c_part(staticmethod, owner, "__func__"), args, kwargs)
    if name == "__init__" and not interp.is_outer(owner) and all(type(f) is types.FunctionType for f in args[:1]):
        # Stored, but for a function's own text, which captured code may have written.
        if cls is not property or not args or _is_as_it_was(interp, args[0]):
            return interp.unread(getattr(cls, name), owner, *args, **kwargs)
    return interp.native(getattr(cls, name), owner, *args, **kwargs)


def _is_as_it_was(interp: Interpreter, function: object) -> bool:
    """Whether a function's text is that which native code sees; it is guarded."""
    return interp.try_attr(function, "__doc__") is c_part(types.FunctionType, function, "__doc__")


operation_of("super", "__getattribute__", counts=1)(lambda interp, owner, name: interp.getattr(owner, name))
add_methods(super, keeping, "__init__")
add_methods(types.CellType, comparing, COMPARISONS)
add_methods(types.SimpleNamespace, keeping, "__init__")
add_methods(types.SimpleNamespace, textual, "__repr__")
add_methods(types.SimpleNamespace, comparing, COMPARISONS)


# ---- exceptions ----------------------------------------------------------------------------------------------------


def _exception_text(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    args = vars(BaseException)["args"].__get__(owner)
    if not all(interp.benign(arg) for arg in args):
        if name == "__str__" and getattr(cls, name) is BaseException.__str__:
            return text.to_str(interp, args[0] if len(args) == 1 else args)
        if name == "__repr__" and getattr(cls, name) is BaseException.__repr__:
            shown = text.to_repr(interp, args)
            return type(owner).__name__ + (f"({text.to_repr(interp, args[0])})" if len(args) == 1 else shown)
        raise python_object_in_native(getattr(cls, name), owner)
    return interp.native(getattr(cls, name), interp.shadow(owner))


def _exception_change(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    if interp.is_outer(owner):
        raise graph_break(kind="exception from outside", context=f"{type(owner).__name__}.{name}")
    return keeping(interp, cls, name, owner, args, kwargs)


def _all_exceptions(cls: type) -> list[type]:
    classes = [cls]
    below: list[type] = type.__subclasses__(cls)
    for sub in below:
        if sub.__module__ == "builtins":
            classes += _all_exceptions(sub)
    return classes


_cls: Any
for _cls in _all_exceptions(BaseException):
    for _handler, _names in (
        (_exception_change, ("__init__", "with_traceback", "add_note", "__setstate__", "__reduce__")),
        (_exception_text, ("__str__", "__repr__")),
    ):
        add_methods(_cls, _handler, " ".join(name for name in _names if name in vars(_cls)))


@method(BaseExceptionGroup, "split", "subgroup", "derive")
def _group(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    ready = []
    for arg in args:
        if not is_a(arg, type) and interp.is_callable(arg):
            ready.append(interp.trampoline(arg))
        else:
            ready.append(interp.plain(arg))
    return interp.native(getattr(cls, name), owner, *ready)


@function(typing.get_type_hints)
def _type_hints(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Interpreted for functions: each call may bring another function of the same code with other annotations."""
    if args and is_a(args[0], type) and id(args[0]) in interp.local_classes:
        return interp.native(fn, *[interp.plain(arg) for arg in args], **kwargs)
    return NotImplemented


@function(inspect.signature, inspect.getfullargspec)
def _signature(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Which function it is matters: another one of the same code may have other defaults and annotations."""
    function = args[0].__func__ if args and type(args[0]) is types.MethodType else args[0] if args else None
    if is_a(function, type) and id(function) not in interp.local_classes:
        return NotImplemented  # interpreted: it reads what the class and its metaclass have
    if len(args) == 1 and not kwargs and is_a(function, torch.nn.Module):
        called = interp.types.lookup(type(function), "__call__")
        if type(called) is types.FunctionType and interp.try_attr(function, "__signature__") is NULL:
            return _signature(interp, fn, [types.MethodType(called, function)], {})
    known = len(args) == 1 and not kwargs
    wrapping: set[int] = set()
    while known and function is not NULL:
        plain = type(function) is types.FunctionType and _has_plain_signature(interp, function)
        known = plain and id(function) not in wrapping
        wrapping.add(id(function))
        function = interp.try_attr(function, "__wrapped__") if known else NULL
    return interp.unread(fn, *args) if known else pure(interp, fn, args, kwargs)


def _has_plain_signature(interp: Interpreter, function: Function) -> bool:
    """Guard what the signature of a function is made of; whether that is all."""
    interp.load_function(function)
    interp.pin(function)
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
        interp.plain(interp.getattr(function, name))
    others = ("__signature__", "_partialmethod", "__partialmethod__", "__text_signature__")
    return all(interp.try_attr(function, name) is NULL for name in others)  # has none, and that is guarded
