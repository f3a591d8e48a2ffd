"""Small functions, one feature each: classes and descriptors."""
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
