"""How calls of torch's functions are written in the graph: as which operator, function or method, and what they do."""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
from collections.abc import Mapping, Sequence

import torch
from torch.utils import _device

from argand.capture.facts import compat
from argand.capture.facts.handlers import Function
from argand.capture.facts.name_tables import words
from argand.capture.metadata import metadata
from argand.graph.compat import overloads
from argand.graph.python_operators import BINARY, COMPARE, UNARY
from argand.quick_dataclasses import dataclass

_Tensor = torch.Tensor


@dataclass(slots=True, eq=False)
class Target:
    """How calls of one torch function are recorded.

    Arguments:
        op: "call_function" or "call_method".
        target: the function, or the method's name.
        swap: a reflected operator: the two arguments change places.
        mutates: writes to its first argument (or to `out`).
        keep: stays in the graph although nobody uses its result (random numbers, unknown effects).
        attribute: for a property, its name.
        name: of a reflected operator, the method's name.
    """

    op: str
    target: object
    swap: bool = False
    mutates: bool = False
    keep: bool = False
    attribute: str = ""
    name: str = ""


@functools.cache
def device_constructors() -> frozenset[object]:
    """The functions that a default device is for."""
    return frozenset(_device._device_constructors())


def placed(func: object, kwargs: dict[str, object], device: torch.device | None) -> dict[str, object]:
    """The arguments of a call that capture itself makes under a default device, which has no say in it."""
    if kwargs.get("device") is not None or func not in device_constructors():
        return kwargs
    return {**kwargs, "device": device or "cpu"}


RANDOM = frozenset(
    words(
        """
    dropout alpha_dropout feature_alpha_dropout feature_dropout dropout1d dropout2d dropout3d
    native_dropout rand randn randint randperm rand_like randn_like randint_like normal bernoulli
    multinomial poisson binomial rrelu gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    scaled_dot_product_attention multi_head_attention_forward rnn_tanh rnn_relu lstm gru _assert_async
    _assert_tensor_metadata
    uniform random exponential geometric log_normal cauchy
    _standard_gamma _sample_dirichlet rrelu_with_noise _fused_dropout normal_functional rrelu_with_noise_functional
    _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_fused_attention_overrideable _triton_scaled_dot_attention
    _flash_attention_forward _flash_attention_forward_no_dropout_inplace _efficient_attention_forward
    _cudnn_attention_forward _cudnn_attention_backward _fill_mem_eff_dropout_mask
    _cudnn_rnn _cudnn_init_dropout_state miopen_rnn _lstm_mps _nested_tensor_softmax_with_shape
        """
    )
)
"""Names of functions that draw random numbers, without the underscore of those that write; a test asks ATen."""


def may_draw(name: str) -> bool:
    """Whether a function of torch of this name may draw random numbers, or has to stay for another reason."""
    return name in RANDOM or name.rstrip("_") in RANDOM


def _operator_table() -> dict[object, Target]:
    table: dict[object, Target] = {}
    for op in BINARY.values():
        for special in (op.inplace,) if op.inplace else (op.method, op.reflected):
            for spelling in (special, special.replace("true", "")):  # `__div__`, as in Python 2
                method = getattr(_Tensor, spelling, None)
                if method is not None:
                    swap = special == op.reflected
                    table[method] = Target("call_function", op.native, swap, bool(op.inplace), name=method.__name__)
    for unary in (*COMPARE.values(), *UNARY):
        table[getattr(_Tensor, unary.method)] = Target("call_function", unary.native)
    table[_Tensor.__abs__] = Target("call_function", operator.abs)
    table[_Tensor.__getitem__] = Target("call_function", operator.getitem)
    table[_Tensor.__setitem__] = Target("call_function", operator.setitem, mutates=True)
    return table


_TARGETS: dict[object, Target] = _operator_table()
METHODS_OF_OPERATORS: dict[object, Target] = {
    getattr(_Tensor, name): Target("call_function", op.native, mutates=name.endswith("_"))
    for op in (*BINARY.values(), *COMPARE.values(), *UNARY)
    for name in op.torch
}
"""Torch hands `a + b` over as Tensor.add: where the program wrote an operator, the graph shows it."""
OPERATOR_OPCODES = frozenset(("BINARY_OP", "COMPARE_OP", *(op.opcode for op in UNARY)))


