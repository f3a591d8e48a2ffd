"""The attribute protocol: reads, writes and deletions on every kind of object, in Python's own order of lookup.

Classes are looked up raw (no descriptor runs unseen); what a descriptor does in Python code is interpreted. Objects
that existed before the frame are read under guards and written through the state's overlay.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any, Final

import torch

from argand.capture.facts import classify
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, STOP
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, namespace
from argand.capture.facts.sources import (
    AttrSource,
    CallSource,
    ConstSource,
    DictItemSource,
    FreshAttrSource,
    FuncDefaultsTupleSource,
    FuncKwdefaultsDictSource,
    MethodFuncSource,
    MethodSelfSource,
    TypeAttrSource,
)
from argand.capture.facts.sources import instance_dict as instance_dict_source
from argand.capture.facts.typefacts import BOUND_METHODS, finds_attributes_its_own_way, is_heap
from argand.capture.facts.values import ragged_sizes
from argand.capture.facts.values.ragged_sizes import RAGGED
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tainted_values import TaintedText, formatted_tensor
from argand.capture.objects import descriptors, generators, instances, weak_proxies
from argand.capture.objects.weak_proxies import PROXIES
from argand.capture.record import tensor_attributes
from argand.capture.sizes import dtensors, hook_ids, symbolic_ops
from argand.errors import graph_break
from argand.graph import wrappers
from argand.graph.dtensors import is_sharded
from argand.graph.nested_tensors import Jagged, is_jagged
from argand.own_code import OWN_FOLDER

_PLAIN: Final = frozenset({list, tuple, dict, set, frozenset})


# ---- entry points --------------------------------------------------------------------------------------------------


def load_attr(interp: Interpreter, obj: object, name: str) -> object:
    """`obj.name`; AttributeError as the program would see it."""
    try:
        value = read(interp, obj, name)
    except ObservedException as observed:
        instances.note_missed(interp, observed.value, obj, name)
        raise
    if value is NULL:
        raise instances.missing(interp, obj, name)
    return value


def try_attr(interp: Interpreter, obj: object, name: str) -> object:
    """`getattr(obj, name, NULL)`: only AttributeError counts as absence."""
    try:
        return read(interp, obj, name)
    except ObservedException as observed:
        if is_a(observed.value, AttributeError):
            return NULL
        raise


def read(interp: Interpreter, obj: Any, name: str) -> object:
    """`obj.name`, or NULL where CPython's default lookup finds nothing (hooks of the class have been asked)."""
    cls = type(obj)
    if cls in interp.fast or cls in _PLAIN or cls is generators.TracedGenerator:
        return _read_native(interp, obj, name)
    if cls in PROXIES and (shown := weak_proxies.behind(interp, obj)) is not obj:
        return read(interp, shown, name)
    if cls is types.FunctionType:
        return _read_function(interp, obj, name)
    if cls in SYMBOLIC:
        return symbolic_ops.read(obj, name)
    if is_a(obj, types.ModuleType):
        if is_own_hook(interp.types.lookup(cls, "__getattribute__")):
            return _read_instance(interp, obj, name)
        return read_module(interp, obj, name)
    if is_a(obj, type):
        return _read_class(interp, obj, name)
    if cls is types.MethodType:
        return _read_method(interp, obj, name)
    if cls is TaintedText:
        raise formatted_tensor(obj)
    if cls is RAGGED and name != "__class__":
        raise ragged_sizes.refused(name)
    if issubclass(cls, super):
        return _read_super(interp, obj, name)
    if cls is types.TracebackType:
        raise graph_break(kind="traceback inspected", context=name)
    if cls in wrappers.KNOWN and (info := interp.state.tensors.get(id(obj))) is not None:
        dtensors.check_namespace(interp.state, info)
    if name in ("_local_tensor", "_spec") and is_sharded(cls) and id(obj) in interp.state.tensors:
        return dtensors.attribute(interp.state, obj, name)
    if name == "_strides" and is_jagged(cls) and any(type(step) in SYMBOLIC for step in _steps(interp, obj)):
        raise ragged_sizes.refused("stride")
    if name == "_values" and is_jagged(cls) and not _in_nested(interp):
        raise graph_break(
            kind="part of torch that is not captured",
            context="NestedTensor._values",
            explanation="What a nested tensor keeps as its values records no gradient, unlike what a graph has.",
            hints=("Use `x.values()`.",),
        )
    return _read_instance(interp, obj, name)


