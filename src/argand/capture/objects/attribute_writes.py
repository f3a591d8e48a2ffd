"""Attributes set and deleted: really on local objects, as pending writes on those that existed before the frame."""

from __future__ import annotations

import threading
import types
from types import ModuleType
from typing import Any

import torch

from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import c_part, is_a
from argand.capture.facts.typefacts import CONTAINERS, is_heap, sets_attributes_its_own_way
from argand.capture.objects import attributes, descriptors, instances, weak_proxies
from argand.capture.objects.weak_proxies import PROXIES
from argand.capture.record import tensor_attributes
from argand.capture.sizes import hook_ids
from argand.errors import graph_break
from argand.graph import wrappers

# ---- writes --------------------------------------------------------------------------------------------------------


def store_attr(interp: Interpreter, obj: object, name: str, value: object) -> None:
    """`obj.name = value`."""
    if type(obj) in PROXIES:
        obj = weak_proxies.behind(interp, obj)
    cls = type(obj)
    if interp.is_tensor(obj) and cls in interp.fast:
        interp.tensor_setattr(obj, name, value)
        return
    setter = interp.types.lookup(cls, "__setattr__")
    if attributes.is_own_hook(setter):
        attributes.call_hook(interp, setter, obj, name, value)
        return
    if setter.__name__ != "__setattr__":
        interp.call(setter, (obj, name, value))
        return
    if sets_attributes_its_own_way(cls):  # a proxy, an object with a namespace for each thread
        if setter is threading.local.__setattr__ and attributes.of_this_thread(interp, obj, name):
            attributes.written_namespace(interp, obj)[name] = value
        else:
            interp.native(setattr, obj, name, value)
        return
    generic_write(interp, obj, name, value)


def generic_write(interp: Interpreter, obj: object, name: str, value: object) -> None:
    """`object.__setattr__` (or `type.__setattr__`)."""
    if is_a(obj, type):
        _write_class(interp, obj, name, value)
        return
    if is_a(obj, types.ModuleType):
        _write_module(interp, obj, name, value)
        return
    cls = type(obj)
    if wrappers.holds_parts(cls):
        raise tensor_attributes.of_wrapper(cls, name)
    facts = interp.types
    meta = facts.lookup(cls, name)
    if meta is not NULL:
        if _through_descriptor(interp, meta, obj, name, "setter", (value,)):
            return
        if facts.lookup(type(meta), "__set__") is not NULL:
            if interp.is_outer(obj):
                _refuse_native(meta, obj, name, value)
                instances.write_outer(interp, obj, name, value)
            else:
                run = interp.unread if type(meta) in descriptors.MEMBERS else interp.native
                run(meta.__set__, obj, value)
            return
    instances.write_instance(interp, obj, name, value)


_DESCRIPTOR_METHODS = {"setter": ("fset", "__set__"), "deleter": ("fdel", "__delete__")}


def _through_descriptor(
    interp: Interpreter, meta: object, obj: object, name: str, what: str, values: tuple[object, ...]
) -> bool:
    """Set or delete by a property, or by a descriptor whose method is Python; False where `meta` is neither."""
    of_property, special = _DESCRIPTOR_METHODS[what]
    if type(meta) is property:
        function = getattr(meta, of_property)
        if function is None:
            raise interp.throw(descriptors.property_error(meta, obj, name, what))
        interp.call(function, (obj, *values))
        return True
    method = interp.types.lookup(type(meta), special)
    if is_a(method, types.FunctionType):
        interp.call(method, (meta, obj, *values))
        return True
    return False


_ACCEPTED: dict[str, object] = {
    "__name__": str, "__qualname__": str, "__doc__": object, "__dict__": dict, "__annotations__": dict, "args": tuple,
    "__traceback__": types.TracebackType | None, "__cause__": BaseException | None,
    "__context__": BaseException | None, "__suppress_context__": bool, "__class__": object,
}  # fmt: skip


_OF_FUNCTIONS: dict[str, object] = {
    "to_save": tuple, "non_differentiable": tuple, "dirty_tensors": tuple, "materialize_grads": bool,
}  # fmt: skip
"""What the context of a `torch.autograd.Function` keeps for autograd, which looks at it once the function returned."""


def _refuse_native(meta: object, obj: object, name: str, *values: object) -> None:
    """End the graph where C code of a class checks or converts what is written, or does something else with it."""
    if type(meta) is types.MemberDescriptorType and is_heap(meta.__objclass__):
        return
    if values and name in _OF_FUNCTIONS and is_a(obj, torch._C._FunctionBase) and is_a(values[0], _OF_FUNCTIONS[name]):
        return
    accepts = is_a(obj, types.FunctionType | BaseException) or name in ("__dict__", "__class__")
    if (
        accepts
        and values
        and name in _ACCEPTED
        and is_a(values[0], _ACCEPTED[name])
        and type(meta) in descriptors.MEMBERS
    ):
        return
    raise graph_break(
        kind="native attribute written",
        context=f"{type(obj).__name__}.{name}",
        explanation=f"The attribute {name} of {type(obj).__name__} is kept by native code, which may refuse the value.",
    )


