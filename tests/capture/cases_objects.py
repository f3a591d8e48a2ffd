"""Small functions, one feature each: classes, descriptors, operators of user classes, containers, the standard library."""
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


# ---- classes ---------------------------------------------------------------------------------------------------------------


class Base:
    shared = []
    kind = "base"

    def __init__(self, x=0):
        self.x = x

    def method(self, y=1):
        return self.x + y

    @classmethod
    def make(cls, x):
        return cls(x)

    @staticmethod
    def double(x):
        return x * 2

    @property
    def prop(self):
        return self.x * 10

    @prop.setter
    def prop(self, v):
        self.x = v / 10

    @prop.deleter
    def prop(self):
        self.x = None


class Derived(Base):
    kind = "derived"

    def __init__(self, x, z):
        super().__init__(x)
        self.z = z

    def method(self, y=2):
        return super().method(y) * 100

    @classmethod
    def make(cls, x):
        return super().make(x)

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


@case()
def class_basics():
    b, d = Base(3), Derived(1, 2)
    b.prop = 50
    out = [
        b.method(),
        d.method(),
        b.prop,
        d.prop,
        Base.double(4),
        d.double(1),
        Base.make(9).x,
        d.dyn_abc,
        d.kind,
        Base.kind,
    ]
    del b.prop
    out.append(b.x)
    out.append(isinstance(d, Base) and not isinstance(b, Derived) and issubclass(Derived, Base))
    out.append(type(d).__name__ + type(d).__mro__[1].__name__)
    m = d.method
    out.append(m(5))
    out.append(Base.method(d, 3))
    out.append(m.__func__ is Derived.method and m.__self__ is d)
    return out


@case()
def attribute_missing():
    return Base().nothing


@case()
def attribute_missing_hook():
    return Derived(1, 2).nothing


@case()
def class_attribute_missing():
    return Base.nothing


@case()
def property_readonly():
    class C:
        @property
        def p(self):
            return 1

    c = C()
    assert c.p == 1
    c.p = 2


@case()
def property_no_delete():
    class C:
        @property
        def p(self):
            return 1

    del C().p


@case()
def property_raises_attribute_error():
    class C:
        @property
        def p(self):
            return self.q

        def __getattr__(self, name):
            return f"hook:{name}"

    return C().p, C().r, hasattr(C(), "z"), getattr(C(), "q", 5)


@case()
def instance_dict():
    b = Base(1)
    b.y = 2
    d = b.__dict__
    d["w"] = 3
    vars(b)["v"] = 4
    del b.x
    return b.__dict__, b.w, b.v, hasattr(b, "x"), b.__class__ is Base


@breaks("native object from outside")
def namespace_of_a_class():
    return sorted(vars(Base))[:2]


@case()
def setattr_forms():
    b = Base(1)
    setattr(b, "n", 5)
    name = "m"
    setattr(b, name, getattr(b, "n") + 1)
    delattr(b, "n")
    return b.m, hasattr(b, "n"), getattr(b, "n", "default")


@case()
def delattr_missing():
    b = Base(1)
    del b.nothing


@case()
def slots():
    class S:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1

    s = S()
    out = [s.a, hasattr(s, "b"), hasattr(s, "__dict__")]
    s.b = 2
    out.append(s.b)
    del s.a
    try:
        s.a
    except AttributeError as e:
        out.append(str(e))
    try:
        s.c = 1
    except AttributeError as e:
        out.append(type(e).__name__)
    return out


@case()
def local_class():
    base = 5

    class Local(Base):
        attr = base + 1
        table = {k: k * 2 for k in range(3)}

        def get(self):
            return self.attr, base, __class__.__name__

        class Inner:
            z = 3

    return (
        Local(1).get(),
        Local.table,
        Local.Inner.z,
        Local.__name__,
        Local.__qualname__,
        Local.method(Local(4)),
        Local.__bases__,
    )