def _steps(interp: Interpreter, tensor: Jagged) -> Iterable[object]:
    """The strides of the values of a nested tensor."""
    steps: Iterable[object] = interp.call(torch.Tensor.stride, (tensor._values,))
    return steps


def _in_nested(interp: Interpreter) -> bool:
    """Whether the code that runs is torch's of nested tensors, or argand's in place of that."""
    file = interp.frames[-1].program.code.co_filename
    return file.startswith((OWN_FOLDER, os.path.join(os.path.dirname(torch.__file__), "nested")))


def _read_native(interp: Interpreter, obj: object, name: str) -> object:
    if interp.is_tensor(obj):
        if tensor_attributes.of_the_program(interp.types.lookup(type(obj), name)):
            return generic_read(interp, obj, name)
        return interp.tensor_attr(obj, name)
    if name == "__class__":
        return types.GeneratorType if type(obj) is generators.TracedGenerator else type(obj)
    if type(obj) is types.GenericAlias:
        value = _read_alias(interp, obj, name)
        if value is not NULL:
            return value
    try:
        return getattr(obj, name)
    except AttributeError as e:
        if type(obj) not in _TELLS_MORE:
            return NULL
        error: Exception = e
    except Exception as e:
        error = e
    raise interp.observe(error)


def _read_alias(interp: Interpreter, alias: types.GenericAlias, name: str) -> object:
    """Of `Table[int]`, what only its class knows, or NULL."""
    if name[:2] != "__":
        return read(interp, alias.__origin__, name)
    value = getattr(alias, name, NULL)
    if not interp.is_constant(value):
        raise graph_break(
            kind="native object from outside",
            context=f"{name} of a type hint",
            explanation=f"The {name} of {alias!r} holds objects that no source is known of.",
        )
    return value


_TELLS_MORE: Final = frozenset({types.GenericAlias, types.UnionType})
"""Classes that find attributes in their own way and say so in their own words."""


def load_method(interp: Interpreter, obj: object, name: str) -> tuple[object, object]:
    """(function, obj) where the attribute is a plain method, else (value, NULL)."""
    if type(obj) in PROXIES:
        obj = weak_proxies.behind(interp, obj)
    cls = type(obj)
    if cls in interp.fast:
        value = load_attr(interp, obj, name)
        if type(value) is types.BuiltinFunctionType and value.__self__ is obj:
            method = interp.types.lookup(cls, name)
            if type(method) is types.MethodDescriptorType:
                return method, obj
        return value, NULL
    if is_a(obj, type | types.ModuleType) or cls is super or cls in _PLAIN or cls in SYMBOLIC:
        return load_attr(interp, obj, name), NULL
    facts = interp.types
    getter = facts.lookup(cls, "__getattribute__")
    if getter is object.__getattribute__ or (
        type(getter) is types.WrapperDescriptorType and not finds_attributes_its_own_way(cls)
    ):
        method = facts.lookup(cls, name)
        if _unbound(method) and instances.own_value(interp, obj, name) is NULL:
            interp.note_class(cls)
            return descriptors.function_of(interp, method, cls), obj
    return load_attr(interp, obj, name), NULL


def _unbound(method: object) -> bool:
    """Whether CPython calls a method without binding it first: messages name the class that has it."""
    return type(method) is types.MethodDescriptorType or type(method) is types.FunctionType


# ---- instances -----------------------------------------------------------------------------------------------------


def is_own_hook(hook: object) -> bool:
    """Whether a `__getattribute__`, `__setattr__` or `__delattr__` is other than the C code of a builtin class."""
    return type(hook) is not types.WrapperDescriptorType


def call_hook(interp: Interpreter, hook: object, obj: object, *args: object) -> Any:
    """What such a hook of the class of `obj` answers: whatever was put there, CPython binds and calls it."""
    if type(hook) is types.FunctionType:
        return interp.call(hook, (obj, *args))
    return interp.call(descriptors.bind(interp, hook, obj, type(obj)), args)


def _read_instance(interp: Interpreter, obj: object, name: str) -> object:
    cls = type(obj)
    facts = interp.types
    getter = facts.lookup(cls, "__getattribute__")
    own_getter = is_own_hook(getter)
    if is_a(obj, enum.Enum):
        interp.load_member(obj)
    if cls is torch._ops.OpOverloadPacket:
        getattr(obj, name, None)  # which looks an overload up and keeps it when it is asked for first
    if not own_getter and finds_attributes_its_own_way(cls):
        return _read_natively(interp, obj, name)
    hook = facts.lookup(cls, "__getattr__")
    if hook is NULL:
        return call_hook(interp, getter, obj, name) if own_getter else generic_read(interp, obj, name)
    try:
        value = call_hook(interp, getter, obj, name) if own_getter else generic_read(interp, obj, name)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError):
            raise
        value = NULL
    if value is not NULL:
        return value
    special = _module_attr(interp, obj, name, hook)
    if special is not NULL:
        return special
    return interp.call(descriptors.bind(interp, hook, obj, cls), (name,))


