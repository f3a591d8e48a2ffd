"""Operators as the interpreted program sees them: native where that is all there is, else by Python's protocol."""

from __future__ import annotations

import collections
import decimal
import operator
import types
from collections.abc import Callable
from typing import Any, Final

import torch

from argand import errors
from argand._core import _C
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, raw_items, raw_iter
from argand.capture.facts.typefacts import BUFFERS, CONTAINERS, SEQUENCES, Slot
from argand.capture.facts.values import ragged_sizes
from argand.capture.facts.values.array_value import Traced
from argand.capture.facts.values.ragged_sizes import RAGGED
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicInt, SymbolicScalar, SymbolicSize
from argand.capture.objects import descriptors, iteration, keys, polyfills, stand_ins
from argand.capture.sizes import symbolic_ops, symbolic_scalars
from argand.capture.world import additions, identity
from argand.graph.python_operators import BINARY, COMPARE, NEGATIVE, BinaryOperator, Comparison, UnaryOperator

# ---- binary --------------------------------------------------------------------------------------------------------


def binary(interp: Interpreter, op: BinaryOperator, left: object, right: object) -> object:
    """`left op right`."""
    fast = interp.fast
    ta, tb = type(left), type(right)
    if ta in fast and tb in fast and not (ta is torch.Size and tb is SymbolicSize):  # which torch.Size makes plain
        try:
            return op.native(left, right)
        except Exception as e:
            error = e
        raise interp.observe(error)
    if ta is RAGGED or tb is RAGGED:
        return _ragged(interp, op, left, right)
    if (ta is Traced and interp.is_tensor(right)) or (tb is Traced and interp.is_tensor(left)):
        return interp.state.call_numpy(op.native, (left, right), {})
    types_ = interp.types
    pa, pb = types_.python_dunders(ta), types_.python_dunders(tb)
    if (pa and (op.method in pa or (op.inplace and op.inplace in pa))) or (pb and op.reflected in pb):
        return _binary_protocol(interp, op, left, right)
    if ta in SYMBOLIC or tb in SYMBOLIC:
        return symbolic_ops.binary(interp, op, left, right)
    if interp.dynamic and (ta in symbolic_ops.SIZES or tb in symbolic_ops.SIZES):
        left, right = symbolic_ops.sizes(interp, op, left, right)
    if op.native is operator.mod and is_a(left, str | bytes):
        if is_a(right, tuple):
            right = tuple(interp.textual(item) for item in tuple.__iter__(interp.shadow(right)))
        else:
            right = interp.textual(right)
        return interp.reading("text", op.native, left, right)
    if op.inplace and interp.is_outer(left) and not is_a(left, tuple | frozenset):
        return _inplace_outer(interp, op, left, right)
    if op.inplace and op.name == "add" and ta in (list, collections.deque) and iteration.is_iterable(interp, right):
        operand = iteration.native_iterable(interp, right, hint=ta is list)
    else:
        operand = interp.plain(right)
    if not op.inplace:
        left = interp.plain(left)
    if op.moves and type(left) in _MOVED and type(operand) in _MOVED:
        return interp.unread(op.native, left, operand)
    return _arithmetic(interp, op.native, left, operand)


_MOVED: Final = frozenset({list, tuple, int})


def _arithmetic(interp: Interpreter, native: Callable[..., object], *operands: object) -> object:
    if any(is_a(operand, decimal.Decimal) for operand in operands):
        raise errors.graph_break(
            kind="decimal arithmetic", context=" and ".join(type(operand).__name__ for operand in operands)
        )
    return interp.native(native, *operands)


def _inplace_outer(interp: Interpreter, op: BinaryOperator, left: object, right: object) -> object:
    """`outer += x`: the shadow changes, the name keeps the original."""
    iterates = is_a(left, list | collections.deque) and op.name == "add" and iteration.is_iterable(interp, right)
    operand = iteration.native_iterable(interp, right, is_a(left, list)) if iterates else interp.plain(right)
    if iterates and type(operand) in (list, tuple) and additions.add(interp.state, left, operand):
        return left
    target = interp.shadow(left)
    result = interp.native(op.native, target, operand)
    return left if result is target else result


def _ask(interp: Interpreter, name: str, a: object, b: object) -> object:
    """`type(a).name(a, b)`, or NotImplemented where it has no such method."""
    method = descriptors.lookup_special(interp, a, name)
    return NotImplemented if method is NULL else interp.call(method, (b,))