@case()
def metaclasses():
    log = []

    class Meta(type):
        def __new__(mcls, name, bases, ns, **kw):
            log.append(("new", name, kw, sorted(k for k in ns if not k.startswith("__"))))
            return super().__new__(mcls, name, bases, ns)

        def __init__(cls, name, bases, ns, **kw):
            log.append(("init", name))
            super().__init__(name, bases, ns)

        @classmethod
        def __prepare__(mcls, name, bases, **kw):
            log.append(("prepare", name))
            return {"prepared": 1}

        def __call__(cls, *a):
            log.append(("call", a))
            return super().__call__(*a)

        def __getattr__(cls, name):
            return f"meta:{name}"

        def __len__(cls):
            return 7

        @property
        def title(cls):
            return cls.__name__.upper()

        def __instancecheck__(cls, other):
            return other == 5

    class A(metaclass=Meta, flag=True):
        x = 1

        def __init__(self, v=0):
            self.v = v

    class B(A):
        pass

    return log, A(3).v, A.missing, len(A), A.title, A.prepared, isinstance(5, A), isinstance(6, B), type(B) is Meta


@case()
def init_subclass_and_set_name():
    log = []

    class Field:
        def __set_name__(self, owner, name):
            log.append((owner.__name__, name))
            self.name = "_" + name

        def __get__(self, obj, cls=None):
            return self if obj is None else getattr(obj, self.name, None)

        def __set__(self, obj, value):
            setattr(obj, self.name, value * 2)

        def __delete__(self, obj):
            delattr(obj, self.name)

    class Root:
        def __init_subclass__(cls, tag=None, **kw):
            super().__init_subclass__(**kw)
            log.append(("sub", cls.__name__, tag))

    class Model(Root, tag="t"):
        a = Field()
        b = Field()

    m = Model()
    m.a = 4
    before = m.a
    del m.a
    return log, before, m.a, m.b, isinstance(Model.a, Field), m.__dict__


@case()
def non_data_descriptor():
    class D:
        def __get__(self, obj, cls):
            return "descriptor"

    class C:
        d = D()

    c = C()
    first = c.d
    c.__dict__["d"] = "instance"
    return first, c.d, C.d


@case()
def getattribute_override():
    log = []

    class C:
        x = 1

        def __getattribute__(self, name):
            log.append(name)
            return super().__getattribute__(name)

        def __setattr__(self, name, value):
            log.append(("set", name))
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(("del", name))
            super().__delattr__(name)

    c = C()
    c.y = c.x + 1
    z = c.y
    del c.y
    return log, z


@case()
def super_forms():
    class A:
        def f(self):
            return ["A"]

        @property
        def p(self):
            return "pA"

        @classmethod
        def c(cls):
            return "cA" + cls.__name__

        @staticmethod
        def s():
            return "sA"

    class B(A):
        def f(self):
            return ["B"] + super().f()

    class C(A):
        def f(self):
            return ["C"] + super().f()

        @property
        def p(self):
            return "pC" + super().p

    class D(B, C):
        def f(self):
            return ["D"] + super(D, self).f()

        @classmethod
        def c(cls):
            return "d" + super().c()

        def s2(self):
            return super().s()

        def miss(self):
            return super().nothing

        def captured(self):
            def inner():
                return self.s2()

            return super().f(), inner()

    d = D()
    try:
        d.miss()
    except AttributeError as e:
        text = str(e)
    return d.f(), d.p, D.c(), d.s2(), text, d.captured()


@case()
def super_errors():
    def f():
        super()

    f()


@case()
def new_and_init():
    log = []

    class Singleton:
        instance = None

        def __new__(cls, *a):
            log.append("new")
            if cls.instance is None:
                cls.instance = super().__new__(cls)
            return cls.instance

        def __init__(self, *a):
            log.append(("init", a))

    class Other:
        def __new__(cls):
            return 5

        def __init__(self):
            log.append("never")

    return Singleton(1) is Singleton(2), log, Other()


@case()
def init_returns():
    class C:
        def __init__(self):
            return 1

    C()


@case()
def init_too_many():
    class C:
        pass

    C(1)


@case()
def init_missing():
    class C:
        def __init__(self, a, b):
            pass

    C(1)


@case()
def abstract():
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self):
            "x"

    class B(A):
        def f(self):
            return 1

    ok = B().f(), isinstance(B(), A)
    try:
        A()
    except TypeError as e:
        return ok, str(e)[:40]


@case()
def callable_instance():
    class C:
        def __init__(self, n):
            self.n = n

        def __call__(self, a, *, b=1):
            return self.n + a + b

    return C(1)(2), C(1)(2, b=5), list(map(C(10), [1, 2])), callable(C(1))


