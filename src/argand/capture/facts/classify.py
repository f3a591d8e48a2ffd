"""Which kind of value is it: decides how a value found outside is guarded."""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import enum
import functools
import re
import sys
import types
import typing
from typing import Any

import torch

from argand.capture.facts.kinds import is_a, is_numpy_scalar, module_of, namespace, per_class
from argand.graph.dtensors import is_sharded
from argand.graph.nested_tensors import is_jagged
from argand.graph.wrappers import is_wrapper

_EQUALS: frozenset[type] = frozenset(
    {int, float, complex, str, bytes, range, slice, torch.Size, torch.device, types.GenericAlias, types.UnionType}
    | {type(collections.abc.Callable[[], None])}
)
_SINGLETONS: tuple[type, ...] = (type(sys.version_info), type(sys.flags))
"""Tuples of which there is one, and no other can be made."""
_IDENTITY: frozenset[type] = frozenset({
    type(None), bool, type(...), type(NotImplemented), type, types.BuiltinFunctionType, types.ModuleType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.MethodWrapperType, types.CodeType, property, typing.TypeVar,
    typing.ParamSpec, typing.TypeVarTuple, staticmethod, classmethod, functools.cached_property, re.Pattern,
    torch.dtype, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, typing.TypeVar, object,
    decimal.Decimal,  # C code reads what these are: their values cannot be guarded part by part
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    torch.Tag,
    *(vars(typing)[name] for name in ("TypeAliasType",) if name in vars(typing)),
    *_SINGLETONS,
})  # fmt: skip
OF_ONE_CALL: frozenset[type] = frozenset(
    {object, property, staticmethod, classmethod, functools.cached_property}
    | {type(functools.lru_cache(maxsize=None)(len))}
)
"""Of those, what has a life of its own: one that captured code makes is another one in each call."""
_TYPING_ALIASES: tuple[type, ...] = tuple(
    cls for cls in vars(typing).values() if is_a(cls, type) and cls.__name__ == "_BaseGenericAlias"
)
HINTS_WITH_PARTS: tuple[type, ...] = (
    *_TYPING_ALIASES, types.GenericAlias, types.UnionType, typing.ParamSpecArgs, typing.ParamSpecKwargs
)  # fmt: skip
"""What `typing.get_origin` and `typing.get_args` look into."""
_IDENTITY_INSTANCES: tuple[type, ...] = (
    type,
    enum.Enum,
    types.ModuleType,
    types.BuiltinFunctionType,
    type(functools.lru_cache(maxsize=None)(len)),
    *_TYPING_ALIASES,
    type(typing.NoReturn),
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops._OpNamespace,
    torch._ops.HigherOrderOperator,
    property,
)
_ATOMS: frozenset[type] = _EQUALS | _IDENTITY | {types.FunctionType}
_COLLECTIVES = "torch._C._distributed_c10d"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_PLAIN_PLACEMENTS = ("Partial", "Replicate", "Shard", "_StridedShard")
_NAMES_OF_PLACEMENTS = (*_PLAIN_PLACEMENTS, "_MaskPartial")
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, collections.deque)


@per_class
def handling_of_type(cls: type) -> str:
    if cls in _EQUALS:
        return "equals"
    if cls in _IDENTITY:
        return "identity"
    if cls is types.FunctionType:
        return "function"
    if issubclass(cls, torch.Tensor):
        return "tensor" if cls is torch.Tensor or cls is torch.nn.Parameter else "subclass"
    if issubclass(cls, torch.SymInt | torch.SymFloat | torch.SymBool):
        return "refuse"
    if issubclass(cls, _IDENTITY_INSTANCES):
        return "identity"
    if is_numpy_scalar(cls):
        return "equals"
    if module_of(cls) in ("numpy", "numpy.dtypes") and cls.__name__.endswith("DType") and cls.__name__ != "VoidDType":
        return "equals"  # names of fields can be changed
    if module_of(cls) == "numpy" and cls.__name__ == "ufunc":
        return "identity"
    if any(cls is value for value in distributed_values()):
        return "equals" if cls.__name__ in _PLAIN_PLACEMENTS else "identity"
    return "object"


