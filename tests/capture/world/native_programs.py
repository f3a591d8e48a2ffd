"""Objects from outside x operations of native code, and how to compare compiled calls with eager ones.

python tests/capture/world/native_programs.py                 all of it (minutes)
python tests/capture/world/native_programs.py --only Float    subjects or operations whose name has this in it
"""

from __future__ import annotations

import argparse
import array
import binascii
import bisect
import collections
import contextlib
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import io
import itertools
import math
import operator
import re
import struct
import sys
import threading
import time
import types
import unicodedata
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import argand

X = torch.tensor([1.0, 2.0])
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class Float(float):
    pass


class Int(int):
    @property
    def half(self) -> float:
        return self / 2


class Text(str):
    pass


class Raw(bytes):
    pass


class Complex(complex):
    pass


class Listed(list):  # type: ignore[type-arg]
    pass


class Tupled(tuple):  # type: ignore[type-arg]
    pass


class Keyed(dict):  # type: ignore[type-arg]
    def __missing__(self, key: Any) -> Any:
        return len(self)


class Frozen(frozenset):  # type: ignore[type-arg]
    pass


Fields = collections.namedtuple("Fields", "k real")


class Index:
    def __init__(self, v: int) -> None:
        self.v = v

    def __index__(self) -> int:
        return self.v


class Key:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __hash__(self) -> int:
        return hash(self.v)

    def __eq__(self, other: object) -> bool:
        return bool(self.v == (other.v if isinstance(other, Key) else other))


class Sequence:
    def __init__(self, *items: Any) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: Any) -> Any:
        return self.items[i]


class Number:
    def __init__(self, v: float) -> None:
        self.v = v

    def __float__(self) -> float:
        return float(self.v)

    def __int__(self) -> int:
        return int(self.v)

    def __add__(self, other: Any) -> Any:
        return self.v + other

    def __lt__(self, other: Any) -> bool:
        return bool(self.v < (other.v if isinstance(other, Number) else other))

    def __bool__(self) -> bool:
        return self.v > 2

    def __round__(self, digits: int = 0) -> float:
        return round(self.v, digits)

    def __str__(self) -> str:
        return f"number {self.v}"


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"Plain({sorted(self.__dict__)})"


class Slotted:
    __slots__ = ("k", "real")

    def __init__(self, k: Any) -> None:
        self.k = k


class Callable_:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __call__(self, value: Any) -> Any:
        return self.v, value


class Hooked:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name, self.v


@dataclass(frozen=True)
class Config:
    k: Any
    real: Any = 2


class Failure(Exception):
    def __init__(self, text: str, k: Any) -> None:
        super().__init__(text)
        self.k = k


class Kind(enum.IntEnum):
    ONE = 1
    TWO = 2


class Partial(functools.partial):  # type: ignore[type-arg]
    pass


class Point(ctypes.Structure):
    _fields_ = (("k", ctypes.c_int), ("real", ctypes.c_float))


def _local(i: int) -> Any:
    made = threading.local()
    if i:
        made.k = 3.0
    return made


_kept: list[Any] = []


def _keep(obj: Any) -> Any:
    _kept.append(obj)
    return obj


def _function(i: int) -> Any:
    def function(value: Any = i, *, extra: Any = i + 1) -> Any:
        return value, extra

    function.k = i  # type: ignore[attr-defined]
    return function


def _fresh(**namespace: Any) -> Any:
    cls = type("Fresh", (), {"__repr__": lambda self: "Fresh()", **namespace})
    return cls()


def _add_to_class(**namespace: Any) -> Callable[[Any], None]:
    def change(obj: Any) -> None:
        for name, value in namespace.items():
            setattr(type(obj), name, value)

    return change


@dataclass
class Subject:
    """Objects of one kind.

    Arguments:
        make: the i-th of them, made anew (0, 1, ...).
        change: changes one in place; None: it cannot be changed.
        count: how many different ones `make` knows.
    """

    make: Callable[[int], Any]
    change: Callable[[Any], object] | None = None
    count: int = 2