def _binary_protocol(interp: Interpreter, op: BinaryOperator, a: object, b: object) -> object:
    ta, tb = type(a), type(b)
    if op.inplace and not _is_sequence(ta, interp, op.inplace):
        result = _ask(interp, op.inplace, a, b)
        if result is not NotImplemented:
            return result
    lookup = interp.types.lookup
    # Sequences implement + and * by a slot that CPython tries after both operands' number slots.
    left_last = op.moves and _is_sequence(ta, interp, op.method)
    reflected = lookup(tb, op.reflected) if tb is not ta else NULL
    tried = False
    if reflected is not NULL and ta is not tb and issubclass(tb, ta):
        if reflected is not lookup(ta, op.reflected):
            tried = True
            result = _ask(interp, op.reflected, b, a)
            if result is not NotImplemented:
                return result
    if not left_last:
        result = _ask(interp, op.method, a, b)
        if result is not NotImplemented:
            return result
    if not tried and reflected is not NULL and not (op.moves and _is_sequence(tb, interp, op.reflected)):
        result = _ask(interp, op.reflected, b, a)
        if result is not NotImplemented:
            return result
    if left_last or (op.moves and _is_sequence(tb, interp, op.reflected)):
        return interp.native(op.native, interp.plain(a), interp.plain(b))
    symbol = "** or pow()" if op.symbol == "**" else op.symbol
    raise interp.throw(
        TypeError(f"unsupported operand type(s) for {symbol}: '{_C.type_name(ta)}' and '{_C.type_name(tb)}'")
    )


def _is_sequence(cls: type, interp: Interpreter, name: str) -> bool:
    return issubclass(cls, SEQUENCES) and not interp.types.python_level(cls, name)


def unary(interp: Interpreter, op: UnaryOperator, value: object) -> object:
    """`op value`."""
    if interp.types.python_level(type(value), op.method):
        return descriptors.call_special(interp, value, op.method)
    if type(value) is SymbolicScalar and op is NEGATIVE:
        return symbolic_scalars.negative(interp, value)
    return _arithmetic(interp, op.native, interp.plain(value))


# ---- comparison ----------------------------------------------------------------------------------------------------


def compare(interp: Interpreter, op: Comparison, left: object, right: object) -> object:
    """`left op right`."""
    fast = interp.fast
    ta, tb = type(left), type(right)
    if ta in fast and tb in fast:
        try:
            return op.native(left, right)
        except Exception as e:
            error = e
        raise interp.observe(error)
    if ta is RAGGED or tb is RAGGED:
        return _ragged(interp, op, left, right)
    facts = interp.types
    names = (op.method, op.reflected, "__eq__") if op.method == "__ne__" else (op.method, op.reflected)
    if facts.python_level(ta, *names) or facts.python_level(tb, *names):
        return _compare_protocol(interp, op, left, right)
    if ta in SYMBOLIC or tb in SYMBOLIC:
        return symbolic_ops.compare(interp, op, left, right)
    if is_a(left, CONTAINERS) or is_a(right, CONTAINERS):
        left, right = interp.plain(left), interp.plain(right)
        if not (interp.benign(left) and interp.benign(right)):
            return compare_containers(interp, op, left, right)
    elif interp.state_has_origin(left, right):
        left, right = interp.origin(left), interp.origin(right)
    else:
        refuse_buffers(interp, left, right)
        if ta is tb:
            interp.same_origin(left, right)
    return interp.reading("compare", op.native, left, right)


def _ragged(interp: Interpreter, op: BinaryOperator | Comparison, left: object, right: object) -> object:
    """An operator with a size in the ragged dim of nested tensors."""
    try:
        return ragged_sizes.computed(op.native, op.method, left, right)
    except errors.GraphBreak:
        raise
    except Exception as e:
        error = e
    raise interp.observe(error)


def refuse_buffers(interp: Interpreter, *operands: object) -> None:
    """End the graph where native code would read a bytearray or the like that existed before."""
    for operand in operands:
        if is_a(operand, BUFFERS):
            interp.check_known(operand)