def distributed_values() -> list[type]:
    """Classes of torch.distributed that are imported, and of which C code keeps what never changes: how DTensors are
    laid out, how a collective reduces."""
    module = sys.modules.get(_PLACEMENTS)
    classes = [] if module is None else [vars(module).get(name) for name in _NAMES_OF_PLACEMENTS]
    classes.append(getattr(getattr(sys.modules.get(_COLLECTIVES), "ReduceOp", None), "RedOpType", None))
    return [cls for cls in classes if is_a(cls, type)]


def handling(value: object) -> str:
    """How a value found outside is loaded.

    Returns:
        "tensor", "equals" (guard on the value), "identity" (guard on the object), "function", "object" (guard on the
        type; parts are guarded when read) or "refuse".
    """
    cls: Any = type(value)
    kind = handling_of_type(cls)
    if kind == "equals" and type(value) is slice and not is_constant(value):
        return "refuse"
    if kind == "tensor":
        return "tensor" if is_plain_tensor(value) else "refuse"
    if kind == "subclass":
        if is_sharded(cls) or is_jagged(cls) or is_wrapper(cls) or awaits(cls):
            return "tensor"
        return "tensor" if not why_not(cls) and is_plain_tensor(value) else "refuse"
    return kind


def is_bound_builtin(value: Any) -> bool:
    """A method of a C class bound to an object (`some_list.append`)."""
    if type(value) not in (types.BuiltinFunctionType, types.MethodWrapperType):
        return False
    owner = value.__self__
    return owner is not None and not is_a(owner, types.ModuleType | type)


def is_constant(value: object) -> bool:
    """Code can hold `value` itself: it has no parts that differ from call to call."""
    if type(value) is slice:
        return all(is_constant(part) for part in (value.start, value.stop, value.step))
    cls: Any = type(value)
    if cls is torch.Size and torch.SymInt in map(type, value):  # type: ignore[call-overload]
        return False
    return handling_of_type(cls) in ("equals", "identity") and not is_bound_builtin(value)


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """A dense, strided tensor that a graph input can be."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor._is_zerotensor()  # which have no memory
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not getattr(tensor, "is_nested", False)
    )


def is_container(obj: object) -> bool:
    """A list, tuple, dict, set, frozenset or deque, or a subclass."""
    return is_a(obj, _CONTAINERS) and type(obj) is not torch.Size and type(obj) not in _SINGLETONS


def is_plain_atom(obj: object) -> bool:
    """Cannot hold an outer container."""
    return type(obj) in _ATOMS or is_a(obj, torch.Tensor | torch.nn.Module)


def is_cell(obj: object) -> bool:
    return type(obj) is types.CellType


def is_slot(cls: type, name: str) -> bool:
    """Whether `name` is a data descriptor of C (a slot, `__class__`, ...) of `cls`: not kept in `__dict__`."""
    for klass in cls.__mro__:
        if name in klass.__dict__:
            return type(klass.__dict__[name]) in (types.MemberDescriptorType, types.GetSetDescriptorType)
    return False


def in_instance_dict(obj: object, name: str) -> bool:
    """Whether the real object has `name` in its `__dict__`."""
    return name in (namespace(obj) or ())


def awaits(cls: type) -> bool:
    """Whether tensors of a class wait for other processes when they are read (functional collectives give them)."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return module is not None and cls is module.AsyncCollectiveTensor


def why_not(cls: type) -> str:
    """Why tensors of a class cannot be in a graph; "" where they can."""
    reason = _refusal(cls)
    if not reason and cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:  # type: ignore[attr-defined]
        reason = (
            f"{cls.__name__} defines __torch_dispatch__: what its operations do is decided below the level of "
            "torch functions, at which graphs are captured"
        )
    return reason


@per_class
def _refusal(cls: type) -> str:
    if module_of(cls) == "torch" or module_of(cls).startswith("torch."):
        return f"{cls.__name__} is a class of torch's own that graphs do not know"
    below = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    if any(vars(klass).get("__slots__") for klass in below):
        return f"{cls.__name__} keeps attributes in __slots__"
    return ""
