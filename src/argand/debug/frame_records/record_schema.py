"""What a record's plain data looks like. Nothing is made of data that is not so.

Each kind of value is `[kind, ...]`; `_KINDS` says what follows for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from argand import files
from argand.errors import ArgandError
from argand.graph.metadata.strides import elements_spanned

_MAX_DEPTH, _MAX_VALUES = 120, 4_000_000
MAX_RANDOM = 4 << 30  # bytes of all tensors whose data was not kept
_NAME = re.compile(r"[\w-][\w.-]{0,300}")
_TENSOR = re.compile(r"(tensors/\d{1,9}\.bin)?")
_AGAIN = "record the failure again"


class RecordError(ArgandError):
    """A record cannot be read, or cannot be replayed here. Its text is safe to print whatever the file holds."""

    stage = "replay"

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        super().__init__(files.printable(cause, 1000), remedy=files.printable(remedy, 300))


def malformed(what: str) -> RecordError:
    """The error for data that is not as the schema says."""
    return RecordError(f"the record is corrupt: {what}", remedy=_AGAIN)


Check = Callable[["_Checker", Any], None]


class _Checker:
    """Walks data along the schema.

    Arguments:
        begun: numbers of objects that have been begun: what `same` may name.
    """

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.values = 0
        self.depth = 0

    def value(self, data: Any) -> None:
        """A value: `[kind, ...]`."""
        self.node(data, _KINDS)

    def node(self, data: Any, kinds: dict[str, tuple[Check, ...]]) -> None:
        """`[kind, ...]` of one of these kinds."""
        self.values += 1
        self.depth += 1
        if self.depth > _MAX_DEPTH or self.values > _MAX_VALUES:
            raise malformed("it is nested too deeply, or holds too much")
        if not isinstance(data, list) or not data or not isinstance(data[0], str):
            raise malformed("a value is not one")
        if data[0] not in kinds:
            raise RecordError(f"unknown kind of object {data[0][:40]!r}", remedy=_AGAIN)
        checks = kinds[data[0]]
        if len(data) != 1 + len(checks):
            raise malformed(f"a {data[0]} has {len(data) - 1} parts, not {len(checks)}")
        for check, item in zip(checks, data[1:]):
            check(self, item)
        self.depth -= 1


def _is(test: Callable[[Any], bool], what: str) -> Check:
    def check(checker: _Checker, data: Any) -> None:
        if not test(data):
            raise malformed(f"{what} expected")

    return check


def _each(inner: Check) -> Check:
    def check(checker: _Checker, data: Any) -> None:
        if not isinstance(data, list):
            raise malformed("a list expected")
        for item in data:
            inner(checker, item)

    return check


def _row(*inner: Check) -> Check:
    def check(checker: _Checker, data: Any) -> None:
        if not isinstance(data, list) or len(data) != len(inner):
            raise malformed(f"{len(inner)} values expected")
        for one, item in zip(inner, data):
            one(checker, item)

    return check


def _matches(pattern: re.Pattern[str], what: str) -> Check:
    return _is(lambda data: isinstance(data, str) and pattern.fullmatch(data) is not None, what)


def _sizes(data: Any) -> bool:
    return isinstance(data, list) and len(data) <= 64 and all(type(n) is int and 0 <= n < 1 << 48 for n in data)


def _new_number(checker: _Checker, data: Any) -> None:
    if type(data) is not int or data in checker.begun:
        raise malformed("an object's number is not one, or is there twice")
    checker.begun.add(data)


def _old_number(checker: _Checker, data: Any) -> None:
    if type(data) is not int or data not in checker.begun:
        raise malformed("it names an object that it does not have")


def _object(checker: _Checker, data: Any) -> None:
    """What follows the number of a new object."""
    if isinstance(data, list) and data and data[0] == "placed":
        checker.node(data, {"placed": (_device, _object)})
        if data[2][0] not in _TENSORS:
            raise malformed("what is on a device is no tensor")
    elif isinstance(data, list) and data and data[0] in ("tensor", "parameter"):
        checker.node(data, _TENSORS)
        _layout(data)
    else:
        checker.node(data, _OBJECTS)


def _member(checker: _Checker, data: Any) -> None:
    checker.node(data, {**_KINDS, **_DESCRIPTORS})


def _layout(data: list[Any]) -> None:
    """A tensor's numbers fit together."""
    _, _, size, stride, _, extent, _ = data
    if len(size) != len(stride):
        raise malformed("a tensor has other strides than sizes")
    count = 1
    for n in size:
        count *= n
    if count > 1 << 48 or elements_spanned(size, stride) > extent:
        raise malformed("a tensor reaches beyond its memory")


_device = _matches(re.compile(r"[a-z]{1,20}(:\d{1,3})?"), "a device")
_text = _is(lambda data: isinstance(data, str), "a text")
_flag = _is(lambda data: isinstance(data, bool), "true or false")
_count = _is(lambda data: type(data) is int and 0 <= data < 1 << 48, "a number of things")
_plain = _is(lambda data: data is None or type(data) in (bool, int, str), "a plain value")
_float = _matches(re.compile(r"-?(inf|nan|0x[01]\.[0-9a-f]{1,20}p[+-]\d{1,5})"), "a float")
_hex = _matches(re.compile(r"([0-9a-f]{2})*"), "bytes")
_name = _matches(_NAME, "a name")
_value: Check = _Checker.value
_values, _names = _each(_value), _each(_row(_text, _value))
_torch = _is(lambda data: data in ("dtype", "device", "memory_format", "layout"), "a kind of torch's constants")

_KINDS: dict[str, tuple[Check, ...]] = {
    "plain": (_plain,),
    "float": (_float,),
    "complex": (_float, _float),
    "bytes": (_hex,),
    "ellipsis": (),
    "torch": (_torch, _matches(re.compile(r"[\w.:]{1,80}"), "a constant of torch")),
    "same": (_old_number,),
    "new": (_new_number, _object),
    "missing": (_text, _text),
}
_DESCRIPTORS: dict[str, tuple[Check, ...]] = {
    "staticmethod": (_value,),
    "classmethod": (_value,),
    "property": (_row(_value, _value, _value),),
}
_FUNCTION: tuple[Check, ...] = (_count, _text, _names, _values, _value, _value)
_TENSOR_PARTS: tuple[Check, ...] = (
    _name, _is(_sizes, "sizes"), _is(_sizes, "strides"), _flag, _count, _matches(_TENSOR, "the name of a tensor"),
)  # fmt: skip
_TENSORS: dict[str, tuple[Check, ...]] = {"tensor": _TENSOR_PARTS, "parameter": _TENSOR_PARTS}
_OBJECTS: dict[str, tuple[Check, ...]] = {
    **dict.fromkeys(("list", "tuple", "set", "frozenset"), (_values,)),
    "size": (_is(_sizes, "sizes"),),
    "slice": (_row(_value, _value, _value),),
    **dict.fromkeys(("dict", "OrderedDict"), (_each(_row(_value, _value)),)),
    "module": (_name,),
    "import": (_name, _matches(re.compile(r"[\w.]{1,300}"), "a name")),
    "method": (_value, _value),
    "function": _FUNCTION,
    "class": (_text, _values, _each(_row(_text, _member))),
    "object": (_value, _names),
    "missing": (_text, _text),
}


def check_call(frame: Any, args: Any) -> None:
    """Raise RecordError unless `frame` is a function and `args` a list of values."""
    checker = _Checker()
    checker.node(frame, {"function": _FUNCTION})
    _values(checker, args)
