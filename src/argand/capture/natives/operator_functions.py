"""Handlers of the functions of the operator module that are operators of the interpreter."""

from __future__ import annotations

import operator
import types

from argand._core import _C
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import SEQUENCES
from argand.capture.facts.values.array_value import Traced
from argand.capture.natives.rows import Native, enter_rows, resolved
from argand.capture.objects import keys, operators
from argand.capture.objects.call_protocol import classes
from argand.capture.objects.call_protocol.native_handlers import (
    constructor,
    function,
    pure,
    python_object_in_native,
)
from argand.capture.record import numpy_functions
from argand.graph.python_operators import BINARY, COMPARE, INVERT, UNARY


def _concat(interp: Interpreter, symbol: str, methods: tuple[str, ...], a: object, b: object) -> object:
    """What C calls the concatenation of sequences. A builtin one is asked alone, never what stands on the right."""
    lookup, cls = interp.types.lookup, type(a)
    if issubclass(cls, SEQUENCES):
        method = next((m for name in methods if (m := lookup(cls, name)) is not NULL), NULL)
        if type(method) is types.WrapperDescriptorType:
            return interp.call(method, (a, b))
    elif numpy_functions.is_array(a) or type(a) is Traced:
        raise python_object_in_native(operator.concat, a)  # numpy's own words
    has_none = lookup(cls, methods[-1]) is NULL and lookup(type(b), "__radd__") is NULL
    if has_none or not is_sequence(interp, a) or not is_sequence(interp, b):
        raise interp.throw(TypeError(f"'{_C.type_name(classes.type_of(a))}' object can't be concatenated"))
    return operators.binary(interp, BINARY[symbol], a, b)


def is_sequence(interp: Interpreter, obj: object) -> bool:
    """What C takes for one: items by position. Tensors and dicts have items by key."""
    if is_a(obj, dict | types.MappingProxyType | types.GenericAlias) or interp.is_tensor(obj):
        return False
    return interp.types.lookup(type(obj), "__getitem__") is not NULL


function(*resolved("operator.call"))(lambda interp, fn, args, kwargs: interp.call(args[0], args[1:], kwargs))


enter_rows({
    **{f"operator.{op.native.__name__}": Native(operators.binary, (op,), 2) for op in BINARY.values()},
    **{f"operator.{op.native.__name__}": Native(operators.compare, (op,), 2) for op in COMPARE.values()},
    **{f"operator.{op.native.__name__}": Native(operators.unary, (op,), 1) for op in UNARY},
    "operator.inv": Native(operators.unary, (INVERT,), 1),
    "operator.getitem": Native(operators.getitem, counts=2),
    "operator.setitem": Native(operators.setitem, counts=3),
    "operator.delitem": Native(operators.delitem, counts=2),
    "operator.contains": Native(operators.contains, counts=2),
    "operator.is_": Native(operators.identical, counts=2),
    "operator.is_not": Native(lambda interp, a, b: not operators.identical(interp, a, b), counts=2),
    "operator.truth": Native(operators.truth, counts=1),
    "operator.not_": Native(lambda interp, a: not interp.truth(a), counts=1),
    "operator.index": Native(keys.to_index, counts=1),
    "operator.abs": Native(lambda interp, a: interp.call(abs, [a]), counts=1),
    "operator.concat": Native(_concat, ("+", ("__add__",)), 2),
    "operator.iconcat": Native(_concat, ("+=", ("__iadd__", "__add__")), 2),
    "operator.countOf operator.indexOf operator.length_hint": pure,
    "operator.itemgetter operator.attrgetter operator.methodcaller": constructor,
})  # fmt: skip
