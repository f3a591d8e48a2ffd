"""Opcodes that make things: containers, strings, slices, functions; unpacking and pattern matching."""

from __future__ import annotations

from types import CodeType
from typing import Any

from argand._core import _C
from argand.bytecode.opcodes import PY313
from argand.capture.facts.frames import Frame
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.interp import matching
from argand.capture.interp.optable import enter, opcode
from argand.capture.objects import iteration, keys, operators, text
from argand.capture.objects.call_protocol import classes


def _pop_n(frame: Frame, count: int) -> list[Any]:
    if count == 0:
        return []
    items = frame.stack[-count:]
    del frame.stack[-count:]
    return items


# ---- containers ----------------------------------------------------------------------------------------------------


@opcode("BUILD_SET")
def build_set(interp: Interpreter, frame: Frame, arg: int) -> None:
    result: set[Any] = set()
    for item in _pop_n(frame, arg):
        keys.check_hash(interp, item, result)
        interp.unread(result.add, item)
    frame.stack.append(result)


@opcode("BUILD_MAP")
def build_map(interp: Interpreter, frame: Frame, arg: int) -> None:
    items = _pop_n(frame, 2 * arg)
    result: dict[object, object] = {}
    for key, value in zip(items[::2], items[1::2]):
        keys.check_hash(interp, key, result)
        interp.unread(result.__setitem__, key, value)
    frame.stack.append(result)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(interp: Interpreter, frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _pop_n(frame, arg))))


enter({
    "BUILD_TUPLE": lambda interp, frame, arg: frame.stack.append(tuple(_pop_n(frame, arg))),
    "BUILD_LIST": lambda interp, frame, arg: frame.stack.append(_pop_n(frame, arg)),
    "BUILD_SLICE": lambda interp, frame, arg: frame.stack.append(slice(*_pop_n(frame, arg))),
})  # fmt: skip
enter({"LIST_TO_TUPLE": lambda interp, value, arg: tuple(interp.shadow(value))}, until=(3, 11), on_top=True)


_PLAIN_KEYS = (int, str, bool, bytes, type(None))


def _add_unseen(interp: Interpreter, frame: Frame, arg: int, method: object, *values: object) -> bool:
    """Add to the container of a comprehension whose loop a graph break entered in the middle: at each run, without
    looking at what the container holds. Nothing can see it before the loop's end, where the graph breaks.

    False: the container was made by the captured code, or is no comprehension's.
    """
    target = frame.stack[-arg]
    if arg < 2 or not interp.is_outer(target) or not interp.is_outer(frame.stack[-arg + 1]):
        return False
    interp.state.extra_effects.append((method, [target, *values], {}))
    interp.unseen.append(frame.stack[-arg + 1])
    return True


