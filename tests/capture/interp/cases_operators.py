"""Small functions, one feature each: operators of user classes, dataclasses, enums, namedtuples."""
# ruff: noqa: E501, E742, F821, F841, I001, UP, PIE, RUF, C4 - the odd spellings are what is tested

import abc
import collections
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
import re
import types
import typing

from .interpret import Cases

TABLE = Cases()
case, breaks = TABLE.case, TABLE.breaks


# ---- operators of user classes ---------------------------------------------------------------------------------------------------


class Vec:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, o):
        return Vec(*[a + b for a, b in zip(self.v, o.v)]) if isinstance(o, Vec) else NotImplemented

    def __radd__(self, o):
        return Vec(*[o + a for a in self.v])

    def __mul__(self, k):
        return Vec(*[a * k for a in self.v])

    __rmul__ = __mul__

    def __iadd__(self, o):
        self.v = [a + b for a, b in zip(self.v, o.v)]
        return self

    def __neg__(self):
        return Vec(*[-a for a in self.v])

    def __invert__(self):
        return "inverted"

    def __pos__(self):
        return "positive"

    def __abs__(self):
        return sum(abs(a) for a in self.v)

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.v, o.v))

    def __pow__(self, k, mod=None):
        return ("pow", k, mod)

    def __eq__(self, o):
        return self.v == o.v if isinstance(o, Vec) else NotImplemented

    def __lt__(self, o):
        return self.v < o.v

    def __le__(self, o):
        return self.v <= o.v

    def __hash__(self):
        return hash(tuple(self.v))

    def __len__(self):
        return len(self.v)

    def __bool__(self):
        return any(self.v)

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, x):
        self.v[i] = x

    def __delitem__(self, i):
        del self.v[i]

    def __contains__(self, x):
        return x in self.v

    def __iter__(self):
        return iter(self.v)

    def __reversed__(self):
        return iter(self.v[::-1])

    def __repr__(self):
        return f"Vec{tuple(self.v)}"

    def __str__(self):
        return "<" + ",".join(map(str, self.v)) + ">"

    def __format__(self, spec):
        return f"fmt[{spec}]" + str(self)

    def __index__(self):
        return self.v[0]

    def __int__(self):
        return 42

    def __float__(self):
        return 4.5

    def __complex__(self):
        return 1j

    def __round__(self, n=None):
        return ("round", n)

    def __divmod__(self, o):
        return ("divmod", o)

    def __rsub__(self, o):
        return ("rsub", o)

    def __rdivmod__(self, o):
        return ("rdivmod", o)


@case()
def vec_arithmetic():
    a, b = Vec(1, 2), Vec(3, 4)
    c = a
    c += b
    return (
        str(a + b), str(2 * a), str(a * 3), str(-a), ~a, +a, abs(a), a @ b, a**2, pow(a, 2, 3), c is a, str(sum([a, b], Vec(0, 0))),
        str(5 + a), 7 - a, divmod(a, 2), divmod(2, a), round(a), round(a, 2), str(functools.reduce(operator.add, [a, b])),
    )  # fmt: skip


@case()
def vec_compare():
    a, b = Vec(1, 2), Vec(3, 4)
    return (
        a == b, a == Vec(1, 2), a != b, a < b, a <= b, a > b, a >= b, a == 5, a != 5, [a] == [Vec(1, 2)], (a, b) < (a, Vec(9)),
        {"k": a} == {"k": Vec(1, 2)}, a in [b, Vec(1, 2)], [b, a].index(Vec(1, 2)), [a, a].count(Vec(1, 2)), max(a, b) is b,
        sorted([b, a])[0] is a, min([b, a], key=lambda v: v[1]) is a, [a, b] < [a], [1, a] != [1, b],
    )  # fmt: skip


@case()
def vec_compare_unordered():
    return Vec(1) < 5


@case()
def vec_container():
    a = Vec(1, 2, 3)
    a[0] = 10
    del a[1]
    first, *rest = a
    return (
        len(a), bool(a), bool(Vec(0)), a[0], a[-1], a[0:1], 3 in a, list(a), list(reversed(a)), first, rest, [*a], {**{"z": a[0]}},
        list(zip(a, a)), sum(a), max(a), list(enumerate(a)), "yes" if Vec() else "no", not Vec(1), tuple(x for x in a),
    )  # fmt: skip