_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_PLACES = (*_Tensor.__mro__, torch.nn.functional, torch.functional, torch)
_OWN_FILES = os.path.dirname(str(torch.__file__)) + os.sep


_SPECIAL_METHODS: dict[object, list[tuple[str, object]]] = {
    operator.abs: [("__abs__", _Tensor.__abs__)],
    operator.getitem: [("__getitem__", _Tensor.__getitem__)],
    operator.setitem: [("__setitem__", _Tensor.__setitem__)],
}
"""What an operator of a graph asks its operands for."""
_SPECIAL_METHODS |= {
    op.native: [
        (name, getattr(_Tensor, name))
        for name in (op.method, getattr(op, "reflected", ""), getattr(op, "inplace", ""))
        if name and hasattr(_Tensor, name)
    ]
    for op in (*BINARY.values(), *COMPARE.values(), *UNARY)
}


def is_replaced(func: object, target: Target) -> bool:
    """Whether the program put another function where a graph looks for `func`: it finds what it calls by name.

    Torch looks its functions up by name too when it asks what overrides them, and then hands over the other function.
    """
    for special, method in _SPECIAL_METHODS.get(target.target, ()):
        if getattr(_Tensor, special, None) is not method:
            return True
    cls, name = type(func), getattr(func, "__name__", "")
    if cls is types.BuiltinFunctionType:
        home: object = sys.modules.get(getattr(func, "__module__", None) or "")
    elif cls in _DESCRIPTORS or getattr(func, "__qualname__", "") == f"Tensor.{name}":
        home = _Tensor
    elif cls is types.FunctionType:
        home = sys.modules.get(getattr(func, "__module__", None) or "")
    else:
        return False
    if cls is types.FunctionType and not _is_own(func):
        return any(func is held for place in _PLACES for held in vars(place).values())
    current = getattr(home, name, func)
    return current is not func and not _is_own(current)


def method_for(func: Function, args: Sequence[object], kwargs: Mapping[str, object]) -> Function:
    """What a graph may call by its name where the program has put another function in place of torch's builtin `func`:
    the method of tensors that is the same operation; `func` itself where it was not replaced, or there is none."""
    if type(func) is not types.BuiltinFunctionType or getattr(torch, func.__name__, func) is func:
        return func
    name = func.__name__
    method: Function | None = getattr(_Tensor, name, None)
    function = getattr(torch._C._VariableFunctions, name, None)
    if func != function or method is None or type(method) not in _DESCRIPTORS or "out" in kwargs or not args:
        return func
    of_tensors = isinstance(args[0], _Tensor) and _acts_on_itself(name)
    return method if of_tensors else func


def _acts_on_itself(name: str) -> bool:
    """Whether all operators of a name take first what a method of tensors is called on."""
    packet = getattr(torch.ops.aten, name, None)
    leading = [op._schema.arguments[:1] for op in overloads(packet)] if packet is not None else []
    of_tensors = [first.name for arguments in leading for first in arguments if str(first.type) == "Tensor"]
    return bool(of_tensors) and set(of_tensors) == {"self"}


def _is_own(function: object) -> bool:
    """Whether a function is Python code of torch's."""
    return type(function) is types.FunctionType and function.__code__.co_filename.startswith(_OWN_FILES)


@functools.lru_cache(maxsize=8192)
def target_of(func: object) -> Target:
    target = _TARGETS.get(func)
    if target is not None:
        return target
    name = getattr(func, "__name__", "")
    if isinstance(func, types.MethodWrapperType) and name in ("__get__", "__set__", "__delete__"):
        owner = getattr(func, "__self__", None)
        return Target("call_function", getattr, attribute=metadata.property_name(owner, name))
    mutates = name.endswith("_") and not name.endswith("__")
    keep = may_draw(name)
    if getattr(_Tensor, name, None) is func:
        return Target("call_method", name, False, mutates, keep)
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        mutates, keep = compat.op_effects(func)
    elif getattr(func, "__module__", "") and not str(func.__module__ or "torch").startswith("torch"):
        keep = True
    return Target("call_function", func, False, mutates, keep)
