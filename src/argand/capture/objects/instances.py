"""What an instance holds itself: its namespace, read under guards and written as pending writes where it is outer."""

from __future__ import annotations

import threading
import types

from argand._core import _C
from argand.capture.facts import classify
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, STOP
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, mro_of, namespace
from argand.capture.facts.overlays import DELETED
from argand.capture.facts.sources import DictItemSource
from argand.capture.facts.sources import instance_dict as instance_dict_source
from argand.capture.facts.typefacts import CONTAINERS, is_heap
from argand.capture.objects import weak_proxies
from argand.capture.record import tensor_attributes
from argand.errors import graph_break
from argand.graph import wrappers


def own_dict(obj: object) -> dict[str, object] | None:
    """The namespace of an object as it is, None if it has none."""
    attributes = namespace(obj)
    return attributes if is_a(attributes, dict) else None


def own_value(interp: Interpreter, obj: object, name: str) -> object:
    """Item of the instance's own dict, NULL if absent."""
    if not interp.is_outer(obj):
        obj_dict = own_dict(interp.shadow(obj))
        local = NULL if obj_dict is None else obj_dict.get(name, NULL)
        return tensor_attributes.read(interp.state, obj, name) if local is NULL and interp.is_tensor(obj) else local
    written = interp.read_overlay(obj, name)
    if written is not NULL:
        return NULL if written is DELETED else written
    values = interp.attr_values.get(id(obj))
    if values is None:
        values = interp.attr_values[id(obj)] = {}
    known = values.get(name, STOP)
    if known is not STOP:
        return known
    obj_dict = own_dict(obj)
    value: object = NULL
    if obj_dict is not None:
        base = instance_dict_source(interp.types, interp.source(obj), obj)
        if name in obj_dict:
            value = interp.state.load_source(DictItemSource(base, name), obj_dict[name])
        elif is_a(obj, CONTAINERS) and id(obj) in interp.state.shadows:
            value = own_dict(interp.shadow(obj)).get(name, NULL)  # type: ignore[union-attr]
        else:
            interp.state.guard(base, "not_has_key", name)
    values[name] = value
    return value


def instance_dict(interp: Interpreter, obj: object) -> object:
    """`obj.__dict__`: that of an outer object is an outer dict, which has its pending writes, too."""
    if wrappers.holds_parts(type(obj)):
        raise tensor_attributes.of_wrapper(type(obj), "__dict__")
    if not interp.is_outer(obj):
        if interp.is_tensor(obj):
            return tensor_attributes.namespace(interp.state, obj)
        own = interp.unread(object.__getattribute__, interp.shadow(obj), "__dict__")
        interp.state.namespaces[id(own)] = obj
        return own
    real = own_dict(obj)
    if real is None:
        raise missing(interp, obj, "__dict__")
    if is_a(obj, CONTAINERS):  # `shadows` takes an OrderedDict without attributes as it is
        interp.state.guard(instance_dict_source(interp.types, interp.source(obj), obj), "dict_keys", tuple(real))
        return own_dict(interp.shadow(obj))
    interp.state.load_source(instance_dict_source(interp.types, interp.source(obj), obj), real)
    interp.attr_values.pop(id(obj), None)
    return real


def write_instance(interp: Interpreter, obj: object, name: str, value: object) -> None:
    """Set an item of the instance's own dict."""
    if type(obj) is types.FunctionType:
        interp.load_function(obj)
    if interp.is_outer(obj):
        if own_dict(obj) is None:
            interp.unread(_setter_of(obj), obj, name, value)  # raises: there is nowhere to write to
        write_outer(interp, obj, name, value)
        return
    target = interp.shadow(obj)
    if interp.is_tensor(target):
        tensor_attributes.refuse_write(interp.state, target, name)
    if is_a(target, types.FunctionType):
        interp.unread(setattr, target, name, value)
    else:
        interp.unread(_setter_of(target), target, name, value)


def _setter_of(obj: object) -> Function:
    return object.__setattr__ if is_heap(type(obj)) and not is_a(obj, type) else type(obj).__setattr__


def write_outer(interp: Interpreter, obj: object, name: str, value: object) -> None:
    """A pending write of an attribute of an outer object."""
    if is_a(obj, CONTAINERS) and own_dict(obj) is not None:
        # A container subclass: its attributes live in the shadow's dict, written back with it.
        own_dict(interp.shadow(obj))[name] = value  # type: ignore[index]
        return
    if name == "__class__":
        raise graph_break(kind="class of an object changed", context=type(obj).__name__)
    if interp.state.overlay_names(obj).get(name) is DELETED and not classify.is_slot(type(obj), name):
        interp.shadow(instance_dict(interp, obj))  # it comes last from now on, which setting it would not say
    interp.state.write_overlay(obj, name, value)


def missing(interp: Interpreter, obj: object, name: str) -> ObservedException:
    """The AttributeError for an attribute that is not there. Bound methods and weak proxies ask another object."""
    while type(obj) is types.MethodType:
        obj = obj.__func__
    if type(obj) in weak_proxies.PROXIES:
        obj = weak_proxies.behind(interp, obj)
    if is_a(obj, type):
        text = f"type object '{_C.type_name(obj)}' has no attribute '{name}'"
    elif is_a(obj, types.ModuleType):
        text = f"module '{obj.__name__}' has no attribute '{name}'"
    else:
        text = f"'{_C.type_name(type(obj))}' object has no attribute '{name}'"
    return interp.throw(AttributeError(text, name=name, obj=obj))


def undeletable(interp: Interpreter, obj: object, name: str) -> ObservedException:
    """The AttributeError for the deletion of an attribute that an outer object does not have."""
    if name not in interp.state.overlay_names(obj) and not _still_has(obj, name):
        own = (vars(klass).get("__delattr__") for klass in mro_of(type(obj)))
        deleter: Function = next(method for method in own if type(method) is types.WrapperDescriptorType)
        try:
            deleter(obj, name)  # raises, in the words of this Python
        except AttributeError as error:
            return interp.throw(error)
    if classify.is_slot(type(obj), name):
        return interp.throw(AttributeError(name))
    return interp.throw(AttributeError(f"'{_C.type_name(type(obj))}' object has no attribute '{name}'"))


def _still_has(obj: object, name: str) -> bool:
    """Whether the real object has what the program has deleted: in a namespace, or a container, that has a shadow."""
    own = threading.local.__getattribute__(obj, "__dict__") if is_a(obj, threading.local) else namespace(obj)
    if name in (own or ()):
        return True
    member = next((vars(klass)[name] for klass in mro_of(type(obj)) if name in vars(klass)), None)
    if type(member) is not types.MemberDescriptorType:
        return False
    try:
        member.__get__(obj)
    except AttributeError:
        return False
    return True


def note_missed(interp: Interpreter, error: BaseException, obj: object, name: str) -> None:
    """What is asked for an attribute notes in an AttributeError, whoever raised it, what was missed."""
    if is_a(error, AttributeError) and error.name is None and error.obj is None and not interp.is_outer(error):
        error.name, error.obj = name, obj
