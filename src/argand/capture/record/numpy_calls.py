"""numpy on values known while capturing: computed natively, once; what comes out is constant under the guards.

Arrays become constants of the graph; what is computed of tensors is left to the room `arrays`.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Sequence
from typing import Any, Final

import torch

from argand import errors
from argand.capture.facts import callables, numpy_settings
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.kinds import is_a, is_numpy_array, module_of
from argand.capture.facts.name_tables import words
from argand.capture.facts.typefacts import is_heap
from argand.capture.facts.values.array_value import Traced
from argand.capture.record import constants
from argand.capture.sizes import symbolic_ops, symbolic_scalars
from argand.graph.trees import leaves

_GUARDED_BYTES = 4096
_EFFECTS = frozenset(
    words(
        """
    load save savez savez_compressed fromfile memmap loadtxt savetxt genfromtxt seterr seterrcall
    set_printoptions frombuffer from_dlpack setbufsize tofile dump dumps vectorize frompyfunc fromiter
    piecewise apply_along_axis apply_over_axes fromfunction put copyto place putmask
    """
    )
)


@functools.cache
def _files() -> tuple[str, ...]:
    """Where numpy's Python code is; older numpys make functions for what `__array_function__` overrides."""
    return os.path.dirname(str(sys.modules["numpy"].__file__)) + os.sep, "<__array_function__"


_INDEX: Final = "IndexExpression.__getitem__"
"""`numpy.s_[...]` gives the index as it is, which may hold tensors: it is interpreted."""


def is_numpy(fn: Any) -> bool:
    """Whether a callable is numpy's own."""
    if _of_numpy(type(fn)):
        return True
    if is_a(fn, types.BuiltinFunctionType | types.MethodWrapperType):
        owner = fn.__self__
        if owner is not None and not is_a(owner, types.ModuleType):
            return _of_numpy(owner if is_a(owner, type) else type(owner))
    if is_heap(type(fn)) and not is_a(fn, type):  # an object of the program's own
        return False
    if is_a(fn, types.FunctionType):  # functools.wraps gives a function of another's the module of numpy's
        return fn.__code__.co_filename.startswith(_files()) and fn.__qualname__ != _INDEX
    module = callables.text_of(fn, "__module__")
    if module == "numpy" or module.startswith("numpy."):
        return True
    return is_a(fn, type) and _of_numpy(fn)


def _of_numpy(cls: type) -> bool:
    return module_of(cls) == "numpy" or module_of(cls).startswith("numpy.")


def call(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a numpy function on constants.

    Raises:
        GraphBreak: an argument is not constant, or the function draws random numbers, reads files, calls back.
    """
    if _asks_sizes(state, fn, args, kwargs):
        return state.interpreter.getattr(args[0], _SIZES[fn.__name__])
    traced = traced_call(state, fn, args, kwargs)
    if traced is NotImplemented and state.graph.dynamics is not None:
        traced = symbolic_scalars.call(state.interpreter, fn, args, kwargs)
    if traced is not NotImplemented:
        return traced
    name = callables.text_of(fn, "__name__") or type(fn).__name__
    owner = callables.fact(fn, "__self__")
    if _random(fn, owner):
        if name == "seed" and all(_constant(state, a) for a in args):
            state.extra_effects.append((fn, list(args), dict(kwargs)))
            return None
        raise _break(name, "random numbers of numpy are drawn")
    refuse_effects(name)
    given = [_value(state, arg, name) for arg in args]
    named = {key: _value(state, value, name) for key, value in kwargs.items()}
    numpy = sys.modules["numpy"]
    if isinstance(owner, numpy.ndarray):
        fn = getattr(_value(state, owner, name), name)
    numpy_settings.rely(state, name)
    result = state.interpreter.native(fn, *given, **named)
    if isinstance(result, numpy.ndarray) and result.dtype.hasobject:
        raise _break(name, "an array of Python objects is made")
    return result


_SIZES = {"shape": "shape", "ndim": "ndim"}


def _asks_sizes(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> bool:
    """`numpy.shape(t)` and `numpy.ndim(t)`, which ask the tensor for the attribute of their name."""
    name = callables.text_of(fn, "__name__")
    known = name in _SIZES and fn is getattr(sys.modules["numpy"], name)
    return known and len(args) == 1 and not kwargs and state.interpreter.is_tensor(args[0])


def traced_call(state: CaptureState, fn: Function, args: Sequence[object], kwargs: Kwargs) -> object:
    """A numpy function on arrays that the graph computes, or on tensors; NotImplemented where there are none."""
    given = tuple([state.deep_resolve(arg) for arg in args])
    named = {key: state.deep_resolve(value) for key, value in kwargs.items()}
    if not any(type(leaf) is Traced or is_a(leaf, torch.Tensor) for leaf in leaves([given, named])):
        return NotImplemented
    if state.graph.dynamics is not None:
        given, named = symbolic_ops.plain(given), symbolic_ops.plain(named)
    return state.call_numpy(fn, given, named)


def refuse_effects(name: str) -> None:
    """End the graph before a function of numpy's that reads or writes files, or calls Python code."""
    if name in _EFFECTS:
        raise _break(name, "it reads or changes something outside, or calls Python code")


def _random(fn: Function, owner: object) -> bool:
    modules = [callables.text_of(thing, "__module__") for thing in (fn, owner, type(owner))]
    return any(module.startswith("numpy.random") for module in modules)


def _break(name: str, why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="call of numpy", context=f"numpy {name}", explanation=f"numpy's {name} is not captured: {why}.",
    )  # fmt: skip


def _constant(state: CaptureState, value: Any) -> bool:
    numpy = sys.modules["numpy"]
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | slice | type | type(...)):
        return True
    if isinstance(value, numpy.generic | numpy.dtype | numpy.ufunc):
        return True
    if isinstance(value, numpy.ndarray):
        return not state.is_outer(value)
    if type(value) in (list, tuple, dict):
        values = value.values() if isinstance(value, dict) else value
        return not state.is_outer(value) and all(_constant(state, item) for item in values)
    return type(value) is range


