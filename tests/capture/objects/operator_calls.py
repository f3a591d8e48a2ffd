"""Which special methods an operation calls, and in which order: captured code against CPython.

    python -m tests.capture.objects.operator_calls            # every class, operation and pair of operands

A class derives from a builtin and overrides special methods; each notes its call and does what the builtin does. Elements
of containers note their comparisons too. The notes of the compiled function must be those of the plain one.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.capture import table

import argand

LOG: list[str] = []
_METHODS = (
    "__len__ __iter__ __getitem__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __contains__ __add__ __radd__ __mul__ "
    "__rmul__ __sub__ __rsub__ __reversed__ __index__ __int__ __float__ __neg__ __abs__ __round__ __or__ __ror__ __and__ __iadd__ "
    "__imul__ __ior__ __mod__ __rmod__ __pow__ __rpow__ __divmod__ __truediv__ __rtruediv__ __floordiv__ __trunc__ __floor__ __ceil__ "
    "__complex__ __invert__ __xor__ __lshift__ __str__ __repr__ __format__ keys items get __missing__ __length_hint__"
).split()
_BASES: dict[str, tuple[type, tuple[Any, ...]]] = {
    "list": (list, ([1, 2],)),
    "tuple": (tuple, ((1, 2),)),
    "dict": (dict, ({1: 2},)),
    "set": (set, ({1, 2},)),
    "frozenset": (frozenset, ({1, 2},)),
    "str": (str, ("ab",)),
    "bytes": (bytes, (b"ab",)),
    "int": (int, (2,)),
    "float": (float, (2.0,)),
    "deque": (collections.deque, ([1, 2],)),
    "bytearray": (bytearray, (b"ab",)),
    "complex": (complex, (1.0, 2.0)),
    "OrderedDict": (collections.OrderedDict, ({1: 2},)),
    "defaultdict": (collections.defaultdict, (int, {1: 2})),
    "Counter": (collections.Counter, ([1, 1],)),
    "UserDict": (collections.UserDict, ({1: 2},)),
    "namedtuple": (collections.namedtuple("Pair", "x y"), (1, 2)),
    "ValueError": (ValueError, ("said",)),
    "date": (datetime.date, (2020, 1, 2)),
    "timedelta": (datetime.timedelta, (1, 2)),
    "Fraction": (fractions.Fraction, (1, 2)),
    "Decimal": (decimal.Decimal, ("1.5",)),
    "object": (object, ()),
}


def _logging(base: type, name: str) -> Any:
    original = getattr(base, name, None)

    def method(self: Any, *args: Any) -> Any:
        LOG.append(f"{base.__name__}.{name}")
        if original is not None:
            return original(self, *args)
        if name == "__missing__":
            return 5
        if name == "__bool__":
            return True
        if name == "__length_hint__":
            return 2
        return NotImplemented

    return method


def class_over(base: type, names: list[str]) -> type:
    """A subclass of a builtin that notes the calls of these methods."""
    return type(f"My{base.__name__}", (base,), {name: _logging(base, name) for name in names})


class Noting:
    """An element: notes its comparisons and hashes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: Any) -> Any:
        LOG.append(f"{self.n} == {other.n if isinstance(other, Noting) else type(other)}")
        return self.n == (other.n if isinstance(other, Noting) else other)

    def __lt__(self, other: Any) -> Any:
        LOG.append(f"{self.n} < {other.n if isinstance(other, Noting) else type(other)}")
        return self.n < (other.n if isinstance(other, Noting) else other)

    def __bool__(self) -> bool:
        LOG.append(f"bool {self.n}")
        return bool(self.n)

    __hash__ = None  # type: ignore[assignment]


class Walking:
    """A container that notes when its elements are taken."""

    def __init__(self, name: str, *items: Any) -> None:
        self.name = name
        self.items = items

    def __hash__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        LOG.append(f"{self.name} begins")
        return self.walk()

    def walk(self) -> Iterator[Any]:
        for item in self.items:
            LOG.append(f"{self.name} gives")
            yield item
        LOG.append(f"{self.name} ends")