@case()
def vec_text():
    a = Vec(1, 2)
    return (
        str(a), repr(a), f"{a}", f"{a!r}", f"{a:>5}", "%s %r" % (a, a), "{} {!r} {:x}".format(a, a, a), str([a]), str({"k": a}),
        repr((a,)), format(a, "q"), "{0[1]}".format(a), "%(x)s" % {"x": a}, f"{[a]}", str(ValueError(a)), "%d" % a,
    )  # fmt: skip


@case()
def vec_numbers():
    a = Vec(2, 1)
    return (
        int(a),
        float(a),
        complex(a),
        [10, 20, 30][a],
        hex(a),
        range(a),
        "abc"[a],
        [1, 2, 3, 4][a:],
        operator.index(a),
        bin(a),
    )


@case()
def vec_hash():
    a, b = Vec(1), Vec(1)
    d = {a: "x"}
    return (
        d[b],
        b in d,
        len({a, b}),
        hash(a) == hash(b),
        d.get(Vec(2)),
        {Vec(3): 1}.pop(Vec(3)),
        d.setdefault(b, 5),
    )


@breaks("Python object used by native code")
def vec_sets():
    a, b = Vec(1), Vec(1)
    return {a, b} == {a}


@case()
def unhashable():
    class E:
        def __eq__(self, o):
            return True

    return {E(): 1}


@case()
def bad_dunder_results():
    out = []

    class B:
        def __bool__(self):
            return 5

        def __len__(self):
            return -1

        def __str__(self):
            return 5

        def __repr__(self):
            return None

        def __iter__(self):
            return 5

        def __hash__(self):
            return "x"

        def __index__(self):
            return "i"

        def __int__(self):
            return 1.5

        def __float__(self):
            return 3

        def __format__(self, s):
            return 1

        def __contains__(self, x):
            return "truthy"

    for f in (bool, len, str, repr, iter, hash, int, float, format, lambda b: 3 in b, list, lambda b: [1][b]):
        try:
            out.append(f(B()))
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


@case()
def no_protocol():
    out = []

    class N:
        __iter__ = None
        __contains__ = None
        __hash__ = None

    for f in (
        iter,
        hash,
        len,
        lambda n: 3 in n,
        lambda n: n[0],
        lambda n: n + 1,
        lambda n: n(),
        lambda n: -n,
        lambda n: n < n,
        reversed,
        next,
    ):
        try:
            out.append(f(N()))
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


@case()
def reflected_priority():
    class A:
        def __add__(self, o):
            return "A.add"

        def __radd__(self, o):
            return "A.radd"

        def __lt__(self, o):
            return "A.lt"

        def __gt__(self, o):
            return "A.gt"

    class B(A):
        def __radd__(self, o):
            return "B.radd"

        def __gt__(self, o):
            return "B.gt"

    class N:
        def __add__(self, o):
            return NotImplemented

        def __eq__(self, o):
            return NotImplemented

    out = [A() + B(), B() + A(), A() + A(), 1 + A(), A() < B(), A() + 1, [1] + A(), "x" + A(), N() == 1, N() == N()]
    for f in (lambda: N() + 1, lambda: 1 + N(), lambda: N() + N(), lambda: N() - 1):
        try:
            f()
        except TypeError as e:
            out.append(str(e))
    return out


@case()
def old_iteration():
    class Seq:
        def __init__(self, n):
            self.n = n

        def __getitem__(self, i):
            if i >= self.n:
                raise IndexError
            return i * i

        def __len__(self):
            return self.n

    return (
        list(Seq(4)),
        9 in Seq(4),
        [x for x in Seq(3)],
        list(reversed(Seq(3))),
        tuple(Seq(2)),
        max(Seq(5)),
        *Seq(2),
        list(zip(Seq(2), "ab")),
    )


@case()
def user_iterator():
    class Count:
        def __init__(self, n):
            self.i, self.n = 0, n

        def __iter__(self):
            return self

        def __next__(self):
            if self.i >= self.n:
                raise StopIteration
            self.i += 1
            return self.i

    a, b, c = Count(3)
    return (
        list(Count(3)), sum(Count(4)), [*Count(2)], (a, b, c), dict(zip("ab", Count(5))), list(map(str, Count(2))), 3 in Count(4),
        sorted(Count(3), reverse=True), list(itertools.chain(Count(2), Count(1))), next(Count(1)), list(enumerate(Count(2))),
        set(Count(3)), "".join(map(str, Count(3))), max(Count(3)), [1, *Count(2)], list(iter(Count(2))), next(Count(0), "none"),
    )  # fmt: skip