def _value(state: CaptureState, value: object, name: str) -> object:
    """An argument as it can be handed over: arrays from outside are guarded by their contents and copied."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray) and state.is_outer(value):
        source = state.outer[id(value)]
        if value.nbytes > _GUARDED_BYTES or value.dtype.hasobject or type(value) is not numpy.ndarray:
            raise _break(name, "a large array comes from outside")
        state.guard(source, "call", array_key, array_key(value), label="ARRAY_MATCH")
        return value.copy()
    value = state.deep_resolve(value)
    if state.graph.dynamics is not None:
        value = symbolic_ops.plain(value)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, list | tuple | dict) and type(value) in (list, tuple, dict):
        if isinstance(value, dict):
            return {key: _value(state, item, name) for key, item in value.items()}
        return type(value)(_value(state, item, name) for item in value)
    if not _constant(state, value):
        raise _break(name, f"it gets a {type(value).__name__}")
    return value


def array_key(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What tells whether a small array is still the same."""
    return array.dtype.str, tuple(array.shape), array.tobytes()


def to_tensor(state: CaptureState, array: object, name: str) -> object:
    """The tensor that torch.tensor / torch.as_tensor / torch.from_numpy makes of a constant array."""
    if type(array) is Traced:
        if array._a_flips:
            raise _break(name, "torch takes no array that runs backwards through its memory")
        function = torch.Tensor.clone if name == "tensor" else torch.Tensor.detach
        with torch._C.DisableTorchFunction():
            return state.graph.call(function, (array._a_tensor,), {})
    if not is_a(array, sys.modules["numpy"].ndarray):
        raise _break(name, f"it gets a {type(array).__name__}")
    if name != "tensor" and state.is_outer(array):
        raise _break(name, "the tensor shares its memory with an array from outside")
    held = _value(state, array, name)
    if name != "tensor":
        array.flags.writeable = False  # they would share memory: from here on the array cannot change
    with torch._C.DisableTorchFunction():
        real = torch.tensor(held)
    return constants.copied(state.graph, real)


def as_index(builder: GraphBuilder, index: object) -> object:
    """An index with tensors in the place of arrays of numbers and truth values, which torch copies alike."""
    if type(index) is tuple or (type(index) is list and any(map(_has_items, index))):
        new: Any = type(index)([_as_index(builder, item) for item in index])
        return index if all(a is b for a, b in zip(index, new)) else new
    return _as_index(builder, index)


def _has_items(item: object) -> bool:
    array: Any = item._a_dummy if type(item) is Traced else item
    return is_numpy_array(type(array)) and bool(array.ndim)


def _as_index(builder: GraphBuilder, item: object) -> object:
    array: Any = item._a_dummy if type(item) is Traced else item
    if not is_numpy_array(type(array)) or not array.ndim:
        return int(array) if type(item) is not Traced and _is_integer(builder, array) else item
    kind = array.dtype.kind
    if not (kind in "ibf" or (kind == "u" and array.itemsize > 1)) or min(array.strides) < 0:
        return item
    tensor = to_tensor(builder.state, item, "tensor")
    return tensor if kind == "b" else builder.call(torch.Tensor.to, (tensor,), {"dtype": torch.int64})


def _is_integer(builder: GraphBuilder, array: Any) -> bool:
    """An array of captured code's that holds one integer."""
    return is_numpy_array(type(array)) and array.dtype.kind in "iu" and not builder.state.is_outer(array)