@case()
def builtin_subclasses():
    class L(list):
        def __getitem__(self, i):
            return ("item", super().__getitem__(i))

        def total(self):
            return sum(self)

    class D(dict):
        def __missing__(self, key):
            self[key] = key * 2
            return self[key]

    class S(str):
        def shout(self):
            return self.upper() + "!"

    class I(int):
        def __add__(self, other):
            return I(int(self) + int(other) + 100)

        def __repr__(self):
            return f"I({int(self)})"

    class T(tuple):
        def __new__(cls, *items):
            return super().__new__(cls, items)

    ls = L([1, 2, 3])
    ls.append(4)
    d = D(a=1)
    return (
        ls[0], ls.total(), len(ls), list(ls), d["a"], d["zz"], dict(d), S("hi").shout(), S("hi") + "x", repr(I(5) + 1), I(3) * 2,
        T(1, 2), type(T(1)).__name__, ls[1:], L(x for x in range(2)), isinstance(ls, list), ls == [1, 2, 3, 4],
    )  # fmt: skip


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


# ---- containers --------------------------------------------------------------------------------------------------------------------------


@case()
def list_methods():
    a = [3, 1, 2]
    b = a.copy()
    a.append(4)
    a.extend(x for x in (5, 6))
    a.insert(0, 9)
    p = a.pop(), a.pop(0)
    a.remove(3)
    a.reverse()
    a.sort(key=lambda v: -v)
    c = a.index(4), a.count(1)
    a.sort()
    del a[0]
    a += (7,)
    a.clear()
    return a, b, p, c, [1, 2] * 2, [1] + [2], [[0] * 2 for _ in range(2)], list("abc"), [1, 2] < [1, 3], [] or [1]


@case()
def list_sort_error():
    a = [2, "x", 1]
    a.sort()


@case()
def sort_stability():
    data = [("b", 2), ("a", 2), ("c", 1)]
    data.sort(key=lambda t: t[1])
    other = sorted(data, key=operator.itemgetter(1, 0), reverse=True)
    return data, other, sorted("bca", key=str.upper), sorted({3: 1, 1: 2}), sorted([3, 1], key=lambda x: -x)


@case()
def dict_methods():
    d = {"a": 1, "b": 2}
    d["c"] = 3
    d.update({"d": 4}, e=5)
    d.update([("f", 6)])
    d |= {"g": 7}
    p = d.pop("a"), d.pop("zz", None), d.popitem(), d.setdefault("h", []), d.setdefault("b", 9)
    d["h"].append(1)
    keys, values, items = list(d.keys()), list(d.values()), list(d.items())
    e = {k: v for k, v in d.items() if isinstance(v, int)}
    del d["b"]
    return (
        d, p, keys, values, items, e, d.get("c"), d.get("q", 5), "c" in d, len(d), list(reversed(d)), dict(d) == d, d | {"x": 1},
        {"a", "c"} & d.keys(), d.keys() - {"c"}, dict.fromkeys(["x", "y"]), {**d, "c": 0}, d.copy() is d, sorted(d.items(), key=str),
    )  # fmt: skip


@case()
def dict_iteration_change():
    d = {1: 2}
    for k in d:
        d[k + 1] = 3


@case()
def set_methods():
    s = {1, 2, 3}
    s.add(4)
    s.discard(9)
    s.remove(1)
    t = frozenset([2, 9])
    u = s | t
    s &= {2, 3, 4}
    s -= {3}
    s ^= {7}
    return (
        s,
        u,
        t & {2},
        s <= u,
        t.isdisjoint(s),
        s.union([1], (5,)),
        set("aab"),
        len(u),
        sorted(u),
        {1} < {1, 2},
        2 in s,
        s.copy() == s,
    )


@case()
def tuple_and_str():
    t = (1, 2, 2)
    return (
        t.count(2), t.index(2), t + (3,), t * 2, t[1:], "a-b".split("-"), "x".join(["1", "2"]), " s ".strip(), "abc".find("c"), "aXb".lower(),
        "abc".startswith(("x", "a")), "a,b".partition(","), "Abc".swapcase(), "abc".center(7, "*"), "%s-%d" % ("a", 3), "abc"[::-1], "é".encode(),
        b"ab".decode(), "a\nb".splitlines(), "abc".translate({97: "z"}), "12".isdigit(), "a".ljust(3) + "|", "{:>5}|{:<5}|{:^5}".format(1, 2, 3),
        f"{'x':*^5}{3.14159:.3f}{255:#x}{1e10:,.0f}{True}", f"{1}{'a'!r}{[1]!s}", "abc".removeprefix("a"), "a" < "b", max("hello"),
    )  # fmt: skip