def _values(*values: Any) -> Subject:
    return Subject(lambda i: values[i], count=len(values))


def _change_k(obj: Any) -> None:
    obj.k = 5


SUBJECTS: dict[str, Subject] = {
    "int": _values(1, 2),
    "float": _values(1.0, 2.5),
    "str": _values("ab", "b"),
    "Float": Subject(lambda i: Float((1.0, 2.5, float("nan"), -0.0)[i]), _change_k, 4),
    "Int": Subject(lambda i: Int((1, 2, 0)[i]), _change_k, 3),
    "Text": Subject(lambda i: Text(("1", "ab", "")[i]), _change_k, 3),
    "Raw": Subject(lambda i: Raw((b"a", b"bc")[i]), _change_k),
    "Complex": Subject(lambda i: Complex(1 + i, 2)),
    "list": Subject(lambda i: [1, 2 + i], lambda o: o.append(7)),
    "Listed": Subject(lambda i: Listed([1, 2 + i]), lambda o: o.append(7)),
    "tuple": _values((1, 2), (2, 3)),
    "Tupled": Subject(lambda i: Tupled((1, 2 + i)), _change_k),
    "Fields": Subject(lambda i: Fields(1 + i, 2)),
    "dict": Subject(lambda i: {"a": 1 + i, "b": 2}, lambda o: o.update(a=7, c=1)),
    "Keyed": Subject(lambda i: Keyed({"a": 1 + i}), lambda o: o.update(b=7)),
    "OrderedDict": Subject(lambda i: collections.OrderedDict(a=1 + i, b=2), lambda o: o.move_to_end("a")),
    "defaultdict": Subject(lambda i: collections.defaultdict((int, list)[i], a=1), lambda o: o.update(b=7)),
    "Counter": Subject(lambda i: collections.Counter("ab" + "a" * i), lambda o: o.update("a")),
    "set": Subject(lambda i: {1, 2 + i}, lambda o: o.add(9)),
    "frozenset": _values(frozenset({1, 2}), frozenset({1, 3})),
    "Frozen": Subject(lambda i: Frozen({1, 2 + i}), _change_k),
    "deque": Subject(lambda i: collections.deque([1, 2 + i], maxlen=3), lambda o: o.append(7)),
    "bytearray": Subject(lambda i: bytearray(b"ab"[: i + 1]), lambda o: o.append(7)),
    "memoryview": Subject(lambda i: memoryview(bytearray(b"ab"[: i + 1])), lambda o: o.__setitem__(0, 7)),
    "array": Subject(lambda i: array.array("i", [1, 2 + i]), lambda o: o.append(7)),
    "range": _values(range(1), range(2, 5)),
    "slice": _values(slice(0, 1), slice(0, 2)),
    "slice of Index": Subject(lambda i: slice(0, Index(1 + i))),
    "mappingproxy": Subject(lambda i: types.MappingProxyType({"a": 1 + i})),
    "keys": Subject(lambda i: {"a": 1, "b": 2, **dict.fromkeys("c" * i)}.keys()),
    "values": Subject(lambda i: {"a": 1 + i}.values()),
    "items": Subject(lambda i: {"a": 1 + i}.items()),
    "list iterator": Subject(lambda i: iter([1, 2 + i]), next),
    "repeat": Subject(lambda i: itertools.repeat(1, 1 + i), next),
    "count": Subject(lambda i: itertools.islice(itertools.count(i), 3), next),
    "generator": Subject(lambda i: (v + i for v in (1, 2, 3)), next),
    "itemgetter": _values(operator.itemgetter(0), operator.itemgetter(1)),
    "attrgetter": _values(operator.attrgetter("real"), operator.attrgetter("imag"), operator.attrgetter("k")),
    "methodcaller": _values(operator.methodcaller("count", 1), operator.methodcaller("count", 2)),
    "partial": Subject(lambda i: functools.partial(max, i + 1), lambda o: o.__setstate__((min, (0,), {}, {}))),
    "Partial": Subject(lambda i: Partial(max, i + 1), _change_k),
    "comparison key": Subject(lambda i: functools.cmp_to_key(lambda a, b: a - b)(i + 1)),
    "method": Subject(lambda i: Callable_(i).__call__),
    "bound append": Subject(lambda i: [1, 2][:i].append),
    "bound join": _values(",".join, "-".join),
    "method wrapper": _values((1).__add__, (2).__add__),
    "GenericAlias": _values(list[int], dict[str, int]),
    "Match": Subject(lambda i: re.match("a|b", "ab"[i])),
    "Pattern": _values(re.compile("a"), re.compile("b")),
    "Struct": _values(struct.Struct("i"), struct.Struct("q")),
    "date": _values(datetime.date(2020, 1, 1), datetime.date(2021, 1, 2)),
    "timedelta": _values(datetime.timedelta(1), datetime.timedelta(2)),
    "Decimal": _values(decimal.Decimal(1), decimal.Decimal("2.5")),
    "Fraction": Subject(lambda i: fractions.Fraction(1 + i, 2)),
    "ValueError": Subject(lambda i: ValueError("a" * (i + 1), i), lambda o: setattr(o, "args", (5,))),
    "OSError": Subject(lambda i: OSError(1 + i, "text", "file"), lambda o: setattr(o, "errno", 9)),
    "KeyError": Subject(lambda i: KeyError(i), lambda o: setattr(o, "args", (5, 6))),
    "StopIteration": Subject(lambda i: StopIteration(i), lambda o: setattr(o, "value", 9)),
    "AttributeError": Subject(lambda i: AttributeError("t", name="ab"[i], obj=i), lambda o: setattr(o, "name", "c")),
    "ExceptionGroup": Subject(lambda i: ExceptionGroup("t", [ValueError(i)] * (i + 1))),
    "UnicodeDecodeError": Subject(lambda i: UnicodeDecodeError("utf8", b"abc", i, 2, "why")),
    "Failure": Subject(lambda i: Failure("t", i), _change_k),
    "c_int": Subject(lambda i: ctypes.c_int(1 + i), lambda o: setattr(o, "value", 9)),
    "Point": Subject(lambda i: Point(1 + i, 2.0), lambda o: setattr(o, "k", 9)),
    "c array": Subject(lambda i: (ctypes.c_int * 2)(1, 2 + i), lambda o: o.__setitem__(0, 9)),
    "Index": Subject(lambda i: Index(1 + i), lambda o: setattr(o, "v", 0)),
    "Key": Subject(lambda i: Key(1 + i), lambda o: setattr(o, "v", 3.0)),
    "Sequence": Subject(lambda i: Sequence(1, 2 + i), lambda o: o.items.append(7)),
    "Number": Subject(lambda i: Number(1.5 + i), lambda o: setattr(o, "v", 7.25)),
    "Plain": Subject(lambda i: Plain(k=i, **{"real": 1} if i else {}), lambda o: setattr(o, "imag", 2)),
    "Slotted": Subject(lambda i: Slotted(i), lambda o: setattr(o, "real", 2)),
    "Callable": Subject(lambda i: Callable_(i), lambda o: setattr(o, "v", 2)),
    "Hooked": Subject(lambda i: Hooked(i), lambda o: setattr(o, "k", 2)),
    "Config": Subject(lambda i: Config(i)),
    "Kind": _values(Kind.ONE, Kind.TWO),
    "namespace": Subject(lambda i: types.SimpleNamespace(k=i), lambda o: setattr(o, "real", 2)),
    "weakref": Subject(lambda i: weakref.ref(_keep(Number(i)))),
    "proxy": Subject(lambda i: weakref.proxy(_keep(Plain(k=i))), lambda o: setattr(o, "real", 2)),
    "proxy of a sequence": Subject(lambda i: weakref.proxy(_keep(Sequence(1, i)))),
    "weak values": Subject(lambda i: weakref.WeakValueDictionary({"a": _keep(Number(i))})),
    "ChainMap": Subject(lambda i: collections.ChainMap({"a": i}, {"b": 1}), lambda o: o.update(c=1)),
    "UserDict": Subject(lambda i: collections.UserDict(a=i), lambda o: o.update(c=1)),
    "UserList": Subject(lambda i: collections.UserList([1, i]), lambda o: o.append(1)),
    "thread's own": Subject(_local, _change_k),
    "function": Subject(_function, lambda o: setattr(o, "__defaults__", (8,))),
    "class": Subject(lambda i: (int, Number)[i]),
    "module": _values(math, operator),
    "StringIO": Subject(lambda i: io.StringIO("a\nb\n"[i:]), lambda o: o.read(1)),
    "cell": Subject(lambda i: types.CellType(i), lambda o: setattr(o, "cell_contents", 8)),
    "property": Subject(lambda i: property((len, repr)[i])),
    "torch.Size": _values(torch.Size([1, 2]), torch.Size([2, 2])),
    "dtype": _values(torch.float32, torch.int64),
    "class gains __call__": Subject(lambda i: _fresh(), _add_to_class(__call__=lambda self, *args: args), 1),
    "class gains __len__": Subject(lambda i: _fresh(), _add_to_class(__len__=lambda self: 3), 1),
    "class gains __bool__": Subject(lambda i: _fresh(), _add_to_class(__bool__=lambda self: False), 1),
    "class gains __index__": Subject(lambda i: _fresh(), _add_to_class(__index__=lambda self: 2), 1),
    "class gains __eq__": Subject(lambda i: _fresh(), _add_to_class(__eq__=lambda self, other: True), 1),
    "class gains __getattr__": Subject(lambda i: _fresh(), _add_to_class(__getattr__=lambda self, name: 2), 1),
    "class gains __contains__": Subject(lambda i: _fresh(), _add_to_class(__contains__=lambda self, item: True), 1),
    "class gains __str__": Subject(lambda i: _fresh(), _add_to_class(__str__=lambda self: "text"), 1),
    "class gains __format__": Subject(lambda i: _fresh(), _add_to_class(__format__=lambda self, spec: "text"), 1),
    "class gains __float__": Subject(lambda i: _fresh(), _add_to_class(__float__=lambda self: 2.0), 1),
    "class gains __iter__": Subject(lambda i: _fresh(), _add_to_class(__iter__=lambda self: iter([1, 2])), 1),
    "class gains an attribute": Subject(lambda i: _fresh(), _add_to_class(k=1), 1),
    "Int gains __index__": Subject(
        lambda i: type("Fresh", (Int,), {})(3), _add_to_class(__index__=lambda self: 2, __len__=lambda self: 1), 1
    ),
}

