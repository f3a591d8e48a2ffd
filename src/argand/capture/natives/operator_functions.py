"""Handlers of the functions of the operator module that are operators of the interpreter."""

from __future__ import annotations

import operator
import types
from typing import Any

from argand._core import _C
from argand.capture.facts.array_value import Traced
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import SEQUENCES
from argand.capture.objects import classes, keys, operators
from argand.capture.objects.native_handlers import add_functions, constructor, pure, python_object_in_native
from argand.capture.record import numpy_functions
from argand.graph.python_operators import BINARY, COMPARE, INVERT, UNARY, Operator

Args = list[Any]
Kwargs = dict[str, Any]


def _via(count: int, run: Any, *fns: Any, op: tuple[Operator, ...] = ()) -> None:
    """Functions of a fixed number of arguments that are an operator of the interpreter."""

    def handler(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
        if len(args) != count or kwargs:
            return interp.native(fn, *args, **kwargs)
        return run(interp, *op, *args)

    add_functions(handler, *fns)


for _binary in BINARY.values():
    _via(2, operators.binary, _binary.native, op=(_binary,))
for _comparison in COMPARE.values():
    _via(2, operators.compare, _comparison.native, op=(_comparison,))
for _unary in UNARY:
    _via(1, operators.unary, _unary.native, op=(_unary,))
_via(1, operators.unary, operator.inv, op=(INVERT,))
_via(2, operators.getitem, operator.getitem)
_via(3, operators.setitem, operator.setitem)
_via(2, operators.delitem, operator.delitem)
_via(2, operators.contains, operator.contains)
_via(2, operators.identical, operator.is_)
_via(2, lambda interp, a, b: not operators.identical(interp, a, b), operator.is_not)
_via(1, operators.truth, operator.truth)
_via(1, lambda interp, a: not interp.truth(a), operator.not_)
_via(1, keys.to_index, operator.index)
_via(1, lambda interp, a: interp.call(abs, [a]), operator.abs)


def _concat(symbol: str, *methods: str) -> Any:
    """What C calls the concatenation of sequences. A builtin one is asked alone, never what stands on the right."""

    def run(interp: Interpreter, a: Any, b: Any) -> Any:
        lookup, cls = interp.types.lookup, type(a)
        if issubclass(cls, SEQUENCES):
            method = next((m for name in methods if (m := lookup(cls, name)) is not NULL), NULL)
            if type(method) is types.WrapperDescriptorType:
                return interp.call(method, (a, b))
        elif numpy_functions.is_array(a) or type(a) is Traced:
            raise python_object_in_native(operator.concat, a)  # numpy's own words
        has_none = lookup(cls, methods[-1]) is NULL and lookup(type(b), "__radd__") is NULL
        if has_none or not _is_sequence(interp, a) or not _is_sequence(interp, b):
            raise interp.throw(TypeError(f"'{_C.type_name(classes.type_of(a))}' object can't be concatenated"))
        return operators.binary(interp, BINARY[symbol], a, b)

    return run


def _is_sequence(interp: Interpreter, obj: Any) -> bool:
    """What C takes for one: items by position. Tensors and dicts have items by key."""
    if is_a(obj, dict | types.MappingProxyType | types.GenericAlias) or interp.is_tensor(obj):
        return False
    return interp.types.lookup(type(obj), "__getitem__") is not NULL


_via(2, _concat("+", "__add__"), operator.concat)
_via(2, _concat("+=", "__iadd__", "__add__"), operator.iconcat)
add_functions(pure, operator.countOf, operator.indexOf, operator.length_hint)
add_functions(constructor, operator.itemgetter, operator.attrgetter, operator.methodcaller)