def _is_module_hook(hook: object) -> bool:
    """Whether a `__getattr__` is nn.Module's as torch wrote it, and not what a program put in its place."""
    if not is_a(hook, types.FunctionType):
        return False
    code = hook.__code__
    return code.co_name == "__getattr__" and code.co_filename == sys.modules["torch.nn.modules.module"].__file__


def _module_attr(interp: Interpreter, obj: object, name: str, hook: Any) -> object:
    """What `nn.Module.__getattr__` would find, without interpreting it; NULL if this is not its affair.

    The same three tables in the same order, by the same guarded reads that interpreting it makes.
    """
    if not _is_module_hook(hook):
        return NULL
    interp.inlined[id(hook)] = hook
    for table in ("_parameters", "_buffers", "_modules"):
        items = instances.own_value(interp, obj, table)
        if type(items) is not dict:
            return NULL
        if id(items) in interp.outer:
            if interp.outer_has_key(items, name):
                return interp.outer_item(items, name)
        elif name in items:
            return items[name]
    return NULL


def _read_natively(interp: Interpreter, obj: object, name: str) -> object:
    """An attribute of an object whose C class finds attributes in its own way (a proxy, an object with a namespace for
    each thread)."""
    if is_a(obj, threading.local) and interp.is_outer(obj) and _finds_as_local(interp, type(obj)):
        return _read_of_thread(interp, obj, name)
    try:
        return interp.native(getattr, obj, name)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError):
            raise
    return NULL


def _finds_as_local(interp: Interpreter, cls: type) -> bool:
    """Whether a class of objects with a namespace for each thread finds attributes as `threading.local` does. That its
    `__init__` runs once in each thread that asks is so in eager too."""
    lookup = interp.types.lookup
    return lookup(cls, "__getattr__") is NULL and lookup(cls, "__getattribute__") is threading.local.__getattribute__


def thread_namespace(obj: object) -> dict[object, object]:
    """What a `threading.local` holds for the thread that asks (a step of a source): guards ask in the thread that
    calls, and so does transformed code."""
    own: dict[object, object] = threading.local.__getattribute__(obj, "__dict__")  # type: ignore[arg-type]
    return own


def loaded_namespace(interp: Interpreter, obj: object) -> object:
    """The namespace of an outer `threading.local`, an outer dict."""
    return interp.state.load_source(CallSource(interp.source(obj), thread_namespace), thread_namespace(obj))


def written_namespace(interp: Interpreter, obj: object) -> dict[str, object]:
    """Its shadow, for what the program writes."""
    namespace: dict[str, object] = interp.shadow(loaded_namespace(interp, obj))
    return namespace


def of_this_thread(interp: Interpreter, obj: object, name: str) -> bool:
    """Whether setting or deleting an attribute of a `threading.local` does so in its namespace, and nothing else."""
    ours = interp.is_outer(obj) and _finds_as_local(interp, type(obj))
    return ours and name != "__dict__" and interp.types.lookup(type(obj), name) is NULL


def _read_of_thread(interp: Interpreter, obj: object, name: str) -> object:
    namespace = thread_namespace(obj)
    loaded = loaded_namespace(interp, obj)
    if name == "__dict__":
        return loaded
    if interp.types.lookup(type(obj), name) is not NULL:
        return interp.native(getattr, obj, name)
    return interp.getitem(loaded, name) if interp.outer_has_key(namespace, name) else NULL


def generic_read(interp: Interpreter, obj: object, name: str) -> object:
    """`object.__getattribute__`, NULL instead of AttributeError for what is not there."""
    cls = type(obj)
    facts = interp.types
    meta = facts.lookup(cls, name)
    if (
        meta is not NULL
        and descriptors.is_data_descriptor(facts, type(meta))
        and facts.lookup(type(meta), "__get__") is not NULL
    ):
        return descriptors.bind(interp, class_value(interp, cls, name, meta), obj, cls, name)
    value = instances.own_value(interp, obj, name)
    if name == "data" and is_a(obj, weak_proxies.CONTAINERS) and interp.is_outer(obj):
        weak_proxies.check_held(interp, namespace(obj).get(name))
    if meta is NULL:
        return value
    attribute = class_value(interp, cls, name, meta)  # whose type, guarded, tells that it does not come first
    return descriptors.bind(interp, attribute, obj, cls, name) if value is NULL else value