_UNARY = """
len(o) | bool(o) | hash(o) == hash(o) | str(o) | repr(o) | ascii(o) | f"{o}" | f"{o!r:>9}" | f"{o:>9}" | format(o) | format(o, "5")
"%s" % (o,) | "%r" % (o,) | "%d" % (o,) | "%.1f" % (o,) | "{} {}".format(o, 1) | "{0.k}".format(o) | "{0[0]}".format(o)
int(o) | float(o) | complex(o) | bytes(o) | bytearray(o) | list(o) | tuple(o) | sorted(o) | set(o) | frozenset(o) | dict(o)
list(iter(o)) | next(iter(o)) | next(o) | list(reversed(o)) | sum(o) | min(o) | max(o) | any(o) | all(o) | [*o] | {**o} | {*o}
list(enumerate(o)) | list(enumerate([1], o)) | list(zip(o, o)) | list(map(str, o)) | list(filter(None, o)) | [v for v in o]
abs(o) | round(o) | round(1.2345, o) | divmod(o, 3) | divmod(3, o) | pow(o, 2) | pow(2, o) | -o | +o | ~o | not o
o + 1 | 1 + o | o - 1 | o * 2 | 2 * o | o / 2 | o // 2 | o % 3 | o ** 2 | o << 1 | o & 3 | o | 4 | o ^ 1 | o @ o | o + o
o == 1 | 1 == o | o != 1 | o < 2 | 2 < o | o >= 1 | o == "ab" | o == [1, 2] | o == (1, 2) | o == o | o is o | o is None | [o] == [1] | (1, o) < (1, 2)
o in [1, 2.5, "ab"] | o in (1, 2) | o in {1: 2} | o in {1, 2} | 1 in o | "a" in o | o in "abc" | 1 not in o
o[0] | o["a"] | o[0:1] | o[-1] | o[5] | o[o] | o[()] | o[None]
{o: 1.0}.get(1) | {1: 2.0}.get(o) | len({o, 3.0, 1}) | {1: 2}.get(o, 3) | {o: 1}[o] | dict.fromkeys([o, 1]) | {1, 2} - {o} | {3: 1}.pop(o, 2)
[1, 2, 3].index(o) | [1, 2, 3].count(o) | (1, 2, 3).index(o) | [3, 1].remove(o) | sorted([o, 1]) | sorted([3, 1, 2], key=lambda v: o) | max(o, 1) | min(1, o)
"a" * o | [0] * o | (0,) * o | b"a" * o | list(range(o)) | [1, 2, 3][o] | (1, 2, 3)[o] | "abc"[o] | b"abc"[o] | "abcdef"[o:] | [1, 2, 3][:o] | range(9)[o]
[1, 2, 3].pop(o) | [1, 2].insert(o, 1) | collections.deque([1, 2, 3], o) | collections.deque([1, 2, 3])[o]
list(itertools.repeat(1, o)) | list(itertools.islice(range(9), o)) | list(itertools.chain(o, [1])) | list(itertools.islice(itertools.count(o), 2)) | list(itertools.product(o, repeat=1))
list(itertools.combinations([1, 2, 3], o)) | list(itertools.islice(itertools.cycle(o), 3)) | list(itertools.accumulate([1, 2], initial=o)) | list(itertools.zip_longest([1], [], fillvalue=o))
chr(o) | ord(o) | hex(o) | bin(o) | oct(o) | math.sqrt(o) | math.floor(o) | math.ceil(o) | math.trunc(o) | math.comb(o, 1) | math.gcd(o, 4) | math.isnan(o) | math.fsum([o, 1]) | math.prod([o, 2]) | math.hypot(o, 1)
isinstance(o, (int, str)) | isinstance(o, collections.abc.Sized) | isinstance(o, collections.abc.Hashable) | issubclass(type(o), int) | callable(o) | type(o).__name__ | o.__class__.__name__ | isinstance(1, o)
hasattr(o, "k") | getattr(o, "k", 7.0) | getattr(o, "real", None) | o.k | o.real | o.imag | o.v | o.half | o.__dict__ | vars(o) | sorted(n for n in dir(o) if n[0] != "_") | o.__doc__ | o.__len__() | o.__str__() | o.__eq__(1)
o("abc") | o([1.0, 2.0]) | o([1, 2]) | o(1j) | o(1) | o() | functools.reduce(o, [1, 2], 3) | list(map(o, [1, 2])) | functools.partial(o)() | functools.partial(max, o)(1) | functools.partial(max, o).args
o.upper() | o.is_integer() | o.bit_length() | o.conjugate() | o.hex() | o.join(["a", "b"]) | o.startswith("a") | o.count(1) | o.index(2) | o.as_integer_ratio() | o.decode() | o.find("b") | o.encode() | o.to_bytes(2, "big")
o.get("a") | o.keys() | o.items() | o.values() | list(o.keys()) | o.copy() | o.maxlen | o.default_factory | o.most_common() | o.union([5]) | o.isdisjoint([1]) | {**{"z": o}}
o.args | o.errno | o.filename | o.value | o.name | o.obj | o.exceptions | o.message | o.start | o.__cause__ | o.add_note("n") | o.with_traceback(None) is o
o.func | o.keywords | o.__self__ | o.__func__ | o.__name__ | o.__wrapped__ | o.__defaults__ | o.__kwdefaults__ | o.__code__.co_name | o.__origin__ | o.__args__ | o.cell_contents | o.fget | o.__module__
o.group(0) | o.span() | o.match("ab") | o.pattern | o.size | o.pack(1) | o.year | o.days | o.numerator | o.getvalue() | o.read() | o.string | o.k.real | o.__reduce_ex__(2) is None
operator.index(o) | operator.length_hint(o) | operator.itemgetter(0)(o) | operator.attrgetter("k")(o) | operator.methodcaller("keys")(o) | operator.add(o, 1) | operator.countOf(o, 1) | operator.contains(o, 1) | operator.truth(o) | operator.concat(o, o)
",".join(o) | ",".join([o, "b"]) | "abc".replace("a", o) | "abc".startswith(o) | "abc".split(o) | "ab".center(o) | o.join("ab") | "ab".encode(o) | b"abc".find(o) | str.upper(o) | int.bit_length(o) | list.copy(o) | dict.get(o, "a") | float.is_integer(o) | str(o, "utf8") | int(o, 3) | int("11", o)
struct.pack("i", o) | struct.unpack("i", o) | re.match("a", o) | re.sub("a", "b", o) | re.compile(o).pattern | bytes.fromhex(o) | float.fromhex(o) | int.from_bytes(o, "big") | sys.intern(o) | complex(1, o) | memoryview(o)[0]
type(o)() | type(o)(o) | type(o)([1, 2]) | copy.copy(o) | copy.deepcopy(o) | collections.Counter(o) | collections.OrderedDict(o) | collections.ChainMap(o)["a"] | types.MappingProxyType(o)["a"] | list(zip(*[o])) | types.SimpleNamespace(v=o).v is o
[v for v in (o,)][0] is o | [o].append(o) | (lambda *a: len(a))(*o) | (lambda **a: sorted(a))(**o) | (lambda a, b: (a, b))(*o) | all([o]) | any([o]) | sum([o], 1) | o or 3 | o and 3 | 1 if o else 2
bisect.bisect([1, 2, 3], o) | bisect.bisect_left(o, 2) | bisect.insort(o, 2) | heapq.heappushpop([1, 2], o) | heapq.heapify(o) | heapq.heappop(o) | heapq.nsmallest(2, o) | operator.call(o, 1) | o.send(None) | o.close()
datetime.timedelta(o) | datetime.date(2020, 1, o) | datetime.date.fromordinal(o) | datetime.date.fromisoformat(o) | datetime.datetime.combine(o, datetime.time(1)) | o.isoformat() | o.weekday() | o.total_seconds() | o.replace(1) | o.is_zero() | o.adjusted() | o.copy_abs()
zlib.crc32(o) | zlib.compress(o) | binascii.hexlify(o) | unicodedata.name(o) | unicodedata.normalize("NFD", o) | str.maketrans(o) | "ab".translate(str.maketrans({"a": o})) | struct.Struct(o).size | struct.Struct("i").pack(o) | time.struct_time(o) | types.GenericAlias(list, o)
x + o | x * o | o * x | x[o] | x.sum(o) | torch.full((2,), o) | torch.tensor(o) | x.view(o) | x.to(o) | x.new_zeros(o) | torch.zeros(o) | x ** o | torch.where(x > 1, x, o) | x.clamp(o)
len(str(ValueError(o))) | str(KeyError(o)) | repr(ValueError(o, 1)) | ValueError(o).args[0] is o | StopIteration(o).value is o | repr([o]) | str({1: o}) | repr((o,)) | f"{[o]}" | repr(slice(o)) | slice(o).indices(5) | slice(0, o) == slice(0, 1)
"""