@case()
def iter_sentinel():
    it = iter([1, 2, 3, 4])
    return list(iter(lambda: next(it), 3)), list(it)


@case()
def inplace_fallback():
    class P:
        def __init__(self, v):
            self.v = v

        def __add__(self, o):
            return P(self.v + o)

        def __isub__(self, o):
            return NotImplemented

        def __sub__(self, o):
            return P(self.v - o)

    p = q = P(1)
    p += 5
    q -= 1
    return p.v, q.v


# ---- dataclasses, enums, namedtuples ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Item:
    name: str
    price: float = 1.0
    tags: list = dataclasses.field(default_factory=list)

    def total(self, n=2):
        return self.price * n


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: int = 2

    def __post_init__(self):
        object.__setattr__(self, "b", self.b + 1)


@case()
def dataclass_features():
    i = Item("x", tags=["t"])
    j = dataclasses.replace(i, price=5.0)
    out = [i, j == i, i == Item("x", 1.0, ["t"]), repr(j), j.total(), dataclasses.asdict(j), dataclasses.astuple(i)]
    out += [[f.name for f in dataclasses.fields(Item)], dataclasses.is_dataclass(i), Item("n").tags]
    f = Frozen(1)
    out += [f, f < Frozen(1, 5), sorted([Frozen(3), f]), hash(f) == hash(Frozen(1)), {f: 1}[Frozen(1)]]
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as e:
        out.append(str(e))
    return out


@case()
def dataclass_error():
    return Item()


@case()
def dataclass_local():
    @dataclasses.dataclass
    class P:
        x: int
        y: int = 3

        def s(self):
            return self.x + self.y

    return P(1).s(), repr(P(2, 4)), P(1) == P(1, 3), dataclasses.asdict(P(5))


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    ALIAS = 1

    @property
    def pretty(self):
        return self.name.lower()

    def method(self):
        return self.value * 10


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Perm(enum.Flag):
    R = 1
    W = 2


@case()
def enums():
    return (
        Color.RED is Color(1), Color["GREEN"].value, [c.name for c in Color], Color.RED.pretty, Color.GREEN.method(), Color.ALIAS.name,
        Color.RED == 1, Level.HIGH > Level.LOW, Level.HIGH + 1, len(Color), Color.RED in Color, {Color.RED: "r"}[Color(1)], str(Color.RED),
        repr(Color.GREEN), f"{Level.LOW}", (Perm.R | Perm.W).value, Perm.R in (Perm.R | Perm.W), isinstance(Level.LOW, int), Level(5).name,
        sorted([Level.HIGH, Level.LOW])[0].name, list(Color.__members__), hash(Color.RED) == hash(Color.ALIAS), Color.RED != Color.GREEN,
    )  # fmt: skip


@case()
def enum_bad():
    return Color(9)


@case()
def enum_local():
    class Animal(enum.Enum):
        CAT = "c"
        DOG = enum.auto()

        def speak(self):
            return self.name

    return Animal.CAT.value, Animal("c").speak(), [a.name for a in Animal]


Pair = collections.namedtuple("Pair", "left right", defaults=[5])


class Typed(typing.NamedTuple):
    a: int
    b: str = "x"

    def both(self):
        return (self.a, self.b)


@case()
def namedtuples():
    p = Pair(1)
    left, right = p
    return (
        p, p.left, p[1], p._replace(left=9), p._asdict(), Pair._fields, Pair._make([3, 4]), p == (1, 5), left + right, Typed(1).both(),
        Typed(2, b="q"), repr(p), hash(p) == hash((1, 5)), len(p), [*p], p + (1,), isinstance(p, tuple), Typed.__name__,
    )  # fmt: skip


@case()
def namedtuple_error():
    return Pair()


@case()
def namedtuple_local():
    P = collections.namedtuple("P", ["x", "y"])
    return P(1, y=2), P(3, 4).x