def _write_class(interp: Interpreter, cls: type, name: str, value: object) -> None:
    meta_attr = NULL if hook_ids.is_count(cls, name) else interp.types.lookup(type(cls), name)
    if meta_attr is not NULL:
        setter = interp.types.lookup(type(meta_attr), "__set__")
        if is_a(meta_attr, property):
            interp.call(c_part(property, meta_attr, "fset"), (cls, value))
            return
        if is_a(setter, types.FunctionType):
            interp.call(setter, (meta_attr, cls, value))
            return
    interp.types.forget()
    interp.renew_facts()
    if id(cls) in interp.local_classes:
        interp.unread(type.__setattr__, cls, name, value)
        return
    if not is_heap(cls):
        interp.unread(type.__setattr__, cls, name, value)
        return
    if type(meta_attr) in descriptors.MEMBERS:
        _refuse_native(None, cls, name)
    interp.load_class(cls)
    interp.types.overlay[id(cls), name] = value
    interp.types.rely_on(cls)
    interp.state.write_overlay(cls, name, value)


_namespace: Function = vars(types.ModuleType)["__dict__"].__get__  # past a `__getattribute__` of the module's own


def _write_module(interp: Interpreter, module: ModuleType, name: str, value: Any) -> None:
    if type(module) is not types.ModuleType and interp.types.python_level(type(module), "__setattr__"):
        raise graph_break(kind="module attribute written", context=f"{module.__name__}.{name}")
    meta = interp.types.lookup(type(module), name)
    if meta is not NULL and descriptors.is_data_descriptor(interp.types, type(meta)):
        interp.note_class(type(module))
        if _through_descriptor(interp, meta, module, name, "setter", (value,)):
            return
        _refuse_native(meta, module, name)
    interp.module_values[id(module), name] = value
    namespace = _namespace(module)
    interp.global_values[id(namespace), name] = value
    interp.state.write_global(namespace, name, value)


# ---- deletions -----------------------------------------------------------------------------------------------------


def delete_attr(interp: Interpreter, obj: object, name: str) -> None:
    """`del obj.name`."""
    if type(obj) in PROXIES:
        obj = weak_proxies.behind(interp, obj)
    cls = type(obj)
    deleter = interp.types.lookup(cls, "__delattr__")
    if attributes.is_own_hook(deleter):
        attributes.call_hook(interp, deleter, obj, name)
        return
    if deleter is threading.local.__delattr__ and attributes.of_this_thread(interp, obj, name):
        if attributes.written_namespace(interp, obj).pop(name, NULL) is NULL:
            raise instances.undeletable(interp, obj, name)
        return
    generic_delete(interp, obj, name)


def generic_delete(interp: Interpreter, obj: object, name: str) -> None:
    """`object.__delattr__` (or `type.__delattr__`)."""
    if interp.is_tensor(obj) or is_a(obj, types.ModuleType):
        if interp.is_tensor(obj) and tensor_attributes.delete(interp, obj, name):
            return
        raise graph_break(kind="attribute deleted", context=f"{type(obj).__name__}.{name}")
    if is_a(obj, type):
        _delete_class_attr(interp, obj, name)
        return
    cls = type(obj)
    facts = interp.types
    meta = facts.lookup(cls, name)
    if meta is not NULL and _through_descriptor(interp, meta, obj, name, "deleter", ()):
        return
    if type(obj) is types.FunctionType:
        interp.load_function(obj)
    if interp.is_outer(obj):
        if meta is not NULL and facts.lookup(type(meta), "__delete__") is not NULL:
            _refuse_native(meta, obj, name)
        if generic_is_absent(interp, obj, name):
            raise instances.undeletable(interp, obj, name)
        if is_a(obj, CONTAINERS):
            interp.unread(delattr, interp.shadow(obj), name)
        else:
            interp.state.delete_overlay(obj, name)
        return
    target = interp.shadow(obj)
    interp.unread(delattr if is_a(target, types.FunctionType) else object.__delattr__, target, name)


def generic_is_absent(interp: Interpreter, obj: object, name: str) -> bool:
    """Whether an outer object has no attribute of its own by this name."""
    meta = interp.types.lookup(type(obj), name)
    if meta is not NULL and type(meta) in descriptors.MEMBERS:
        try:
            descriptors.read_member(interp, meta, obj, type(obj))
        except ObservedException:
            return True
        return False
    return instances.own_value(interp, obj, name) is NULL


def _delete_class_attr(interp: Interpreter, cls: type, name: str) -> None:
    if id(cls) in interp.local_classes:
        interp.types.forget()
        interp.renew_facts()
        interp.unread(type.__delattr__, cls, name)
        return
    if name not in type.__dict__["__dict__"].__get__(cls):
        interp.types.whole = True  # what it inherits is no answer
        interp.unread(type.__delattr__, cls, name)  # raises
    raise graph_break(kind="class attribute deleted", context=f"{cls.__name__}.{name}")