def compare_containers(interp: Interpreter, op: Comparison, a: object, b: object) -> object:
    """Containers with elements whose comparison is Python code."""
    kind = _kind(a)
    if kind is not _kind(b) or kind is None:
        return interp.reading("compare", op.native, a, b)  # neither looks at its elements
    equality = op.method in ("__eq__", "__ne__")
    if kind is list or kind is tuple:
        same: Function = polyfills.list_equal if kind is list else polyfills.tuple_equal
        if not equality:
            return interp.polyfill(polyfills.sequence_order, bare(a), bare(b), op.native)
    elif kind is dict and not (is_a(a, collections.OrderedDict) and is_a(b, collections.OrderedDict)):
        same = polyfills.dict_equal
        if not equality:
            return interp.unread(op.native, a, b)  # raises
    else:
        raise errors.graph_break(
            kind="Python object used by native code",
            context=f"{op.symbol} on {type(a).__name__}",
            explanation=f"Comparing two {kind.__name__}s is native code, which would call methods of the elements.",
            hints=("Compare lists, or do it outside of the compiled function.",),
        )
    equal = interp.polyfill(same, bare(a), bare(b))
    return equal if op.method == "__eq__" else not equal


def _kind(value: object) -> Any:
    for kind in (list, tuple, dict, collections.deque):
        if is_a(value, kind):
            return kind
    return set if is_a(value, set | frozenset) else None


def bare(container: object) -> object:
    """A list, tuple or dict with what C code finds in it, past any method of its class."""
    if type(container) in CONTAINERS:
        return container
    if is_a(container, dict):
        return dict(raw_items(container))
    items = raw_iter(container)
    return tuple(items) if is_a(container, tuple) else list(items)


def rich(interp: Interpreter, name: str, a: object, b: object) -> object:
    """`type(a).__name__(a, b)`, with NotImplemented as an answer; `object.__ne__` goes by `__eq__`."""
    if name == "__ne__" and interp.types.lookup(type(a), name) is object.__ne__:
        result = rich(interp, "__eq__", a, b)
        return result if result is NotImplemented else not truth(interp, result)
    return _ask(interp, name, a, b)


def _compare_protocol(interp: Interpreter, op: Comparison, a: object, b: object) -> object:
    ta, tb = type(a), type(b)
    tried = False
    if ta is not tb and issubclass(tb, ta):
        tried = True
        result = rich(interp, op.reflected, b, a)
        if result is not NotImplemented:
            return result
    result = rich(interp, op.method, a, b)
    if result is not NotImplemented:
        return result
    if not tried:
        result = rich(interp, op.reflected, b, a)
        if result is not NotImplemented:
            return result
    if op.method == "__eq__":
        return identical(interp, a, b)
    if op.method == "__ne__":
        return not identical(interp, a, b)
    raise interp.throw(
        TypeError(f"'{op.symbol}' not supported between instances of '{_C.type_name(ta)}' and '{_C.type_name(tb)}'")
    )


def identical(interp: Interpreter, a: object, b: object) -> bool:
    """`a is b`: a shadow is the same object as what it stands for."""
    if type(a) in identity.VALUES:
        identity.values_compared(interp.state, a, b)
    if a is b:
        return True
    if interp.dynamic and (type(a) in SYMBOLIC or type(b) in SYMBOLIC):
        return symbolic_ops.identical(interp, a, b)
    return interp.same_origin(a, b)


def contains(interp: Interpreter, container: object, item: object) -> bool:
    """`item in container`."""
    cls = type(container)
    if cls in interp.fast and type(item) in interp.fast:
        return bool(interp.native(operator.contains, container, item))
    slot = interp.types.slot(cls, "__contains__")
    if slot is Slot.PYTHON:
        return truth(interp, descriptors.call_special(interp, container, "__contains__", item))
    if slot is Slot.REFUSED:
        interp.note_class(cls)
        raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object is not a container"))
    if slot is Slot.CONTAINER:
        return _container_contains(interp, container, item)
    if cls is types.MappingProxyType:  # read through its methods, which know of the mapping behind it
        return bool(interp.call(interp.getattr(container, "__contains__"), (item,)))
    if slot is not Slot.ABSENT:
        return bool(interp.native(operator.contains, interp.plain(container), item))
    try:
        items = iteration.get_iter(interp, container)
    except ObservedException as observed:
        if is_a(observed.value, TypeError):  # whatever it says
            raise interp.throw(TypeError(f"argument of type '{_C.type_name(cls)}' is not iterable")) from None
        raise
    return bool(interp.polyfill(polyfills.contains, items, item))


def _container_contains(interp: Interpreter, container: object, item: object) -> bool:
    if is_a(container, dict | set | frozenset):
        keys.check_hash(interp, item, container)
        if interp.is_outer(container):
            return interp.outer_has_key(container, item)
        return bool(interp.unread(operator.contains, interp.plain(container), item))
    container = interp.plain(container)
    if interp.benign(item) and interp.benign(container):
        return bool(interp.reading("compare", operator.contains, container, interp.plain(item)))
    return bool(interp.polyfill(polyfills.contains, bare(container), item))


