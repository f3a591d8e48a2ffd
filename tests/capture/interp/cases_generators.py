"""Small functions, one feature each: generators, matching."""
# ruff: noqa: E501, E742, F821, F841, I001, UP, PIE, RUF, C4 - the odd spellings are what is tested

import contextlib
import functools

from .interpret import Cases

TABLE = Cases()
case, breaks = TABLE.case, TABLE.breaks
COUNTER = 0


# ---- generators ------------------------------------------------------------------------------------------------------------------


@case()
def generator_basics():
    def count(n):
        i = 0
        while i < n:
            got = yield i
            if got:
                i = got
            else:
                i += 1
        return "end"

    g = count(5)
    out = [next(g), g.send(3), next(g)]
    out.append(list(g))
    return out, list(count(3)), sum(count(4)), tuple(count(2)), [*count(2)], max(count(5)), dict(zip(count(2), "ab"))


@case()
def yield_from():
    def inner():
        x = yield 1
        y = yield x
        return y

    def outer():
        r = yield from inner()
        yield ("r", r)
        yield from [10, 20]
        z = yield from (i for i in range(2))
        yield z

    g = outer()
    return [next(g), g.send("x"), g.send("y"), next(g), next(g), next(g), next(g), next(g)], list(g)


@case()
def generator_throw():
    log = []

    def g():
        try:
            yield 1
        except ValueError as e:
            log.append(str(e))
            yield "recovered"
        finally:
            log.append("finally")

    it = g()
    next(it)
    log.append(it.throw(ValueError("boo")))
    try:
        next(it)
    except StopIteration:
        log.append("stop")
    return log


@case()
def generator_throw_through():
    log = []

    def inner():
        try:
            yield 1
        except KeyError as e:
            log.append(("inner", str(e)))
            yield 2
            return "rv"

    def outer():
        try:
            r = yield from inner()
            log.append(r)
            yield 3
        except ValueError as e:
            log.append(("outer", str(e)))
            yield 4

    it = outer()
    log.append(next(it))
    log.append(it.throw(KeyError("k")))
    log.append(next(it))
    log.append(it.throw(ValueError, ValueError("v")))
    return log, list(it)


@case()
def generator_throw_delegate_returns():
    def inner():
        try:
            yield 1
        except KeyError:
            return "returned"

    def outer():
        r = yield from inner()
        yield r

    it = outer()
    next(it)
    return it.throw(KeyError), list(it)


@case()
def generator_close():
    log = []

    def g():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("fin")

    it = g()
    next(it)
    it.close()
    it.close()
    unstarted = g()
    unstarted.close()
    return log, list(it), list(unstarted)


@breaks("generator held by a traceback")
def generator_close_ignored():
    def g():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    it = g()
    next(it)
    it.close()


@case()
def generator_stop_iteration_inside():
    def g():
        yield 1
        raise StopIteration("x")

    return list(g())


@case()
def generator_errors():
    def g():
        yield 1

    it = g()
    try:
        it.send(5)
    except TypeError as e:
        msg = str(e)
    next(it)
    try:
        next(it)
    except StopIteration as e:
        value = e.value
    return msg, value, next(it, "default")


@case()
def generator_reentrant():
    def g():
        yield next(it)

    it = g()
    next(it)


@case()
def generator_exception_context():
    def g():
        try:
            yield 1
        except ValueError:
            raise TypeError("t")

    it = g()
    next(it)
    try:
        raise KeyError("outer")
    except KeyError:
        it.throw(ValueError("v"))


@case()
def generator_exc_state():
    import sys

    def g():
        try:
            raise ValueError("in gen")
        except ValueError:
            yield str(sys.exc_info()[1])
            yield str(sys.exc_info()[1])

    it = g()
    out = [next(it), str(sys.exc_info()[1])]
    try:
        raise KeyError("outside")
    except KeyError:
        out.append(next(it))
        out.append(str(sys.exc_info()[1]))
    return out


@case()
def generator_expressions():
    n = 3
    g = (i * n for i in range(4) if i)
    n = 10
    return list(g), any(i > 2 for i in range(5)), all(i for i in [1, 0, 1]), sorted((x for x in "cab"), reverse=True)


@case()
def generator_lazy_any():
    seen = []

    def g():
        for i in range(5):
            seen.append(i)
            yield i

    return any(i > 1 for i in g()), seen, next(i for i in g() if i > 0), seen


@case()
def generator_in_natives():
    def g():
        yield from [3, 1, 2]

    return (
        sorted(g()),
        list(enumerate(g(), 5)),
        list(map(str, g())),
        list(filter(lambda v: v > 1, g())),
        set(g()),
        "".join(str(i) for i in g()),
        dict((i, i) for i in g()),
        2 in g(),
        list(zip(g(), g())),
        min(g()),
        list(reversed(list(g()))),
    )


@case()
def generator_raises_in_native():
    def g():
        yield 1
        raise KeyError("from generator")

    try:
        list(g())
    except KeyError as e:
        first = str(e)
    return first, sum(g())


@case()
def generator_attributes():
    def named():
        yield 1

    g = named()
    import types

    return g.__name__, g.__qualname__, isinstance(g, types.GeneratorType), type(g).__name__, iter(g) is g, g.gi_running


@case()
def generator_with_finally_break():
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    it = g()
    for v in it:
        break
    it.close()
    return log


@case()
def infinite_generator():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    import itertools

    return list(itertools.islice(naturals(), 4)), list(zip(naturals(), "abc"))


# ---- match ---------------------------------------------------------------------------------------------------------------------------


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@case(1)
@case("two")
@case([1, 2, 3])
@case([1])
@case((1, 2))
@case({"a": 1, "b": 2})
@case({"a": {"n": [5]}})
@case(None)
@case(3.5)
@case(True)
@case(-7)
@case("abc")
@case([])
@case({})
def match_everything(v):
    match v:
        case True | False:
            return "bool"
        case 1 | -7:
            return "one"
        case int(n) if n > 5:
            return ("big", n)
        case str() as s if len(s) == 3:
            return ("s", s)
        case "two":
            return 2
        case []:
            return "empty"
        case [x]:
            return ("single", x)
        case [x, y]:
            return ("pair", x, y)
        case [first, *rest]:
            return ("list", first, rest)
        case {"a": {"n": [inner]}}:
            return ("deep", inner)
        case {"a": a, **others}:
            return ("map", a, others)
        case None:
            return "none"
        case float(f):
            return f
        case _:
            return "other"


@case()
def match_classes():
    out = []
    for v in (Point(0, 0), Point(0, 5), Point(3, 4), Point(1, 1), 5):
        match v:
            case Point(0, 0):
                out.append("origin")
            case Point(x=0, y=y):
                out.append(("y", y))
            case Point(x, y) if x == y:
                out.append(("diag", x))
            case Point(x, y):
                out.append((x, y))
            case _:
                out.append("?")
    return out


@case()
def match_too_many():
    match Point(1, 2):
        case Point(1, 2, 3):
            return 1


@case()
def match_keys_duplicate_attr():
    match Point(1, 2):
        case Point(1, x=2):
            return 1