@case()
def collections_types():
    dq = collections.deque([1, 2, 3], maxlen=3)
    dq.append(4)
    dq.appendleft(0)
    dq.rotate(1)
    dd = collections.defaultdict(list)
    dd["a"].append(1)
    dl = collections.defaultdict(lambda: "made")
    _ = dl["x"], dl.get("y")
    od = collections.OrderedDict(a=1, b=2)
    od.move_to_end("a")
    od["c"] = 3
    c = collections.Counter("abca")
    c.update("aa")
    c["z"] += 1
    cm = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return (
        list(dq), dq.popleft(), len(dq), dict(dd), dict(dl), list(od), od.popitem(last=False), dict(od), c.most_common(1), dict(c), c["none"],
        sum(c.values()), cm["a"], cm["b"], dict(cm), collections.Counter(a=1) + collections.Counter(a=2), dq == collections.deque([0]), list(c.elements())[:2],
    )  # fmt: skip


@case()
def user_collections():
    class UD(collections.UserDict):
        def __setitem__(self, k, v):
            super().__setitem__(k.upper(), v)

    class UL(collections.UserList):
        pass

    class Mapping(collections.abc.Mapping):
        def __getitem__(self, k):
            if k == "a":
                return 1
            raise KeyError(k)

        def __iter__(self):
            return iter(["a"])

        def __len__(self):
            return 1

    u = UD(a=1)
    u["b"] = 2
    m = Mapping()
    return (
        dict(u),
        list(UL([1]) + [2]),
        m.get("a"),
        m.get("z", 5),
        "a" in m,
        dict(m),
        {**m},
        list(m.items()),
        m == {"a": 1},
        (lambda **k: k)(**m),
    )


@case()
def abc_checks():
    return (
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance((x for x in ()), collections.abc.Iterator),
        isinstance(5, (int, str)), isinstance(5, int | str), isinstance(len, collections.abc.Callable), issubclass(dict, collections.abc.MutableMapping),
        isinstance(1.0, typing.SupportsFloat), isinstance("a", collections.abc.Hashable), isinstance(True, int), isinstance(None, type(None)),
    )  # fmt: skip


# ---- standard library ------------------------------------------------------------------------------------------------------------------------


@case()
def itertools_functions():
    it = itertools
    return (
        list(it.chain([1], (2,))), list(it.chain.from_iterable([[1], [2, 3]])), list(it.islice(it.count(2, 3), 3)), list(it.accumulate([1, 2, 3])),
        list(it.accumulate([1, 2, 3], lambda a, b: a * b)), list(it.product("ab", repeat=2))[:3], list(it.permutations([1, 2, 3], 2))[:2],
        list(it.combinations("abc", 2)), [(k, list(g)) for k, g in it.groupby([1, 1, 2], key=lambda x: x % 2)], list(it.takewhile(lambda x: x < 3, [1, 2, 5])),
        list(it.dropwhile(lambda x: x < 3, [1, 5, 1])), list(it.starmap(pow, [(2, 3)])), list(it.zip_longest([1], [2, 3], fillvalue=0)),
        list(it.compress("abc", [1, 0, 1])), list(it.filterfalse(None, [0, 1])), list(it.pairwise([1, 2, 3])), list(it.repeat(1, 2)), [list(t) for t in it.tee([1, 2])],
        list(it.islice(it.cycle("ab"), 3)),
    )  # fmt: skip


@case()
def operator_functions():
    class O:
        x = 1

        def m(self, a, b=2):
            return a, b

    return (
        operator.add(1, 2), operator.itemgetter(1)([1, 2]), operator.itemgetter("a", "b")({"a": 1, "b": 2}), operator.attrgetter("x")(O()),
        operator.attrgetter("x.real")(O()), operator.methodcaller("m", 1, b=3)(O()), operator.mul([1], 2), operator.not_(1), operator.truth([]),
        operator.contains([1], 1), operator.iadd([1], [2]), operator.neg(5), operator.getitem({"a": 1}, "a"), operator.lt(1, 2), operator.is_(None, None),
    )  # fmt: skip


