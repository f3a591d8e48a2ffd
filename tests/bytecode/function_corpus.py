"""Functions that between them use every construct whose bytecode is delicate, each with arguments to call it with.

`CASES` holds (function, list of argument tuples). A function may raise: results and exceptions are both compared. Each
call gets fresh arguments, because `arguments` are deep-copied by `outcome`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

CASES: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = []


def case(*calls: tuple[Any, ...]) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        CASES.append((fn, list(calls)))
        return fn

    return add


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """("value", result and arguments after the call) or ("raise", type, message, line), comparable by ==."""
    args = copy.deepcopy(args)
    try:
        return "value", plain(fn(*args)), args
    except Exception as error:
        tb = error.__traceback__
        while tb.tb_next is not None:
            tb = tb.tb_next
        return "raise", type(error), str(error), tb.tb_lineno, args


def plain(value: Any) -> Any:
    """Call what can be called without arguments, so that closures compare by what they see."""
    if callable(value) and not isinstance(value, type):
        return "called", plain(value())
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


class Manager:
    def __init__(self, log: list[Any], swallow: bool = False) -> None:
        self.log = log
        self.swallow = swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow


def helper(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@case((1, 2), (5, -3))
def straight(a, b):
    x = a / (abs(a) + 1)
    if b < 0:
        b = b * -1
    return x * b


@case(([1, 2, 3],), ([],), ([3, "x"],))
def loop(items):
    total = 0
    for i, item in enumerate(items):
        if item == 2:
            continue
        total += item * i
    else:
        total += 1000
    return total


@case((5,), (0,), (40,))
def while_loop(n):
    out = []
    while n > 0:
        n -= 1
        if n % 3 == 0:
            continue
        if n == 17:
            break
        out.append(n)
    return out, n


@case((3,), (0,))
def nested_loops(n):
    out = {}
    for i in range(n):
        for j in range(i):
            out[i, j] = i - j
        row = [out.get((i, k), None) for k in range(n)]
        out[i] = row
    return out


@case(([],), ([1],), ([0],))
def with_block(log):
    with Manager(log) as m:
        log.append(1 / log[0] if log else "empty")
        m.log.append("inside")
    return log


@case(([0],), ([2],))
def with_swallow(log):
    x = 1
    with Manager(log, True), Manager(log):
        x = 10 // log[0]
        log.append(x)
    return x, log


@case((0, []), (1, []), ("x", []), (None, []))
def try_all(x, log):
    try:
        y = 10 / x
        log.append(y)
    except ZeroDivisionError as error:
        log.append(str(error))
        y = -1
    except TypeError:
        log.append("type")
        raise
    else:
        log.append("else")
    finally:
        log.append("finally")
    return y, log


@case((0,), (1,))
def try_return(x):
    out = []
    for i in range(3):
        try:
            if i == x:
                return out
            out.append(1 / i)
        except ZeroDivisionError:
            out.append("zero")
            continue
        finally:
            out.append(i)
    return out, "end"


@case((0,), (2,))
def nested_try(x):
    log = []
    try:
        try:
            log.append(1 / x)
            raise ValueError("inner")
        finally:
            log.append("f1")
            try:
                log.append({}[x])
            except KeyError as e:
                log.append(e.args)
    except (ValueError, ArithmeticError) as e:
        log.append(type(e).__name__)
        try:
            raise RuntimeError("again") from e
        except RuntimeError as r:
            log.append(r.__cause__ is e)
    return log


@case((3,))
def closure_counter(n):
    count = 0

    def bump(by):
        nonlocal count
        count += by
        return count

    seen = [bump(i) for i in range(n)]
    count += 100
    return seen, bump(1), count, lambda: count


@case(([1, 2, 3],))
def argument_cell(items):
    scale = 2
    fns = []
    for item in items:
        fns.append(lambda item=item: item * scale + len(items))
    scale = 3
    items = items + [0]
    return fns, [f() for f in fns]


@case((4,))
def comprehensions(n):
    a = [x * x for x in range(n) if x % 2]
    b = {x: y for x, y in zip(a, range(n))}
    c = {x + n for x in a}
    d = sum(x for x in a)
    e = [[x + y for x in range(y)] for y in range(n)]
    return a, b, c, d, e


@case(([1, 2],))
def comprehension_cells(y):
    a = [(lambda: i) for i in y]
    b = [i + 1 for i in y]
    return a, b


@case(([1, 2], 7))
def comprehension_over_cell(y, i):
    g = lambda: i
    a = [i for i in y]
    i = i + 1
    return g, (lambda: i), a


@case(([[1, 2], [3]], 9), ([], 1))
def comprehension_nest(y, x):
    a = [[x for x in x] + [(lambda: x) for x in x] for x in y]
    b = {x: [x for x in range(2) if x] for x in range(3)}
    return a, b, (lambda: x), x


def _free_variable() -> Any:
    x = 1

    @case(([5, 6],))
    def comprehension_over_free(y):
        a = [x for x in y]
        return a, x, (lambda: x)

    return comprehension_over_free


_free_variable()


@case((1, 2))
def calls(a, b):
    r = helper(a, helper(b, k=a), key=helper(), other=b)
    s = helper(*[a, b], z=r)
    t = f"{a}-{b}"
    u = helper(a if b else b, [a, b][0], *(a,), q=1)
    return r, s, t, u


@case((1,), (1, 2), (1, 2, 3))
def defaults(a, b=5, *args, c=7, **kwargs):
    kwargs["c"] = c
    return [a, b, *args, kwargs, {**kwargs, "d": a}]


@case((None,), (0,), (1,), ("s",))
def logic(x):
    a = x or "empty"
    b = x and "full"
    c = x is None
    d = not x if x is not None else x in (1, 2)
    e = 0 < (x if isinstance(x, int) else 1) <= 5 != 3
    return a, b, c, d, e, f"{x!r:>5}" + f"{a}"


@case(([1, 2, 3, 4],), ([1],), ([],))
def unpacking(items):
    first, *middle, last = items
    a, b = first, last
    (c, d), e = (a, b), middle
    items[0], items[-1] = d, c
    items[1:2] = e
    del items[0]
    return a, b, c, d, e, items[::2]


@case(({"k": 1},), ([1, 2, 3],), ((1, 2),), ("text",), (5,))
def matching(x):
    match x:
        case {"k": v, **rest}:
            return v, rest
        case [a, b, *c]:
            return a, b, c
        case str() as s:
            return s
        case int(real=r):
            return r
    return None


@case((1,), (-1,), (None,))
def unbound(x):
    if x is not None and x > 0:
        y = x
    del x
    return y


@case((0,), (1,))
def assertion(x):
    assert x, "no"
    z: int = x
    return z


class Base:
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def value(self) -> Any:
        return "base"


class Derived(Base):
    def value(self, flag: bool = False) -> Any:
        first = super().value()
        s = super()
        second = super(Derived, self).value()  # noqa: UP008
        if flag:
            self = None
        return first, s.value(), second

    def cell(self) -> Any:
        f = lambda: self
        a = super().value()
        s = super()
        return a, s.value(), f() is self


@case((Derived(),), (Derived(), True))
def bound_super(obj, *flags):
    return Derived.value(obj, *flags)


SUPER_CASES = [(Derived.value, [(), (True,)]), (Derived.cell, [()])]


@case((3,))
def import_and_global(n):
    global _written
    import math as m
    from os.path import basename, join

    _written = m.floor(n + 0.5)
    result = basename(join("a", str(_written)))
    del _written
    return result


@case((2,))
def generator_user(n):
    def gen(k):
        try:
            for i in range(k):
                got = yield i
                if got:
                    yield got
        finally:
            yield "end"

    g = gen(n)
    out = [next(g), g.send("sent")]
    out.extend(g)
    return out


@case((3,))
def many_locals(n):
    a = b = c = d = e = f = g = h = i = j = k = l = m = o = p = q = r = s = n
    a, b = b + 1, a + 2
    t = a + b + c + d + e + f + g + h + i + j + k + l + m + o + p + q + r + s
    q, r = r, t
    return q + r + t, [s + q for q in range(r % 3)]


@case((3,))
def constants(n):
    return [0, 0.0, -0.0, False, 0j, -0j, (0, 0.0), (0.0, False), 1, True, 1.0, "1", b"1", ..., None, {0, 1}, n]


def _bubble() -> Any:
    @case(([3, 1, 2],))
    def star_expressions(items):
        def inner(*a, **k):
            return a, sorted(k.items())

        out = [*items, *range(2)]
        pair = inner(*items, 1, *out, x=1, y=2, z=3)
        return pair, {*items, 9}, {"a": 1, "b": 2}

    return star_expressions


_bubble()


@case((1,), (0,), ("a",))
def exception_group(x):
    log = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError(x), TypeError("t")] if x else [KeyError("k")])
        except* ValueError as e:
            log.append([str(i) for i in e.exceptions])
        except* KeyError:
            log.append("key")
    except ExceptionGroup as rest:
        log.append(len(rest.exceptions))
    return log
