"""Scalars of numpy's that vary from call to call: which are loaded as such, and what comes of operators on them.

numpy itself says of which type a result is, on the numbers of the call at hand. The value is computed as Python
computes it where that is the same to the last bit: integers within the bounds of the type, which is guarded, and
float64. All else makes the scalar a constant.
"""

from __future__ import annotations

import operator
from typing import Any, Final, TypeAlias, cast

import torch

from argand.capture.facts import callables, numpy_settings
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.name_tables import words
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.sources import CallSource, Source
from argand.capture.facts.values.array_value import Method, Traced
from argand.capture.facts.values.symbolic import (
    SYMBOLIC,
    SymbolicInt,
    SymbolicNumber,
    SymbolicScalar,
    SymbolicSize,
    Symbols,
    holds_symbols,
)
from argand.capture.metadata.numpy_scalars import ALONE, EVERYWHERE
from argand.capture.sizes import symbolic_policy
from argand.graph.python_operators import ARITHMETIC, COMPARISONS, BinaryOperator, Comparison
from argand.graph.trees import rebuilt

Value: TypeAlias = object
"""A number of Python's or of numpy's, or what stands for one."""

_KINDS: Final = frozenset(
    () if numpy is None else (getattr(numpy, name) for name in sorted((EVERYWHERE | ALONE) - {"float16"}))
)
_FACTS: Final = frozenset(("dtype", "shape", "ndim", "size", "itemsize", "nbytes", "strides"))
_ITSELF: Final = frozenset(("real", "T", "numerator"))
_INTEGERS: Final = frozenset(("add", "sub", "mul", "floordiv", "mod"))
_FLOATS: Final = frozenset(("add", "sub", "mul", "truediv"))
_OPERATORS: Final = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "floor_divide": "floordiv",
    "remainder": "mod",
}  # fmt: skip
_FOLDS: Final = {"prod": "mul", "sum": "add"}
_CHOICES: Final = {"maximum": "max", "minimum": "min", "max": "max", "min": "min"}
_ROUNDINGS: Final = frozenset(("floor", "ceil", "trunc"))
_EXACT: Final = {"sqrt": "sqrt", "absolute": "abs"} | {name: name for name in sorted(_ROUNDINGS)}
"""numpy's functions of one number that Python computes to the last bit: its name -> that of `FUNCTIONS`."""
_LARGEST: Final = 1.7e308
_IN_FLOAT32: Final = 1 << 24
_FACTORIES: Final = frozenset(
    id(getattr(torch, name)) for name in words("zeros ones empty full rand randn randint randperm arange linspace eye")
)
"""Functions without tensors that read a scalar as its number."""


def item_of(scalar: Value) -> Value:
    """Python's number (called by guards and transformed code)."""
    return cast("numpy.generic", scalar).item()


def load(state: CaptureState, source: Source, value: Value) -> object:
    """The stand-in of a scalar found outside that varies; NotImplemented for what is a constant."""
    if type(value) not in _KINDS or state.policy is None:
        return NotImplemented
    number, place = item_of(value), CallSource(source, item_of)
    if number != number or not state.policy.number(place, number):
        return NotImplemented
    state.guard(source, "type", type(value))
    inner = symbolic_policy.number_input(state, place, number)
    return SymbolicScalar(inner, type(value), source) if isinstance(inner, SymbolicNumber) else NotImplemented


# ---------------------------------------------------------------------- operators


def binary(interp: Interpreter, op: BinaryOperator, left: Value, right: Value) -> object:
    """`left op right`, one of them a scalar that varies; NotImplemented where it becomes a constant."""
    kind, hint = _of_numpy(op, left, right)
    if kind is None:
        return NotImplemented
    whole = issubclass(kind, numpy.integer)
    if not (op.name in _INTEGERS if whole else kind is numpy.float64 and op.name in _FLOATS):
        return NotImplemented
    numpy_settings.rely(interp.state, op.name)
    dynamics = _dynamics(left, right)
    sides = [_part(side) for side in (left, right)]
    if whole:
        for side in sides:
            _within(dynamics, side, kind)
    else:
        sides = [dynamics.apply("float", side) if type(side) is SymbolicInt else float_of(side) for side in sides]
    result = interp.native(dynamics.arithmetic, op.name, *sides)
    if whole:
        _within(dynamics, result, kind)
    elif type(result) in SYMBOLIC:
        dynamics.compare("lt", result, _LARGEST)
        dynamics.compare("gt", result, -_LARGEST)
    if (result.hint if type(result) in SYMBOLIC else result) != hint:
        return NotImplemented
    return SymbolicScalar(result, kind) if type(result) in SYMBOLIC else kind(result)