_OPERATIONS = (
    "a == b", "a != b", "a < b", "a <= b", "a > b", "a >= b", "b == a", "b < a", "1 in a", "9 in a", "a + b", "b + a", "a * 2", "2 * a",
    "a - b", "a | b", "a & b", "a % b", "a / b", "-a", "~a", "abs(a)", "bool(a)", "not a", "len(a)", "list(a)", "tuple(a)", "set(a)",
    "[*a]", "(*a, 1)", "sorted(a)", "list(reversed(a))", "sum(a)", "any(a)", "all(a)", "min(a)", "max(a)", "list(map(str, a))",
    "list(zip(a, a))", "list(enumerate(a))", "a[0]", "a[1]", "a[0:1]", "{**a}", "dict(a)", "list(filter(None, a))", "hash(a)", "{a: 1}[a]",
    "int(a)", "float(a)", "round(a)", "[1, 2, 3][a]", "range(a)", "str(a)", "f'{a}'", "f'{a!r}'", "'%s' % (a,)", "a.count(1)", "a.index(2)",
    "1 if a else 2", "iter(a) is None", "next(iter(a))", "divmod(a, 2)", "a ** 2", "isinstance(a, (list, int))", "a is b", "[a] == [b]",
    "(a, 1) == (b, 1)", "a in [b]", "a in (1, b)", "[b].index(a)", "[b, b].count(a)", "(lambda p, *q: p)(*a)", "(lambda **k: k)(**a)",
    "complex(a)", "'x' * a", "bytes(a)", "','.join(a)", "a.get(1)", "list(a.keys())", "frozenset(a)", "max(a, b)", "min([a, b])",
    "sorted([a, b])", "__import__('operator').length_hint(a)", "__import__('operator').index(a)", "__import__('math').floor(a)",
    "collections.deque(a)", "collections.Counter(a)", "a.copy()", "a.update(b)", "a.extend(b)", "a.append(b)", "a.add(b)", "a.union(b)",
    "a.issubset(b)", "a.issuperset(b)", "a.isdisjoint(b)", "a.intersection(b)", "a.difference(b)", "a.symmetric_difference(b)", "b.union(a)",
    "b.update(a)", "b.extend(a)", "b.difference(a)", "b.isdisjoint(a)", "b.issubset(a)", "a.join(['x', 'y'])", "a.startswith(b)",
    "b.startswith(a)", "a.replace(b, b)", "b.replace(b, a)", "a.sort()", "a.sort(key=lambda v: v)", "a.sort(key=lambda v: -v)", "a.remove(1)", "a.pop()",
    "a.pop(1)", "a.insert(0, b)", "a.setdefault(1, b)", "a.fromkeys([1, b])", "type(a).fromkeys(b)", "dict.fromkeys(a)", "a.discard(1)",
    "a.clear()", "a.reverse()", "list(a.items())", "list(a.values())", "a.keys() == b.keys()", "a.items() == b.items()", "1 in a.values()",
    "a.upper()", "a.split()", "a.strip(b)", "a.find(b)", "a.partition(b)", "b.join(a)", "'{}'.format(a)", "'{!r:>4}'.format(a)", "format(a, '>9')",
    "'%d' % a", "'%r' % (a,)", "'%5.1f' % a", "repr(a)", "ascii([a])", "str([a])", "repr({1: a})", "repr((a,))", "repr({a})",
    "a.__contains__(1)", "a.__eq__(b)", "a.__len__()", "list.__len__(a)", "dict.__getitem__(a, 1)", "dict.get(a, 1)", "list.__getitem__(a, 0)",
    "list.copy(a)", "dict.copy(a)", "dict.items(a)", "set.copy(a)", "str.upper(a)", "int.__add__(a, 1)", "float.__add__(a, 1.0)", "list.__eq__(a, b)",
    "tuple.__add__(a, b)", "set.__or__(a, b)", "int.__repr__(a)", "str.__str__(a)", "object.__repr__(a) is None", "object.__eq__(a, b)",
    "(1, a) < (1, b)", "[a] < [b]", "{1: a} == {1: b}", "{a}", "{a: 1}", "{a, b}", "a in {b}", "a in {b: 1}", "{b: 1}.get(a)", "{b: 1}[a]",
    "{1: 2}.get(a)", "[1, 2, 3][a:]", "'abc'[a]", "(1, 2)[a]", "[b, b].remove(a)", "(b, b).count(a)", "collections.deque([b]).index(a)",
    "collections.deque(a, 1)", "collections.OrderedDict(a)", "collections.defaultdict(int, a)", "collections.ChainMap(a)[1]",
    "math.sqrt(a)", "math.ceil(a)", "math.trunc(a)", "math.isfinite(a)", "math.gcd(a, 2)", "math.prod(a)", "math.fsum(a)", "math.hypot(a, 1)",
    "operator.add(a, b)", "operator.eq(a, b)", "operator.contains(a, 1)", "operator.getitem(a, 0)", "operator.itemgetter(0)(a)",
    "operator.countOf(a, 1)", "operator.indexOf(a, 1)", "operator.truth(a)", "operator.concat(a, b)", "operator.iadd(a, b)", "operator.not_(a)",
    "functools.reduce(lambda p, q: q, a)", "functools.reduce(operator.add, a)", "functools.partial(max, a)(b)",
    "sorted([a, b], key=functools.cmp_to_key(lambda p, q: 0))", "list(itertools.chain(a, b))", "list(itertools.islice(a, 1))",
    "list(itertools.product(a, a))", "list(itertools.accumulate(a))", "list(itertools.zip_longest(a, b))", "list(itertools.repeat(1, a))",
    "list(itertools.groupby(a))", "list(itertools.starmap(max, [a]))", "list(itertools.chain.from_iterable([a]))", "list(itertools.chain.from_iterable(a))",
    "list(itertools.chain.from_iterable(p for p in [a, b]))", "list(itertools.islice(itertools.chain(a, b), 1))", "list(itertools.combinations(a, 2))",
    "list(itertools.takewhile(bool, a))", "list(itertools.compress(a, a))", "json.dumps(a)", "json.dumps([a])", "copy.copy(a)", "copy.deepcopy(a)",
    "copy.deepcopy([a])", "isinstance(a, collections.abc.Hashable)", "pow(a, 2)", "pow(2, a, 5)", "ord(a)", "oct(a)", "bin(a)", "slice(a).indices(5)",
    "enumerate([1], a).__next__()", "sum([a, b])", "sum([1], a)", "min(a, default=1)", "max([a, b], key=lambda v: v)", "all([a, b])", "any([a, b])",
    "list(filter(None, [a, b]))", "list(map(len, [a]))", "[*map(hash, [a])]", "dict([a])", "dict(x=a)", "dict([(a, 1)])", "set([a])", "tuple([a])",
    "print(a, end='') if 0 else 1", "int(a, 10)", "int.from_bytes(a, 'big')", "bytes([a])", "bytearray(a)", "memoryview(a).nbytes", "str(a, 'ascii')",
    "'a' in a", "b in a", "a in b", "a is not b", "[p for p in a]", "{p for p in a}", "{p: 1 for p in a}", "(lambda p, q: p)(*a)", "a.real",
    "a.x", "a.args", "a.numerator", "a.most_common(1)", "a.elements()", "a.move_to_end(1)", "a.popitem()", "a._asdict()", "a._replace(x=b)",
    "a.year", "a.isoformat()", "a.limit_denominator(3)", "a.as_integer_ratio()", "a.conjugate()", "a.total_seconds()", "a.quantize(a)",
    "next(reversed(a))", "dict(zip(a, a))", "list(enumerate(a, 1))", "zip(a).__next__()", "'a'.ljust(a)", "'a' + a", "a + 'a'", "b'a' + a", "[1] + a",
    "(1,) + a", "[1] * a", "(1,) * a", "{1: 1} | a", "a | {1: 1}", "{1} | a", "{1} - a", "{1} < a", "{1}.union(a)", "1 + a", "1.0 * a", "1 < a", "1 == a",
    "'ab' == a", "[1, 2] == a", "(1, 2) == a", "{1, 2} == a", "{1: 2} == a", "getattr(torch, a, None)", "hasattr(torch, a)", "isinstance(a, type(b))",
    "x + a", "torch.tensor(a)", "x * 2 if a else x", "x.new_zeros(a)", "torch.zeros(a)", "torch.full((2,), a)", "x.reshape(a)", "x[a]", "x.sum(a)",
    "torch.stack([x, x], a)", "x.split(a)", "x.view(a, 1)", "torch.arange(a)", "torch.cat([x, x], dim=a)",
 "chr(a)", "hex(a)", "a @ b", "a << 1", "a ^ b", "type(a)(a)",
)  # fmt: skip
_MODULES = ("collections", "copy", "functools", "itertools", "json", "math", "operator", "torch")
_NOTING_PAIRS = (
    "[n(1), n(2)], [n(1), n(3)]", "(n(1), n(2)), (n(1), n(3))", "[n(1)], [n(1), n(2)]", "(n(1),), (n(2), n(1))", "{1: n(1)}, {1: n(2)}",
    "{1: n(1)}, {1: n(1), 2: n(2)}", "[n(0), n(2)], [n(0)]", "(n(0), n(2)), [n(0)]", "n(1), n(2)", "(1, n(2)), (1, n(2))",
    "collections.deque([n(1), n(2)]), collections.deque([n(1)])", "[[n(1)]], [[n(1)]]", "[n(2), n(1)], (1,)", "w('a', 1, 2), w('b', 3, 4)", "w('a', 'x', 'y'), w('b')", "w('a', (1, 2), (3, 4)), {1: 2}",
    "w('a', w('c', 1), w('d', 2)), [w('b', 3)]", "w('a', [1], 2), {1, 2}",
)  # fmt: skip