@opcode("LIST_APPEND")
def list_append(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    target = frame.stack[-arg]
    if _add_unseen(interp, frame, arg, list.append, value):
        return
    interp.shadow(target).append(value)


@opcode("SET_ADD")
def set_add(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    keys.check_hash(interp, value, frame.stack[-arg])
    if type(value) in _PLAIN_KEYS and _add_unseen(interp, frame, arg, set.add, value):
        return
    interp.unread(interp.shadow(frame.stack[-arg]).add, value)


@opcode("MAP_ADD")
def map_add(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    keys.check_hash(interp, key, frame.stack[-arg])
    if type(key) in _PLAIN_KEYS and _add_unseen(interp, frame, arg, dict.__setitem__, key, value):
        return
    interp.unread(interp.shadow(frame.stack[-arg]).__setitem__, key, value)


@opcode("LIST_EXTEND")
def list_extend(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    target = interp.shadow(frame.stack[-arg])
    if not iteration.has_iterator(interp, values):
        raise interp.throw(TypeError(f"Value after * must be an iterable, not {_C.type_name(type(values))}"))
    target.extend(iteration.to_list(interp, values, hint=True))


@opcode("SET_UPDATE")
def set_update(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    target = interp.shadow(frame.stack[-arg])
    if type(values) in (set, frozenset, dict):  # a table's layout, so the order, comes with it
        values = interp.shadow(values)
        for value in values:
            keys.check_hash(interp, value, target)
        interp.unread(target.update, values)
        return
    for value in iteration.each(interp, values):
        keys.check_hash(interp, value, target)
        interp.unread(target.add, value)


@opcode("DICT_UPDATE")
def dict_update(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    iteration.dict_update(interp, interp.shadow(frame.stack[-arg]), values)


@opcode("DICT_MERGE")
def dict_merge(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    # Below: the callable, under the positional arguments.
    iteration.dict_merge(interp, interp.shadow(frame.stack[-arg]), values, frame.stack[-(arg + (3 if PY313 else 2))])


# ---- unpacking -----------------------------------------------------------------------------------------------------


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = iteration.unpack(interp, frame.stack.pop(), arg)
    frame.stack.extend(reversed(values))


@opcode("UNPACK_EX")
def unpack_ex(interp: Interpreter, frame: Frame, arg: int) -> None:
    values = iteration.unpack_star(interp, frame.stack.pop(), arg & 0xFF, arg >> 8)
    frame.stack.extend(reversed(values))


# ---- strings -------------------------------------------------------------------------------------------------------


@opcode("BUILD_STRING")
def build_string(interp: Interpreter, frame: Frame, arg: int) -> None:
    parts = _pop_n(frame, arg)
    tainted = [part for part in parts if type(part) is TaintedText] if interp.tainted else []
    numbers = [number for part in tainted for number in part.numbers] if all(part.numbers for part in tainted) else []
    frame.stack.append(interp.taint(numbers=numbers) if tainted else "".join(parts))


def _convert(interp: Interpreter, kind: int, value: object) -> object:
    if kind == 1:
        return text.to_str(interp, value)
    if kind == 2:
        return text.to_repr(interp, value)
    if kind == 3:
        return text.to_repr(interp, value).encode("ascii", "backslashreplace").decode("ascii")
    return value


@opcode("FORMAT_VALUE", until=(3, 12))
def format_value(interp: Interpreter, frame: Frame, arg: int) -> None:
    spec = frame.stack.pop() if arg & 4 else ""
    value = _convert(interp, arg & 3, frame.stack.pop())
    frame.stack.append(text.to_format(interp, value, spec))


enter({
    "CONVERT_VALUE": lambda interp, value, arg: _convert(interp, arg, value),
    "FORMAT_SIMPLE": lambda interp, value, arg: text.to_format(interp, value, ""),
}, since=(3, 13), on_top=True)  # fmt: skip


@opcode("FORMAT_WITH_SPEC", since=(3, 13))
def format_with_spec(interp: Interpreter, frame: Frame, arg: object) -> None:
    spec = frame.stack.pop()
    frame.stack[-1] = text.to_format(interp, frame.stack[-1], spec)


# ---- functions -----------------------------------------------------------------------------------------------------


@opcode("MAKE_FUNCTION", until=(3, 12))
def make_function(interp: Interpreter, frame: Frame, arg: int) -> None:
    code: CodeType = frame.stack.pop()
    function = classes.make_function(interp, frame, code, frame.stack.pop() if arg & 8 else None)
    for flag in (4, 2, 1):
        if arg & flag:
            classes.set_function_attribute(function, flag, frame.stack.pop())
    frame.stack.append(function)


enter({
    "MAKE_FUNCTION":
        lambda interp, frame, arg: frame.stack.append(classes.make_function(interp, frame, frame.stack.pop(), None)),
}, since=(3, 13))  # fmt: skip


@opcode("SET_FUNCTION_ATTRIBUTE", since=(3, 13))
def set_function_attribute(interp: Interpreter, frame: Frame, arg: int) -> None:
    function = frame.stack.pop()
    value = frame.stack.pop()
    if arg == 8:
        function = classes.with_closure(interp, function, value)
    else:
        classes.set_function_attribute(function, arg, value)
    frame.stack.append(function)


# ---- pattern matching ----------------------------------------------------------------------------------------------


enter({
    "GET_LEN": lambda interp, frame, arg: frame.stack.append(operators.length(interp, frame.stack[-1])),
    "MATCH_MAPPING": lambda interp, frame, arg: frame.stack.append(matching.is_mapping(interp, frame.stack[-1])),
    "MATCH_SEQUENCE": lambda interp, frame, arg: frame.stack.append(matching.is_sequence(interp, frame.stack[-1])),
    "MATCH_KEYS": lambda interp, frame, arg: frame.stack.append(matching.match_keys(interp, *frame.stack[-2:])),
})  # fmt: skip


@opcode("MATCH_CLASS")
def match_class(interp: Interpreter, frame: Frame, arg: int) -> None:
    keyword_names = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack[-1] = matching.match_class(interp, frame.stack[-1], cls, arg, keyword_names)