def compare(interp: Interpreter, op: Comparison, left: Value, right: Value) -> object:
    """The same for comparisons."""
    kind, hint = _of_numpy(op, left, right)
    if kind is None or not (_exact_beside(left, right) and _exact_beside(right, left)):
        return NotImplemented
    dynamics = _dynamics(left, right)
    sides = [_part(side) for side in (left, right)]
    if any(type(_hint(side)) is float for side in sides):
        sides = [dynamics.apply("float", side) if type(side) is SymbolicInt else float_of(side) for side in sides]
    answer = interp.native(dynamics.compare, op.name, *sides)
    return numpy.bool_(answer) if answer == hint else NotImplemented


def negative(interp: Interpreter, value: SymbolicScalar) -> object:
    """`-value`."""
    result = binary(interp, ARITHMETIC["mul"], value, -1)
    return interp.native(operator.neg, value.number()) if result is NotImplemented else result


def absolute(interp: Interpreter, value: SymbolicScalar) -> object:
    """`abs(value)`."""
    whole = type(value.hint) is int
    if value.hint == 0 and not whole:  # which may have a sign
        return interp.native(abs, value.number())
    positive = value.dynamics.compare("ge" if whole else "gt", value.inner, 0)
    if not (positive or whole):
        value.dynamics.compare("lt", value.inner, 0)
    return value if positive else negative(interp, value)


def rounded(interp: Interpreter, value: SymbolicScalar) -> object:
    """`round(value)`: of an integer it is Python's number."""
    whole = type(interp.native(round, _scalar_hint(value))) is int and type(value.hint) is int
    return value.inner if whole else interp.native(round, value.number())


def select(interp: Interpreter, name: str, items: list[Value]) -> object:
    """`min` or `max` of numbers, some of them scalars that vary; NotImplemented where they become constants."""
    comparison = COMPARISONS["lt" if name == "min" else "gt"]
    best = items[0]
    for item in items[1:]:
        if type(item) is SymbolicScalar or type(best) is SymbolicScalar:
            chosen = compare(interp, comparison, item, best)
        else:
            chosen = comparison.native(item, best) if _part(item) is not None and _part(best) is not None else None
        if chosen is NotImplemented or chosen is None:
            return NotImplemented
        best = item if chosen else best
    return best


# ---------------------------------------------------------------------- functions of numpy's


