"""Small functions, one feature each: containers, the standard library."""
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
import sys
import types
import typing

from .interpret import Cases

TABLE = Cases()
case, breaks = TABLE.case, TABLE.breaks


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


# Before 3.13, typing makes the object in a way that native code sees.
@(case() if sys.version_info >= (3, 13) else breaks("Python object used by native code"))
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