def program_of(operation: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "operator_calls", **{name: importlib.import_module(name) for name in _MODULES}}
    exec(f"def program(x, a, b):\n    y = x + 1\n    return {operation}, y", space)
    program: Callable[..., Any] = space["program"]
    return program


def noted(call: Callable[..., Any], *args: Any) -> tuple[Any, list[str]]:
    """What a call answers (exceptions by type), and the notes that it left."""
    LOG.clear()
    result: Any
    try:
        result = call(*args)[0]
    except Exception as e:
        result = type(e)
    notes = list(LOG)
    if isinstance(result, str | bytes | int | float | complex | type | None):
        result = (type(result), result if isinstance(result, type) else re.sub("0x[0-9a-f]+", "", repr_of(result)))
    else:
        result = type(result)
    return result, notes


def repr_of(value: Any) -> str:
    for base in (str, bytes, int, float, complex):
        if isinstance(value, base):
            return base.__repr__(value)
    return repr(value)


def pairs() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """(name, how to make two operands)."""
    for name, (base, args) in _BASES.items():
        names = [
            m for m in _METHODS if hasattr(base, m) or m in ("__bool__", "__missing__", "__length_hint__", "__index__")
        ]
        if base is object:
            names = ["__eq__", "__hash__", "__bool__", "__ne__"]
        names = [m for m in names if not (m == "__index__" and not hasattr(base, m))]
        whole = class_over(base, names)
        yield f"{name} and its base", lambda whole=whole, base=base, args=args: (whole(*args), base(*args))
        yield f"two of {name}", lambda whole=whole, args=args: (whole(*args), whole(*args))
    for text in _NOTING_PAIRS:
        yield text, lambda text=text: eval(f"({text})", {"n": Noting, "w": Walking, "collections": collections})


def combinations() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]], str]]:
    """The whole table: (operation, how to make its operands, their name)."""
    return ((operation, make, name) for name, make in pairs() for operation in _OPERATIONS)


def differs(operation: str, make: Callable[[], tuple[Any, Any]], name: str) -> str | None:
    argand.reset()
    compiled = argand.compile(program := program_of(operation), backend="eager")
    x = torch.ones(2)
    for call in ("", "again: "):  # the second one evaluates guards, and runs what the first one made
        want = noted(program, x, *make())
        got = noted(compiled, x, *make())
        if want != got:
            return f"{operation} | {name}: {call}{got} is not {want}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    table.run(
        combinations(),
        lambda operation, _, name: options.only in f"{operation} | {name}",
        differs,
        options.share,
        options.first,
    )


if __name__ == "__main__":
    main()