def _operations() -> list[str]:
    """The expressions above, each with `o` and `x`."""
    found = []
    for line in _UNARY.strip().splitlines():
        parts = line.split(" | ")
        found += [part for part in parts if part.strip() not in ("o", "4")]
    return [*found, "o | 4"]


OPERATIONS: list[str] = _operations()
NAMES = {
    "operator": operator, "math": math, "itertools": itertools, "functools": functools, "collections": collections,
    "types": types, "struct": struct, "re": re, "sys": sys, "torch": torch, "bisect": bisect, "heapq": heapq,
    "datetime": datetime, "zlib": zlib, "binascii": binascii, "unicodedata": unicodedata, "time": time,
    "copy": __import__("copy"),
}  # fmt: skip
STATEFUL = {"hash(o) == hash(o)"}


def program(expression: str, number: int) -> Callable[[Any, Any], Any]:
    """A new function that computes an expression of `o`, between two operations on a tensor."""
    source = f"def program_{number}(x, o):\n    y = x + 1\n    value = {expression}\n    return y * 2, value\n"
    namespace = dict(NAMES)
    exec(compile(source, f"<{expression}>", "exec"), namespace)
    made: Callable[[Any, Any], Any] = namespace[f"program_{number}"]
    return made


def shown(value: Any, depth: int = 0) -> Any:
    """What can be compared of a result: types and contents, no addresses."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), repr(value.tolist())
    if isinstance(value, Iterator) and depth < 4:
        return type(value).__name__, [shown(item, depth + 1) for item in itertools.islice(value, 5)]
    if type(value) in (list, tuple) and depth < 4:
        return type(value).__name__, [shown(item, depth + 1) for item in value]
    text = repr(value)
    return type(value).__name__, _ADDRESS.sub("0x", text)


def outcome(fn: Callable[[Any, Any], Any], obj: Any) -> Any:
    """What a call gives or raises."""
    try:
        return shown(fn(X, obj))
    except (Exception, RecursionError) as e:
        return "raises", type(e).__name__, _ADDRESS.sub("0x", str(e))


@dataclass
class Difference:
    subject: str
    operation: str
    call: str
    eager: Any
    compiled: Any

    def __str__(self) -> str:
        return f"{self.operation}  of {self.subject}, {self.call}: eager {self.eager}, compiled {self.compiled}"


@dataclass
class Runner:
    """Runs subjects under operations; one function and one compiled function per pair."""

    backend: str = "eager"
    made: int = field(default=0)

    def differences(self, subject: str, expression: str) -> list[Difference]:
        """Calls with each object of a kind, and with one object before and after a change."""
        kind = SUBJECTS[subject]
        found = []
        for what, steps in (("another object", self._others(kind)), ("the object changed", self._changed(kind))):
            self.made += 1
            fn = program(expression, self.made)
            compiled = argand.compile(fn, backend=self.backend)
            for i, (for_eager, for_compiled) in enumerate(steps):
                eager, ours = outcome(fn, for_eager), outcome(compiled, for_compiled)
                if eager != ours:
                    found.append(Difference(subject, expression, f"call {i}, {what}", eager, ours))
                    break
        return found

    @staticmethod
    def _others(kind: Subject) -> Iterator[tuple[Any, Any]]:
        for i in range(kind.count):
            yield kind.make(i), kind.make(i)

    @staticmethod
    def _changed(kind: Subject) -> Iterator[tuple[Any, Any]]:
        if kind.change is None:
            return
        both = kind.make(0), kind.make(0)
        yield both
        for obj in both:
            with contextlib.suppress(Exception):  # an iterator that has ended
                kind.change(obj)
        yield both


def pairs(only: str = "") -> list[tuple[str, str]]:
    """Every subject with every operation."""
    return [(s, e) for s in SUBJECTS for e in OPERATIONS if not only or only in s or only in e]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="subjects or operations whose name has this in it")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--share", default="0/1", help="i/n: the i-th of n parts")
    args = parser.parse_args()
    part, parts = map(int, args.share.split("/"))
    runner = Runner(args.backend)
    count = differing = 0
    for i, (subject, expression) in enumerate(pairs(args.only)):
        if i % parts != part:
            continue
        count += 1
        for difference in runner.differences(subject, expression):
            differing += 1
            print(difference, flush=True)
        if count % 50 == 0:
            argand.reset()
    print(f"{count} pairs, {differing} differences")
    return int(differing > 0)


if __name__ == "__main__":
    argand.set_logs(graph_breaks=False)
    raise SystemExit(main())