# ---- truth, length, hash -------------------------------------------------------------------------------------------


def truth(interp: Interpreter, value: object) -> bool:
    """`bool(value)`."""
    cls = type(value)
    if cls in interp.fast:
        return bool(interp.unread(bool, value))
    slot = interp.types.slot(cls, "__bool__")
    if slot is Slot.ABSENT:
        sized = interp.types.slot(cls, "__len__")
        if sized is Slot.CONTAINER:
            return interp.container_length(value) != 0
        interp.note_class(cls)
        return sized is Slot.ABSENT or length(interp, value) != 0
    interp.note_class(cls)
    if slot is not Slot.PYTHON:
        interp.check_known(value)
        return bool(interp.native(bool, value))
    result = descriptors.call_special(interp, value, "__bool__")
    if type(result) is not bool:
        raise interp.throw(TypeError(f"__bool__ should return bool, returned {_C.type_name(type(result))}"))
    return result


def length_that_may_vary(interp: Interpreter, value: object) -> object:
    """`len(value)`: of a list from outside that grows, or of an object of the program's around it, a number that
    varies."""
    number = additions.varying_length(interp.state, value)
    if number is None and interp.types.slot(type(value), "__len__") is Slot.PYTHON:
        result = descriptors.call_special(interp, value, "__len__")
        counted = type(result) is SymbolicInt and truth(interp, compare(interp, COMPARE[">="], result, 0))
        return result if counted else _checked_length(interp, result)
    if number is None:
        return length(interp, value)
    first, more, most = number
    total = binary(interp, BINARY["+"], first, more) if more else first
    return total if most is None or truth(interp, compare(interp, COMPARE["<="], total, most)) else most


def length(interp: Interpreter, value: object) -> int:
    """`len(value)`."""
    slot = interp.types.slot(type(value), "__len__")
    if slot is Slot.CONTAINER:
        return interp.container_length(value)
    if slot is Slot.PYTHON:
        return _checked_length(interp, descriptors.call_special(interp, value, "__len__"))
    if slot is Slot.ABSENT:
        interp.note_class(type(value))
        return int(interp.unread(len, value))  # raises
    interp.check_known(value)
    return int(interp.native(len, value))


def _checked_length(interp: Interpreter, result: object) -> int:
    return int(interp.native(len, _Length(keys.to_index(interp, result))))