@case()
def math_functions():
    return (
        math.sqrt(16), math.floor(2.5), math.ceil(2.1), math.prod([2, 3]), math.gcd(12, 8), math.isclose(0.1 + 0.2, 0.3), math.inf > 1,
        math.log2(8), math.hypot(3, 4), math.comb(5, 2), math.fsum([0.1] * 10), round(math.pi, 3), math.copysign(1, -2), math.isnan(float("nan")),
    )  # fmt: skip


@case()
def math_error():
    return math.sqrt(-1)


@case()
def regex():
    m = re.match(r"(\w+)-(?P<n>\d+)", "abc-12")
    return (
        m.group(1), m["n"], m.groups(), m.groupdict(), re.sub(r"\d", "#", "a1b2"), re.sub(r"\d", lambda g: str(int(g.group()) * 2), "a1b2"),
        re.findall("a.", "abac"), re.split(",", "a,b"), re.compile("x").search("axb").span(), [g.start() for g in re.finditer("a", "aba")],
        re.match("z", "a"), bool(re.fullmatch("a+", "aaa")),
    )  # fmt: skip


@case()
def copies():
    a = {"k": [1, {"z": 2}], "t": (1, [2])}
    b, c = copy.copy(a), copy.deepcopy(a)
    i = Item("x", 2.0, ["t"])
    j, k = copy.copy(i), copy.deepcopy(i)
    shared = [[]] * 2
    d = copy.deepcopy(shared)
    return (
        b["k"] is a["k"],
        c == a,
        c["k"] is a["k"],
        j == i,
        j.tags is i.tags,
        k.tags is i.tags,
        d[0] is d[1],
        copy.copy([1]),
        copy.deepcopy(Color.RED) is Color.RED,
    )


@case()
def types_module():
    ns = types.SimpleNamespace(a=1)
    ns.b = 2
    m = types.MappingProxyType({"x": 1})
    f = types.MethodType(lambda self, y: (self, y), 5)
    return ns.a, ns.b, ns, m["x"], dict(m), f(3), types.SimpleNamespace(a=1, b=2) == ns


@case()
def cached_property():
    log = []

    class C:
        @functools.cached_property
        def v(self):
            log.append(1)
            return 5

    c = C()
    return c.v, c.v, log, c.__dict__


@case()
def total_ordering_and_wraps():
    @functools.total_ordering
    class T:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    return (
        T(1) <= T(2),
        T(3) > T(2),
        T(1) >= T(1),
        [t.v for t in sorted([T(2), T(1)])],
        max([T(1), T(5)]).v,
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
    )


@case()
def partialmethod_and_cache_methods():
    class C:
        def f(self, a, b):
            return a, b

        g = functools.partialmethod(f, 1)

        @functools.lru_cache
        def h(self, x):
            return [x]

    c = C()
    return c.g(2), c.h(1) is c.h(1)


@breaks("Python object used by native code")
def typing_generic_class():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

    return Box[int](5).v


@case()
def typing_generics():
    x: typing.Optional[int] = 3
    return (
        list[int]([1]),
        dict[str, int](a=1),
        typing.cast(int, "x"),
        x,
        typing.List[int] == typing.List[int],
    )


@case()
def imports_inside():
    import math as m
    from math import floor, pi as p
    import os.path
    import collections.abc as cabc

    return m.sqrt(4), floor(2.5), round(p, 2), os.path.join("a", "b"), cabc.Sized.__name__


@case()
def import_missing():
    import no_such_module_xyz


@case()
def import_missing_name():
    from math import nothing_here


@case()
def locals_globals():
    a = 1
    b = [2]
    return sorted(locals()), globals()["__name__"] == __name__, "CASES" in globals(), vars() == locals()


@case()
def numbers():
    return (
        7 // 2, -7 // 2, 7 % -3, 2**10, 2**-1, 1 / 3, 0.1 + 0.2, 1e3, 10**20, int("12"), float("1.5"), round(2.5), round(3.5), round(1.25, 1), 5 & 3, 5 | 3,
        5 ^ 3, ~5, 1 << 4, -8 >> 1, abs(-3), divmod(7, 3), 3 + 4j, (1 + 2j).conjugate(), True + True, int(True), bool([]), 1_000, 0xFF, 0b11, (5).to_bytes(2, "big"),
        float("inf") > 1e308, 3 == 3.0, hash(1) == hash(1.0), 1 < 2 < 3, min(1, 2.0), max([1, 5, 3]), sum([0.1] * 3), pow(2, 5, 7), -(2**2), complex(1, 2),
    )  # fmt: skip
