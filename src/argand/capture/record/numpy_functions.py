"""numpy on arrays that the captured code makes itself: run for real while capturing, as constants of the graph.

Nothing here imports numpy: its callables and arrays are known by the module of their type.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.capture.facts import callables, numpy_settings
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tensor_info import Cost
from argand.capture.record import constants, numpy_calls
from argand.capture.sizes import symbolic_ops
from argand.errors import GraphBreak, graph_break

_IMPURE = ("numpy.random", "numpy.testing", "numpy.lib.npyio", "numpy.ctypeslib", "numpy.f2py")


def is_numpy(fn: Function) -> bool:
    """Whether a callable belongs to numpy."""
    owner = callables.fact(fn, "__self__")
    candidates = [fn, type(fn), owner if is_a(owner, type) else type(owner), callables.fact(fn, "__objclass__")]
    numpys = False
    for candidate in candidates:
        module = module_of(candidate) if is_a(candidate, type) else callables.text_of(candidate, "__module__")
        if module == "numpy" or module.startswith("numpy."):
            if module.startswith(_IMPURE):
                return False
            numpys = True
    return numpys


def is_array(obj: object) -> bool:
    """Whether an object is a numpy array or scalar."""
    cls = type(obj)
    return module_of(cls) == "numpy" and cls.__name__ not in ("ufunc", "_ArrayFunctionDispatcher")


def is_value(interp: Interpreter, obj: object, depth: int = 0) -> bool:
    """A constant, a number that becomes one, an array made by the captured code, or a container of such."""
    if is_array(obj) or module_of(type(obj)) == "numpy":
        return not interp.is_outer(obj)
    if type(obj) in (list, tuple) and depth < 10:
        return all(is_value(interp, item, depth + 1) for item in interp.shadow(obj))
    return type(obj) in SYMBOLIC or interp.is_constant(obj)


def call(interp: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> object:
    """Run a numpy callable, or NotImplemented if `fn` is none or an argument is not a constant."""
    if not is_numpy(fn):
        return NotImplemented
    args = _with_array_of_known(interp, fn, args)
    traced = numpy_calls.traced_call(interp.state, fn, args, kwargs)
    if traced is not NotImplemented:
        return traced
    owner = callables.fact(fn, "__self__")
    values = [*args, *kwargs.values(), *([owner] if is_array(owner) else [])]
    numpy_calls.refuse_effects(callables.text_of(fn, "__name__"))
    for value in values:
        if not is_value(interp, value):
            raise not_constant(fn, value)
    given, named = [interp.plain(arg) for arg in args], {k: interp.plain(v) for k, v in kwargs.items()}
    if interp.dynamic:
        given, named = symbolic_ops.plain(given), symbolic_ops.plain(named)
    numpy_settings.rely(interp.state, callables.text_of(fn, "__name__"))
    return interp.native(fn, *given, **named)


def _with_array_of_known(interp: Interpreter, fn: Function, args: list[object]) -> list[object]:
    """The arguments of `numpy.array`, which copies, with a tensor whose values are known as an array of them."""
    tensor = args[0] if args and callables.text_of(fn, "__name__") == "array" else None
    if not is_a(tensor, torch.Tensor) or tensor.requires_grad:
        return args
    known = constants.value_of(interp.state.graph, tensor, Cost.KEPT)
    if known is None:
        return args
    with torch._C.DisableTorchFunction():
        return [known.detach().numpy(), *args[1:]]


def not_constant(fn: Function, value: object) -> GraphBreak:
    """The graph break for numpy on what is not a constant."""
    return graph_break(
        kind="numpy on values from outside",
        context=f"{callables.text_of(fn, '__name__') or type(fn).__name__} on {type(value).__name__}",
    )


def outer_array(value: object) -> GraphBreak:
    """The graph break for reading an array that existed before."""
    return graph_break(kind="numpy array from outside", context=type(value).__name__)