_IMMUTABLE: Final = frozenset({property, staticmethod, classmethod})


def class_value(interp: Interpreter, cls: type, name: str, value: object) -> object:
    """A value found in a class: mutable ones are outer objects themselves."""
    kind = type(value)
    if id(cls) in interp.local_classes or kind is types.FunctionType:
        return value
    bound = kind in BOUND_METHODS and classify.is_bound_builtin(value)  # to an object that may change in place
    if kind in interp.fast and not bound and not interp.is_tensor(value):  # whose flags and sizes change in place
        return value
    if not is_heap(cls) or kind in _IMMUTABLE or is_a(value, type):
        return value
    key = (id(cls), name)
    known = interp.class_values.get(key)
    if known is None or known[0] is not value:
        loaded = interp.state.load_source(TypeAttrSource(ConstSource(cls), name), value)
        interp.class_values[key] = (value, loaded)
        return loaded
    return known[1]


# ---- classes -------------------------------------------------------------------------------------------------------


def _read_class(interp: Interpreter, obj: type, name: str) -> object:
    meta = type(obj)
    facts = interp.types
    getter = facts.lookup(meta, "__getattribute__")
    value = NULL
    try:
        if is_own_hook(getter):
            value = call_hook(interp, getter, obj, name)
        else:
            value = generic_class_read(interp, obj, meta, name)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError) or facts.lookup(meta, "__getattr__") is NULL:
            raise
    if value is not NULL:
        return value
    hook = facts.lookup(meta, "__getattr__")
    if hook is NULL:
        return NULL
    return interp.call(descriptors.bind(interp, hook, obj, meta), (name,))


def generic_class_read(interp: Interpreter, obj: type, meta: type, name: str) -> Any:
    facts = interp.types
    interp.note_class(obj)
    if (count := hook_ids.count(interp, obj, name)) is not NULL:
        return count
    meta_attr = facts.lookup(meta, name)
    if meta_attr is not NULL and descriptors.is_data_descriptor(facts, type(meta_attr)):
        if type(meta_attr) in descriptors.MEMBERS:
            return _read_class_member(interp, obj, name)
        return descriptors.bind(interp, class_value(interp, meta, name, meta_attr), obj, meta, name)
    value = facts.lookup(obj, name)
    if value is not NULL:
        if is_a(obj, enum.EnumMeta) and is_a(value, obj):
            value = interp.load_member(value)
        else:
            value = class_value(interp, obj, name, value)
        return descriptors.bind(interp, value, NULL, obj, name)
    if meta_attr is not NULL:
        return descriptors.bind(interp, class_value(interp, meta, name, meta_attr), obj, meta, name)
    return NULL


def _read_class_member(interp: Interpreter, obj: type, name: str) -> object:
    """`__name__`, `__mro__` and the like. What the version of a class does not tell of is guarded itself."""
    value = interp.native(getattr, obj, name)
    if not is_heap(obj) or id(obj) in interp.local_classes:
        return value
    if is_a(value, types.MappingProxyType):
        return interp.state.load_source(FreshAttrSource(ConstSource(obj), name, value), value)
    if name in _OF_CLASS_ITSELF or is_a(value, dict | list | set):  # such as __annotations__, whose items change
        return interp.state.load_source(AttrSource(ConstSource(obj), name), value)
    return value


_OF_CLASS_ITSELF: Final = frozenset({"__name__", "__qualname__"})


def _read_super(interp: Interpreter, proxy: Any, name: str) -> object:
    self_class = proxy.__self_class__
    if self_class is None or name == "__class__":
        return _read_native(interp, proxy, name)
    obj = proxy.__self__
    facts = interp.types
    value = facts.lookup_after(self_class, proxy.__thisclass__, name)
    if value is NULL:
        return _read_native(interp, proxy, name)
    holder = facts.holder_after(self_class, proxy.__thisclass__, name, value)
    if holder is not None:  # not written by captured code
        value = class_value(interp, holder, name, value)
    return descriptors.bind(interp, value, NULL if obj is self_class else obj, self_class, name)


# ---- modules, functions, bound methods -----------------------------------------------------------------------------