class _Length:
    """Lets CPython check the result of a `__len__`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __len__(self) -> object:
        return self.value


def to_hash(interp: Interpreter, value: object) -> int:
    """`hash(value)`."""
    cls = type(value)
    if interp.types.python_level(cls, "__hash__"):
        result = descriptors.call_special(interp, value, "__hash__")
        result = result.number() if type(result) in SYMBOLIC else result
        if not is_a(result, int):
            raise interp.throw(TypeError("__hash__ method should return an integer"))
        return keys.to_hash_value(result)
    keys.check_hash(interp, value)
    if cls is not int and cls is not float and cls is not bool:
        interp.state.guards.of_process = "a hash"
    return int(interp.reading("hash", hash, interp.plain(value)))


# ---- items ---------------------------------------------------------------------------------------------------------


def getitem(interp: Interpreter, container: Any, key: Any) -> object:
    """`container[key]`."""
    cls = type(container)
    if cls is list or cls is tuple or cls is dict or cls is str:
        if type(key) in interp.fast and not (cls is not str and interp.is_outer(container)):
            try:
                return container[key]
            except Exception as e:
                error = e
            raise interp.observe(error)
    slot = interp.types.slot(cls, "__getitem__")
    if slot is Slot.STAND_IN:
        return interp.native(operator.getitem, container, interp.plain(key))
    if type(key) in SYMBOLIC:
        key = key.number()
    if slot is Slot.PYTHON:
        return descriptors.call_special(interp, container, "__getitem__", key)
    if is_a(container, type):
        return _getitem_class(interp, container, key, slot)
    if slot is Slot.CONTAINER:
        if is_a(container, dict):
            return _getitem_dict(interp, container, key)
        key = keys.native_key(interp, key)
        if interp.is_outer(container):
            return interp.outer_item(container, key)
        return interp.unread(operator.getitem, container, key)
    if slot is Slot.ABSENT:
        raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object is not subscriptable"))
    if cls is types.MappingProxyType:  # read through its methods, which know of the mapping behind it
        return interp.call(interp.getattr(container, "__getitem__"), (key,))
    if type(key) is Traced:
        return interp.state.call_numpy(operator.getitem, (container, key), {})
    interp.check_known(container)
    return interp.native(operator.getitem, container, keys.native_key(interp, key))


def _getitem_class(interp: Interpreter, cls: type, key: object, slot: Slot) -> object:
    if slot is not Slot.ABSENT:
        return interp.native(operator.getitem, cls, key)
    hook = interp.types.lookup(cls, "__class_getitem__")
    if hook is NULL and cls is not type:
        raise interp.throw(TypeError(f"type '{_C.type_name(cls)}' is not subscriptable"))
    if is_a(hook, classmethod) and is_a(hook.__func__, types.FunctionType):
        if not hook.__func__.__module__.startswith("typing"):
            return interp.call(interp.getattr(cls, "__class_getitem__"), (key,))
    return interp.native(operator.getitem, cls, interp.plain(key))


def _getitem_dict(interp: Interpreter, container: dict[object, object], key: object) -> object:
    keys.check_hash(interp, key, container)
    if interp.is_outer(container):
        if interp.outer_has_key(container, key):
            return interp.outer_item(container, key)
        state = interp.state
        if state.is_touched(container) or state.has_pending_names(container) or not additions.is_plain_key(key):
            container = interp.shadow(container)
    cls = type(container)
    missing = interp.types.lookup(cls, "__missing__")
    if missing is NULL:
        return interp.unread(container.__getitem__, key)
    if not interp.is_outer(container) and interp.unread(dict.__contains__, container, key):
        return dict.__getitem__(container, key)
    if is_a(container, collections.defaultdict) and not interp.types.python_level(cls, "__missing__"):
        factory = interp.getattr(container, "default_factory")
        if factory is None:
            raise interp.throw(KeyError(key))
        value = interp.call(factory)
        setitem(interp, container, key, value)
        return value
    return interp.call(descriptors.bind(interp, missing, container, cls), (key,))


def setitem(interp: Interpreter, container: Any, key: object, value: object) -> None:
    """`container[key] = value`."""
    cls = type(container)
    if (cls is list or cls is dict) and type(key) in interp.fast and type(key) is not slice:
        if cls is dict and additions.add(interp.state, container, [(key, value)]):
            return
        if cls is list and additions.replace(interp.state, container, key, value):
            return
        target = interp.shadow(container) if interp.is_outer(container) else container
        try:
            target[key] = value
            return
        except Exception as e:
            error = e
        raise interp.observe(error)
    slot = interp.types.slot(cls, "__setitem__")
    if slot is Slot.STAND_IN:
        interp.native(operator.setitem, container, interp.plain(key), interp.plain(value))
    elif slot is Slot.PYTHON:
        descriptors.call_special(interp, container, "__setitem__", key, value)
    elif slot is Slot.ABSENT:
        raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object does not support item assignment"))
    else:
        if type(key) is slice and not is_a(container, dict) and iteration.is_iterable(interp, value):
            value = iteration.native_iterable(interp, value)
        _write_item(interp, slot, operator.setitem, container, key, value)


def delitem(interp: Interpreter, container: object, key: object) -> None:
    """`del container[key]`."""
    slot = interp.types.slot(type(container), "__delitem__")
    if slot is Slot.PYTHON:
        descriptors.call_special(interp, container, "__delitem__", key)
    elif slot is Slot.CONTAINER or slot is Slot.NATIVE:
        _write_item(interp, slot, operator.delitem, container, key)
    elif stand_ins.is_stand_in(container):
        raise stand_ins.inspected("del x[...]")
    else:
        interp.unread(operator.delitem, container, keys.native_key(interp, key))  # raises: the key decides how


def _write_item(
    interp: Interpreter, slot: Slot, write: Callable[..., None], container: object, key: object, *value: object
) -> None:
    """Items of containers are references, which C code only moves; what else has items may do anything with them."""
    interp.check_known(container)
    if is_a(container, dict):
        keys.check_hash(interp, key, container)
        if value and additions.add(interp.state, container, [(key, *value)]):
            return
    else:
        key = keys.native_key(interp, key)
    run = interp.unread if slot is Slot.CONTAINER else interp.native
    run(write, interp.shadow(container), key, *value)