def call(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A function of numpy's on numbers that vary; NotImplemented where they become constants."""
    name = callables.text_of(fn, "__name__")
    if kwargs or not args or not holds_symbols(args) or getattr(numpy, name, None) is not fn:
        return NotImplemented
    numbers: Any = args if len(args) == 2 else args[0]
    if type(numbers) is SymbolicSize or type(numbers) is tuple or type(numbers) is list:
        items = list(tuple.__iter__(numbers)) if isinstance(numbers, tuple) else list(numbers)
        if name in (_FOLDS if len(args) == 1 else _OPERATORS) and (len(args) == 2 or _whole(items)):
            return _folded(interp, ARITHMETIC[(_FOLDS | _OPERATORS)[name]], items)
        if name in _CHOICES and _whole(items) and (len(args) == 2) == name.endswith("imum"):
            return select(interp, _CHOICES[name], [scalar_of(item) for item in items])
        return NotImplemented
    return _exact(interp, fn, name, scalar_of(args[0])) if name in _EXACT and len(args) == 1 else NotImplemented


def scalar_of(value: Value) -> Value:
    """What numpy makes of a number of Python's, as long as there are no others beside it."""
    if type(value) in SYMBOLIC and type(value) is not SymbolicScalar:
        number, kind = cast(SymbolicNumber, value), numpy.int64 if type(_hint(value)) is int else numpy.float64
        if kind is numpy.int64:
            _within(number.dynamics, number, kind)
        return SymbolicScalar(number, kind)
    return numpy.asarray(value)[()] if type(value) in (int, float) else value


def _whole(items: list[Value]) -> bool:
    return len(items) > 0 and all(type(_hint(item)) is int and type(item) is not SymbolicScalar for item in items)


def _folded(interp: Interpreter, op: BinaryOperator, items: list[Value]) -> object:
    if not any(type(item) is SymbolicScalar or type(item) in _KINDS for item in items):
        items = [scalar_of(item) for item in items]  # else the numbers of Python's have no type of their own
    total, *rest = items
    for item in rest:
        if type(total) is SymbolicScalar or type(item) is SymbolicScalar:
            total = binary(interp, op, total, item)
        else:
            total = op.native(total, item) if type(total) in _KINDS and type(item) in _KINDS else NotImplemented
        if total is NotImplemented:
            break
    return total


def _exact(interp: Interpreter, fn: Function, name: str, value: Value) -> object:
    if type(value) is not SymbolicScalar:
        return NotImplemented
    positive = 0 < value.hint < _LARGEST  # of others roots are none, zero may have a sign, and infinity is no integer
    hint = interp.native(fn, _scalar_hint(value)) if positive else None
    whole = type(hint) is numpy.int64
    if not (whole or type(hint) is numpy.float64):
        return NotImplemented
    value.dynamics.compare("gt", value.inner, 0)
    value.dynamics.compare("lt", value.inner, _LARGEST)
    numpy_settings.rely(interp.state, name)
    number = value.inner if whole else value.dynamics.apply("float", value.inner)
    result = number if whole and name in _ROUNDINGS else value.dynamics.apply(_EXACT[name], number)
    if name in _ROUNDINGS and not whole and type(result) in SYMBOLIC:
        result = value.dynamics.apply("float", result)
    return SymbolicScalar(result, type(hint)) if _hint(result) == hint and type(result) in SYMBOLIC else NotImplemented


def _of_numpy(op: BinaryOperator | Comparison, left: Value, right: Value) -> tuple[type | None, Value]:
    """(type, value) of what numpy makes of the numbers of this call; (None, None) where they must be constants."""
    if _part(left) is None or _part(right) is None:
        return None, None
    try:
        with numpy.errstate(all="raise"):
            result = op.native(_scalar_hint(left), _scalar_hint(right))
    except (ArithmeticError, ValueError, TypeError):
        return None, None
    return (type(result), result.item()) if isinstance(result, numpy.generic) else (None, None)


def _dynamics(left: Value, right: Value) -> Symbols:
    """The symbols of the capture, of two numbers of which one is a scalar that varies."""
    return cast(SymbolicScalar, left if type(left) is SymbolicScalar else right).dynamics


def _part(value: Value) -> Value:
    """The number that Python computes with; None for what is no number of a kind that is known."""
    if type(value) is SymbolicScalar:
        return value.inner
    if type(value) in SYMBOLIC or type(value) in (int, float, bool):
        return value
    return item_of(value) if type(value) in _KINDS else None


def _scalar_hint(value: Value) -> Value:
    if type(value) is SymbolicScalar:
        return value.kind(value.hint)
    return _hint(value)


def _hint(value: Value) -> Value:
    return cast(SymbolicNumber, value).hint if type(value) in SYMBOLIC else value


def float_of(value: Value) -> Value:
    """A plain number as a float."""
    return float(value) if type(value) is int or type(value) is bool else value


def _within(dynamics: Symbols, value: Value, kind: type) -> None:
    """Guard that an integer is one of numpy's type."""
    if type(value) in SYMBOLIC:
        limits = numpy.iinfo(kind)
        dynamics.compare("le", value, int(limits.max))
        dynamics.compare("ge", value, int(limits.min))


def _exact_beside(scalar: Value, other: Value) -> bool:
    """Whether numpy compares a scalar with the other number as it is: a float32 has Python's numbers rounded first."""
    kind = scalar.kind if type(scalar) is SymbolicScalar else type(scalar)
    if kind.__name__ != "float32" or type(other) is SymbolicScalar or type(other) in _KINDS:
        return True
    return (type(other) is int or type(other) is bool) and abs(other) <= _IN_FLOAT32


# ---------------------------------------------------------------------- attributes, and torch


def read(scalar: SymbolicScalar, name: str) -> object:
    """`scalar.name`."""
    if name == "__class__":
        return scalar.kind
    if name in _ITSELF:
        return scalar
    if name in _FACTS:
        return getattr(scalar._a_dummy, name)
    if name in ("item", "tolist"):
        return Method(cast(Traced, scalar), name)
    return getattr(scalar.number(), name)


def for_torch(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a torch call with numbers for scalars, where torch reads them so, and constants elsewhere."""
    reads = fn is not torch.Tensor.new_tensor and (id(fn) in _FACTORIES or any(map(interp.is_tensor, args)))

    def given(value: Value, alone: bool) -> Value:
        if type(value) is SymbolicScalar:
            return value.inner if reads and (alone or value.kind.__name__ in EVERYWHERE) else value.number()
        return value if type(value) is dict else rebuilt(value, lambda item: given(item, False))

    return tuple([given(arg, True) for arg in args]), {key: given(value, False) for key, value in kwargs.items()}