def read_module(interp: Interpreter, module: object, name: str) -> object:
    cls = type(module)
    if cls is not types.ModuleType:
        meta = interp.types.lookup(cls, name)
        if (
            meta is not NULL
            and type(meta) not in descriptors.MEMBERS
            and descriptors.is_data_descriptor(interp.types, type(meta))
        ):
            interp.note_class(cls)
            return descriptors.bind(interp, meta, module, cls, name)
    key = (id(module), name)
    value = interp.module_values.get(key, STOP)
    if value is STOP:
        value = interp.module_values[key] = _load_module_attr(interp, module, name)
    return value


def _load_module_attr(interp: Interpreter, module: Any, name: str) -> object:
    namespace = object.__getattribute__(module, "__dict__")
    state = interp.state
    if id(namespace) == id(state.globals) or (id(namespace), name) in interp.global_values:
        written = interp.global_values.get((id(namespace), name), STOP)
        if written is not STOP and written is not NULL:
            return written
    base = instance_dict_source(interp.types, state.source_of(module) or ConstSource(module), module)
    if name in namespace:
        return state.load_source(DictItemSource(base, name), namespace[name])
    if name == "__annotations__":
        raise graph_break(kind="annotations made by asking for them", context=module.__name__)
    with interp.suspended():  # a lazy module imports on first use
        try:
            value = getattr(module, name)
        except AttributeError:
            value = NULL
        except Exception as e:
            raise interp.observe(e) from None
    if value is NULL:
        state.guard(base, "not_has_key", name)
        if "__getattr__" not in namespace:
            state.guard(base, "not_has_key", "__getattr__")
        else:
            state.guard(state.source_of(module) or ConstSource(module), "not_has_attr", name)
        return NULL
    if name in namespace:
        return state.load_source(DictItemSource(base, name), namespace[name])
    return state.load_source(AttrSource(state.source_of(module) or ConstSource(module), name), value)


def _read_function(interp: Interpreter, func: Any, name: str) -> object:
    if name in ("__call__", "__get__", "__class__"):
        return getattr(func, name)
    interp.load_function(func)
    if name == "__dict__":
        return instances.instance_dict(interp, func)
    if id(func) in interp.local_functions:
        return _read_native(interp, func, name)
    if interp.is_outer(func):
        value = instances.own_value(interp, func, name) if name not in _FUNCTION_FIELDS else NULL
        if value is NULL and name in _FUNCTION_FIELDS:
            value = interp.read_overlay(func, name)  # a deletion broke the graph
        if value is not NULL:
            return value
        source = interp.source(func)
        if name in _IN_FUNCTION_TABLE:
            interp.inlined[id(func)] = func
        if name == "__defaults__" and func.__defaults__ is not None:
            return interp.state.load_source(FuncDefaultsTupleSource(source), func.__defaults__)
        if name == "__kwdefaults__" and func.__kwdefaults__ is not None:
            return interp.state.load_source(FuncKwdefaultsDictSource(source), func.__kwdefaults__)
        if name in _IN_FUNCTION_TABLE and getattr(func, name) is None:
            interp.state.guard(AttrSource(source, name), "is_none")
        if name in _FUNCTION_FIELDS and name not in _FIXED_FIELDS:
            return interp.state.load_source(AttrSource(source, name), getattr(func, name))
    return _read_native(interp, func, name)


_FIXED_FIELDS: Final = frozenset({"__globals__", "__builtins__", "__code__"})
_IN_FUNCTION_TABLE: Final = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_FUNCTION_FIELDS: Final = frozenset([
    "__name__", "__qualname__", "__module__", "__doc__", "__code__", "__defaults__", "__kwdefaults__",
    "__annotations__", "__closure__", "__globals__", "__builtins__",
    *(("__type_params__",) if sys.version_info >= (3, 12) else ()),
])  # fmt: skip


def method_parts(interp: Interpreter, method: Any) -> tuple[object, object]:
    """Function and instance of a bound method."""
    if interp.is_outer(method):
        source = interp.source(method)
        func = interp.state.load_source(MethodFuncSource(source), method.__func__)
        return func, interp.state.load_source(MethodSelfSource(source), method.__self__)
    return method.__func__, method.__self__


_OF_METHODS: Final = frozenset(dir(types.MethodType)) - {"__doc__"}
"""What bound methods have themselves; anything else, and the text, is their function's."""


def _read_method(interp: Interpreter, method: object, name: str) -> object:
    func, owner = method_parts(interp, method)
    if name == "__func__":
        return func
    if name == "__self__":
        return owner
    if name in _OF_METHODS:
        return getattr(method, name)
    return read(interp, func, name)
